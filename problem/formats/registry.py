"""Which format a file has, and who reads it: the one way in for models, clusters and placements.

:data:`FORMATS` is the whole list, in the order in which it is tried; a format is told by content (:mod:`signatures
<problem.formats.signatures>`), or forced by ``FORMAT:PATH``. Readers are imported when they are used. Formats that are
known and not read carry the line that says what is not supported.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from problem.errors import BadInput
from problem.formats import signatures as sign
from problem.formats.content import Content, unwrap
from problem.presets import nearest

Kind = Literal["model", "cluster", "placement"]


@dataclass(frozen=True)
class Format:
    """A file format.

    Parameters
    ----------
    name : str
        What to type to force it.
    what : str
        What it is, for people.
    recognises : callable
        Whether a :class:`~problem.formats.content.Content` is of this format.
    readers : Mapping
        For each thing that it can become: ``module:function`` that makes it of a Content.
    refusal : str
        Why it cannot be read; empty for formats with readers.
    """

    name: str
    what: str
    recognises: Callable[[Content], bool]
    readers: tuple[tuple[Kind, str], ...] = ()
    refusal: str = ""

    @property
    def becomes(self) -> tuple[Kind, ...]:
        """What it can become."""
        return tuple(kind for kind, _ in self.readers)

    def reader(self, kind: Kind) -> Callable[[Content], Any]:
        """Return the function that reads ``kind``."""
        module, _, function = dict(self.readers)[kind].partition(":")
        found: Callable[[Content], Any] = getattr(importlib.import_module(module), function)
        return found


def _model(where: str) -> tuple[Kind, str]:
    return "model", f"problem.{where}"


def _machines(module: str) -> tuple[Kind, str]:
    return "cluster", f"problem.formats.{module}:read_machines"


def _placement(module: str) -> tuple[Kind, str]:
    return "placement", f"problem.formats.{module}:read_placement"


_DATA = "click data, not a model: give it to hiertrain run --data"
_KINETO = "durations without dependencies: give it as --costs beside the execution trace of the same step"

FORMATS: tuple[Format, ...] = (
    Format("plan", "plan of hiertrain", sign.plan, refusal="a plan: for simulate, run, compare, explain and convert"),
    Format("graph", "operator graph of hiertrain", sign.graph, (_model("graph_json:model_of_content"),)),
    Format("profile", "profile of hiertrain", sign.profile, refusal="costs: give the file as --costs"),
    Format("dnn-partitioning", "msr-fiddle/dnn-partitioning graph", sign.msr, (_model("graph_json:model_of_content"),)),
    Format("piper", "msr-fiddle/piper graph", sign.piper, (_model("formats.profiled_graphs:piper_model"),)),
    Format("pipedream", "PipeDream profile", sign.pipedream, (_model("formats.profiled_graphs:pipedream_model"),)),
    Format("model", "model of hiertrain", sign.model_toml, (_model("readers:model_of_toml"),)),
    Format("cluster", "cluster of hiertrain", sign.cluster, (("cluster", "problem.cluster_io:cluster_of_content"),)),
    Format(
        "torchrec-csv",
        "TorchRec sharding plan, one table a line",
        sign.torchrec_csv,
        (_model("formats.torchrec_csv:read_model"), _placement("torchrec_csv")),
    ),
    Format(
        "torchrec-stats",
        "TorchRec sharding plan as its planner prints it",
        sign.torchrec_stats,
        (_model("formats.torchrec_csv:read_model"), _placement("torchrec_csv")),
    ),
    Format(
        "torchrec-plan",
        "TorchRec EmbeddingShardingPlan in JSON",
        sign.torchrec_json,
        (_model("formats.placements:torchrec_model"), ("placement", "problem.formats.placements:torchrec_placement")),
    ),
    Format(
        "shards", "shards, one a line", sign.shards, (("placement", "problem.formats.placements:shards_placement"),)
    ),
    Format("feature-spec", "NVIDIA feature spec", sign.feature_spec, (_model("formats.feature_spec:read_model"),)),
    Format(
        "torchrec-bench", "TorchRec benchmark config", sign.torchrec_yaml, (_model("formats.yaml_models:torchrec"),)
    ),
    Format("primus-dlrm", "Primus-DLRM config", sign.primus, (_model("formats.yaml_models:primus"),)),
    Format("paddlerec", "PaddleRec config", sign.paddlerec, (_model("formats.yaml_models:paddlerec"),)),
    Format("easyrec", "EasyRec or TorchEasyRec config", sign.easyrec, (_model("formats.easyrec:read_model"),)),
    Format("onnx", "ONNX model", sign.onnx, (_model("formats.onnx_model:read_model"),)),
    Format("pytorch-et", "PyTorch execution trace", sign.pytorch_et, (_model("formats.pytorch_trace:read_model"),)),
    Format("kineto", "Kineto trace", sign.kineto, refusal=_KINETO),
    Format("chakra", "Chakra execution trace", sign.chakra, (_model("formats.chakra:model_of_protobuf"),)),
    Format("chakra-json", "Chakra trace in JSON", sign.chakra_json, (_model("formats.chakra:model_of_json"),)),
    Format("described-model", "tables and MLP widths", sign.described, (_model("formats.described:read_model"),)),
    Format("flexflow-strategy", "FlexFlow strategy", sign.flexflow_strategy, (_placement("flexflow"),)),
    Format("flexflow-machine", "FlexFlow machine config", sign.flexflow_machine, (_machines("flexflow"),)),
    Format("simgrid", "SimGrid platform", sign.simgrid, (_machines("simgrid"),)),
    Format("hwloc", "hwloc topology (lstopo)", sign.hwloc, (_machines("hwloc"),)),
    Format("astra-sim", "ASTRA-sim analytical network", sign.astrasim, (_machines("astrasim"),)),
    Format("slurm", "Slurm node lists", sign.slurm, (_machines("slurm_list"),)),
    Format("tables", "tables, one a line", sign.tables, (_model("readers:model_of_csv"),)),
    Format(
        "several", "several descriptions in one JSON", sign.several, refusal="several entries: give one, FILE/ENTRY"
    ),
    Format("clicks", "click log", sign.clicks, refusal=_DATA),
    Format("not-read", "known, not read", sign.unread, refusal="no reader"),
)


def by_name(name: str) -> Format:
    """Return the format of a name.

    Raises
    ------
    BadInput
        When there is none; the line says which was probably meant.
    """
    for found in FORMATS:
        if found.name == name:
            return found
    raise BadInput("format", "name", name, nearest(name, [found.name for found in FORMATS], "formats"))


def split_forced(text: str) -> tuple[Format | None, str]:
    """Return the format that ``FORMAT:PATH`` forces, and the path; a path that exists as it stands is taken as it is."""
    name, found, rest = text.partition(":")
    if found and rest and not Path(text).exists():
        known = next((form for form in FORMATS if form.name == name), None)
        if known is not None and Path(rest.partition(",")[0].rpartition(":")[0] or rest).exists() | Path(rest).exists():
            return known, rest
    return None, text


def sniff(content: Content) -> Format:
    """Return the format of a content.

    Raises
    ------
    BadInput
        When no format is recognised, or the file is broken so that its format cannot be told.
    """
    for found in FORMATS:
        if found.recognises(content):
            return found
    raise BadInput(content.source, "format", "unknown", "a format of docs/formats.md (FORMAT:PATH forces one)")


def read(path: str | Path, kind: Kind, forced: Format | None = None) -> Any:
    """Read a file as a model, a cluster, a placement.

    Raises
    ------
    BadInput
        When the file cannot be read, its format is not known or cannot become ``kind``.
    """
    content = unwrap(path)
    return found_reader(content, kind, forced)(content)


def found_reader(content: Content, kind: Kind, forced: Format | None = None) -> Callable[[Content], Any]:
    """Return the function that makes ``kind`` of a content.

    Raises
    ------
    BadInput
        When the format is not known, not read, or becomes something else.
    """
    form = forced or sniff(content)
    if kind in form.becomes:
        return form.reader(kind)
    if form.refusal:
        raise BadInput(content.source, "format", form.name, sign.reason(content) or form.refusal)
    raise BadInput(content.source, "format", form.name, f"a {kind}; this is a {form.what}: {', '.join(form.becomes)}")
