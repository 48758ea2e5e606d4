"""From the nodes of an execution trace to a model: every node an operator that is known by its measured seconds.

A step of the model is one traced step (``batch`` 1), forward and backward alike are operators of their own, and nothing
is updated. Communication keeps its bytes and costs no core time: how long a transfer takes follows from the cluster, not
from the traced one. What is odd in real traces is counted and told: dependencies on nodes that are not in the file,
nodes without a duration, communication that waits for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from problem.documents import Document
from problem.errors import BadInput
from problem.graph_json import graph_model
from problem.model import Model
from problem.schema import MAX_BYTES, GraphSpec, validate

MAX_NAME = 80
"""Characters of a kernel's name that are kept; a number makes it distinct."""


@dataclass(frozen=True, slots=True)
class TraceNode:
    """A node of a trace.

    Parameters
    ----------
    id : int
        Number in the trace.
    name : str
        Name in the trace; several nodes may share it.
    depends : tuple of int
        Numbers of the nodes that it waits for.
    microseconds : float or None
        Measured duration; None when there is none.
    output_bytes : int
        Bytes that it sends on; 0 when unknown.
    communicates : bool
        Whether it is a send, a receive or a collective.
    label : str
        Distinct name; empty: made of name and number.
    """

    id: int
    name: str
    depends: tuple[int, ...] = ()
    microseconds: float | None = None
    output_bytes: int = 0
    communicates: bool = False
    label: str = ""


def model_of_trace(nodes: Sequence[TraceNode], name: str, source: str, notes: Sequence[str] = ()) -> Model:
    """Return the model of a trace.

    Parameters
    ----------
    nodes : sequence of TraceNode
        Nodes in any order.
    name, source : str
        Name of the model, and the file for messages.
    notes : sequence of str
        What the reader has to say.

    Raises
    ------
    BadInput
        On a number that two nodes have, a negative duration, or a trace without nodes.
    GraphError
        On a cycle; the message names the nodes on it.
    """
    labels = _labels(nodes, source)
    operators = [_operator(node, labels, source) for node in nodes]
    told = [*notes, *_oddities(nodes, labels)]
    data = {"format": "hiertrain-graph/1", "name": name, "operators": operators, "notes": told}
    return graph_model(validate(GraphSpec, Document(source, data)), source)


def _labels(nodes: Sequence[TraceNode], source: str) -> dict[int, str]:
    """Return the operator name of each number."""
    labels: dict[int, str] = {}
    for node in nodes:
        if node.id in labels:
            raise BadInput(source, f"nodes({node.name}).id", node.id, "distinct ids")
        labels[node.id] = node.label or clean(f"{node.name[:MAX_NAME]} #{node.id}")
    if not nodes:
        raise BadInput(source, "nodes", [], "at least one node that is not metadata")
    return labels


def clean(name: str) -> str:
    """Return a name that may stand in our programs (see ``problem.schema``)."""
    name = "".join(letter if letter.isprintable() else " " for letter in name)
    name = name.replace("@", " at ").replace(" <- ", " from ").strip()
    return f"op {name}" if name.startswith(("d.", "ids.")) else name or "op"


def _operator(node: TraceNode, labels: dict[int, str], source: str) -> dict[str, Any]:
    seconds = (node.microseconds or 0.0) * 1e-6
    if seconds < 0:
        raise BadInput(source, f"nodes({node.name} #{node.id}).duration", node.microseconds, "0 or more microseconds")
    return {
        "name": labels[node.id],
        "inputs": [labels[number] for number in dict.fromkeys(node.depends) if number in labels],
        "forward_seconds": 0.0 if node.communicates else seconds,
        "output_bytes": min(node.output_bytes, MAX_BYTES),
    }


def _oddities(nodes: Sequence[TraceNode], labels: dict[int, str]) -> list[str]:
    missing = {number for node in nodes for number in node.depends if number not in labels}
    untimed = sum(node.microseconds is None for node in nodes if not node.communicates)
    talking = [node for node in nodes if node.communicates]
    free = sum(not any(number in labels for number in node.depends) for node in talking)
    notes = ["a step is one traced step; durations are core-seconds, outputs of unknown size move no bytes"]
    if missing:
        shown = ", ".join(map(str, sorted(missing)[:3])) + (", ..." if len(missing) > 3 else "")
        notes.append(f"dependencies on {len(missing)} nodes that are not operators of the trace are dropped ({shown})")
    if untimed:
        notes.append(f"{untimed} of {len(nodes)} nodes have no duration and cost nothing")
    if talking:
        notes.append(
            f"{len(talking)} nodes communicate: bytes count, their measured time does not; {free} wait for nothing"
        )
    return notes
