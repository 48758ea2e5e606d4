"""Files of conditions: every field is read, every fault is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from problem.errors import BadInput
from simulator.conditions import UNDISTURBED, Conditions, Failures
from simulator.conditions_file import load_conditions


def test_every_field_is_read(tmp_path: Path) -> None:
    """A file with a table of slow nodes and one of failures gives these conditions; an empty file none."""
    path = tmp_path / "faults.toml"
    path.write_text(
        "worker_sigma = 0.2\nnodes_per_rack = 2\noversubscription = 4.0\n[slow_nodes]\nn1 = 2.0\n"
        "[failures]\nnode_mtbf_seconds = 1e5\ncheckpoint_interval_seconds = 600\n"
    )
    failures = Failures(1e5, 600.0)
    expected = Conditions(0.2, slow_nodes={"n1": 2.0}, nodes_per_rack=2, oversubscription=4.0, failures=failures)
    assert load_conditions(path) == expected
    path.write_text("")
    assert load_conditions(path) == UNDISTURBED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("worker_sigma = -1", ["worker_sigma", "-1"]),
        ("worker_sigmo = 1", ["worker_sigmo", "did you mean worker_sigma"]),
        ("[failures]\nnode_mtbf_seconds = 0\ncheckpoint_interval_seconds = 1", ["node_mtbf_seconds", "above 0"]),
        ("[failures]\nx = 1", ["failures.x"]),
        ("slow_nodes = 3", ["slow_nodes"]),
    ],
)
def test_faults_name_file_field_and_value(text: str, words: list[str], tmp_path: Path) -> None:
    """An unknown key or a value out of range is refused, naming file and field."""
    path = tmp_path / "faults.toml"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        load_conditions(path)
    assert all(word in str(caught.value) for word in ["faults.toml", *words])
