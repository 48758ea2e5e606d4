"""README and docs: examples run, commands parse, links lead somewhere.

What is checked in each page, block by block:

* ``python`` blocks are executed in order, in one namespace and an empty folder; a ``text`` block right behind one is what
  it prints, to the character.
* ``console`` blocks: each line after ``$ `` is a command; ``hiertrain`` commands and ``make`` targets must exist with
  their options. ``sh`` blocks: every line is a command.
* ``toml``, ``yaml``, ``json`` and ``csv`` blocks: a model, a cluster or a graph is read, anything else must parse.
  (The blocks of docs/inputs.md are read one by one in tests/problem/test_inputs_doc.py.)
* relative links and their anchors, and backticked paths of this repository, exist.

A block in a language that is not listed here fails, so that nothing is left out unseen.
"""

import contextlib
import csv
import io
import itertools
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
import yaml

from hiertrain.cli import app
from problem.cluster_io import load_cluster
from problem.readers import load_model

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.is_file()]
#: Programs that a page may call besides ours, whose options are not ours to check.
#: Programs that start the command behind their options.
LAUNCHERS = {"mpiexec", "srun"}
OTHER_PROGRAMS = {"awk", "uniq", "cat", "cd", "git", "head", "ls", "pip", "python", "python3", "python3.11"}
LANGUAGES = {"python", "text", "console", "sh", "toml", "yaml", "json", "csv", ""}


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line of its first line."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Fenced blocks of a page, in order."""
    found, lines = [], page.read_text().splitlines()
    inside: list[str] | None = None
    language, first = "", 0
    for number, line in enumerate(lines, start=1):
        if not line.startswith("```"):
            if inside is not None:
                inside.append(line)
        elif inside is None:
            language, inside, first = line.removeprefix("```").strip(), [], number + 1
        else:
            found.append(Block(language, "".join(f"{text}\n" for text in inside), first))
            inside = None
    assert inside is None, f"{page.name}:{first}: the block has no end"
    return found


def printed_behind(page: Path, block: Block) -> str | None:
    """Text of the ``text`` block that stands right behind a block (a blank line between them), if there is one."""
    lines = page.read_text().splitlines()
    after = block.line + block.text.count("\n") + 1  # number of the line behind the fence
    follows = [other for other in blocks(page) if other.line == after + 2 and other.language == "text"]
    return follows[0].text if follows and not lines[after - 1].strip() else None


def commands(page: Path) -> Iterator[tuple[int, list[str]]]:
    """Commands of a page as (line, words); continued lines joined, pipes and redirections taken apart."""
    for block in blocks(page):
        if block.language not in {"console", "sh"}:
            continue
        text = block.text.replace("\\\n", " ")
        prompted = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
        lines = prompted if block.language == "console" else text.splitlines()
        assert lines, f"{page.name}:{block.line}: a console block shows commands behind '$ '"
        for line in lines:
            yield from ((block.line, words) for words in _simple_commands(line))


def _simple_commands(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    redirected = False
    for token in [*lexer, ";"]:
        if set(token) <= set("|&;"):
            if words:
                yield words
            words = []
        elif set(token) <= set("<>"):
            redirected = True
        elif redirected:
            redirected = False
        else:
            words.append(token)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_of_a_known_kind(page):
    """No block escapes the checks by its language."""
    assert not [f"{page.name}:{b.line} {b.language}" for b in blocks(page) if b.language not in LANGUAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """Python examples run in the order of the page, and print what the page says."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    for block in (block for block in blocks(page) if block.language == "python"):
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")  # tracebacks show the page's lines
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(code, namespace)
        expected = printed_behind(page, block)
        if expected is not None:
            assert out.getvalue() == expected, f"{page.name}:{block.line} prints something else"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_parse(page):
    """Every ``hiertrain`` command line has a command, arguments and options that exist; every make target exists."""
    for line, words in commands(page):
        try:
            check_command(words)
        except Exception as error:
            pytest.fail(f"{page.name}:{line}: {shlex.join(words)}: {error}")


def check_command(words: list[str]) -> None:
    """Raise if a command of ours does not parse; nothing is run. Settings and launchers in front of it do not count."""
    words = list(itertools.dropwhile(lambda word: re.match(r"[A-Z_]+=", word), words))
    if words[0] in LAUNCHERS:
        words = list(itertools.dropwhile(lambda word: word not in {"hiertrain", *OTHER_PROGRAMS}, words))
    if words[:3] == ["python", "-m", "hiertrain"]:
        words = ["hiertrain", *words[3:]]
    program, *arguments = [word for word in words if word != "--debug"]  # may stand anywhere
    if program == "hiertrain":
        check_hiertrain(arguments)
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(arguments) <= set(targets), f"make has the targets {', '.join(targets)}"
    else:
        assert program in OTHER_PROGRAMS, "not a program that a page may call (see OTHER_PROGRAMS)"


def check_hiertrain(arguments: list[str]) -> None:
    """Parse the arguments of ``hiertrain`` as the command line would."""
    group = typer.main.get_command(app)
    names = getattr(group, "commands")  # noqa: B009 (Typer's own type of group)
    known = {option for parameter in group.params for option in parameter.opts} | {"--help"}
    while arguments and arguments[0].startswith("-"):
        assert arguments[0] in known, f"no such option: {arguments[0]}"
        arguments = arguments[1:]
    if arguments:
        name, *rest = arguments
        assert name in names, f"no such command: {name}"
        if "--help" not in rest:
            names[name].make_context(name, rest)


def test_every_command_and_option_is_documented():
    """The page on the command line has a section for every command, and names all its options in it."""
    page = (ROOT / "docs" / "cli.md").read_text()
    for name, command in getattr(typer.main.get_command(app), "commands").items():  # noqa: B009
        assert f"\n## {name}\n" in page, name
        section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        options = [parameter.opts[0] for parameter in command.params if parameter.opts[0].startswith("--")]
        assert not [option for option in options if f"`{option}`" not in section], name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_data_blocks_are_read(page, tmp_path):
    """Models, clusters and graphs on a page are read by the product; other data parses."""
    for block in blocks(page):
        if block.language in {"toml", "yaml", "json", "csv"}:
            path = tmp_path / f"example.{block.language}"
            path.write_text(block.text)
            try:
                read_example(path, block.text)
            except Exception as error:
                pytest.fail(f"{page.name}:{block.line}: {error}")


def read_example(path: Path, text: str) -> None:
    """Read an example as what it shows itself to be by its keys."""
    parsers = {".toml": tomllib.loads, ".yaml": yaml.safe_load, ".json": json.loads, ".csv": _csv_keys}
    keys = set(parsers[path.suffix](text))
    if "nodes" in keys and "maxFPGAs" not in keys:
        assert load_cluster(path).nodes
    elif keys & {"top_mlp", "operators", "maxFPGAs"} or {"rows", "name"} <= keys:
        assert len(load_model(str(path)).graph) > 1


def _csv_keys(text: str) -> list[str]:
    return list(csv.DictReader(io.StringIO(text)).fieldnames or ())


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, made as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    """Relative links point at files that exist, and anchors at headings."""
    dead = []
    prose = re.sub(r"```.*?```|`[^`\n]*`|^ {4}.*?$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name).resolve() if name else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            dead.append(target)
    assert not dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_paths_exist(page):
    """Paths in backticks whose first folder is one of ours exist."""
    tops = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")} - {"out"}
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    paths = re.findall(r"`([\w-]+/[\w./-]*)`", prose)
    assert not [path for path in paths if path.split("/")[0] in tops and not (ROOT / path).exists()]


def test_a_wrong_command_is_seen():
    """The check of commands does fail: on an unknown command, an unknown option and an unknown target."""
    for words in (["hiertrain", "fly"], ["hiertrain", "presets", "--loud"], ["make", "coffee"], ["rm", "-r", "x"]):
        with pytest.raises(Exception, match=r"no such|No such|targets|not a program"):
            check_command(words)
