"""Schemas: what the keys of our model, graph and cluster files are, and which values they take.

Pydantic checks types, ranges and unknown keys; :func:`validate` turns its first complaint into one
:class:`~problem.errors.BadInput` line that names file, line, field, value and what is allowed. What a valid description
*means* (operators, machines) is the business of ``problem.expand`` and of the readers.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from problem import slurm, units
from problem.documents import Document, Location
from problem.errors import BadInput

MAX_BYTES = 2**63 - 1
"""Sizes above this do not fit the 64-bit integers of solvers and transports."""


def _name(text: str) -> str:
    """Refuse names that the tensor notation of programs gives another meaning (``x@ps0``, ``d.x``, ``ids.x``)."""
    reserved = "@" in text or " <- " in text or re.match(r"(d|ids|weights)\.", text)
    if not text.strip() or not text.isprintable() or reserved:
        allowed = "a name without '@', ' <- ' or control characters, not starting with 'd.', 'ids.' or 'weights.'"
        raise ValueError(f"must be {allowed}")
    return text


def _host(text: str) -> str:
    """Refuse machine names that cannot stand in a list of machines."""
    if not text or not text.isprintable() or re.search(r"[\s,]", text):
        raise ValueError("must be a name without spaces and commas")
    return text


def _nodelist(value: object) -> tuple[str, ...]:
    """Return the hosts of a Slurm node list, or of a list of such lists."""
    hosts: list[str] = []
    for item in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(item, str):
            raise ValueError("must be text: a name or a Slurm node list")
        hosts += slurm.expand_nodelist(item)
    return tuple(hosts)


def _identifier(value: object) -> str:
    """Return a number or text that identifies something as text."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("must be a whole number or text")
    return str(value)


def _above_zero(value: float) -> float:
    """Refuse a node without the resource."""
    if value <= 0:
        raise ValueError("must be above 0; leave the node out instead")
    return value


Name = Annotated[str, Field(strict=True), AfterValidator(_name)]
Whole = Annotated[int, BeforeValidator(units.parse_count), Field(ge=0, le=MAX_BYTES)]
Count = Annotated[int, BeforeValidator(units.parse_count), Field(ge=1, le=MAX_BYTES)]
Number = Annotated[float, BeforeValidator(units.parse_number), Field(ge=0)]
PositiveNumber = Annotated[float, BeforeValidator(units.parse_number), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(units.parse_bytes), Field(le=MAX_BYTES)]
Identifier = Annotated[str, BeforeValidator(_identifier)]
Optimizer = Literal["sgd", "adagrad", "rowwise_adagrad", "adam"]
DenseOptimizer = Literal["sgd", "adagrad", "adam"]


class Schema(BaseModel):
    """Base of all descriptions: immutable, every key known, every required key given."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    other_keys: ClassVar[bool] = False
    """Whether keys that the schema does not know are ignored (formats of others) or refused (ours)."""

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, data: object) -> object:
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise PydanticCustomError(
                "table", "must be a table with the keys {keys}", {"keys": ", ".join(cls.model_fields)}
            )
        for key in data:
            if key not in cls.model_fields and not cls.other_keys:
                raise PydanticCustomError(
                    "key", "{hint}", {"key": str(key), "hint": _unknown_key(key, cls.model_fields)}
                )
        for key, info in cls.model_fields.items():
            if key not in data and info.is_required():
                hint = f"required: {info.description or 'this key'}"
                raise PydanticCustomError("key", "{hint}", {"key": key, "hint": hint})
        return data


def _unknown_key(key: object, known: Mapping[str, Any]) -> str:
    """Say which key was probably meant."""
    near = difflib.get_close_matches(str(key), known, n=1)
    return f"unknown key; {f'did you mean {near[0]}? ' if near else ''}known keys: {', '.join(known)}"


class TableSpec(Schema):
    """An embedding table, or ``count`` equal ones (named ``name_0``, ``name_1``, ...), or a feature that shares a table."""

    name: Name = Field(description="name of the table")
    rows: Count | None = Field(None, description="number of rows, at least 1")
    shares: Name | None = None
    histogram: tuple[Number, ...] = ()
    ranked: bool = False
    dim: Count | None = None
    pooling_factor: Number = 1.0
    skew: Number | None = None
    optimizer: Optimizer | None = None
    dtype: Literal["fp32", "fp16", "bf16"] = "fp32"
    pooling: Literal["sum", "mean", "weighted"] = "sum"
    max_ids: Count | None = None
    count: Count = 1

    @model_validator(mode="before")
    @classmethod
    def _rows_or_shares(cls, data: object) -> object:
        if isinstance(data, Mapping) and not set(data) - set(cls.model_fields):
            given = [key for key in ("rows", "dim", "optimizer", "dtype") if data.get(key) is not None]
            if "shares" in data and given:
                hint = (
                    "nothing here: a feature that shares a table has the rows, dim, optimizer and dtype of that table"
                )
                raise PydanticCustomError("key", "{hint}", {"key": given[0], "hint": hint})
            if "shares" not in data and "rows" not in data:
                raise PydanticCustomError(
                    "key", "{hint}", {"key": "rows", "hint": "required: number of rows, at least 1 (or shares)"}
                )
        return data


class ModelSpec(Schema):
    """A DLRM: bottom MLP, embedding tables, interaction, top MLP, and its training settings."""

    kind: Literal["dlrm"] = "dlrm"
    name: Name = Field(description="name of the model")
    summary: str = ""
    source: str = ""
    notes: tuple[str, ...] = ()
    dense_features: Whole = Field(description="number of dense features, 0 or more")
    bottom_mlp: tuple[Count, ...] = ()
    top_mlp: tuple[Count, ...] = Field(min_length=1, description="widths of the top MLP, the last one 1")
    embedding_dim: Count | None = None
    tables: tuple[TableSpec, ...] = ()
    interaction: Literal["dot", "fm", "concat", "dcn"] = "dot"
    projection_dim: Count | None = None
    cross_layers: Whole = 0
    cross_rank: Whole = 0
    bottom_branches: Count = 1
    top_branches: Count = 1
    batch: Count = 128
    learning_rate: PositiveNumber = 0.1
    optimizer: DenseOptimizer = "sgd"
    table_optimizer: Optimizer = "sgd"
    skew: Number = 1.05
    max_rows: Count | None = None


class OperatorSpec(Schema):
    """An operator that is known by its costs only: seconds where they were measured, flops where they are counted."""

    name: Name = Field(description="name of the operator")
    inputs: tuple[Name, ...] = ()
    forward_seconds: Number = Field(description="core-seconds per sample of the forward phase")
    backward_seconds: Number = 0.0
    update_seconds: Number = 0.0
    forward_flops: Number = 0.0
    backward_flops: Number = 0.0
    output_bytes: Whole = Field(description="bytes of the output per sample")
    parameter_bytes: Whole = 0
    component: str = ""


class GraphSpec(Schema):
    """An operator graph with measured costs, format ``hiertrain-graph/1``."""

    format: Literal["hiertrain-graph/1"] = Field(description="'hiertrain-graph/1'")
    name: Name = Field(description="name of the graph")
    batch: Count = 1
    notes: tuple[str, ...] = ()
    tables: tuple[TableSpec, ...] = ()
    operators: tuple[OperatorSpec, ...] = Field(min_length=1, description="at least one operator")


class MsrNode(Schema):
    """A node of a dnn-partitioning graph; latencies in milliseconds, size in bytes."""

    other_keys = True
    id: Identifier = Field(description="identifier of the node")
    name: str = ""
    cpuLatency: Number = 0.0
    fpgaLatency: Number = Field(description="milliseconds on an accelerator")
    size: Bytes = Field(description="bytes of memory")
    colorClass: Identifier | None = None


class MsrEdge(Schema):
    """An edge of a dnn-partitioning graph; cost in milliseconds to move the source's output."""

    other_keys = True
    sourceId: Identifier = Field(description="id of a node")
    destId: Identifier = Field(description="id of a node")
    cost: Number = Field(description="milliseconds to move the output of the source")


class MsrGraph(Schema):
    """A dnn-partitioning instance (github.com/msr-fiddle/dnn-partitioning)."""

    other_keys = True
    maxSizePerFPGA: Annotated[Bytes, AfterValidator(_above_zero)] = Field(description="bytes of an accelerator")
    maxFPGAs: Count = Field(description="number of accelerators")
    nodes: tuple[MsrNode, ...] = Field(min_length=1, description="at least one node")
    edges: tuple[MsrEdge, ...] = Field(description="list of edges")


def _rate_in_gigabits(value: object) -> float:
    return units.parse_rate(value, bare="Gb/s")


class NodeSpec(Schema):
    """A machine, or several equal ones (``names`` is a Slurm node list)."""

    name: Annotated[tuple[str, ...], BeforeValidator(_nodelist)] = ()
    names: Annotated[tuple[str, ...], BeforeValidator(_nodelist)] = ()
    host: Annotated[str, AfterValidator(_host)] = ""
    kind: str = ""
    role: Literal["any", "trainer", "server"] = "any"
    cores: Count = Field(description="number of cores, such as 18")
    memory: Annotated[Bytes, AfterValidator(_above_zero)] = Field(
        description="memory that training may use, such as 64GiB"
    )
    nic_gbps: Annotated[float, BeforeValidator(_rate_in_gigabits), AfterValidator(_above_zero)] = Field(
        description="rate of the NIC each way: a number in Gb/s, or with unit such as 12.5Gb/s"
    )
    link_latency_s: Annotated[float, BeforeValidator(units.parse_seconds)] | None = None
    memory_bandwidth: Annotated[float, BeforeValidator(units.parse_rate), AfterValidator(_above_zero)] | None = None
    flops_per_core: Annotated[float, BeforeValidator(units.parse_flops), AfterValidator(_above_zero)] | None = None

    @model_validator(mode="after")
    def _one_name(self) -> Self:
        if bool(self.name) == bool(self.names):
            raise ValueError("needs either name or names")
        return self


class ClusterSpec(Schema):
    """Machines that a job may use."""

    name: str = ""
    summary: str = ""
    source: str = ""
    assumptions: tuple[str, ...] = ()
    nodes: tuple[NodeSpec, ...] = Field(min_length=1, description="at least one node")


AnySchema = TypeVar("AnySchema", bound=Schema)


def validate(schema: type[AnySchema], document: Document) -> AnySchema:
    """Return ``document`` as an instance of ``schema``.

    Raises
    ------
    BadInput
        On the first value (in document order where lines are known) that the schema refuses.
    """
    try:
        return schema.model_validate(document.data)
    except ValidationError as error:
        faults = [_fault(found) for found in error.errors(include_url=False)]
    location, allowed = min(faults, key=lambda fault: document.lines.get(fault[0], 0))
    value = document.value(location)
    shown = value if isinstance(value, str | int | float | None) else f"{type(value).__name__} of {len(value)}"
    raise BadInput(document.where(location), document.path(location), shown, allowed)


def _fault(found: Any) -> tuple[Location, str]:
    """Return location and text of one pydantic complaint."""
    location: Location = found["loc"]
    context = found.get("ctx", {})
    if found["type"] == "key":
        return (*location, context["key"]), context["hint"]
    if found["type"] == "value_error":
        return location, str(context["error"])
    if found["type"] == "too_short":
        return location, f"must have at least {context['min_length']} item(s)"
    return location, found["msg"].replace("Input should", "must").replace("a valid tuple", "a list")
