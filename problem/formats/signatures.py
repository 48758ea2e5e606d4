"""How each format is told from the others: by keys, first lines and magic bytes; the ending of the name decides only
where the content cannot.

Every function takes a :class:`~problem.formats.content.Content` and says yes or no. They read the head, and parse JSON
or YAML at most once (the content keeps it).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from problem.formats.content import Content
from problem.slurm import expand_nodelist

_GRAPH_KEYS = {"operators"}


def plan(content: Content) -> bool:
    """A plan file of ours."""
    return content.looks_like_json and '"hiertrain-plan/' in content.head_text


def profile(content: Content) -> bool:
    """A profile of ours."""
    return content.looks_like_json and '"hiertrain-profile"' in content.head_text


def graph(content: Content) -> bool:
    """A graph of ours: says so, or has operators."""
    return content.looks_like_json and ("hiertrain-graph" in content.head_text or content.top_keys >= _GRAPH_KEYS)


def msr(content: Content) -> bool:
    """A dnn-partitioning graph."""
    return content.looks_like_json and {"nodes", "edges", "maxFPGAs"} <= content.top_keys


def piper(content: Content) -> bool:
    """A Piper graph."""
    return content.looks_like_json and {"nodes", "edges", "maxDevices"} <= content.top_keys


def pipedream(content: Content) -> bool:
    """A profile of PipeDream: layers with their times."""
    return bool(re.search(r"^\S+ -- .* -- forward_compute_time=[\d.]+,", content.head_text, re.MULTILINE))


def model_toml(content: Content) -> bool:
    """A TOML of ours that is no cluster."""
    return content.suffix == ".toml" and not cluster(content)


def cluster(content: Content) -> bool:
    """A TOML or YAML of ours with nodes."""
    if content.suffix == ".toml":
        return bool(re.search(r"^\s*(\[\[\s*nodes\s*\]\]|nodes\s*=)", content.text, re.MULTILINE))
    return content.suffix in {".yaml", ".yml"} and ("nodes" in content.top_keys or not content.top_keys)


def _header(content: Content) -> list[str]:
    """Cells of the first line of a CSV."""
    first = content.head_text.partition("\n")[0]
    return [cell.strip() for cell in first.split(",")]


def torchrec_csv(content: Content) -> bool:
    """A table per line with its sharding and ranks."""
    return {"table", "sharding", "ranks", "hash_size", "emb_dim"} <= set(_header(content))


def torchrec_json(content: Content) -> bool:
    """A sharding plan: modules, tables, sharding specs."""
    return content.looks_like_json and "plan" in content.top_keys and '"sharding_spec"' in content.text


def shards(content: Content) -> bool:
    """A shard per line, with its server."""
    return {"table", "server", "row_begin", "row_end"} <= set(_header(content))


def torchrec_stats(content: Content) -> bool:
    """A report of TorchRec's planner: text between number signs."""
    return (
        bool(re.match(r"#{20,}\s", content.head_text))
        and "Evaluated" in content.text
        and "Parameter Info" in content.text
    )


def tables(content: Content) -> bool:
    """Any other CSV; its reader names the columns that are missing."""
    return content.suffix == ".csv" and not clicks(content) and not reason(content)


def feature_spec(content: Content) -> bool:
    """A feature spec: channels and features."""
    return {"channel_spec", "feature_spec"} <= content.top_keys


def torchrec_yaml(content: Content) -> bool:
    """A benchmark of TorchRec with embedding tables."""
    return "EmbeddingTablesConfig" in content.top_keys


def primus(content: Content) -> bool:
    """Primus-DLRM: a model with embedding tables."""
    return {"model", "feature"} <= content.top_keys


def paddlerec(content: Content) -> bool:
    """PaddleRec: hyper parameters of a network."""
    return {"hyper_parameters", "runner"} <= content.top_keys


def easyrec(content: Content) -> bool:
    """Protobuf text with a model and features."""
    return content.suffix == ".config" and bool(
        re.search(r"^\s*(train_config|model_config|feature_configs?)\b", content.text, re.M)
    )


def described(content: Content) -> bool:
    """A description in JSON that says where it is from."""
    return content.looks_like_json and bool(content.top_keys & {"source", "url"})


def chakra_json(content: Content) -> bool:
    """A Chakra trace in JSON: a workload graph, or a list of nodes with dependencies."""
    if not content.looks_like_json:
        return False
    data = content.json.data
    nodes = data.get("workload_graph") if isinstance(data, Mapping) else data
    return isinstance(nodes, list) and all(isinstance(node, Mapping) for node in nodes[:3]) and _has_deps(nodes)


def _has_deps(nodes: list[Mapping[str, object]]) -> bool:
    keys = {key.lower().replace("_", "") for node in nodes[:3] for key in node}
    return {"id", "datadeps"} <= keys


def chakra(content: Content) -> bool:
    """A Chakra trace in protobuf: a short first message with a version, then messages."""
    return content.suffix == ".et" or (content.head[1:3] == b"\x0a\x05" and b"0.0." in content.head[:9])


def pytorch_et(content: Content) -> bool:
    """A PyTorch execution trace."""
    return content.looks_like_json and {"schema", "nodes"} <= content.top_keys


def kineto(content: Content) -> bool:
    """A Kineto (Chrome) trace."""
    return content.looks_like_json and "traceEvents" in content.top_keys


def onnx(content: Content) -> bool:
    """An ONNX model, by the ending of its name (protobuf says nothing of itself)."""
    return content.suffix == ".onnx"


def several(content: Content) -> bool:
    """A JSON object of which every value says where it is from."""
    data = content.json.data if content.looks_like_json else None
    return isinstance(data, Mapping) and bool(data) and all(_sourced(value) for value in data.values())


def _sourced(value: object) -> bool:
    return isinstance(value, Mapping) and bool({"source", "url"} & set(value))


def flexflow_strategy(content: Content) -> bool:
    """Protobuf whose first field is an operator with a name."""
    return content.suffix == ".pb" and content.head[:1] == b"\x0a" and content.head[2:3] == b"\x0a"


def flexflow_machine(content: Content) -> bool:
    """Key = value lines of a machine."""
    return "num_sockets_per_node" in content.head_text and "num_nodes" in content.head_text


def simgrid(content: Content) -> bool:
    """XML with a platform."""
    return "<platform" in content.head_text


def hwloc(content: Content) -> bool:
    """XML with a topology."""
    return "<topology" in content.head_text


def astrasim(content: Content) -> bool:
    """YAML with network dimensions."""
    return {"topology", "npus_count"} <= content.top_keys


def slurm(content: Content) -> bool:
    """Lines that are node lists, with a bracket in at least one."""
    lines = [line for line in content.head_text.splitlines() if line.strip()]
    if content.suffix not in {".txt", ".list", ""} or not lines or "[" not in content.head_text:
        return False
    try:
        return all(expand_nodelist(line) for line in lines)
    except ValueError:
        return False


def clicks(content: Content) -> bool:
    """Rows of labels and features: CSV, Criteo's TSV, slots, Parquet, NPZ."""
    if content.head[:4] in {b"PAR1", b"PK\x03\x04"}:
        return content.suffix in {".parquet", ".npz"}
    header = _header(content)
    known = ({"label", "I1"}, {"click", "hour"}, {"rating", "genres"}, {"clk", "userid"})
    first = content.head_text.partition("\n")[0]
    return any(names <= set(header) for names in known) or first.count("\t") > 20 or first.startswith("click:")


#: What tells a file that is known and not read, and what to say of it.
_UNREAD: tuple[tuple[str, str], ...] = (
    (r'\A\s*\{\s*"(fpgas|cpus)"', "a split of a dnn-partitioning graph: hiertrain bench msr compares with it"),
    (r'\A\s*\{\s*"note".*objectives', "a list of best known values, not an instance"),
    (
        r'\A\s*\{\s*"schedul[^{]*"endpoint-delay"',
        "an ASTRA-sim system file (collective algorithms): machines are in its network file",
    ),
    (r'\A\s*\{\s*"logical-dims"', "an ns-3 dimension list of ASTRA-sim: no rates"),
    (r'\A\s*\{\s*"memory-type"', "an ASTRA-sim memory file: no machines"),
    (r"\ANodes \d+\s+Tiers", "an htsim switch topology: a node has one NIC, switches are not modelled"),
    (r"\A\s*num_ranks \d+", "a GOAL schedule: messages without operators"),
    (r"\Aissue,sys->id", "an ASTRA-sim timeline: times of another simulator"),
    (r"\ARank|\Arank,hbm_gb", "a summary by rank: tables are in the plan, one a line"),
    (r"\Atable,rows,index", "lookups into a table, not tables"),
    (r"Locality stats after processing", "statistics of index reuse: no tables"),
    (r'\A\s*\{\s*"dataset_id"', "a FuxiCTR feature map: vocabulary sizes without dims"),
    (r'\A\s*\{("[a-z_]+": ?\d+,? ?)+\}\s*\Z', "dims by feature without rows: give the feature spec beside it"),
    (r"^slots_config:|^embedding_worker_config:", "a PERSIA config: slots have no rows, servers are sized by capacity"),
    (r'\A\s*syntax = "proto', "a protobuf definition, not data"),
)


def unread(content: Content) -> bool:
    """A format that is known and not read."""
    return bool(reason(content))


def reason(content: Content) -> str:
    """Return why a known format is not read; empty for all others."""
    return next((why for pattern, why in _UNREAD if re.search(pattern, content.head_text, re.M | re.S)), "")
