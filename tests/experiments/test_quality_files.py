"""The training studies on a file of Criteo's, runs that are kept, and what the tables' rows are judged to say."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from executor.data import CriteoTsv
from executor.data.store import open_store, store_criteo
from experiments.figures import make_figure
from experiments.quality import study
from experiments.quality.on_file import CriteoFile, criteo_source
from experiments.quality.study import Effort, Study, Trained, row_change, run_study
from experiments.quality.tables import BASE
from experiments.quality.task import BOTTOM_CUT, Criteo, Planted, dlrm, paper_dlrm
from experiments.quality.trainer import Cell
from experiments.quality.verdicts import ORDERINGS, judged, ordered, printed
from problem.errors import BadInput

pytestmark = pytest.mark.timeout(60)


def silent(news: str) -> None:
    """Nobody listens."""


@pytest.fixture
def clicks_tsv(tmp_path: Path) -> Path:
    """A file of 70 rows in the raw layout: row i has the count i in all columns, some of them missing."""
    rng, path = random.Random(5), tmp_path / "clicks.tsv"
    lines = [
        "\t".join([str(int(i % 3 == 0)), *[str(i)] * 12, "", *[f"{rng.getrandbits(32):08x}"] * 25, ""])
        for i in range(70)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_store_has_the_rows_of_the_file(clicks_tsv: Path, tmp_path: Path) -> None:
    """Every array is that of the reader that keeps all in memory; a limit cuts both."""
    model = paper_dlrm(50)
    assert store_criteo(clicks_tsv, model, tmp_path / "s", limit=60) == 60
    stored, read = open_store(tmp_path / "s", model).batch(0, 60), CriteoTsv(clicks_tsv, model, 60).batch(0, 60)
    np.testing.assert_array_equal(stored.dense, read.dense)
    np.testing.assert_array_equal(stored.labels, read.labels)
    for name, ids in read.ids.items():
        np.testing.assert_array_equal(stored.ids[name], ids)


def test_a_store_is_read_again_only_if_something_changed(clicks_tsv: Path, tmp_path: Path) -> None:
    """The second call reads no row; other tables, another limit or a changed file do; a broken file leaves no store."""
    told: list[str] = []
    for model, limit in ((paper_dlrm(50), None), (paper_dlrm(50), None), (paper_dlrm(51), None), (paper_dlrm(51), 9)):
        store_criteo(clicks_tsv, model, tmp_path / "s", limit, told.append)
    assert told == ["70 rows read", "70 rows read", "9 rows read"]
    clicks_tsv.write_text(clicks_tsv.read_text() + "2\tx\n")
    with pytest.raises(BadInput, match="line 71"):
        store_criteo(clicks_tsv, paper_dlrm(51), tmp_path / "s")
    with pytest.raises(BadInput, match=r"store\.json"):
        open_store(tmp_path / "s", paper_dlrm(51))


def test_the_last_rows_are_held_out_and_the_others_shuffled_in_each_pass(clicks_tsv: Path, tmp_path: Path) -> None:
    """A seventh of 70 rows: rows 60 to 69 are never trained on; two passes read the others in two orders."""
    source = criteo_source(CriteoFile(clicks_tsv, passes=2, batch=12, table_rows=50), tmp_path / "s", silent)
    data = source.clicks(seed=0)
    counts = [np.rint(np.expm1(batch.dense[:, 0])).astype(int) for batch in data.training]
    assert source.steps == len(counts) == 10
    for begin in (0, 5):
        assert sorted(np.concatenate(counts[begin : begin + 5])) == list(range(60))
    assert any((a != b).any() for a, b in zip(counts[:5], counts[5:], strict=True))
    assert [len(batch) for batch in data.held_out] == [10]
    assert np.expm1(data.held_out[0].dense[0, 0]) == pytest.approx(60)
    assert (counts[0] != np.rint(np.expm1(source.clicks(1).training[0].dense[:, 0]))).any()


def test_files_that_say_too_little_are_refused(clicks_tsv: Path, tmp_path: Path) -> None:
    """Fewer batches than windows, a share of nothing, a figure that trains on nothing: each in a line."""
    with pytest.raises(BadInput, match="at least 8 batches of 12"):
        criteo_source(CriteoFile(clicks_tsv, batch=12, table_rows=50), tmp_path / "s", silent)
    with pytest.raises(BadInput, match="held-out share"):
        CriteoFile(clicks_tsv, held_out=1.0)
    with pytest.raises(BadInput, match="with --criteo one of dct-mp, dct-dp"):
        make_figure("trainers", tmp_path / "out", criteo=CriteoFile(clicks_tsv))


def test_a_study_goes_on_where_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call trains nothing; another length of the run has no kept runs and would."""
    monkeypatch.setattr(study, "in_parallel", lambda do, tasks, watch, jobs: [do(*task) for task in tasks])
    cells = (BASE, Cell("x", {BOTTOM_CUT: "dct-mp:0.1"}))
    todo = Study(Planted(dlrm(32), 8), cells, Effort(seeds=1, keep=tmp_path))
    first = run_study(todo, silent)
    monkeypatch.setattr(study, "run_cell", None)
    assert run_study(todo, silent) == first
    with pytest.raises(TypeError):
        run_study(replace(todo, source=Planted(dlrm(32), 9)), silent)


def test_a_file_is_judged_by_held_out_loss(clicks_tsv: Path, tmp_path: Path) -> None:
    """The source says so, and one part of two that is 1 worse in 10 is 5 % worse, with an interval over the parts."""
    assert not Criteo(tmp_path, dlrm(32), 1, "").progressive
    runs = [Trained(name, 0, (), 0, 0, 1, parts) for name, parts in (("a", (10.0, 10.0)), ("b", (10.0, 11.0)))]
    found = row_change(runs, "b", "a")
    assert found.mean == pytest.approx(5)
    assert found.low < 0 < found.high


def row(family: str, dropped: float, change: float, half: float, published: float | None = None) -> dict[str, object]:
    """A point with an interval."""
    fields = {"family": family, "dropped": dropped, "published": published}
    return fields | {"change": change, "low": change - half, "high": change + half}


def test_points_and_orderings_are_judged_by_their_intervals() -> None:
    """0.05 +- 0.04 harmless, 0.2 +- 0.1 harmful, 0.2 +- 0.3 open; 2 against 1 holds only if the halves are small."""
    assert [judged(row("x", 0.9, c, h)) for c, h in ((0.05, 0.04), (0.2, 0.1), (0.2, 0.3))] == [
        "harmless", "harmful", "open"
    ]  # fmt: skip
    assert [printed(row("x", 0.9, 0, 0, p)) for p in (None, -0.1, 0.18)] == ["", "harmless", "harmful"]
    ordering = ORDERINGS[0]
    for low, half, verdict in ((1.0, 0.5, "holds"), (1.0, 1.0, "open"), (3.0, 0.5, "contradicted")):
        found = ordered(ordering, [row(*ordering.worse, 2.0, half), row(*ordering.better, low, half)])
        assert str(found).startswith(verdict)
    assert ordered(ordering, []) is None
