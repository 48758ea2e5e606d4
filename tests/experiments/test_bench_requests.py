"""The benchmark of requests runs both ways, and the second sends fewer bytes."""

from __future__ import annotations

import pytest

from experiments import bench_requests


@pytest.mark.slow
def test_ids_picked_out_are_fewer_bytes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of 80 ids for 128 samples and eight features, and where 128 bags end; every figure is above zero."""
    for name, value in {"SHAPES": ((128, 2),), "ROWS": 100, "STEPS": 5}.items():
        monkeypatch.setattr(bench_requests, name, value)
    bench_requests.main()
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    figures = [[float(figure.replace(",", "")) for figure in line[-5:]] for line in lines]
    assert [found[0] for found in figures] == [8 * 128 * 80 * 4, 8 * 4 * (128 * 40 + 129)]
    assert all(figure > 0 for found in figures for figure in found)
