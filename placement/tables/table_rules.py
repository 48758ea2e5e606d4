"""What the user demands of tables: on which server one is or is not, which are together or apart, how one is cut.

A table that is pinned or kept together is never cut. Rules are resolved against the model's tables before anything is
placed, and rules that contradict each other are refused with the tables' names. Knows nothing of costs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import combinations
from typing import Any

from placement.errors import ConstraintsConflict
from placement.plan import Shard
from problem.cluster import Node
from problem.errors import BadInput
from problem.model import Model

#: Kinds of shards that may be forbidden: ranges of rows, strips of columns.
ROW, COLUMN = "row", "column"
#: Tables (a name or a pattern), and what they may not have: a server, by number or kind of machine (a pattern), or a kind
#: of shard.
TableForbid = tuple[str, int | str]


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
    forbidden : Mapping of str to set of int or str
        Servers that hold no row of a table: numbers, and kinds of machines.
    no_rows, no_columns : set of str
        Tables whose rows, whose columns are not cut.
    """

    pins: Mapping[str, int] = field(default_factory=dict)
    together: tuple[tuple[str, ...], ...] = ()
    apart: tuple[tuple[str, ...], ...] = ()
    forbidden: Mapping[str, frozenset[int | str]] = field(default_factory=dict)
    no_rows: frozenset[str] = frozenset()
    no_columns: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.ruled or self.forbidden or self.no_rows or self.no_columns)

    @cached_property
    def whole(self) -> frozenset[str]:
        """Tables that may not be cut."""
        return frozenset(self.pins).union(self.no_rows & self.no_columns, *self.together)

    @cached_property
    def ruled(self) -> frozenset[str]:
        """Tables that are not cut for balance."""
        return self.whole.union(*self.apart)

    @property
    def fewest_servers(self) -> int:
        """Servers that the rules need at least."""
        first = (next(n for n in range(len(servers) + 1) if n not in servers) for servers in self.forbidden.values())
        needed = (*self.pins.values(), *first)
        return max([1, *(server + 1 for server in needed), *(len(tables) for tables in self.apart)])

    @property
    def anywhere(self) -> TableRules:
        """The rules but for what is forbidden about servers: for machines that may not exist."""
        return replace(self, forbidden={})

    def unit(self, table: str) -> tuple[str, ...]:
        """Tables that are placed with a table, itself among them."""
        return next((tables for tables in self.together if table in tables), (table,))

    def server_of(self, tables: Iterable[str]) -> int | None:
        """Server that one of some tables is pinned to."""
        return next((self.pins[name] for name in tables if name in self.pins), None)

    def barred(self, tables: Iterable[str], servers: Sequence[Node]) -> tuple[bool, ...]:
        """Whether some of some tables may not be on each server."""
        found = frozenset[int | str]().union(*(self.forbidden.get(name, ()) for name in tables))
        return tuple(number in found or node.kind in found for number, node in enumerate(servers))

    def miscut(self, table: str, shards: Iterable[Shard], rows: int) -> bool:
        """Whether shards of a table with a number of rows are of a kind that is forbidden."""
        cut = [shard for shard in shards if shard.rows]
        return any(
            (table in self.no_rows and shard.rows < rows) or (table in self.no_columns and shard.columns is not None)
            for shard in cut
        )


NO_RULES = TableRules()


def resolve_rules(
    model: Model,
    pins: Mapping[str, int] | None = None,
    together: Sequence[Sequence[str]] = (),
    apart: Sequence[Sequence[str]] = (),
    forbids: Iterable[TableForbid] = (),
    kinds: Iterable[str] = (),
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
    forbids : iterable of TableForbid
        What tables may not have.
    kinds : iterable of str
        Kinds of machines there are.

    Raises
    ------
    BadInput
        When a name matches no table, a server number is negative, a kind matches no machine, or a set has a single table.
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
        **_forbidden(model, forbids, tuple(dict.fromkeys(kinds))),
    )
    _check(rules)
    return rules


def _forbidden(model: Model, forbids: Iterable[TableForbid], kinds: Sequence[str]) -> dict[str, Any]:
    """Fields of the rules that say what is forbidden."""
    servers, cuts = defaultdict[str, set[int | str]](set), defaultdict[str, set[str]](set)
    for key, what in forbids:
        names = _matching(model, "table forbids", [key])
        if what in (ROW, COLUMN):
            cuts[str(what)].update(names)
            continue
        meant: list[int | str] = [kind for kind in kinds if isinstance(what, str) and fnmatchcase(kind, what)]
        meant += [what] if isinstance(what, int) and what >= 0 else []
        if not meant:
            allowed = f"the number of an embedding server, {ROW!r}, {COLUMN!r}, or a kind of {list(kinds)}"
            raise BadInput("table forbids", key, what, allowed)
        for name in names:
            servers[name].update(meant)
    return {
        "forbidden": {name: frozenset(found) for name, found in servers.items()},
        "no_rows": frozenset(cuts[ROW]),
        "no_columns": frozenset(cuts[COLUMN]),
    }


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
    for name, server in rules.pins.items():
        for other in rules.unit(name):
            if server in rules.forbidden.get(other, ()):
                both = tuple(dict.fromkeys((name, other)))
                raise ConstraintsConflict(f"table {name!r} is pinned to server {server}, forbidden for {other!r}", both)
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
            at = rules.server_of(rules.unit(one))
            if at is not None and at == rules.server_of(rules.unit(other)):
                raise ConstraintsConflict(
                    f"tables {one!r} and {other!r} are kept apart, but both belong on server {at}", (one, other)
                )


def check_room(rules: TableRules, model: Model, size_of: Mapping[str, int], servers: Sequence[Node]) -> None:
    """Refuse rules that no placement on these servers can keep.

    Parameters
    ----------
    rules : TableRules
        The rules.
    model : Model
        Gives the tables.
    size_of : Mapping of str to int
        Bytes of each whole table on a server.
    servers : sequence of Node
        The servers.

    Raises
    ------
    ConstraintsConflict
        When there are too few servers, all are forbidden for a table, or tables that belong on one server, or on those that
        are left, exceed the memory there.
    """
    memory = [node.memory_bytes for node in servers]
    check_count(rules, len(memory))
    _check_barred(rules, size_of, servers)
    for server, had in enumerate(memory):
        bound = [t for t in model.table if rules.server_of(rules.unit(t)) == server]
        _refuse(bound, f"are pinned to server {server}, which", sum(size_of[t] for t in bound), had)
    for tables in rules.together:
        _refuse(list(tables), "are kept together, but the largest server", sum(size_of[t] for t in tables), max(memory))


def _check_barred(rules: TableRules, size_of: Mapping[str, int], servers: Sequence[Node]) -> None:
    """Refuse what is forbidden if that leaves a table no server, or some tables servers that are too small for them."""
    for name in rules.forbidden:
        barred, server = rules.barred(rules.unit(name), servers), rules.server_of(rules.unit(name))
        if all(barred):
            raise ConstraintsConflict(
                f"table {name!r} may be on none of {len(servers)} embedding servers: all are forbidden",
                rules.unit(name),
            )
        if server is not None and barred[server]:
            raise ConstraintsConflict(
                f"table {name!r} is pinned to server {server}, a {servers[server].kind}, which is forbidden", (name,)
            )
    for barred, tables in confined(rules, servers).items():
        left = [number for number, no in enumerate(barred) if not no]
        had = sum(servers[number].memory_bytes for number in left)
        where = ", ".join(map(str, left))
        _refuse(tables, f"may only be on servers {where}; that", sum(size_of[name] for name in tables), had)


def confined(rules: TableRules, servers: Sequence[Node]) -> dict[tuple[bool, ...], list[str]]:
    """Return the sets of servers that are left to some tables (barred or not), with all tables that may be nowhere else.

    Parameters
    ----------
    rules : TableRules
        The rules.
    servers : sequence of Node
        The servers.
    """
    barred = {name: rules.barred(rules.unit(name), servers) for name in rules.forbidden}
    return {
        one: [name for name, other in barred.items() if all(b or not a for a, b in zip(one, other, strict=True))]
        for one in dict.fromkeys(barred.values())
    }


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
    tables = max(rules.apart, key=len, default=())
    if len(tables) <= servers:
        name = next(name for name, barred in rules.forbidden.items() if barred >= set(range(servers)))
        raise ConstraintsConflict(
            f"table {name!r} may be on none of {servers} embedding servers: all are forbidden", (name,)
        )
    raise ConstraintsConflict(
        f"tables {_list(tables)} are kept apart: they need {len(tables)} embedding servers, there are {servers}", tables
    )


def _list(tables: Iterable[str]) -> str:
    return ", ".join(repr(table) for table in tables)
