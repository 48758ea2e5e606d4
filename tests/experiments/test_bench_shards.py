"""The benchmark of row shards runs, and predicts a quarter of a table by the formula of shards."""

from __future__ import annotations

import pytest

from experiments import bench_shards
from experiments.bench_shards import Row, main


def test_every_shape_has_a_lookup_and_an_update(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two rows for each shape, seven figures in each, all above zero."""
    shapes = ((4, 8, 2, "sgd"), (4, 8, 2, "rowwise_adagrad"))
    for name, value in {
        "SHAPES": shapes,
        "ROWS": 50,
        "ROUNDS": 4,
        "_RANGES": ((0, 50), (0, 25), (0, 12), (50, 50)),
    }.items():
        monkeypatch.setattr(bench_shards, name, value)
    main()
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split(",")[0] for line in lines] == ["lookup", "update"] * 2
    assert all(float(figure) > 0 for line in lines for figure in line.split()[-7:])


def test_a_quarter_of_a_table_is_predicted_from_the_whole_and_from_half() -> None:
    """10 us for the table and 8 us for half of it make 7 us for a quarter; none takes less than one without ids."""
    assert Row("x", 10e-6, 8e-6, 6e-6, 4e-6).predicted == pytest.approx(7e-6)
    assert Row("x", 10e-6, 8e-6, 6e-6, 9e-6).predicted == pytest.approx(9.25e-6)
