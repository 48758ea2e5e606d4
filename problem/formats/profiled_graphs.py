"""PipeDream profiles and Piper instances as models: operators that are known by their measured seconds.

Both measure a whole layer on one machine for the batch of the paper; here a step is one such batch (``batch`` 1).

* PipeDream: forward and backward milliseconds, activation and parameter bytes are taken as they are.
* Piper: the variant of tensor-parallel degree 1 that is listed first. Its time is forward and backward together; a third
  counts as forward (the backward pass of a product is two products). Bytes of an output are the largest of its edges.
"""

from __future__ import annotations

from typing import Any

from problem.documents import Document
from problem.errors import BadInput
from problem.formats.content import Content
from problem.graph_json import graph_model
from problem.model import Model
from problem.public_graphs import pipedream_profile, piper_instance
from problem.schema import GraphSpec, validate

FORWARD_SHARE = 1 / 3
"""Of forward and backward together: one product of three."""


def pipedream_model(content: Content) -> Model:
    """Return the model of a PipeDream profile.

    Raises
    ------
    BadInput
        On a line that is neither a layer nor an edge.
    """
    profile = pipedream_profile(content.text, content.source, content.stem)
    names = [f"{i} {_clean(what)}" for i, what in enumerate(profile.layers)]
    operators: list[dict[str, Any]] = [
        {
            "name": name,
            "inputs": [],
            "forward_seconds": profile.forward_seconds[i],
            "backward_seconds": max(0.0, profile.compute_seconds[i] - profile.forward_seconds[i]),
            "output_bytes": round(profile.activation_bytes[i]),
            "parameter_bytes": round(profile.parameter_bytes[i]),
        }
        for i, name in enumerate(names)
    ]
    for u, v in profile.edges:
        operators[v]["inputs"].append(names[u])
    note = (
        "PipeDream profile: a step is the profiled batch; inputs and unread outputs are left out, update is not timed"
    )
    return _model(content, operators, [note])


def piper_model(content: Content) -> Model:
    """Return the model of a Piper instance.

    Raises
    ------
    BadInput
        On a broken file, or a layer without a variant of tensor-parallel degree 1.
    """
    instance = piper_instance(content.json, content.stem)
    operators: list[dict[str, Any]] = []
    for identifier, variants in zip(instance.ids, instance.variants, strict=True):
        if not variants.get(1):
            raise BadInput(content.source, f"nodes({identifier}).TMPCs", list(variants), "a variant of degree 1")
        plain = variants[1][0]
        forward = plain.timePerSample * FORWARD_SHARE
        operators.append(
            {
                "name": identifier,
                "inputs": [],
                "forward_seconds": forward,
                "backward_seconds": plain.timePerSample - forward,
                "output_bytes": 0,
                "parameter_bytes": round(plain.parameterSize),
            }
        )
    for (u, v), size in instance.edges.items():
        operators[v]["inputs"].append(instance.ids[u])
        operators[u]["output_bytes"] = max(operators[u]["output_bytes"], round(size))
    note = "Piper graph: variants above tensor-parallel degree 1 are left out; a third of a layer's time is its forward pass"
    return _model(content, operators, [note])


def _clean(text: str) -> str:
    """Return a layer's description as a name of ours."""
    return text.split("(", maxsplit=1)[0].replace("@", " at ").strip() or "layer"


def _model(content: Content, operators: list[dict[str, Any]], notes: list[str]) -> Model:
    data = {"format": "hiertrain-graph/1", "name": content.stem, "operators": operators, "notes": notes}
    return graph_model(validate(GraphSpec, Document(content.source, data)), content.source)
