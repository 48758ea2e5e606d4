"""The operator graph: WHAT is trained, one operator a node, forward direction only.

An operator's gradient and its update live with it, so each operator carries the work of all three phases. Work is
counted (flops, bytes of memory traffic), never timed: seconds are the business of ``cost_models``. The one exception is
an imported graph whose operators come with measured seconds (``Work.seconds_per_sample``).

Each operator has exactly one output tensor, named like the operator itself, with ``width`` elements per sample.
The graph knows nothing of machines, batches in flight or placement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from problem.errors import HiertrainError
from problem.ordering import natural

FLOAT_BYTES = 4  # float32 everywhere: the fleet trains in FP32 (Acun et al., HPCA 2021, section VI)


class GraphError(HiertrainError):
    """The operator graph is not a directed acyclic graph over known, distinct operators."""

    exit_code = 2


class Kind(StrEnum):
    """What an operator computes. The executor has one kernel per kind."""

    DENSE_INPUT = "dense_input"  # dense features of the batch, (B, width)
    LOOKUP = "lookup"  # pooled embeddings of one table, (B, dim); placed by table sharding, not by tags
    LINEAR = "linear"  # activation(x W + b)
    CONCAT = "concat"  # inputs side by side
    INTERACTION = "interaction"  # DLRM dot: first input beside the lower triangle of all pairwise dots
    FM = "fm"  # factorization machine: first input beside the sum of the element-wise products of all pairs
    CROSS = "cross"  # DCN-v2 low rank: x0 * ((x V) U + b) + x; inputs (x0, x)
    LOSS = "loss"  # logits -> mean binary cross entropy against the batch's labels
    FIXED = "fixed"  # known by its costs only (imported graphs); cannot be executed


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one phase of an operator.

    Parameters
    ----------
    flops_per_sample : float
        Floating point operations for each sample of the batch.
    bytes_per_sample : float
        Memory traffic for each sample.
    bytes_per_step : float
        Memory traffic once per batch, whatever its size (reading the weights).
    seconds_per_sample : float
        Measured core-seconds per sample; only imported graphs have them (0 means: derive from the counts).
    """

    flops_per_sample: float = 0.0
    bytes_per_sample: float = 0.0
    bytes_per_step: float = 0.0
    seconds_per_sample: float = 0.0


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator: its inputs, its output width, its parameters and the work of its three phases.

    Parameters
    ----------
    name : str
        Unique name; also the name of the output tensor.
    kind : Kind
        What it computes.
    inputs : tuple of str
        Operators whose outputs it consumes, in order.
    width : int
        Elements of the output per sample.
    parameters : int
        Trainable elements (0 for LOOKUP: a table's parameters are counted by the table).
    forward, backward, update : Work
        Work of each phase. Backward includes the gradients of inputs and of parameters.
    component : str
        Operators with the same non-empty component are placed together.
    activation : str
        LINEAR only: ``none`` or ``relu``.
    rank : int
        CROSS only: the inner dimension of the low-rank product.
    table : str
        LOOKUP only: the table it reads.
    """

    name: str
    kind: Kind
    inputs: tuple[str, ...] = ()
    width: int = 0
    parameters: int = 0
    forward: Work = Work()
    backward: Work = Work()
    update: Work = Work()
    component: str = ""
    activation: str = "none"
    rank: int = 0
    table: str = ""

    @property
    def signature(self) -> str:
        """What the cost of the operator depends on, apart from the batch: the key of a profile's entries.

        The last part, flops of the backward phase, tells a first layer, whose input needs no gradient, from another
        layer of the same shape.
        """
        shape = f"{self.kind}/{self.width}/{self.parameters}/{self.activation}/{self.rank}/{len(self.inputs)}"
        return f"{shape}/{self.backward.flops_per_sample:.0f}"

    @property
    def output_bytes_per_sample(self) -> int:
        """Bytes of the output tensor for one sample, in float32."""
        return self.width * FLOAT_BYTES


@dataclass(frozen=True)
class Graph:
    """A directed acyclic graph of operators, kept in a topological order, in which programs run them.

    Parameters
    ----------
    operators : tuple of Operator
        Any order; stored in topological order, ties broken by the given order. Only LOOKUPs are ordered by name among
        themselves, so that the order of tables in a file does not matter.

    Raises
    ------
    GraphError
        On duplicate names, unknown inputs, or a cycle (whose operators are named).
    """

    operators: tuple[Operator, ...]
    _by_name: Mapping[str, Operator] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name: dict[str, Operator] = {}
        for op in self.operators:
            if op.name in by_name:
                raise GraphError(f"operator {op.name!r} appears twice; names must be distinct")
            by_name[op.name] = op
        for op in self.operators:
            for source in op.inputs:
                if source not in by_name:
                    raise GraphError(f"edge {source!r} -> {op.name!r}: there is no operator {source!r}")
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "operators", _topological(self.operators, by_name))

    def __getitem__(self, name: str) -> Operator:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[Operator]:
        return iter(self.operators)

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def consumers(self) -> Mapping[str, tuple[str, ...]]:
        """For each operator the operators that read its output, in topological order, each once."""
        found: dict[str, list[str]] = {op.name: [] for op in self.operators}
        for op in self.operators:
            for source in dict.fromkeys(op.inputs):
                found[source].append(op.name)
        return {name: tuple(users) for name, users in found.items()}

    @cached_property
    def needs_gradient(self) -> Mapping[str, bool]:
        """Whether the gradient of an operator's output is needed: it or something upstream is trained.

        An imported (FIXED) operator is trained if it came with backward seconds or flops: a graph that lists its backward
        operators by themselves, or an inference graph, has none.
        """
        needed: dict[str, bool] = {}
        for op in self.operators:
            works = op.backward.seconds_per_sample > 0 or op.backward.flops_per_sample > 0
            trained = works if op.kind is Kind.FIXED else op.parameters > 0
            needed[op.name] = op.kind is Kind.LOOKUP or trained or any(needed[name] for name in op.inputs)
        return needed

    @cached_property
    def bundles(self) -> Mapping[str, tuple[str, ...]]:
        """For each LOOKUP the LOOKUPs that the same operators consume, itself included, in graph order.

        Their pooled rows go from the rank to another node of the group in one message, and so do their gradients back.
        """
        together: dict[tuple[str, ...], list[str]] = {}
        for op in self.operators:
            if op.kind is Kind.LOOKUP:
                together.setdefault(self.consumers[op.name], []).append(op.name)
        return {name: tuple(names) for names in together.values() for name in names}

    def in_order(self, names: Sequence[str]) -> Graph:
        """Return the same operators in another order.

        Parameters
        ----------
        names : sequence of str
            All operators but the LOOKUPs, which programs do not run: those come first.
        """
        return Graph((*(op for op in self if op.kind is Kind.LOOKUP), *(self[name] for name in names)))

    @property
    def order(self) -> tuple[str, ...]:
        """Names of the operators that programs run, all but the LOOKUPs, in their order."""
        return tuple(op.name for op in self if op.kind is not Kind.LOOKUP)

    def message_of(self, name: str) -> tuple[str, ...]:
        """Return the operators whose outputs travel inside a group in one message with that of ``name``."""
        return self.bundles.get(name, (name,))

    @property
    def dense_parameters(self) -> int:
        """Trainable elements outside the embedding tables."""
        return sum(op.parameters for op in self.operators)


def _topological(operators: tuple[Operator, ...], by_name: Mapping[str, Operator]) -> tuple[Operator, ...]:
    """Order operators so that inputs come first; depth first from each operator in the given order."""
    done: dict[str, Operator] = {}
    for start in _lookups_by_name([op.name for op in operators], by_name):
        path: dict[str, Iterator[str]] = {}
        if start not in done:
            path[start] = _lookups_by_name(by_name[start].inputs, by_name)
        while path:
            name = next(reversed(path))
            source = next((s for s in path[name] if s not in done), None)
            if source is None:
                done[name] = by_name[name]
                del path[name]
            elif source in path:
                names = list(path)
                cycle = [*names[names.index(source) :], source]
                raise GraphError("the graph has a cycle: " + " <- ".join(cycle))
            else:
                path[source] = _lookups_by_name(by_name[source].inputs, by_name)
    return tuple(done.values())


def _lookups_by_name(names: Sequence[str], by_name: Mapping[str, Operator]) -> Iterator[str]:
    """Yield operators in their order, LOOKUPs having changed places until they are in the order of their names."""
    lookups = iter(sorted((name for name in names if by_name[name].kind is Kind.LOOKUP), key=natural))
    return (next(lookups) if by_name[name].kind is Kind.LOOKUP else name for name in names)
