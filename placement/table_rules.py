"""What the user demands of tables: on which server one is, which are on one server together, which never share one.

A table that is pinned or kept together is never cut. Rules are resolved against the model's tables before anything is
placed, and rules that contradict each other are refused with the tables' names. Knows nothing of costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import combinations

from placement.errors import ConstraintsConflict
from problem.errors import BadInput
from problem.model import Model


@dataclass(frozen=True)
class TableRules:
    """Rules by table name.

    Parameters
    ----------
    pins : Mapping of str to int
        Number of the embedding server of a table.
    together : tuple of tuple of str
        Disjoint sets of tables; each is whole on one server.
    apart : tuple of tuple of str
        Sets of tables, no two of which have rows on one server.
    """

    pins: Mapping[str, int] = field(default_factory=dict)
    together: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.pins or self.together or self.apart)

    @cached_property
    def whole(self) -> frozenset[str]:
        """Tables that may not be cut."""
        return frozenset(self.pins).union(*self.together)

    @cached_property
    def ruled(self) -> frozenset[str]:
        """Tables that any rule names."""
        return self.whole.union(*self.apart)

    @property
    def fewest_servers(self) -> int:
        """Servers that the rules need at least."""
        return max([1, *(server + 1 for server in self.pins.values()), *(len(tables) for tables in self.apart)])

    def unit(self, table: str) -> tuple[str, ...]:
        """Tables that are placed with a table, itself among them."""
        return next((tables for tables in self.together if table in tables), (table,))

    def server_of(self, tables: Iterable[str]) -> int | None:
        """Server that one of some tables is pinned to."""
        return next((self.pins[name] for name in tables if name in self.pins), None)


NO_RULES = TableRules()


def resolve_rules(
    model: Model,
    pins: Mapping[str, int] | None = None,
    together: Sequence[Sequence[str]] = (),
    apart: Sequence[Sequence[str]] = (),
) -> TableRules:
    """Turn names and patterns into rules on tables.

    Parameters
    ----------
    model : Model
        Gives the tables.
    pins : Mapping of str to int, optional
        Table or shell pattern over table names -> server number, from 0.
    together, apart : sequence of sequences of str
        Each a set of tables or patterns; sets of ``together`` that share a table are one.

    Raises
    ------
    BadInput
        When a name matches no table, a server number is negative, or a set has a single table.
    ConstraintsConflict
        When rules contradict each other; the tables are named.
    """
    found: dict[str, int] = {}
    for key, server in (pins or {}).items():
        if server < 0:
            raise BadInput("table pins", key, server, "the number of an embedding server, from 0")
        for name in _matching(model, "table pins", [key]):
            if found.setdefault(name, server) != server:
                raise ConstraintsConflict(f"table {name!r} is pinned to servers {found[name]} and {server}", (name,))
    rules = TableRules(
        found,
        _merged([_set(model, "keep together", names) for names in together]),
        tuple(dict.fromkeys(_set(model, "keep apart", names) for names in apart)),
    )
    _check(rules)
    return rules


def _matching(model: Model, what: str, keys: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for key in keys:
        names = [key] if key in model.table else [name for name in model.table if fnmatchcase(name, key)]
        if not names:
            raise BadInput(what, "table", key, "a table of the model, or a pattern that matches one")
        found.update(dict.fromkeys(names))
    return [name for name in model.table if name in found]


def _set(model: Model, what: str, keys: Sequence[str]) -> tuple[str, ...]:
    names = tuple(_matching(model, what, keys))
    if len(names) < 2:
        raise BadInput(what, "tables", ",".join(keys), "names or patterns that match at least two tables")
    return names


def _merged(sets: list[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    """Join sets that share a table."""
    merged: list[dict[str, None]] = []
    for names in sets:
        joined = dict.fromkeys(names)
        for other in [one for one in merged if joined.keys() & one.keys()]:
            merged.remove(other)
            joined = other | joined
        merged.append(joined)
    return tuple(tuple(one) for one in merged)


def _check(rules: TableRules) -> None:
    for tables in rules.together:
        pinned = [name for name in tables if name in rules.pins]
        if len({rules.pins[name] for name in pinned}) > 1:
            where = ", ".join(f"{name!r} to server {rules.pins[name]}" for name in pinned)
            raise ConstraintsConflict(f"tables {_list(tables)} are kept together, but pinned: {where}", tables)
    for apart in rules.apart:
        for one, other in combinations(apart, 2):
            if other in rules.unit(one):
                raise ConstraintsConflict(
                    f"tables {one!r} and {other!r} are kept together and kept apart", (one, other)
                )
            server = rules.server_of(rules.unit(one))
            if server is not None and server == rules.server_of(rules.unit(other)):
                raise ConstraintsConflict(
                    f"tables {one!r} and {other!r} are kept apart, but both belong on server {server}", (one, other)
                )


def check_room(rules: TableRules, model: Model, size_of: Mapping[str, int], memory: Sequence[int]) -> None:
    """Refuse rules that no placement on these servers can keep.

    Parameters
    ----------
    rules : TableRules
        The rules.
    model : Model
        Gives the tables.
    size_of : Mapping of str to int
        Bytes of each whole table on a server.
    memory : sequence of int
        Bytes of each server.

    Raises
    ------
    ConstraintsConflict
        When there are too few servers, or tables that belong on one server exceed its memory.
    """
    check_count(rules, len(memory))
    for server, had in enumerate(memory):
        bound = [t for t in model.table if rules.server_of(rules.unit(t)) == server]
        _refuse(bound, f"are pinned to server {server}, which", sum(size_of[t] for t in bound), had)
    for tables in rules.together:
        _refuse(list(tables), "are kept together, but the largest server", sum(size_of[t] for t in tables), max(memory))


def _refuse(tables: list[str], why: str, needed: int, had: int) -> None:
    if needed > had:
        raise ConstraintsConflict(
            f"tables {_list(tables)} {why} has {had:,} bytes; they need {needed:,} ({needed - had:,} short)",
            tuple(tables),
        )


def check_count(rules: TableRules, servers: int) -> None:
    """Refuse rules that need more than a number of embedding servers.

    Parameters
    ----------
    rules : TableRules
        The rules.
    servers : int
        How many there are.

    Raises
    ------
    ConstraintsConflict
        When there are too few; the tables are named.
    """
    if rules.fewest_servers <= max(1, servers):
        return
    for name, server in rules.pins.items():
        if server >= servers:
            raise ConstraintsConflict(
                f"table {name!r} is pinned to server {server}, but there are {servers} embedding servers", (name,)
            )
    tables = max(rules.apart, key=len)
    raise ConstraintsConflict(
        f"tables {_list(tables)} are kept apart: they need {len(tables)} embedding servers, there are {servers}", tables
    )


def _list(tables: Iterable[str]) -> str:
    return ", ".join(repr(table) for table in tables)
