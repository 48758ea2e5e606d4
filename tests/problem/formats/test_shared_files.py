"""Every public file beside the repository is read, or refused in one line."""

from __future__ import annotations

import pytest

from experiments.formats_table import Row, rows
from tests.problem.shared import SHARED, needs_shared

pytestmark = needs_shared


@pytest.fixture(scope="module")
def table() -> dict[str, Row]:
    """The row of every file below the public inputs and workloads."""
    return {found.path: found for folder in ("inputs", "workloads") for found in rows(SHARED / folder)}


def test_every_file_is_read_or_refused_in_one_line(table):
    """No file ends in anything but a result or one line of at most 500 characters that names it."""
    assert len(table) > 226
    assert not [row for row in table.values() if "\n" in row.line or not row.line or len(row.line) > 500]
    refused = [row for row in table.values() if not row.read]
    assert not [row for row in refused if row.path.rpartition("/")[2] not in row.line]


@pytest.mark.parametrize(
    ("ending", "formats"),
    [
        (".onnx", {"onnx"}),
        (".et", {"chakra"}),
        (".pb", {"flexflow-strategy"}),
        (".config", {"easyrec"}),
        (".xml", {"simgrid", "hwloc"}),
    ],
)
def test_formats_with_an_ending_of_their_own_are_recognised(table, ending, formats):
    """What these files are is seen in all of them, whether they are read or refused."""
    assert {row.format for row in table.values() if row.path.endswith(ending)} == formats


def test_what_is_unknown_is_prose(table):
    """Only licences, readmes, reports and sources of programs are of no known format."""
    unknown = [row.path for row in table.values() if row.line.count("format = 'unknown'")]
    prose = ("LICENSE", "README", "COPYING", "public_reports", ".py", ".txt", ".proto")
    assert not [path for path in unknown if not any(word in path for word in prose)]


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (
            "torchrec_plan/meta_1935_tables_plan.csv",
            "model: 1941 operators, 1935 tables; placement: 2421 shards on 96 devices",
        ),
        ("clusters/simgrid/griffon.xml", "cluster: 92 machines, asks for memory"),
        ("clusters/hwloc/fakecpukinds.xml", "cluster: 1 machines, asks for memory, nic_gbps"),
        ("placements/flexflow/dlrm_strategy_16embs_8gpus.pb", "placement: 16 shards on 8 devices"),
        ("traces/pytorch_et/dlrm_8rank/kineto_worker0.json", "costs of 1644 calls"),
        ("facts/public_dlrm_models.json/dlrm_cpu_2node_user_report", "model: 37 operators, 26 tables"),
        ("embedding_tables/public_table_configs.json/7table_470B_hotness20", "model: 18 operators, 7 tables"),
        ("facts/plans_from_issues.json/torchrec#161", "model: 33 operators, 26 tables"),
    ],
)
def test_some_lines_of_the_table(table, path, line):
    """What a few files become, word for word."""
    assert table[path].line == line


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("traces/chakra/feeder_tests_trace.tar.gz", "cycle"),
        ("onnx/logreg_iris.onnx", "LinearClassifier"),
        ("clusters/astrasim/inputs_network_dgx_v100_8gpu.yml", "one dimension"),
        ("model_configs/torcheasyrec/dlrm_hstu_kuairand_1k.config", "dlrm_hstu"),
        ("model_configs/persia/embedding_config.yml", "PERSIA"),
        ("clicklogs/fuxictr_tiny_train.parquet", "run --data"),
        ("edge_cases/s07_negative_cost.json", "-5"),
        ("facts/plans_from_issues.json/torchrec#2510", "tables"),
        ("msr-dnn-partitioning/human-experts/gnmt_training_expert.json", "bench msr"),
    ],
)
def test_refusals_name_what_is_not_supported(table, path, words):
    """The line of a file that is not read says why."""
    assert not table[path].read
    assert words in table[path].line
