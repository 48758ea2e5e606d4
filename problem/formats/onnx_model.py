"""ONNX models (https://onnx.ai): operators with counted work, and the embedding tables among them.

Needs the ``onnx`` package (``pip install hiertrain[onnx]``), for its own shape inference; weights outside the file are not
read. Whatever depends on no input of the graph is a constant: float constants are parameters of the operators that read
them. Work is counted from shapes: products and convolutions by their multiply-adds (:mod:`onnx_work
<problem.formats.onnx_work>`), everything else one flop an element; the backward pass counts twice the forward pass, as an
exported model holds none. Dimension 0 of the first input that has two is the batch; sizes are per sample.

An embedding is a ``Gather`` of rows of a constant matrix, alone, or followed by a sum over the ids (pooled), or inside a
``Loop`` or ``Scan`` over bags, as ``EmbeddingBag`` is exported: it becomes a table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from problem.documents import Document
from problem.errors import BadInput
from problem.formats.content import Content
from problem.formats.onnx_work import forward_flops
from problem.formats.trace_graph import clean
from problem.graph import FLOAT_BYTES
from problem.graph_json import graph_model
from problem.model import Model
from problem.schema import GraphSpec, validate

_DOMAINS = {"", "ai.onnx"}
_SUMS = {"ReduceSum", "ReduceMean"}
_LOOPS = {"Loop", "Scan"}
_FLOATS = {1, 10, 11, 16}  # TensorProto.FLOAT, FLOAT16, DOUBLE, BFLOAT16
BACKWARD = 2
"""Flops of the backward pass for each of the forward pass: the gradients of a product's inputs and of its weights."""


def read_model(content: Content) -> Model:
    """Return the model of an ONNX file.

    Raises
    ------
    BadInput
        When the onnx package is missing, the bytes are no model, an operator is not ONNX's own, or a shape is not known.
    """
    graph = _Graph(_load(content), content.source)
    tables = graph.tables()
    operators = graph.operators()
    if not operators:
        raise BadInput(content.source, "graph.node", 0, "at least one operator that depends on an input")
    notes = [
        f"ONNX: work is counted from shapes, the backward pass as {BACKWARD} forward passes; batch in the file {graph.batch}"
    ]
    if tables:
        notes.append(f"{len(tables)} embeddings are tables; ids of a bag that the file leaves open count as one")
    data = {
        "format": "hiertrain-graph/1",
        "name": content.stem,
        "tables": tables,
        "operators": operators,
        "notes": notes,
    }
    return graph_model(validate(GraphSpec, Document(content.source, data)), content.source)


def _load(content: Content) -> Any:
    """Return the inferred model."""
    try:
        import onnx  # noqa: PLC0415 - an optional dependency
        from onnx import shape_inference  # noqa: PLC0415
    except ImportError:
        raise BadInput(content.source, "format", "onnx", "the onnx package: pip install 'hiertrain[onnx]'") from None
    with content.open() as stream:
        data = stream.read()
    try:
        model = onnx.load_model_from_string(data)
        _check_operators(model, onnx, content.source)
        return shape_inference.infer_shapes(model, data_prop=True)
    except BadInput:
        raise
    except Exception as error:  # onnx raises protobuf's, its own and ValueError
        reason = " ".join(str(error).split())[:100]
        raise BadInput(content.source, "model", reason, "an ONNX model whose shapes can be inferred") from None


def _check_operators(model: Any, onnx: Any, source: str) -> None:
    if not model.graph.node and not model.graph.input:
        raise BadInput(source, "graph", "empty", "an ONNX model with operators")
    for node in model.graph.node:
        if node.domain not in _DOMAINS or not onnx.defs.has(node.op_type, node.domain):
            name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
            where = f"node({node.name or ', '.join(node.output)}).op_type"
            raise BadInput(source, where, name, "an operator of ai.onnx")


class _Graph:
    """The nodes of a model that depend on its inputs, and what they are."""

    def __init__(self, model: Any, source: str) -> None:
        self._source, graph = source, model.graph
        self._shapes = {value.name: _dims(value) for value in (*graph.input, *graph.value_info, *graph.output)}
        self._types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
        self._shapes |= {constant.name: list(constant.dims) for constant in graph.initializer}
        self._types |= {constant.name: constant.data_type for constant in graph.initializer}
        constants = {constant.name for constant in graph.initializer}
        inputs = [value.name for value in graph.input if value.name not in constants]
        self.batch = self._batch(inputs)
        live, self._nodes = set(inputs), []
        for node in graph.node:
            if live & {*node.input, *_captured(node)}:
                live |= set(node.output)
                self._nodes.append(node)
        self._live = live
        self._read = {name for node in self._nodes for name in (*node.input, *_captured(node))}
        self._read |= {value.name for value in graph.output}
        self._names: dict[str, str] = dict.fromkeys(inputs, "")
        self._tables: dict[str, dict[str, Any]] = {}
        self._operators: list[dict[str, Any]] = []
        for node in self._nodes:
            self._add(node)

    def tables(self) -> list[dict[str, Any]]:
        """Tables that operators read."""
        return list(self._tables.values())

    def operators(self) -> list[dict[str, Any]]:
        """Operators in the keys of :class:`problem.schema.OperatorSpec`."""
        return self._operators

    def _batch(self, inputs: list[str]) -> int:
        shapes = [self._shapes[name] for name in inputs]
        first = next((shape for shape in shapes if len(shape) > 1), shapes[0] if shapes else [])
        return first[0] if first and isinstance(first[0], int) and first[0] > 0 else 1

    def _add(self, node: Any) -> None:
        matrix = self._gathered(node)
        if matrix is not None:
            self._add_table(node, matrix)
        elif node.op_type in _SUMS and self._names.get(node.input[0]) in self._tables:
            self._names[node.output[0]] = self._names[node.input[0]]  # the lookup pools by itself
        else:
            self._add_operator(node)

    def _add_table(self, node: Any, matrix: str) -> None:
        rows, dim = self._shapes[matrix]
        name = self._fresh(clean(matrix))
        self._tables[name] = {"name": name, "rows": rows, "dim": dim, "pooling_factor": self._ids(node)}
        self._names |= dict.fromkeys(node.output, name)

    def _fresh(self, name: str) -> str:
        """Return a name that nothing has yet: a matrix that is read twice is looked up twice."""
        taken = {*self._tables, *(op["name"] for op in self._operators)}
        return next(n for n in (name, *(f"{name} ({i})" for i in range(2, len(taken) + 3))) if n not in taken)

    def _gathered(self, node: Any) -> str | None:
        """Return the constant matrix whose rows a node gathers, itself or in the body of a loop over bags."""
        if node.op_type == "Gather" and self._is_matrix(node.input[0]) and node.input[1] in self._live:
            return str(node.input[0])
        if node.op_type in _LOOPS:
            inner = [found for body in _bodies(node) for found in body.node if found.op_type == "Gather"]
            return next((str(found.input[0]) for found in inner if self._is_matrix(found.input[0])), None)
        return None

    def _is_matrix(self, name: str) -> bool:
        return name not in self._live and len(self._shapes.get(name, ())) == 2 and self._types.get(name) in _FLOATS

    def _ids(self, node: Any) -> float:
        """Return ids per sample: of (B, L) indices L, of a bag the indices over the bags."""
        indices = self._shapes.get(node.input[1] if node.op_type == "Gather" else "", [])
        sizes = [size for size in indices[1:] if isinstance(size, int) and size > 0]
        return float(math.prod(sizes)) if sizes else 1.0

    def _add_operator(self, node: Any) -> None:
        sources = dict.fromkeys(self._names[name] for name in (*node.input, *_captured(node)) if self._names.get(name))
        shapes = [self._shape(name, node) for name in node.output if name in self._read]
        elements = sum(math.prod(shape) for shape in shapes)
        flops = (
            forward_flops(node, [self._known(name) for name in node.input], shapes[0] if shapes else []) / self.batch
        )
        name = self._fresh(clean(node.name or node.output[0]))
        self._names |= dict.fromkeys(node.output, name)
        self._operators.append(
            {
                "name": name,
                "inputs": list(sources),
                "forward_seconds": 0.0,
                "forward_flops": flops,
                "backward_flops": BACKWARD * flops,
                "output_bytes": math.ceil(elements / self.batch) * FLOAT_BYTES,
                "parameter_bytes": FLOAT_BYTES * sum(self._parameters(name) for name in node.input),
            }
        )

    def _parameters(self, name: str) -> int:
        """Return the elements of a float constant; scalars and index tensors are no parameters."""
        constant = name and name not in self._live and self._types.get(name) in _FLOATS
        shape = self._known(name) if constant else []
        return math.prod(shape) if shape else 0

    def _known(self, name: str) -> list[int]:
        return [size if isinstance(size, int) else 1 for size in self._shapes.get(name, [])]

    def _shape(self, name: str, node: Any) -> list[int]:
        """Return a shape; a named dimension (the batch) counts as one."""
        if name not in self._shapes:
            where = f"node({node.name or node.op_type}).output({name})"
            raise BadInput(self._source, where, None, "a shape that can be inferred; fix the shapes of the inputs")
        return self._known(name)


def _dims(value: Any) -> list[int | str]:
    return [dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in value.type.tensor_type.shape.dim]


def _bodies(node: Any) -> list[Any]:
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def _captured(node: Any) -> Mapping[str, None]:
    """Return the tensors that the body of a node takes from around it."""
    found: dict[str, None] = {}
    for body in _bodies(node):
        inside = {value.name for value in body.input} | {name for inner in body.node for name in inner.output}
        names = [name for inner in body.node for name in (*inner.input, *_captured(inner))]
        found |= dict.fromkeys(name for name in names if name and name not in inside)
    return found
