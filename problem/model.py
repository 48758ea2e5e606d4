"""A model: the operator graph, the embedding tables and the training settings that come with it.

A *feature* is what one LOOKUP operator reads: ids of its own, pooled from the rows of a table. Most tables have one
feature, of the same name; a shared table has several. Memory belongs to tables, traffic to features.

Pure data. How a model file is read is the business of ``problem.readers``; how a DLRM description becomes operators of
``problem.expand``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from problem.graph import FLOAT_BYTES, Graph

#: Extra elements of optimizer state per parameter element, or per row where the name says so.
STATE_PER_ELEMENT = {"sgd": 0, "adagrad": 1, "rowwise_adagrad": 0, "adam": 2}
STATE_PER_ROW = {"sgd": 0, "adagrad": 0, "rowwise_adagrad": 1, "adam": 0}
DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}


@dataclass(frozen=True, slots=True)
class EmbeddingTable:
    """An embedding table and how it is read by the feature of its name; or another feature that reads a shared table.

    Parameters
    ----------
    name : str
        Unique name; the LOOKUP operator of the feature has the same name.
    rows, dim : int
        Shape of the table.
    pooling_factor : float
        Mean number of ids per sample.
    skew : float
        Exponent of the power law of row popularity (0 = uniform).
    optimizer : str
        ``sgd``, ``adagrad``, ``rowwise_adagrad`` or ``adam``: decides the state kept beside the rows.
    dtype : str
        ``fp32``, ``fp16`` or ``bf16``: storage only.
    pooling : str
        What becomes of a sample's rows: their ``sum``, their ``mean``, or the sum ``weighted`` by factors that come with
        the ids. A sample without ids gets zeros.
    max_ids : int
        The most ids of a sample; samples have 0 to so many, ``pooling_factor`` on average. 0: every sample has
        ``pooling_factor`` ids, rounded.
    shares : str
        Of a feature that reads the rows of another table: the name of that table, whose rows, dim, optimizer and dtype it
        repeats. Empty for a table of its own.
    histogram : tuple of float
        Shares of its lookups that fall on equal ranges of rows, in place of the power law (``problem.popularity``).
    ranked : bool
        Whether row 0 is the most popular one, row 1 the next, and so on; else popular rows lie anywhere.
    """

    name: str
    rows: int
    dim: int
    pooling_factor: float = 1.0
    skew: float = 1.05
    optimizer: str = "sgd"
    dtype: str = "fp32"
    pooling: str = "sum"
    max_ids: int = 0
    shares: str = ""
    histogram: tuple[float, ...] = ()
    ranked: bool = False

    @property
    def storage(self) -> str:
        """Name of the table whose rows are read."""
        return self.shares or self.name

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the rows."""
        return self.rows * self.dim * DTYPE_BYTES[self.dtype]

    @property
    def bytes_per_row(self) -> int:
        """Bytes of one row with its optimizer state (state is float32)."""
        return self.row_bytes(self.dim)

    def row_bytes(self, width: int) -> int:
        """Bytes of ``width`` columns of one row with their state; what is kept per row is kept by each column shard."""
        state = width * STATE_PER_ELEMENT[self.optimizer] + STATE_PER_ROW[self.optimizer]
        return width * DTYPE_BYTES[self.dtype] + state * FLOAT_BYTES

    @property
    def total_bytes(self) -> int:
        """Bytes of the rows and their optimizer state."""
        return self.rows * self.bytes_per_row

    @property
    def ids_per_sample(self) -> int:
        """Places for ids of each sample, in batches and messages: ``max_ids``, or the pooling factor, rounded, at least 1.

        Where a sample has fewer, -1 fills the rest.
        """
        return self.max_ids or max(1, round(self.pooling_factor))

    @property
    def mean_ids(self) -> float:
        """Rows that a sample looks up on average."""
        return self.pooling_factor if self.max_ids else self.ids_per_sample

    @property
    def request_elements(self) -> int:
        """Elements of 4 bytes of each sample's request for pooled rows: ids (int32) and their weights (float32), if any."""
        return self.ids_per_sample * (2 if self.pooling == "weighted" else 1)


@dataclass(frozen=True)
class Model:
    """A recommendation model to be trained.

    Parameters
    ----------
    name : str
        Name shown to the user.
    graph : Graph
        Operators, one LOOKUP per feature among them.
    tables : tuple of EmbeddingTable
        Embedding tables, each with a feature of its name.
    batch : int
        Samples per Hogwild thread and step, unless the user says otherwise.
    learning_rate : float
        Step of the optimizer.
    optimizer : str
        Optimizer of the dense parameters.
    spec : Mapping
        The validated description, from which ``problem.readers.model_from_spec`` rebuilds the same model.
    notes : tuple of str
        Assumptions that were filled in, for printing.
    shared : tuple of EmbeddingTable
        Further features, each of which reads the rows of one of the tables (``EmbeddingTable.shares``).
    """

    name: str
    graph: Graph
    tables: tuple[EmbeddingTable, ...] = ()
    batch: int = 128
    learning_rate: float = 0.1
    optimizer: str = "sgd"
    spec: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    notes: tuple[str, ...] = ()
    shared: tuple[EmbeddingTable, ...] = ()

    @cached_property
    def table(self) -> Mapping[str, EmbeddingTable]:
        """Tables by name."""
        return {table.name: table for table in self.tables}

    @cached_property
    def feature(self) -> Mapping[str, EmbeddingTable]:
        """Features by name, in the order in which their ids are in a batch: those of tables first, then the others."""
        return {feature.name: feature for feature in (*self.tables, *self.shared)}

    @cached_property
    def readers(self) -> Mapping[str, tuple[EmbeddingTable, ...]]:
        """Features of each table, in order: its own first. Gradients of a row are added in this order."""
        found: dict[str, list[EmbeddingTable]] = {table.name: [] for table in self.tables}
        for feature in self.feature.values():
            found[feature.storage].append(feature)
        return {name: tuple(features) for name, features in found.items()}

    @property
    def dense_state_per_parameter(self) -> int:
        """Optimizer state elements per dense parameter."""
        return STATE_PER_ELEMENT[self.optimizer]
