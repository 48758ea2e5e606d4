"""Placements as we write them, read back: TorchRec's ``EmbeddingShardingPlan`` as JSON, and shards as CSV.

The JSON has the fields of TorchRec's dataclasses (torchrec/distributed/types.py: ``ParameterSharding``,
``EnumerableShardingSpec``, ``ShardMetadata``): sizes and offsets of each shard, and where it is (``rank:3/cpu``). Sizes of
tables follow from their shards; pooling factors and the dense part are in neither file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from problem.documents import parse_csv
from problem.errors import BadInput
from problem.formats.content import Content
from problem.formats.placement import PlacedShard, Placement
from problem.formats.tables_model import model_around
from problem.model import Model

_COLUMNS = ("table", "server", "row_begin", "row_end", "column_begin", "column_end")
_RANK = re.compile(r"rank:(\d+)/\w+(?::\d+)?")


def torchrec_placement(content: Content) -> Placement:
    """Return the placement of an ``EmbeddingShardingPlan`` in JSON.

    Raises
    ------
    BadInput
        When a shard has no sizes, offsets or rank.
    """
    modules = content.json.data["plan"]
    shards = [
        shard
        for module, parameters in _items(modules, "plan", content)
        for table, sharding in _items(parameters, f"plan.{module}", content)
        for shard in _torchrec_shards(table, sharding, content)
    ]
    return _placement(content, shards)


def shards_placement(content: Content) -> Placement:
    """Return the placement of a CSV of shards.

    Raises
    ------
    BadInput
        When a column is missing or a value is no whole number.
    """
    document = parse_csv(content.text, content.source, "shards")
    shards = []
    for i, row in enumerate(document.data["shards"]):
        where = document.where(("shards", i))
        bad = next((column for column in _COLUMNS[1:] if not row.get(column, "").isdecimal()), None)
        if bad is not None or "table" not in row:
            raise BadInput(
                where, bad or "table", row.get(bad or "table"), "a name, and whole numbers in all other columns"
            )
        server, *cells = (int(row[column]) for column in _COLUMNS[1:])
        shards.append(PlacedShard(row["table"], server, (cells[0], cells[1]), (cells[2], cells[3])))
    return _placement(content, shards)


def torchrec_model(content: Content) -> Model:
    """Return a model of the tables of a TorchRec plan.

    Raises
    ------
    BadInput
        As :func:`torchrec_placement`.
    """
    return _model(content, torchrec_placement(content).shards)


def _placement(content: Content, shards: list[PlacedShard]) -> Placement:
    if not shards:
        raise BadInput(content.source, "shards", [], "at least one shard")
    devices = 1 + max(shard.device for shard in shards)
    return Placement(content.stem, devices, tuple(shards), _model(content, tuple(shards)))


def _model(content: Content, shards: tuple[PlacedShard, ...]) -> Model:
    tables: dict[str, dict[str, Any]] = {}
    for shard in shards:
        table = tables.setdefault(shard.table, {"name": shard.table, "rows": 0, "dim": 0})
        table["rows"] = max(table["rows"], (shard.rows or (0, 0))[1])
        table["dim"] = max(table["dim"], (shard.columns or (0, 0))[1])
    return model_around(
        content.stem, list(tables.values()), content.source, notes=["pooling factors are not in the file: 1"]
    )


def _items(value: Any, field: str, content: Content) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        raise BadInput(content.source, field, type(value).__name__, "an object")
    yield from value.items()


def _torchrec_shards(table: str, sharding: Any, content: Content) -> Iterator[PlacedShard]:
    spec = sharding.get("sharding_spec") if isinstance(sharding, Mapping) else None
    shards = spec.get("shards") if isinstance(spec, Mapping) else None
    for i, shard in enumerate(shards or [None]):
        field = f"{table}.sharding_spec.shards[{i}]"
        if not isinstance(shard, Mapping):
            raise BadInput(content.source, field, shard, "shard_sizes, shard_offsets and placement")
        sizes, offsets = (_pair(shard, key, field, content) for key in ("shard_sizes", "shard_offsets"))
        match = _RANK.fullmatch(str(shard.get("placement")))
        if match is None:
            raise BadInput(content.source, f"{field}.placement", shard.get("placement"), "rank:N/cpu or rank:N/cuda:M")
        rows, columns = ((begin, begin + size) for begin, size in zip(offsets, sizes, strict=True))
        yield PlacedShard(table, int(match[1]), rows, columns)


def _pair(shard: Mapping[str, Any], key: str, field: str, content: Content) -> tuple[int, int]:
    value = shard.get(key)
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(v, int) and v >= 0 for v in value):
        raise BadInput(content.source, f"{field}.{key}", value, "rows and columns, two whole numbers")
    return value[0], value[1]
