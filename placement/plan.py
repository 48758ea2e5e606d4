"""The plan: everything that was decided, nothing that was predicted.

A plan says which machines form which group, which operator is data-parallel (DP) or on which node (MP), which rows of
which table are on which server, and how the groups are kept together. The simulator gives a plan duration, the executor
gives it meaning; both read only this. Costs and predictions travel beside the plan in a plan file
(``placement.planfile``), never inside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from placement.codecs import EXCHANGE, check_codec, exchange_takes
from placement.errors import InvalidPlan
from problem.cluster import Node
from problem.graph import Kind
from problem.model import EmbeddingTable, Model

#: Tag of a data-parallel operator. An MP operator's tag is the index of its node in the group.
DP: Literal["dp"] = "dp"
Tag = int | Literal["dp"]
#: Columns of a table, begin and end (exclusive).
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Shard:
    """Rows ``row_begin`` to ``row_end`` (exclusive) of a table, on embedding server number ``server``.

    ``columns`` (begin, end) are those of a strip; None stands for all columns. The columns of a table are cut first, then
    the rows of each strip: strips tile the columns, the shards of a strip its rows.
    """

    table: str
    server: int
    row_begin: int
    row_end: int
    columns: tuple[int, int] | None = None

    @property
    def rows(self) -> int:
        """Number of rows; may be 0."""
        return self.row_end - self.row_begin

    def span(self, table: EmbeddingTable) -> Span:
        """Columns, begin and end."""
        return self.columns or (0, table.dim)

    def width(self, table: EmbeddingTable) -> int:
        """Number of columns."""
        begin, end = self.span(table)
        return end - begin

    def bytes(self, table: EmbeddingTable) -> int:
        """Bytes of the rows with their optimizer state."""
        return self.rows * table.row_bytes(self.width(table))


@dataclass(frozen=True, slots=True)
class Sync:
    """How groups are kept together, by way of a centre c; x is a group's copy.

    ==========  ====================================================================================================
    ``easgd``   x += alpha (c - x), c += alpha (x - c), a group at a time (Zhang, Choromanska, LeCun, 2015)
    ``ma``      model average: c = mean of all x, x += alpha (c - x)
    ``bmuf``    block momentum (Chen and Huo, ICASSP 2016): v = momentum v + rate (mean of all x - c), c += v,
                x += alpha (c - x)
    ``push``    gradient push to a parameter server: c += what x has moved since the last exchange, a group at a time,
                x = c + what it has moved meanwhile; ``codecs["exchange"]`` may compress what is pushed (DCT-DP)
    ==========  ====================================================================================================

    With the others ``codecs["exchange"]`` may round what travels, x with the error of the last exchange, which its sender
    keeps, and the differences that come back; the centre of ``easgd`` moves by what arrives.

    The centre is on the sync servers. ``ma`` and ``bmuf`` wait for all groups in every exchange; in a plan without sync
    servers every group has a copy of the centre, and they average by a ring all-reduce (``Plan.ring``). (ShadowSync,
    Zheng et al., 2020, names MA and BMUF; these formulas are the ones in common use, not read in that paper.)

    Parameters
    ----------
    mode : str
        ``background`` (ShadowSync: a shadow worker per node, at most once every ``gap`` steps) or ``foreground``
        (thread 0 of each node stops every ``gap`` steps).
    gap : int
        Steps between two exchanges.
    alpha : float
        Elastic rate, above 0 and up to 1; ``push`` has none.
    algorithm : str
        ``easgd``, ``ma``, ``bmuf`` or ``push``.
    momentum, rate : float
        Block momentum, at least 0 and below 1, and block learning rate, above 0, of ``bmuf``.
    """

    mode: Literal["background", "foreground"] = "background"
    gap: int = 8
    alpha: float = 0.45
    algorithm: Literal["easgd", "ma", "bmuf", "push"] = "easgd"
    momentum: float = 0.0
    rate: float = 1.0

    @property
    def averages(self) -> bool:
        """Whether an exchange is one of all groups together."""
        return self.algorithm in {"ma", "bmuf"}


@dataclass(frozen=True)
class Plan:
    """A complete placement of a training job.

    Parameters
    ----------
    model : Model
        What is trained.
    groups : tuple of tuple of Node
        Machines of each group, K each. The first ``ranks`` of them are data-parallel ranks.
    servers : tuple of Node
        Embedding servers.
    sync_servers : tuple of Node
        Sync servers (empty with one group, and where groups average among themselves).
    batch, hogwild, ranks : int
        Samples per thread and step; Hogwild threads per rank; ranks per group.
    tags : Mapping of str to Tag
        For every operator but the LOOKUPs: ``"dp"`` or the index of a node in the group.
    shards : tuple of Shard
        Parts of the tables on the servers; they tile every table.
    sync : Sync or None
        How groups are kept together; None with one group.
    synchronous : bool
        Deterministic mode: updates of the ranks of a group are applied in rank order (needs ``hogwild == 1``).
    name : str
        Name shown to the user.
    seed : int
        Seed of everything drawn at random while running.
    codecs : Mapping of str to str
        How messages are compressed (``placement.codecs``): by operator, its output wherever it is sent to another node
        of the group, and the gradient that comes back; ``pooled`` and ``push``: what comes from the embedding servers,
        and its gradients; ``allreduce``: gradients of DP operators; ``exchange``: what groups
        and sync servers exchange. Everything else is float32.
    """

    model: Model
    groups: tuple[tuple[Node, ...], ...]
    servers: tuple[Node, ...]
    batch: int
    tags: Mapping[str, Tag]
    shards: tuple[Shard, ...] = ()
    sync_servers: tuple[Node, ...] = ()
    hogwild: int = 1
    ranks: int = 1
    sync: Sync | None = None
    synchronous: bool = False
    name: str = "plan"
    seed: int = 0
    codecs: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_settings(self)
        _check_tags(self)
        _check_shards(self)
        _check_codecs(self)

    @property
    def group_size(self) -> int:
        """Nodes per group (K)."""
        return len(self.groups[0])

    @property
    def elp(self) -> int:
        """Example-level parallelism: batch * hogwild * ranks * groups."""
        return self.batch * self.hogwild * self.ranks * len(self.groups)

    @property
    def dp_ops(self) -> tuple[str, ...]:
        """Data-parallel operators with trained parameters, in graph order."""
        return self._trained(DP)

    def mp_ops(self, node: int) -> tuple[str, ...]:
        """Model-parallel operators with trained parameters on a node, in graph order."""
        return self._trained(node)

    def _trained(self, tag: Tag) -> tuple[str, ...]:
        graph = self.model.graph
        return tuple(
            op.name for op in graph if op.parameters and self.tags.get(op.name) == tag and graph.needs_gradient[op.name]
        )

    @property
    def rounds(self) -> bool:
        """Whether an exchange waits for all groups and takes them in order, which makes it repeatable."""
        if self.sync is None:
            return False
        return self.sync.averages or (self.synchronous and self.sync.mode == "foreground")

    @property
    def ring(self) -> bool:
        """Whether groups average among themselves, by a ring all-reduce: there are no sync servers."""
        return len(self.groups) > 1 and not self.sync_servers

    def codec(self, edge: str) -> str:
        """Return the codec of an edge; empty where it is float32."""
        chosen = self.codecs.get(edge, "fp32")
        return "" if chosen == "fp32" else chosen

    def server_shards(self, server: int) -> tuple[Shard, ...]:
        """Non-empty shards on one embedding server, in plan order."""
        return tuple(shard for shard in self.shards if shard.server == server and shard.rows)


def _check_settings(plan: Plan) -> None:
    sizes = {len(group) for group in plan.groups}
    if len(sizes) != 1 or 0 in sizes:
        raise InvalidPlan("every group needs the same number of nodes, at least one")
    if not 1 <= plan.ranks <= plan.group_size:
        raise InvalidPlan(f"ranks = {plan.ranks}: allowed are 1 to {plan.group_size}, the nodes of a group")
    if plan.batch < 1 or plan.hogwild < 1:
        raise InvalidPlan(f"batch = {plan.batch}, hogwild = {plan.hogwild}: both must be at least 1")
    if plan.synchronous and plan.hogwild > 1:
        raise InvalidPlan(f"hogwild = {plan.hogwild}: synchronous plans have one thread per rank")
    if len(plan.groups) > 1 and (plan.sync is None or not (plan.sync_servers or plan.sync.averages)):
        needed = "need sync settings and at least one sync server (but for averages: ma, bmuf)"
        raise InvalidPlan(f"{len(plan.groups)} groups: {needed}")
    if plan.sync is not None:
        _check_sync(plan.sync)


def _check_sync(sync: Sync) -> None:
    if sync.gap < 1:
        raise InvalidPlan(f"sync gap {sync.gap}: allowed is at least 1")
    if not 0.0 < sync.alpha <= 1.0:
        raise InvalidPlan(f"sync alpha {sync.alpha:g}: allowed is above 0 and up to 1")
    if not 0.0 <= sync.momentum < 1.0 or sync.rate <= 0.0:
        allowed = "momentum at least 0 and below 1, rate above 0"
        raise InvalidPlan(f"sync momentum {sync.momentum:g}, rate {sync.rate:g}: allowed are {allowed}")


def _check_tags(plan: Plan) -> None:
    for op in plan.model.graph:
        if op.kind is Kind.LOOKUP:
            continue
        tag = plan.tags.get(op.name)
        if tag is None:
            raise InvalidPlan(f"operator {op.name!r} has no tag: the plan must cover every operator")
        if tag != DP and not (isinstance(tag, int) and 0 <= tag < plan.group_size):
            raise InvalidPlan(f"operator {op.name!r}: tag {tag!r}: allowed are 'dp' and 0 to {plan.group_size - 1}")
        if op.kind in {Kind.DENSE_INPUT, Kind.LOSS} and tag != DP:
            raise InvalidPlan(f"operator {op.name!r}: tag {tag!r}: inputs and the loss stay with the rank ('dp')")
    unknown = [name for name in plan.tags if name not in plan.model.graph]
    if unknown:
        raise InvalidPlan(f"tag for {unknown[0]!r}: the model has no such operator")


def _check_shards(plan: Plan) -> None:
    strips: dict[str, dict[Span, list[Shard]]] = {table.name: {} for table in plan.model.tables}
    for shard in plan.shards:
        if shard.table not in plan.model.table:
            raise InvalidPlan(f"shard of {shard.table!r}: the model has no such table")
        if not 0 <= shard.server < len(plan.servers):
            raise InvalidPlan(f"shard of {shard.table!r}: server {shard.server}: the plan has {len(plan.servers)}")
        strips[shard.table].setdefault(shard.span(plan.model.table[shard.table]), []).append(shard)
    for table in plan.model.tables:
        _check_columns(table, sorted(strips[table.name]))
        for (begin, end), shards in strips[table.name].items():
            where = f"table {table.name!r}" + ("" if (begin, end) == (0, table.dim) else f", columns {begin} to {end}")
            _check_rows(where, table.rows, shards)


def _check_columns(table: EmbeddingTable, spans: list[Span]) -> None:
    position = 0
    for begin, end in spans:
        if begin != position or end <= begin:
            raise InvalidPlan(f"table {table.name!r}: columns from {position} on are not placed exactly once")
        position = end
    if position != table.dim:
        wrong = f"{table.rows} of {table.rows} rows" if not spans else f"columns {position} to {table.dim}"
        raise InvalidPlan(f"table {table.name!r}: {wrong} are not placed")


def _check_rows(where: str, rows: int, shards: list[Shard]) -> None:
    position = 0
    for shard in sorted(shards, key=lambda s: (s.row_begin, s.row_end)):
        if shard.row_begin != position or shard.row_end < shard.row_begin:
            raise InvalidPlan(f"{where}: rows from {position} on are not placed exactly once")
        position = shard.row_end
    if position != rows:
        raise InvalidPlan(f"{where}: {rows - position} of {rows} rows are not placed")


def _check_codecs(plan: Plan) -> None:
    for edge, name in plan.codecs.items():
        try:
            check_codec(edge, name, plan.model)
        except ValueError as error:
            raise InvalidPlan(f"edge {edge!r}: {error}") from None
    chosen = plan.codec(EXCHANGE) or "fp32"
    if plan.ring and chosen != "fp32":
        raise InvalidPlan(f"edge {EXCHANGE!r}: codec {chosen!r}: groups that average without sync servers send float32")
    if plan.sync is not None and not exchange_takes(plan.sync.algorithm, chosen):
        allowed = "dct-dp:KEEP[:EVERY]" if plan.sync.algorithm == "push" else "codecs that send every element"
        raise InvalidPlan(f"edge {EXCHANGE!r}: codec {chosen!r}: with {plan.sync.algorithm!r} allowed are {allowed}")
