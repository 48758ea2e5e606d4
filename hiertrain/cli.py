"""The command line: puts the commands together and turns every error into one line and an exit code.

Exit codes: 0 done, 2 bad input, 3 no plan fits, 4 a run failed, 130 interrupted.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

# One BLAS thread per process: the executor has a process per Hogwild thread. Must be said before NumPy is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import typer

from hiertrain import __version__
from hiertrain.commands import (
    bench,
    compare,
    convert,
    demo,
    explain,
    figure,
    presets,
    profile,
    report,
    run,
    simulate,
    solve,
    sweep,
)
from problem.errors import BadInput, HiertrainError

INTERRUPTED = 130

app = typer.Typer(
    name="hiertrain",
    help="Plan, simulate and run hierarchical training of recommendation models on CPU clusters.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something fails.")] = False,
) -> None:
    """Plan, simulate and run hierarchical training of recommendation models on CPU clusters."""
    del debug  # taken off the command line by main(), wherever it stands
    if version:
        print(f"hiertrain {__version__}")
        raise typer.Exit


DEBUG = "--debug"


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Have NumPy use the kernels that were measured fastest here; turn errors into one line on stderr and an exit code."""

    @functools.wraps(command)
    def run_command(*args: Any, **options: Any) -> None:
        try:
            from executor.coretype import settle  # not needed for --help

            settle()  # before the command loads NumPy
            command(*args, **options)
        except HiertrainError as error:
            _fail(error, error.exit_code)
        except KeyboardInterrupt as error:
            _fail(error, INTERRUPTED)
        except BrokenPipeError:  # the reader of our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:  # a file that cannot be read or written
            _fail(error, BadInput.exit_code)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
            _fail(error, 1, f"internal error, please report it with what {DEBUG} shows: {fault}")

    return run_command


def _fail(error: BaseException, code: int, message: str = "") -> NoReturn:
    if DEBUG in sys.argv:
        raise error
    message = message or str(error) or "interrupted"
    print(f"hiertrain: {' '.join(message.split())}", file=sys.stderr)
    raise SystemExit(code)


for module in (demo, profile, solve, simulate, run, compare, explain, report, sweep, figure, convert, presets, bench):
    app.command(module.__name__.rpartition(".")[2])(guarded(module.command))


def main() -> NoReturn:
    """Entry point of the ``hiertrain`` console script."""
    arguments = [argument for argument in sys.argv[1:] if argument != DEBUG]
    try:
        code = app(args=arguments or ["--help"], standalone_mode=False)
    except Exception as error:
        if not hasattr(error, "format_message"):  # what typer says of a command line, whatever class it has there
            raise
        _fail(error, BadInput.exit_code, usage_text(error))
    raise SystemExit(code)


def usage_text(error: Any) -> str:
    """Return in one line what is wrong with a command line: command, option, value and what is allowed.

    Parameters
    ----------
    error : ClickException
        As typer raises it.
    """
    message, about = error.format_message(), getattr(error, "ctx", None)
    command = about.info_name if about and about.parent else ""
    wrong = error.__cause__.errors() if hasattr(error.__cause__, "errors") else []  # typer checks values with pydantic
    if wrong and getattr(error, "param", None):
        value, allowed = wrong[0]["input"], wrong[0]["msg"].rstrip(".")
        for words in ("Input should be ", "Value error, ", f"{value!r} is not "):
            allowed = allowed.removeprefix(words)
        return str(BadInput(command, error.param.opts[-1], value, allowed))
    text = ": ".join(filter(None, (command, message.rstrip("."))))
    return f"{text} (see {' '.join(filter(None, ('hiertrain', command, '--help')))})"
