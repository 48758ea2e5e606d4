"""Model configurations in YAML: TorchRec benchmarks, Primus-DLRM, PaddleRec's DLRM and DNN.

Scalars arrive as text; our schema gives them their type. What a configuration says of data, checkpoints, GPUs and
pipelines is dropped; what it says of tables and of the dense part is taken or refused by key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from problem.documents import Document, Location
from problem.errors import BadInput
from problem.formats.content import Content
from problem.formats.tables_model import described_model, model_around
from problem.model import Model
from problem.units import parse_count

DTYPES = {"FP32": "fp32", "FP16": "fp16", "BF16": "bf16"}


def _given(document: Document, location: Location) -> Any:
    """Return a value that the file must give."""
    value = document.value(location)
    if value is None:
        raise BadInput(document.where(location), ".".join(map(str, location)), None, "a value")
    return value


def _count(document: Document, location: Location, default: int | None = None) -> int:
    """Return a whole number, or its default."""
    value = document.value(location) if default is not None else _given(document, location)
    if value is None and default is not None:
        return default
    try:
        return parse_count(value)
    except ValueError as error:
        raise BadInput(document.where(location), document.path(location), value, str(error)) from None


def torchrec(content: Content) -> Model:
    """Return the tables of a TorchRec benchmark.

    ``num_unweighted_features`` and ``num_weighted_features`` tables of ``embedding_feature_dim``, and the additional ones
    with sizes of their own. Rows of the generated tables are not in the file: ``max(i + 1, 100) * 1000`` for number i, as
    ``EmbeddingTablesConfig.generate_tables`` of torchrec/distributed/benchmark makes them.

    Raises
    ------
    BadInput
        When a key is missing or a value is not allowed.
    """
    document = content.yaml
    at = ("EmbeddingTablesConfig",)
    dim = _given(document, (*at, "embedding_feature_dim"))
    plain = _count(document, (*at, "num_unweighted_features"), 0)
    weighted = _count(document, (*at, "num_weighted_features"), 0)
    pooling = document.value(("ModelInputConfig", "feature_pooling_avg")) or 1
    tables = [
        {"name": f"{kind}{i}", "rows": max(i + 1, 100) * 1000, "dim": dim, "pooling_factor": pooling}
        for kind, count in (("table_", plain), ("weighted_table_", weighted))
        for i in range(count)
    ]
    tables += [_additional(document, where, pooling) for where in _additional_tables(document)]
    notes = [
        f"TorchRec benchmark: {plain + weighted} generated tables of max(i + 1, 100) * 1000 rows, as its code makes them",
        "weights of bags, planner constraints and run options are dropped",
    ]
    dense = _count(document, ("ModelInputConfig", "num_float_features"), 0)
    batch = document.value(("RunOptions", "batch_size")) or document.value(("ModelInputConfig", "batch_size"))
    keys = {"batch": batch} if batch else {}
    return model_around(content.stem, tables, content.source, dense_features=dense, keys=keys, notes=notes)


def _additional_tables(document: Document) -> list[Location]:
    """Return where each additional table is; they stand in lists of lists."""
    at = ("EmbeddingTablesConfig", "additional_tables")
    lists = document.value(at) or []
    return [(*at, i, j) for i, inner in enumerate(lists) for j in range(len(inner or ()))]


def _additional(document: Document, at: Location, pooling: object) -> dict[str, Any]:
    dtype = document.value((*at, "data_type")) or "FP32"
    if dtype not in DTYPES:
        raise BadInput(document.where(at), document.path((*at, "data_type")), dtype, f"one of {', '.join(DTYPES)}")
    features = document.value((*at, "feature_names")) or [1]
    return {
        "name": _given(document, (*at, "name")),
        "rows": _given(document, (*at, "num_embeddings")),
        "dim": _given(document, (*at, "embedding_dim")),
        "pooling_factor": float(str(pooling)) * len(features),
        "dtype": DTYPES[dtype],
    }


def primus(content: Content) -> Model:
    """Return the model of a Primus-DLRM configuration.

    Features that share a table are features of one table; a feature of a sequence group is ``data.history_length`` ids long.

    Raises
    ------
    BadInput
        When tables or MLP widths are missing.
    """
    document = content.yaml
    length = _count(document, ("data", "history_length"), 1)
    groups = document.value(("feature", "sequence_groups")) or {}
    sequences = {name for group in groups.values() for name in group}
    at: Location = ("model", "embedding_tables")
    tables = [
        entry
        for i in range(len(_given(document, at)))
        for entry in _primus_table(document, (*at, i), sequences, length)
    ]
    dense = document.value(("feature", "dense_features")) or []
    features = sum(_count(document, ("feature", "dense_features", i, "dim"), 1) for i in range(len(dense)))
    notes = ["Primus-DLRM: concat interaction and plain MLPs stand for the network"]
    return _network(
        document,
        content,
        tables,
        features,
        bottom=document.value(("model", "bottom_mlp_dims")) or [],
        top=[*(document.value(("model", "top_mlp_dims")) or []), 1],
        batch=_given(document, ("train", "batch_size")),
        notes=notes,
    )


def _primus_table(
    document: Document, at: Location, sequences: Collection[str], length: int
) -> Iterator[dict[str, Any]]:
    """Yield a table, read by its first feature, and its further features."""
    name = _given(document, (*at, "name"))
    pooling = document.value((*at, "pooling")) or "sum"
    features = document.value((*at, "features")) or [name]
    for i, feature in enumerate(features):
        ids = {"pooling_factor": length if feature in sequences else 1, "pooling": pooling}
        if i:
            yield {"name": f"{name} ({feature})", "shares": name, **ids}
        else:
            dim = document.value((*at, "embedding_dim")) or _given(document, ("model", "embedding_dim"))
            yield {"name": name, "rows": _given(document, (*at, "num_embeddings")), "dim": dim, **ids}


def paddlerec(content: Content) -> Model:
    """Return the model of a PaddleRec configuration (``models/rank/dlrm`` or ``dnn``).

    All slots share one size (``sparse_feature_number`` rows); a last width of 2 (softmax of two classes) is our one logit.

    Raises
    ------
    BadInput
        When a hyper parameter is missing or not allowed.
    """
    document = content.yaml
    at = "hyper_parameters"
    slots = _count(document, (at, "num_field"), _count(document, (at, "sparse_inputs_slots"), 2) - 1)
    size, dim = _given(document, (at, "sparse_feature_number")), _given(document, (at, "sparse_feature_dim"))
    tables = [{"name": f"C{i + 1}", "rows": size, "dim": dim} for i in range(slots)]
    bottom = document.value((at, "bot_layer_sizes"))
    top = document.value((at, "top_layer_sizes")) or _given(document, (at, "fc_sizes"))
    top = [*(top[:-1] if str(top[-1]) in {"1", "2"} else top), 1]
    notes = [
        f"PaddleRec: {slots} slots; PaddleRec keeps them in one table of {size} rows, here each slot has its own",
        "sync mode, thread and reader settings are dropped",
    ]
    return _network(
        document,
        content,
        tables,
        _count(document, (at, "dense_input_dim")),
        bottom=bottom or [],
        top=top,
        batch=_given(document, ("runner", "train_batch_size")),
        notes=notes,
        dot=bottom is not None,
    )


def _network(
    document: Document,
    content: Content,
    tables: list[dict[str, Any]],
    dense: int,
    *,
    bottom: Sequence[Any],
    top: Sequence[Any],
    batch: Any,
    notes: list[str],
    dot: bool = False,
) -> Model:
    """Return the model of tables between two MLPs."""
    data: Mapping[str, Any] = {
        "name": content.stem,
        "dense_features": dense,
        "bottom_mlp": list(bottom),
        "top_mlp": list(top),
        "interaction": "dot" if dot else "concat",
        "batch": batch,
        "tables": tables,
        "notes": notes,
    }
    return described_model(data, document.source)
