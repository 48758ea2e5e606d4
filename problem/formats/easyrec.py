"""EasyRec and TorchEasyRec configurations (https://github.com/alibaba/EasyRec, TorchEasyRec): features and a network.

A feature with an embedding becomes a table: ``num_buckets`` (or ``hash_bucket_size``, or the number of ``boundaries``
plus one) rows of ``embedding_dim``. Features with one ``embedding_name`` share a table; a feature of a sequence is
``sequence_length`` ids long. Features without embedding are dense.

======================  ===========================================================================================
``dlrm``                dot interaction; ``bot_dnn`` or ``dense_mlp``, ``top_dnn`` or ``final``, one logit
``deepfm``              ``dnn`` and ``final_dnn`` behind one another on the features side by side; no FM and wide part
======================  ===========================================================================================

Any other network is refused by name. Optimizers, regularisation, metrics and data are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from problem.errors import BadInput
from problem.formats.content import Content
from problem.formats.tables_model import described_model
from problem.formats.textproto import Message, parse
from problem.model import Model

_NETWORKS = ("dlrm", "deepfm")
_NOT_NETWORKS = {"metrics", "losses", "feature_groups", "kd", "backbone", "seq_att_groups", "sequence_features"}
_DTYPES = {"FP32": "fp32", "FP16": "fp16", "BF16": "bf16"}


def read_model(content: Content) -> Model:
    """Return the model of a configuration.

    Raises
    ------
    BadInput
        When the syntax is broken, the network is not one of those above, or an embedding has no size.
    """
    message = parse(content.text, content.source)
    name, network = _network(message, content)
    features = [_Feature(feature, length, content.source) for feature, length in _features(message)]
    tables = _tables([feature for feature in features if feature.dim])
    bottom = _units(network, "bot_dnn", "dense_mlp")
    top = (
        _units(network, "top_dnn", "final") if name == "dlrm" else _units(network, "dnn") + _units(network, "final_dnn")
    )
    notes = ["optimizers, regularisation and losses of the configuration are dropped"]
    if name == "deepfm":
        notes.append("DeepFM: the FM and wide parts are not modelled, dnn and final_dnn follow one another")
    description = {
        "name": content.stem,
        "dense_features": sum(not feature.dim for feature in features),
        "bottom_mlp": bottom,
        "top_mlp": [*top, 1],
        "interaction": "dot" if name == "dlrm" else "concat",
        "tables": tables,
        "notes": notes,
        "batch": message.messages("data_config")[-1].text("batch_size", "128") if "data_config" in message else 128,
    }
    return described_model(description, content.source)


def _network(message: Message, content: Content) -> tuple[str, Message]:
    """Return name and message of the network."""
    config = message.messages("model_config")
    found = [name for one in config for name, values in one.items() if any(isinstance(v, Message) for v in values)]
    networks = [name for name in found if name not in _NOT_NETWORKS]
    if len(networks) != 1 or networks[0] not in _NETWORKS:
        raise BadInput(content.source, "model_config", ", ".join(networks) or None, f"one of {', '.join(_NETWORKS)}")
    return networks[0], message.messages("model_config", networks[0])[0]


def _features(message: Message) -> Iterator[tuple[Message, int]]:
    """Yield each feature with the ids that a sample has of it."""
    yield from ((feature, 1) for feature in message.messages("feature_config", "features"))
    for config in message.messages("feature_configs"):
        for kind in config:
            for feature in config.messages(kind):
                inner = [m for one in feature.messages("features") for k in one for m in one.messages(k)]
                length = int(feature.text("sequence_length", "1"))
                yield from ((one, length) for one in inner or [feature])


class _Feature:
    """A feature: its table, rows and dim, or none."""

    def __init__(self, message: Message, ids: int, source: str) -> None:
        names = message.texts("input_names") or [message.text("feature_name")]
        self.name = message.text("feature_name") or "_".join(names)
        self.table, self.ids = message.text("embedding_name") or self.name, ids
        self.dim = message.text("embedding_dim")
        self.dtype = _DTYPES.get(message.text("data_type", "FP32"), "fp32")
        boundaries = message.texts("boundaries")
        self.rows = message.text("num_buckets") or message.text("hash_bucket_size") or str(len(boundaries) + 1)
        sized = boundaries or message.text("num_buckets") or message.text("hash_bucket_size")
        if self.dim and not sized:
            allowed = "num_buckets, hash_bucket_size or boundaries: the rows of its table"
            raise BadInput(source, f"features({self.name})", None, allowed)


def _tables(features: list[_Feature]) -> list[dict[str, Any]]:
    """Return the tables, each read by its first feature, and the further features that share them."""
    count: Counter[str] = Counter()
    found: list[dict[str, Any]] = []
    for feature in features:
        name, count[feature.table] = feature.table, count[feature.table] + 1
        if count[name] > 1:
            found.append({"name": f"{name} ({count[name]})", "shares": name, "pooling_factor": feature.ids})
        else:
            sizes = {"rows": feature.rows, "dim": feature.dim, "dtype": feature.dtype}
            found.append({"name": name, **sizes, "pooling_factor": feature.ids})
    return found


def _units(network: Message, *names: str) -> list[str]:
    """Return the widths of the first of these MLPs that is there."""
    return next((mlp.texts("hidden_units") for name in names for mlp in network.messages(name)), [])
