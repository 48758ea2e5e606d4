"""Where parameters live, how they are laid out and what they start from.

Each operator has ONE flat float32 buffer (so that an all-reduce, an elastic exchange or shared memory takes the buffer
as it is) and, if the optimizer keeps state, one more of the same size. A range of a table's rows and columns is a
:class:`TableRows`. Knows nothing of gradients, messages or processes; buffers come from a factory of the caller.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from executor.arrays import BufferFactory, Floats, UnsupportedModel, generator, private_buffer
from problem.graph import Kind, Operator
from problem.model import STATE_PER_ELEMENT, STATE_PER_ROW, EmbeddingTable, Model

DENSE_OPTIMIZERS = ("sgd", "adagrad")
TABLE_OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")

#: Rows that are drawn together. Part of the meaning of a seed: another value gives other numbers.
BLOCK_ROWS = 4096

Layout = tuple[tuple[str, tuple[int, ...]], ...]


def layout(op: Operator) -> Layout:
    """Return names and shapes of an operator's parameters, in the order in which its flat buffer holds them.

    ``weight`` (in, out) and ``bias`` (out,) of a LINEAR; ``down`` (width, rank), ``up`` (rank, width) and ``bias``
    (width,) of a CROSS; nothing for any other kind.

    Raises
    ------
    UnsupportedModel
        If ``op.parameters`` is not the number of elements of these shapes.
    """
    shapes: Layout = ()
    if op.kind is Kind.LINEAR:
        shapes = (("weight", (max(0, op.parameters // max(1, op.width) - 1), op.width)), ("bias", (op.width,)))
    elif op.kind is Kind.CROSS:
        shapes = (("down", (op.width, op.rank)), ("up", (op.rank, op.width)), ("bias", (op.width,)))
    elements = sum(math.prod(shape) for _, shape in shapes)
    if elements != op.parameters:
        raise UnsupportedModel(
            f"operator {op.name!r} ({op.kind}): has {op.parameters} parameters, its kernel needs {elements}: "
            + ", ".join(f"{name} {shape}" for name, shape in shapes)
        )
    return shapes


def unflatten(shapes: Layout, flat: Floats) -> tuple[Floats, ...]:
    """Return views of a flat buffer (elements,), one for each entry of ``shapes``, in order."""
    parts: list[Floats] = []
    begin = 0
    for _, shape in shapes:
        end = begin + math.prod(shape)
        parts.append(flat[begin:end].reshape(shape))
        begin = end
    return tuple(parts)


def check_supported(model: Model) -> None:
    """Refuse a model that the executor cannot train.

    Raises
    ------
    UnsupportedModel
        On an operator without a kernel or a way to the loss, more than one dense input, not exactly one loss, or an
        optimizer or table type that is not implemented.
    """
    for op in model.graph:
        if op.kind is Kind.FIXED:
            raise UnsupportedModel(f"operator {op.name!r} is known by its costs only; it can be planned, not executed")
        if op.kind is not Kind.LOSS and model.graph.needs_gradient[op.name] and not model.graph.consumers[op.name]:
            raise UnsupportedModel(f"operator {op.name!r} leads to no loss: nothing consumes its output")
        layout(op)
    kinds = [op.kind for op in model.graph]
    if kinds.count(Kind.DENSE_INPUT) > 1 or kinds.count(Kind.LOSS) != 1:
        raise UnsupportedModel(
            f"model {model.name!r} has {kinds.count(Kind.DENSE_INPUT)} dense inputs and {kinds.count(Kind.LOSS)} losses; "
            "the executor takes at most one dense input and exactly one loss"
        )
    _check_optimizer(f"model {model.name!r}", model.optimizer, DENSE_OPTIMIZERS)
    for table in model.tables:
        _check_optimizer(f"table {table.name!r}", table.optimizer, TABLE_OPTIMIZERS)
        if table.dtype != "fp32":
            raise UnsupportedModel(f"table {table.name!r}: dtype {table.dtype!r}: the executor stores fp32 only")


def _check_optimizer(where: str, optimizer: str, allowed: tuple[str, ...]) -> None:
    if optimizer not in allowed:
        raise UnsupportedModel(f"{where}: optimizer {optimizer!r}: the executor has {', '.join(allowed)}")


class Parameters:
    """Dense parameters and their optimizer state: for each operator one flat buffer of each.

    Parameters
    ----------
    model : Model
        Model whose parameters are held.
    factory : BufferFactory
        Gives the buffers; called as ``factory("top0", n)``, and for state ``factory("top0.state", n)``, in graph order.
    operators : iterable of str, optional
        Operators that are held here (all of the model's by default); those without parameters are left out.

    Raises
    ------
    UnsupportedModel
        If the model cannot be executed (:func:`check_supported`).
    """

    def __init__(
        self, model: Model, factory: BufferFactory = private_buffer, operators: Iterable[str] | None = None
    ) -> None:
        check_supported(model)
        wanted = {op.name for op in model.graph} if operators is None else set(operators)
        self._ops = {op.name: op for op in model.graph if op.parameters and op.name in wanted}
        stateful = STATE_PER_ELEMENT[model.optimizer]
        self._flat = {name: factory(name, op.parameters) for name, op in self._ops.items()}
        self._state = {
            name: factory(f"{name}.state", op.parameters * stateful) if stateful else np.zeros(0, np.float32)
            for name, op in self._ops.items()
        }

    @property
    def operators(self) -> tuple[str, ...]:
        """Operators that have parameters here, in graph order."""
        return tuple(self._ops)

    def flat(self, op: str) -> Floats:
        """All parameters of an operator, (elements,)."""
        return self._flat[op]

    def state(self, op: str) -> Floats:
        """Optimizer state of an operator, (elements,), or (0,) if the optimizer keeps none."""
        return self._state[op]

    def views(self, op: str) -> Mapping[str, Floats]:
        """Parameters of an operator by name, views in the shapes of :func:`layout`."""
        shapes = layout(self._ops[op])
        return dict(zip((name for name, _ in shapes), unflatten(shapes, self._flat[op]), strict=True))

    def initialise(self, seed: int) -> None:
        """Set every parameter to its start value, every state to zero.

        The start value depends on the seed and the operator's name only. Weights are normal with variance
        2 / (in + out), biases of LINEAR layers normal with variance 1 / out (``create_mlp`` of facebookresearch/dlrm,
        dlrm_s_pytorch.py); CROSS weights likewise (Xavier, as ``LowRankCrossNet`` of TorchRec) with zero bias.
        """
        for name, op in self._ops.items():
            draw = generator(seed, "operator", name)
            for values in self.views(name).values():
                if values.ndim == 2:
                    values[...] = draw.normal(0.0, math.sqrt(2.0 / sum(values.shape)), values.shape)
                elif op.kind is Kind.LINEAR:
                    values[...] = draw.normal(0.0, math.sqrt(1.0 / len(values)), values.shape)
                else:
                    values.fill(0.0)
            self._state[name].fill(0.0)


@dataclass(frozen=True)
class TableRows:
    """Rows ``row_begin`` to ``row_begin + len(rows)`` of some columns of a table, with their optimizer state.

    Parameters
    ----------
    table : EmbeddingTable
        The table.
    row_begin : int
        First row held.
    rows : ndarray of float32, shape (rows, width)
        The columns held of the embeddings.
    state : ndarray of float32
        Optimizer state: (rows, width) for ``adagrad``; (rows,) for ``rowwise_adagrad``, one scalar for each row *and* column
        shard; (2, rows, width) for ``adam``, the first moments and the second; (0,) for ``sgd``.
    updates : ndarray of int64, shape (1,)
        How often the shard was updated (counted for ``adam`` alone, whose bias correction needs it).
    column_begin : int
        First column held.
    """

    table: EmbeddingTable
    row_begin: int
    rows: Floats
    state: Floats
    updates: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, np.int64))
    column_begin: int = 0

    @property
    def row_end(self) -> int:
        """Last row held, plus one."""
        return self.row_begin + len(self.rows)

    @property
    def columns(self) -> slice:
        """Columns of the table that are held."""
        return slice(self.column_begin, self.column_begin + self.rows.shape[1])

    def initialise(self, seed: int) -> None:
        """Set rows to their start value (:func:`initialise_rows`), state to zero."""
        initialise_rows(self.table, seed, self.row_begin, self.rows, self.column_begin)
        self.state.fill(0.0)
        self.updates.fill(0)


def allocate_rows(
    table: EmbeddingTable,
    row_begin: int,
    row_end: int,
    factory: BufferFactory = private_buffer,
    columns: tuple[int, int] | None = None,
) -> TableRows:
    """Return memory for rows ``row_begin`` to ``row_end`` (exclusive) of a table and for their optimizer state.

    The factory is called as ``factory("t3[0:100]", n)`` and, if there is state, ``factory("t3[0:100].state", n)``; for adam
    also ``factory("t3[0:100].updates", 2)``, whose 8 bytes are a counter. ``columns`` (begin, end) are all by default.

    Raises
    ------
    UnsupportedModel
        If the table's optimizer is not implemented.
    """
    _check_optimizer(f"table {table.name!r}", table.optimizer, TABLE_OPTIMIZERS)
    begin, end = columns or (0, table.dim)
    count, width, name = row_end - row_begin, end - begin, f"{table.name}[{row_begin}:{row_end}]"
    rows = factory(name, count * width).reshape(count, width)
    state, updates = np.zeros(0, np.float32), np.zeros(1, np.int64)
    if per_element := STATE_PER_ELEMENT[table.optimizer]:
        shape = (count, width) if per_element == 1 else (per_element, count, width)
        state = factory(f"{name}.state", math.prod(shape)).reshape(shape)
    elif STATE_PER_ROW[table.optimizer]:
        state = factory(f"{name}.state", count)
    if table.optimizer == "adam":
        updates = factory(f"{name}.updates", 2).view(np.int64)
    return TableRows(table, row_begin, rows, state, updates, begin)


def initialise_rows(table: EmbeddingTable, seed: int, row_begin: int, out: Floats, column_begin: int = 0) -> None:
    """Write the start value of rows ``row_begin`` to ``row_begin + len(out)`` of a table into ``out`` (rows, width).

    Uniform between -1/sqrt(rows) and 1/sqrt(rows) of the whole table (``create_emb`` of facebookresearch/dlrm,
    dlrm_s_pytorch.py). Each block of :data:`BLOCK_ROWS` rows has its own generator, keyed by seed, table name and
    block, so that any range of rows, and of columns from ``column_begin`` on, gets the values it has in the whole table.
    """
    bound = np.float32(1.0 / math.sqrt(table.rows))
    scratch = np.empty((BLOCK_ROWS, table.dim), np.float32)
    row_end = row_begin + len(out)
    for block in range(row_begin // BLOCK_ROWS, -(-row_end // BLOCK_ROWS)):
        start = block * BLOCK_ROWS
        generator(seed, "table", table.name, block).random(dtype=np.float32, out=scratch)
        begin, end = max(row_begin, start), min(row_end, start + BLOCK_ROWS)
        chosen = out[begin - row_begin : end - row_begin]
        columns = slice(column_begin, column_begin + out.shape[1])
        np.multiply(scratch[begin - start : end - start, columns], 2 * bound, out=chosen)
        chosen -= bound
