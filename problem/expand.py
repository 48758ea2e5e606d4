"""Expansion: a DLRM description becomes operators with counted work.

The problem: Deep Learning Recommendation Model (Naumov et al., arXiv 1906.00091), with the low-rank cross network of
DCN-v2 (Wang et al., arXiv 2008.13535) as an option, and grouped multi-branch dense layers, whose cuts are cheap.
Knows the layers and counts their work; knows nothing of seconds and machines.

Shapes: B samples; a LINEAR maps (B, in) to (B, out); an interaction sees F vectors of D elements per sample.
All counts are per sample, except weights, which are read once per step; float32 (4 bytes) everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from problem.errors import BadInput
from problem.graph import FLOAT_BYTES, Graph, GraphError, Kind, Operator, Work
from problem.model import DTYPE_BYTES, STATE_PER_ELEMENT, STATE_PER_ROW, EmbeddingTable, Model
from problem.schema import ModelSpec
from problem.tables import expand_shared, expand_tables


def linear(
    name: str,
    source: Operator,
    width: int,
    activation: str = "none",
    optimizer: str = "sgd",
    *,
    input_gradient: bool = True,
) -> Operator:
    """Return ``activation(x W + b)`` from ``source.width`` = n to ``width`` = m elements.

    Forward 2nm flops, reads x and W, writes y. Backward 2nm flops for the gradient of W and as many for that of x (not
    needed behind dense features: ``input_gradient``); reads x, y and dy, writes dx; reads W and writes dW once a step.
    """
    n, m = source.width, width
    parameters = n * m + m
    return Operator(
        name=name,
        kind=Kind.LINEAR,
        inputs=(source.name,),
        width=m,
        parameters=parameters,
        activation=activation,
        forward=Work(2 * n * m, FLOAT_BYTES * (n + m), FLOAT_BYTES * parameters),
        backward=Work(
            2 * n * m * (1 + input_gradient),
            FLOAT_BYTES * (n + 2 * m + n * input_gradient),
            FLOAT_BYTES * parameters * (1 + input_gradient),
        ),
        update=dense_update(parameters, optimizer),
    )


def dense_update(parameters: int, optimizer: str) -> Work:
    """Return the update of dense parameters: bound by memory, so only traffic is counted.

    Reads the parameter and its gradient, writes the parameter: 3 floats; every element of optimizer state is read and
    written: 2 floats more each.
    """
    floats = 3 + 2 * STATE_PER_ELEMENT[optimizer]
    return Work(bytes_per_step=FLOAT_BYTES * floats * parameters)


def lookup(table: EmbeddingTable) -> Operator:
    """Return the pooled lookup of ``table`` (or of a feature that shares one): L ids per sample, rows of D elements.

    Forward: L*D additions (and as many multiplications if weighted), reads L rows and writes the pooled vector. Update: L*D
    multiply-adds, reads the pooled gradient, reads and writes L rows and their optimizer state. There is no backward: a
    sum passes its gradient on. L is the mean, where bags have different lengths.
    """
    elements = table.mean_ids * table.dim
    row_bytes = elements * DTYPE_BYTES[table.dtype]
    state = elements * STATE_PER_ELEMENT[table.optimizer] + table.mean_ids * STATE_PER_ROW[table.optimizer]
    pooled = table.dim * FLOAT_BYTES
    return Operator(
        name=table.name,
        kind=Kind.LOOKUP,
        width=table.dim,
        table=table.storage,
        forward=Work(elements * (2 if table.pooling == "weighted" else 1), row_bytes + pooled),
        update=Work(2 * elements, 2 * (row_bytes + FLOAT_BYTES * state) + pooled),
    )


def concat(name: str, sources: Sequence[Operator]) -> Operator:
    """Return the inputs side by side: no flops, every element read and written once each way."""
    width = sum(source.width for source in sources)
    moved = Work(bytes_per_sample=2 * FLOAT_BYTES * width)
    return Operator(name, Kind.CONCAT, tuple(source.name for source in sources), width, forward=moved, backward=moved)


def dot_interaction(name: str, sources: Sequence[Operator]) -> Operator:
    """Return the DLRM interaction: the first input beside all pairwise dots, D + F(F-1)/2 elements.

    Forward: the whole F x F product of the stacked inputs, 2*F*F*D flops (the triangle is picked afterwards); writes
    and reads the stack and the product, writes the output. Backward: twice the flops and twice the traffic.
    """
    count, dim = len(sources), sources[0].width
    width = dim + count * (count - 1) // 2
    flops, traffic = 2 * count**2 * dim, FLOAT_BYTES * (2 * count * dim + 2 * count**2 + width)
    return Operator(
        name,
        Kind.INTERACTION,
        tuple(source.name for source in sources),
        width,
        forward=Work(flops, traffic),
        backward=Work(2 * flops, 2 * traffic),
    )


def fm_interaction(name: str, sources: Sequence[Operator]) -> Operator:
    """Return the factorization machine: the first input beside the sum of all pairs' element-wise products, 2D elements.

    The bi-interaction of He and Chua (SIGIR 2017, equation 4), ((sum of v)^2 - sum of v^2) / 2: forward 4FD flops, reads F
    vectors, writes 2D elements. Backward: 2FD flops (sum - v, times the gradient), reads and writes F vectors.
    """
    count, dim = len(sources), sources[0].width
    return Operator(
        name,
        Kind.FM,
        tuple(source.name for source in sources),
        2 * dim,
        forward=Work(4 * count * dim, FLOAT_BYTES * (count + 2) * dim),
        backward=Work(2 * count * dim, FLOAT_BYTES * (2 * count + 2) * dim),
    )


def cross(name: str, first: Operator, previous: Operator, rank: int, optimizer: str = "sgd") -> Operator:
    """Return a low-rank cross layer ``x0 * ((x V) U + b) + x``; width n, rank r, 2nr + n parameters.

    Forward: 4nr flops in two products and 3n element-wise; reads x0 and x, writes y and the inner (r) twice. Backward:
    twice the products, 6n element-wise, twice the traffic; weights are read and their gradient written.
    """
    n = first.width
    parameters = 2 * n * rank + n
    traffic = FLOAT_BYTES * (3 * n + 2 * rank)
    return Operator(
        name,
        Kind.CROSS,
        (first.name, previous.name),
        n,
        parameters,
        forward=Work(4 * n * rank + 3 * n, traffic, FLOAT_BYTES * parameters),
        backward=Work(8 * n * rank + 6 * n, 2 * traffic, 2 * FLOAT_BYTES * parameters),
        update=dense_update(parameters, optimizer),
        rank=rank,
    )


def loss(logits: Operator) -> Operator:
    """Return the mean binary cross entropy: about ten flops a sample, reads logit and label, writes one number."""
    work = Work(10, 3 * FLOAT_BYTES)
    return Operator("loss", Kind.LOSS, (logits.name,), 1, forward=work, backward=work)


@dataclass(frozen=True)
class _Mlp:
    """A chain of LINEAR layers, optionally with all layers but the last split into parallel branches."""

    spec: ModelSpec
    source: str
    prefix: str
    widths: Sequence[int]
    branches: int
    last_activation: str

    def expand(self, entry: Operator, *, input_gradient: bool) -> list[Operator]:
        """Return the operators in order; the last one is the output of the chain."""
        hidden, last = self.widths[:-1], len(self.widths) - 1
        if self.branches > 1:
            self._check_branches(hidden)
            built = [op for b in range(self.branches) for op in self._branch(entry, b, input_gradient)]
            ends = built[len(hidden) - 1 :: len(hidden)]
            built.append(concat(f"{self.prefix}_merge", ends))
        else:
            built = self._chain(
                entry, [(f"{self.prefix}_{i}", width) for i, width in enumerate(hidden)], input_gradient
            )
        before = built[-1] if built else entry
        return [
            *built,
            self._layer(
                f"{self.prefix}_{last}", before, self.widths[-1], self.last_activation, bool(built) or input_gradient
            ),
        ]

    def _branch(self, entry: Operator, branch: int, input_gradient: bool) -> list[Operator]:
        layers = [(f"{self.prefix}_{i}_b{branch}", w // self.branches) for i, w in enumerate(self.widths[:-1])]
        return self._chain(entry, layers, input_gradient)

    def _chain(self, entry: Operator, layers: Sequence[tuple[str, int]], input_gradient: bool) -> list[Operator]:
        built: list[Operator] = []
        for name, width in layers:
            before = built[-1] if built else entry
            built.append(self._layer(name, before, width, "relu", bool(built) or input_gradient))
        return built

    def _layer(self, name: str, before: Operator, width: int, activation: str, input_gradient: bool) -> Operator:
        return linear(name, before, width, activation, self.spec.optimizer, input_gradient=input_gradient)

    def _check_branches(self, hidden: Sequence[int]) -> None:
        key = f"{self.prefix}_branches"
        if not hidden:
            raise BadInput(self.source, key, self.branches, "1, because the MLP has no layer before its last one")
        odd = next((width for width in hidden if width % self.branches), None)
        if odd is not None:
            raise BadInput(self.source, key, self.branches, f"a divisor of all hidden widths; {odd} is not a multiple")


def expand_model(spec: ModelSpec, source: str) -> Model:
    """Return the model that ``spec`` describes.

    Operators, in order: ``dense``, ``bottom_0``.. (``bottom_0_b1``.. and ``bottom_merge`` with branches), one LOOKUP
    per table named like it, ``<table>_projection`` where its dim is not ``projection_dim``, ``interaction``, ``cross_0``..,
    ``top_0``.., ``loss``. Without dense features there is no
    bottom MLP; with a single feature vector there is no interaction.

    Parameters
    ----------
    spec : ModelSpec
        Validated description.
    source : str
        File, for messages.

    Raises
    ------
    BadInput
        When sizes do not fit together; the message names the key.
    """
    _check(spec, source)
    tables = expand_tables(spec, source)
    shared = expand_shared(spec, tables, source)
    bottom = _bottom(spec, source)
    lookups = [lookup(feature) for feature in (*tables, *shared)]
    projections = _projections(spec, lookups)
    vectors = [*bottom[-1:], *(projections.get(op.name, op) for op in lookups)]
    between = _interaction(spec, source, vectors)
    top_input = [*vectors, *between][-1]
    top = _Mlp(spec, source, "top", spec.top_mlp, spec.top_branches, "none").expand(
        top_input, input_gradient=top_input.kind is not Kind.DENSE_INPUT
    )
    try:
        graph = Graph((*bottom, *lookups, *projections.values(), *between, *top, loss(top[-1])))
    except GraphError as error:
        raise GraphError(f"{source}: {error}") from None
    return Model(
        name=spec.name,
        graph=graph,
        tables=tables,
        batch=spec.batch,
        learning_rate=spec.learning_rate,
        optimizer=spec.optimizer,
        spec=spec.model_dump(mode="json", exclude_defaults=True) | {"kind": spec.kind},
        notes=spec.notes + _notes(spec),
        shared=shared,
    )


def _check(spec: ModelSpec, source: str) -> None:
    """Refuse descriptions whose keys contradict each other."""
    if not spec.dense_features and not spec.tables:
        raise BadInput(source, "tables", [], "at least one table, or dense_features above 0")
    if spec.top_mlp[-1] != 1:
        raise BadInput(source, "top_mlp", list(spec.top_mlp), "a last width of 1: the logit")
    wants_cross = spec.interaction == "dcn"
    for key, value in (("cross_layers", spec.cross_layers), ("cross_rank", spec.cross_rank)):
        if bool(value) != wants_cross:
            raise BadInput(source, key, value, "at least 1 with interaction = 'dcn', 0 with any other")


def _bottom(spec: ModelSpec, source: str) -> list[Operator]:
    """Return dense input and bottom MLP; empty without dense features."""
    if not spec.dense_features:
        return []
    dense = Operator("dense", Kind.DENSE_INPUT, width=spec.dense_features)
    if not spec.bottom_mlp:
        return [dense]
    mlp = _Mlp(spec, source, "bottom", spec.bottom_mlp, spec.bottom_branches, "relu")
    return [dense, *mlp.expand(dense, input_gradient=False)]


def _projections(spec: ModelSpec, lookups: Sequence[Operator]) -> dict[str, Operator]:
    """Return, by table, the layers that bring pooled rows to ``projection_dim`` elements, where they have another number."""
    width = spec.projection_dim
    return {
        op.name: linear(f"{op.name}_projection", op, width, "none", spec.optimizer)
        for op in lookups
        if width is not None and op.width != width
    }


def _interaction(spec: ModelSpec, source: str, vectors: Sequence[Operator]) -> list[Operator]:
    """Return the operators between the feature vectors and the top MLP."""
    if spec.interaction in {"dot", "fm"}:
        odd = next((vector for vector in vectors if vector.width != vectors[0].width), None)
        if odd is not None:
            allowed = (
                f"equal widths; {vectors[0].name} has {vectors[0].width}, {odd.name} has {odd.width} "
                "(or 'concat', or a projection_dim)"
            )
            raise BadInput(source, "interaction", spec.interaction, allowed)
        meet = dot_interaction if spec.interaction == "dot" else fm_interaction
        return [meet("interaction", vectors)] if len(vectors) > 1 else []
    built = [concat("interaction", vectors)] if len(vectors) > 1 else []
    first = built[0] if built else vectors[0]
    for layer in range(spec.cross_layers):
        previous = built[-1] if layer else first
        built.append(cross(f"cross_{layer}", first, previous, spec.cross_rank, spec.optimizer))
    return built


def _notes(spec: ModelSpec) -> tuple[str, ...]:
    """Return what the expansion did that the user may not expect."""
    notes: list[str] = []
    if spec.bottom_mlp and not spec.dense_features:
        notes.append("no dense features: the bottom MLP is left out")
    if spec.max_rows and any((entry.rows or 0) > spec.max_rows for entry in spec.tables):
        notes.append(f"rows capped at {spec.max_rows:,}: ids above are hashed by modulo")
    return tuple(notes)


def capped(spec: ModelSpec, rows: int) -> ModelSpec:
    """Return ``spec`` with tables of at most ``rows`` rows (larger ids are hashed by modulo)."""
    return spec.model_copy(update={"max_rows": min(rows, spec.max_rows or rows)})


def rows_capped(table: EmbeddingTable, rows: int) -> EmbeddingTable:
    """Return ``table`` with at most ``rows`` rows."""
    return replace(table, rows=min(table.rows, rows))
