"""Options of ``hiertrain solve`` that would have no effect beside others: each is refused in a line, none is ignored.

Knows which option needs which; what options mean is the business of the search.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, TypeVar

from problem.errors import BadInput

if TYPE_CHECKING:
    from placement.search.options import SolveOptions
    from problem.model import Model

Value = TypeVar("Value")

#: Options about the exchange between groups.
BETWEEN_GROUPS = ("sync_algorithm", "sync_mode", "sync_servers", "sync_gap")


def each_once(option: str, texts: Iterable[str], read: Callable[[str], tuple[str, Value]]) -> dict[str, Value]:
    """Return what texts say by name; refuse a name that is given two values.

    Parameters
    ----------
    option : str
        The option that is repeated.
    texts : iterable of str
        What was given.
    read : callable
        Makes a name and a value of a text.

    Raises
    ------
    BadInput
        When two texts say different things of one name.
    """
    found: dict[str, Value] = {}
    for text in texts:
        name, value = read(text)
        if found.setdefault(name, value) != value:
            raise BadInput("solve", option, text, f"one value for {name!r}: it is {found[name]!r} already")
    return found


def refuse_unused(given: Collection[str], options: SolveOptions, model: Model, *, profiled: bool) -> None:
    """Refuse options that nothing can come of, whatever plan is found.

    Parameters
    ----------
    given : collection of str
        Parameters of the command that are on the command line.
    options : SolveOptions
        What they say.
    model : Model
        What is trained.
    profiled : bool
        Whether costs come from a file.

    Raises
    ------
    BadInput
        Naming the option, and what it needs.
    """
    for name, needed in (*_alone(given, options, profiled), *_codecs(options, model)):
        raise BadInput("solve", *name, needed)


def _alone(given: Collection[str], options: SolveOptions, profiled: bool) -> Iterator[tuple[tuple[str, object], str]]:
    """Options without the one that they belong to."""
    if "movement_weight" in given and options.warm_start is None:
        yield ("--movement-weight", options.movement_seconds_per_byte), "only with --warm-start"
    if "foreign_costs" in given and not profiled:
        yield ("--foreign-costs", True), "only with --costs"
    for name in BETWEEN_GROUPS if options.max_replicas == 1 else ():
        if name in given:
            option = f"--{name.replace('_', '-')}"
            yield (option, getattr(options, name)), "only where there may be several groups: --max-replicas is 1"


def _codecs(options: SolveOptions, model: Model) -> Iterator[tuple[tuple[str, object], str]]:
    """Codecs that are decided for what is never sent."""
    from placement.codecs import ALL_REDUCE, EXCHANGE, POOLED, PUSH

    for edge, codec in options.codecs.items():
        why = ""
        if edge in {POOLED, PUSH}:
            why = "" if model.tables else "a model with tables"
        elif edge == EXCHANGE:
            why = "several groups: --max-replicas is 1" if options.max_replicas == 1 else ""
        elif edge == ALL_REDUCE:
            why = "groups of several ranks" if 1 in (options.ranks, options.group_size) else ""
        elif not model.graph.consumers[edge]:
            why = "an operator whose output another one takes"
        elif options.group_size == 1:
            why = "groups of several nodes: --group-size is 1"
        if why:
            yield ("--codec", f"{edge}={codec}"), f"{edge} is sent only with {why}"
