"""What the user decides about a search, and what follows from it: synchronisation, threads, limits, codecs on offer.

Knows no machines and no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from placement.codecs import EXCHANGE, exchange_takes
from placement.deadline import Deadline
from placement.plan import Plan, Sync, Tag
from placement.search.guard import Guard
from placement.tables.table_rules import TableForbid
from placement.tagging.candidates import Forbid
from placement.tagging.limits import PRECISION, Limits
from problem.cluster import Node
from problem.errors import BadInput
from problem.model import Model

#: Threads per core unless told otherwise: enough to hide waiting. ShadowSync (Zheng et al., arXiv 2003.03477) ran 24
#: Hogwild threads on 20 cores.
THREADS_PER_CORE = 1.2
#: Replicas unless told otherwise: the commonest number of trainers of a job (Acun et al., HPCA 2021, figure 9).
MAX_REPLICAS = 15
#: Numbers of ranks that are looked at for a group size, where they are chosen.
MOST_RANKS = 12
#: Elastic rate times the number of groups (Zhang, Choromanska, LeCun, NIPS 2015: beta = p alpha = 0.9).
EASGD_BETA = 0.9


class News(Protocol):
    """Listens to a search."""

    def assumed(self, sentences: tuple[str, ...]) -> None:
        """Hear what is assumed where the user did not decide it, before the search."""

    def standing(self, best: float, bound: float) -> None:
        """Hear the samples per second of the best plan so far, and those that no plan exceeds."""


@dataclass(frozen=True)
class SolveOptions:
    """What the user decides.

    Parameters
    ----------
    batch, hogwild : int or None
        Samples per thread and step (None: the model's); threads per rank (None: 1.2 per core).
    ranks : int, "auto" or None
        Ranks per group (None: all nodes; ``auto``: chosen as well, of at most :data:`MOST_RANKS` numbers a group size).
    group_size : int or None
        Only this group size (None: all).
    max_replicas : int or None
        Most groups (None: :data:`MAX_REPLICAS`, or those of the warm start if it has more).
    max_elp : int or None
        Most samples in flight: batch * hogwild * ranks * groups.
    servers, sync_servers : int or None
        Number of embedding and of sync servers (None: chosen; no sync servers for ``ma`` and ``bmuf``, whose groups then
        average among themselves).
    pins : Mapping of str to Tag
        Tags of operators, components or patterns.
    forbids : tuple of (str, Tag or str)
        Operators, components or patterns, and what they may not have: a tag, ``mp`` (any node), a kind of machine.
    table_pins : Mapping of str to int
        Number of the embedding server of tables or patterns of tables; a pinned table is not cut.
    table_forbids : tuple of (str, int or str)
        Tables or patterns, and what they may not have: an embedding server, by number or kind of machine, or a kind of
        shard, ``row`` or ``column``.
    keep_together, keep_apart : tuples of tuples of str
        Sets of tables or patterns: whole on one server; never two with rows on one server.
    sync_algorithm, sync_mode, sync_gap : str, str, int
        How several groups are kept together (:func:`sync_of`).
    time_limit_seconds : float
        Wall time of the whole search.
    gap : float
        Relative gap of the whole search that is good enough.
    curve : bool
        Whether group sizes that lose are solved as well as the one that wins. False: only as far as it takes to see that
        they gain at most half the gap on the best plan; so the curve over group sizes says less.
    seed : int
        Of the solver and of the plan.
    synchronous : bool
        Deterministic mode of the plan; needs ``hogwild`` 1.
    warm_start : Plan or None
        An earlier plan of the model: it is where the search starts, and machines keep their roles and what they hold
        where that costs nothing. Batch and threads that are not given are those of this plan.
    movement_seconds_per_byte : float
        What moving a byte of parameters or optimizer state costs, in seconds of a step.
    codecs : Mapping of str to str
        Codecs that the user decided, by edge as in a plan.
    guard : Guard or None
        What the solver may choose for other edges; None: nothing.
    """

    batch: int | None = None
    hogwild: int | None = None
    ranks: int | Literal["auto"] | None = None
    group_size: int | None = None
    max_replicas: int | None = None
    max_elp: int | None = None
    servers: int | None = None
    sync_servers: int | None = None
    pins: Mapping[str, Tag] = field(default_factory=dict)
    forbids: tuple[Forbid, ...] = ()
    table_pins: Mapping[str, int] = field(default_factory=dict)
    table_forbids: tuple[TableForbid, ...] = ()
    keep_together: tuple[tuple[str, ...], ...] = ()
    keep_apart: tuple[tuple[str, ...], ...] = ()
    sync_algorithm: Literal["easgd", "ma", "bmuf", "push"] = "easgd"
    sync_mode: Literal["background", "foreground"] = "background"
    sync_gap: int = 8
    time_limit_seconds: float = 60.0
    gap: float = 0.005
    curve: bool = True
    seed: int = 0
    synchronous: bool = False
    warm_start: Plan | None = None
    movement_seconds_per_byte: float = 0.0
    codecs: Mapping[str, str] = field(default_factory=dict)
    guard: Guard | None = None

    @property
    def ring(self) -> bool:
        """Whether several groups average among themselves, without sync servers."""
        return self.sync_algorithm in {"ma", "bmuf"} and not self.sync_servers

    @property
    def fixed_ranks(self) -> int | None:
        """Ranks per group if the user decided their number."""
        return None if self.ranks == "auto" else self.ranks

    def ranks_of(self, size: int) -> tuple[int, ...]:
        """Return the numbers of ranks that groups of a size may have, those first that are to be looked at first.

        Where they are chosen: all nodes, half of them, a quarter and so on, then others, spread evenly.

        Parameters
        ----------
        size : int
            Nodes per group.
        """
        if self.ranks != "auto":
            return (min(size, self.ranks or size),)
        count = min(size, MOST_RANKS)
        halves = [size >> power for power in range(size.bit_length())]
        others = [size - number * size // count for number in range(count)]
        return tuple(dict.fromkeys([*halves, *others]))[:count]

    @property
    def most_groups(self) -> int:
        """Most groups."""
        return self.max_replicas or MAX_REPLICAS


def sync_of(options: SolveOptions, groups: int) -> Sync | None:
    """Return the synchronisation of a number of groups; None with one group.

    EASGD: elastic rate 0.9 / groups. Averages are taken over whole (rate 1); block momentum is 1 - 1 / groups, as its
    authors advise (Chen and Huo, ICASSP 2016: recalled).
    """
    if groups < 2:
        return None
    algorithm = options.sync_algorithm
    alpha = EASGD_BETA / groups if algorithm == "easgd" else 1.0
    momentum = 1.0 - 1.0 / groups if algorithm == "bmuf" else 0.0
    return Sync(options.sync_mode, options.sync_gap, alpha, algorithm, momentum)


def default_threads(trainers: list[Node]) -> int:
    """Return the Hogwild threads per rank: 1.2 per core of the smallest trainer, rounded up."""
    return -(-int(min(node.cores for node in trainers) * THREADS_PER_CORE * 10) // 10)


def limits_of(options: SolveOptions, deadline: Deadline, effort: int, samples: int, best: float) -> Limits:
    """Return the limits of one group in a search.

    Parameters
    ----------
    options : SolveOptions
        Of the search.
    deadline : Deadline
        Of the search.
    effort : int
        How often the usual work may be done.
    samples : int
        Samples of a step of all groups, if they are like this one.
    best : float
        Samples per second of the best plan, which groups are to beat by more than half the gap; 0: none is to be beaten.
    """
    goal = 0.0 if options.curve else best * (1 + max(options.gap / 2, PRECISION))
    return Limits(
        gap=options.gap / 2,
        deadline=deadline,
        deterministic_seconds=5.0 * effort,
        rounds=20 * effort,
        descents=effort,
        seed=options.seed,
        relaxes=False,
        enough_seconds=samples / goal if goal else float("inf"),
    )


def offers_of(model: Model, options: SolveOptions) -> dict[str, tuple[str, ...]]:
    """Return what the solver may choose for each edge.

    Raises
    ------
    BadInput
        When a codec is asked for that the exchanges of the sync algorithm cannot have.
    """
    chosen, algorithm = options.codecs.get(EXCHANGE, "fp32"), options.sync_algorithm
    if options.ring and chosen != "fp32":
        raise BadInput("options", f"codec of {EXCHANGE}", chosen, f"with {algorithm} without sync servers: fp32")
    if not exchange_takes(algorithm, chosen):
        allowed = "dct-dp:KEEP[:EVERY]" if algorithm == "push" else "codecs that send every element"
        raise BadInput("options", f"codec of {EXCHANGE}", chosen, f"with {algorithm}: {allowed}")
    decided = {EXCHANGE: chosen, **options.codecs} if options.ring else options.codecs
    return options.guard.offers(model, algorithm=algorithm, decided=decided) if options.guard else {}
