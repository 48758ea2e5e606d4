"""Which of the user's pins and limits are to blame that no plan fits.

By halves (QuickXplain; Junker, AAAI 2004): if half of the pins and limits conflict without the rest, the rest is left out;
if not, what is needed of the rest is found first, then what is needed of that half. What remains conflicts, and does no more
when any one of it is left out: of n demands k are found in about 2 k log2(n / k) + 2 k questions, each whether there is any
plan (``feasible``). Then it is asked whether one exists without any one of these; if not, there is another conflict. Knows
nothing of how a plan is found; it is told whether there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from placement.deadline import Deadline
from placement.errors import PlacementError
from placement.result import PlacementResult
from placement.search.feasible import Answer
from placement.search.options import SolveOptions
from problem.errors import BadInput

#: Seconds for the whole filter, at most.
MOST_SECONDS = 30.0
#: Sets of demands that conflict, named at most.
MOST_SETS = 3
#: Any plan will do.
ANY_GAP = 1e6

#: Searches under some options until a deadline.
Solve = Callable[[SolveOptions, Deadline], PlacementResult]
#: Says whether there is any plan under some options.
Feasible = Callable[[SolveOptions, Deadline], Answer]
#: A pin or limit in words, the option that holds it, and which entry of it (None: all of it).
Demand = tuple[str, str, object]


def demands(options: SolveOptions) -> list[Demand]:
    """Return everything that options demand, in a fixed order: limits last, so that pins are left out first.

    Parameters
    ----------
    options : SolveOptions
        What the user decided.
    """
    return list(_demands(options))


def _demands(options: SolveOptions) -> Iterator[Demand]:
    for field in ("pins", "table_pins"):
        for key, value in getattr(options, field).items():
            yield f"{field[:-1].replace('_', ' ')} {key}={value}", field, key
    for field in ("forbids", "table_forbids"):
        for key, what in getattr(options, field):
            yield f"{field[:-1].replace('_', ' ')} {key}={what}", field, (key, what)
    for field in ("keep_together", "keep_apart"):
        for names in getattr(options, field):
            yield f"{field.replace('_', ' ')} {','.join(names)}", field, names
    for field in ("group_size", "ranks", "servers", "sync_servers", "max_elp", "batch", "hogwild"):
        value = getattr(options, field)
        if value not in (None, "auto") and (field, value) != ("hogwild", 1):
            yield f"{field.replace('_', ' ').replace('hogwild', 'threads')} {value}", field, None


def dropped(options: SolveOptions, demand: Demand) -> SolveOptions:
    """Return options without one demand; threads are never fewer than one."""
    _, field, entry = demand
    value = getattr(options, field)
    if field in {"pins", "table_pins"}:
        left: object = {key: tag for key, tag in value.items() if key != entry}
    elif isinstance(value, tuple):
        left = tuple(names for names in value if names != entry)
    else:
        left = 1 if field == "hogwild" else None
    return replace(options, **{field: left})  # type: ignore[arg-type]


def answered(solve: Solve, feasible: Feasible, options: SolveOptions, deadline: Deadline) -> PlacementResult:
    """Return the result of a search, or raise its error with the demands named that conflict.

    Parameters
    ----------
    solve : callable
        Searches under some options.
    feasible : callable
        Says whether there is any plan under some options; where it does not know, the search is asked.
    options : SolveOptions
        What the user decided.
    deadline : Deadline
        Of the search and of the filter, which takes what the search left.

    Raises
    ------
    PlacementError
        When there is no plan.
    """
    try:
        return solve(options, deadline)
    except PlacementError as error:
        end = deadline.share(1.0, MOST_SECONDS)
        _blame(error, options, lambda some: _refuses(solve, feasible, some, end), end)
        raise


def _refuses(solve: Solve, feasible: Feasible, options: SolveOptions, end: Deadline) -> bool:
    """Whether there is no plan, or none is found; where time runs out that is not known."""
    if end.passed:
        return False
    known = feasible(options, end)
    if known.exists is not None or known.asked or end.passed:
        return not known.exists and not end.passed
    try:
        solve(replace(options, gap=ANY_GAP), end)
    except (PlacementError, BadInput):
        return not end.passed
    return False


def _blame(
    error: PlacementError, options: SolveOptions, refuses: Callable[[SolveOptions], bool], end: Deadline
) -> None:
    """Name demands of which none can be left out, if demands are to blame: a set that conflicts, and up to two more."""
    all_ = demands(options)

    def conflicts(some: Sequence[Demand]) -> bool:
        left = options
        for demand in all_:
            left = left if demand in some else dropped(left, demand)
        return refuses(left)

    if not all_ or conflicts(()):
        return
    found, rest = list[tuple[str, ...]](), all_
    while len(found) < MOST_SETS and (not found or conflicts(rest)):
        needed = _needed((), rest[::-1], conflicts)
        if found and end.passed:
            break
        error.minimal = not end.passed
        found.append(tuple(demand[0] for demand in rest if demand in needed))
        rest = [demand for demand in rest if demand not in needed]
        if len(found) == 1:
            without = {demand: [other for other in all_ if other != demand] for demand in all_ if demand in needed}
            error.enough = tuple(d[0] for d, others in without.items() if not conflicts(others) and not end.passed)
        if error.enough or end.passed:
            break
    error.conflict, error.besides = found[0], tuple(found[1:])


def _needed(
    given: tuple[Demand, ...], some: list[Demand], conflicts: Callable[[Sequence[Demand]], bool]
) -> list[Demand]:
    """A smallest part of some demands that conflicts with those given, which do not conflict among themselves."""
    if len(some) <= 1:
        return some
    first, rest = some[: len(some) // 2], some[len(some) // 2 :]
    of_rest = [] if conflicts((*given, *first)) else _needed((*given, *first), rest, conflicts)
    of_first = [] if of_rest and conflicts((*given, *of_rest)) else _needed((*given, *of_rest), first, conflicts)
    return [*of_first, *of_rest]
