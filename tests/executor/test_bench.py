"""The benchmark against PyTorch: it runs where PyTorch is not installed, and alternates where it is."""

from __future__ import annotations

import pytest

from experiments import bench_executor
from experiments.bench_executor import Case, Row, main, measure


def test_it_runs_without_pytorch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Every kind of kernel and a whole iteration have a row, ours alone, and it says why."""
    small = {
        "LINEAR_SHAPES": ((8, 4, 2),),
        "EMBEDDING_SHAPES": ((50, 4, 8, 2),),
        "INTERACTION_SHAPES": ((8, 3, 4),),
        "PRESETS": ("dlrm-kaggle",),
        "MAX_ROWS": 100,
        "BATCHES": 3,
        "ROUNDS": 1,
        "ROUND_SECONDS": 1e-4,
    }
    for name, value in small.items():
        monkeypatch.setattr(bench_executor, name, value)
    monkeypatch.setattr("experiments.torch_reference.load_torch", lambda: None)
    main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "PyTorch not installed: ours alone"
    named = [line[:22].rstrip() for line in lines[3:]]
    assert named == [
        "linear forward",
        "linear both ways",
        "embedding forward",
        "embedding step",
        "interaction forward",
        "interaction both ways",
        "iteration dlrm-kaggle",
    ]
    assert all(float(line.split()[-1].replace(",", "")) > 0 for line in lines[3:])


def test_both_sides_are_called_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours, theirs, ours, theirs: what else the machine does hits both; repetitions are numbered on."""
    monkeypatch.setattr(bench_executor, "ROUNDS", 2)
    monkeypatch.setattr(bench_executor, "ROUND_SECONDS", 0.0)
    calls: list[tuple[str, int]] = []
    row = measure(Case("x", "y", lambda n: calls.append(("ours", n)), lambda n: calls.append(("theirs", n))))
    assert calls[2:] == [("ours", 0), ("theirs", 0), ("ours", 1), ("theirs", 1), ("ours", 2), ("theirs", 2)]
    assert row.calls == 1
    assert row.theirs is not None


def test_a_row_shows_the_ratio() -> None:
    """Ours over theirs: 0.5 is twice as fast."""
    assert Row("x", "y", 10.0, 20.0, 1).text().split() == ["x", "y", "10.0", "20.0", "0.50"]
    assert Row("x", "y", 10.0, None, 1).text().split() == ["x", "y", "10.0"]
