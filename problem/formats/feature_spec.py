"""NVIDIA feature specs (DeepLearningExamples DLRM and Wide & Deep): columns with cardinalities, without an architecture.

Every channel whose name contains ``categorical`` gives one table for each feature, of ``cardinality`` rows, named like the
feature; ``max_hotness`` is its pooling factor. ``numerical`` gives the number of dense features. Dims are not in the file:
they are those of ``outbrain_embedding_dims.json``-like files only when the spec carries ``dimension``, else
:data:`DEFAULT_DIM`, which is said. A ``label`` is needed by neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from problem.documents import Document
from problem.errors import BadInput
from problem.formats.content import Content
from problem.formats.tables_model import model_around
from problem.model import Model

DEFAULT_DIM = 128
"""Embedding dim of the DLRM example that ships these specs (README of PyTorch/Recommendation/DLRM)."""


def read_model(content: Content) -> Model:
    """Return the model of a feature spec.

    Raises
    ------
    BadInput
        When a channel names a feature that the spec does not describe, or a cardinality is missing.
    """
    document = content.yaml
    channels = document.data["channel_spec"]
    if not isinstance(channels, Mapping):
        raise BadInput(document.where(("channel_spec",)), "channel_spec", channels, "channels with lists of features")
    names = [name for channel, found in channels.items() if "categorical" in channel for name in found or ()]
    tables = [_table(document, name) for name in dict.fromkeys(names)]
    notes = (
        [f"feature spec: dims are not in the file, {DEFAULT_DIM} assumed"]
        if tables
        else ["feature spec without tables"]
    )
    dense = len(channels.get("numerical") or ())
    return model_around(content.stem, tables, content.source, dense_features=dense, notes=notes, lines=document.lines)


def _table(document: Document, name: str) -> dict[str, Any]:
    location = ("feature_spec", name)
    feature = document.value(location)
    if not isinstance(feature, Mapping) or "cardinality" not in feature:
        raise BadInput(document.where(location), document.path(location), feature, "a feature with a cardinality")
    return {
        "name": name,
        "rows": feature["cardinality"],
        "dim": feature.get("dimension", DEFAULT_DIM),
        "pooling_factor": feature.get("max_hotness", 1),
    }
