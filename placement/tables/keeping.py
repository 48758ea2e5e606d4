"""Sharding that starts from an earlier one: what stays where it was, and a few moves at a time towards balance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from placement.errors import DoesNotFit
from placement.plan import Shard, Span
from placement.tables.pieces import Piece
from placement.tables.shard_state import Sharding

#: For each table its shards on the servers that are still there.
Held = Mapping[str, Sequence[Shard]]


def kept(empty: Callable[[], Sharding], held: Held) -> Iterator[Sharding]:
    """Yield shardings near an earlier one: nothing moved that need not be, then after 1, 2, 4, ... moves.

    Parameters
    ----------
    empty : callable
        Gives the servers without tables.
    held : Held
        Where rows are now; rows that are nowhere are placed where the load is least.
    """
    moves = 0
    while True:
        try:
            state = _restored(empty(), held)
        except DoesNotFit:  # what is left of it leaves no room
            return
        done = sum(1 for _ in range(moves) if move_one(state))
        yield state
        if done < moves:
            return
        moves = 2 * moves or 1


def _restored(state: Sharding, held: Held) -> Sharding:
    order = [part for piece in state.prepared({}) for part in _parts(state, piece, held)]
    state.pieces = [piece for piece, _ in order]
    open_ = []
    for piece, server in order:
        fits = server is not None and state.room[server] >= state.bytes_of(piece) and state.allowed(piece)[server]
        if fits and server is not None:
            state.put(piece, server)
        else:
            open_.append(piece)
    for piece in open_:
        state.place(piece)
    return state


def _parts(state: Sharding, piece: Piece, held: Held) -> list[tuple[Piece, int | None]]:
    """The parts of a table that servers hold, and what is left of it, each with its server."""
    table, places = piece.tables[0], list(held.get(piece.tables[0].name, ()))
    if table.name in state.rules.whole or len(piece.tables) > 1:
        servers = {shard.server for t in piece.tables for shard in held.get(t.name, ())}
        return [(piece, servers.pop() if len(servers) == 1 else None)]
    if state.rules.miscut(table.name, places, table.rows):
        return [(piece, None)]
    found = [(s.columns, s.row_begin, s.row_end, s.server) for s in places]
    for span in dict.fromkeys(s.columns for s in places) if places else {None: None}:
        rows = sorted((s.row_begin, s.row_end) for s in places if s.columns == span)
        edges = [0, *(edge for part in rows for edge in part), table.rows]
        found += [(span, a, b, -1) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b]
    missing = _missing_columns(table.dim, [shard.span(table) for shard in places]) if places else []
    found += [(span, 0, table.rows, -1) for span in missing]
    return [
        (Piece(piece.tables, begin, end, span, number), server if server >= 0 else None)
        for number, (span, begin, end, server) in enumerate(found)
    ]


def _missing_columns(dim: int, spans: Sequence[Span]) -> list[Span]:
    """Return the gaps between strips."""
    edges = [0, *(edge for span in sorted(set(spans)) for edge in span), dim]
    return [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]


def move_one(state: Sharding) -> int:
    """Move one piece off the busiest server if that lowers the busiest load; return the pieces tried, 0 if none helps."""
    if not len(state.nodes):
        return 0
    before, busiest = state.seconds, int(state.busy.argmax())
    for tries, piece in enumerate([p for p in state.pieces if state.at.get(p.key) == busiest], 1):
        state.take(piece)
        cuts = len(state.cuts)
        state.place(piece)
        if state.seconds < before * (1 - 1e-12) and len(state.cuts) == cuts:
            return tries
        state.take(piece)
        state.put(piece, busiest)
    return 0
