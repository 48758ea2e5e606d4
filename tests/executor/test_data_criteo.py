"""Files in Criteo's layouts: both layouts, the stated rules, and errors by file, line, column and value."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from executor.data import CriteoTsv
from executor.data.batch import check_ids
from executor.oracle import Oracle
from problem.errors import BadInput
from problem.model import EmbeddingTable
from tests.executor.tiny import SHARED, dlrm, tables

ROWS = 1000
MODEL = dlrm([13, 4], tables(26, ROWS, 4), [8, 1])
LOGS, EDGES = SHARED / "inputs" / "clicklogs", SHARED / "inputs" / "edge_cases"

needs_shared = pytest.mark.skipif(not LOGS.is_dir(), reason="the shared inputs are not beside the repository")

Write = Callable[..., Path]


def row(label: str = "1", counts: list[str] | None = None, categories: list[str] | None = None) -> str:
    """One line of the raw layout, without line end."""
    return "\t".join([label, *(counts or ["1"] * 13), *(categories or ["0a"] * 26)])


@pytest.fixture(name="write")
def _write(tmp_path: Path) -> Write:
    def write(*lines: str, end: str = "\n") -> Path:
        path = tmp_path / "clicks.tsv"
        path.write_text("\n".join(lines) + end, encoding="utf-8")
        return path

    return write


def test_counts_become_logarithms_and_stay_finite(write: Write) -> None:
    """log(1 + count); negative and missing counts give 0; 2^31 does not overflow; 7.0 is 7."""
    batch = CriteoTsv(write(row(counts=["0", "1", "-1", "-3", "", "2147483648", "7.0"] + ["2"] * 6)), MODEL).batch(0, 1)
    expected = np.log1p([0, 1, 0, 0, 0, 2147483648, 7] + [2] * 6)
    np.testing.assert_allclose(batch.dense, [expected], rtol=1e-6)


def test_categories_are_hashed_by_modulo(write: Write) -> None:
    """Row = hexadecimal value modulo rows, up to 64 bits; a missing category is row 0."""
    categories = ["", "3e7", "3e8", "ffffffff", "FFFFFFFF", "ffffffffffffffff"] + ["05db9164"] * 20
    batch = CriteoTsv(write(row(categories=categories)), MODEL).batch(0, 1)
    values = [0, 999, 1000, 2**32 - 1, 2**32 - 1, 2**64 - 1] + [0x05DB9164] * 20
    assert [int(ids[0, 0]) for ids in batch.ids.values()] == [value % ROWS for value in values]
    assert all(ids.dtype == np.int32 and ids.shape == (1, 1) for ids in batch.ids.values())


def test_batches_go_round_the_rows_and_share_none(write: Write) -> None:
    """7 rows in batches of 4 for 3 sessions: batch i holds rows 4 i to 4 i + 3, round and round; blank lines and a
    missing last line end change nothing."""
    data = CriteoTsv(write("", *(row(counts=[str(i)] * 13) for i in range(5)), "  ", row(), row(), end=""), MODEL)
    assert len(data) == 7
    expected = np.log1p([0, 1, 2, 3, 4, 1, 1])
    for index in range(6):
        np.testing.assert_allclose(
            data.batch(index, 4).dense[:, 0], expected[(index * 4 + np.arange(4)) % 7], rtol=1e-6
        )


def test_limit_reads_a_part(write: Write) -> None:
    """With a limit later lines are not looked at."""
    assert len(CriteoTsv(write(row(), row(), "nonsense"), MODEL, limit=2)) == 2


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (row().rpartition("\t")[0], r"line 2, columns = 39: must be 40 \(the first that is missing is C26\)"),
        (row() + "\t1", "line 2, columns = 41: must be 40"),
        ("\t".join([""] * 40), "line 2, column label = ''"),
        (row(label="2"), "line 2, column label = '2': must be 0 or 1"),
        (row(counts=["1"] * 12 + ["1.5"]), "line 2, column I13 = '1.5': must be a whole number"),
        (row(counts=["nan"] + ["1"] * 12), "line 2, column I1 = 'nan'"),
        (row(counts=["1_0"] + ["1"] * 12), "line 2, column I1 = '1_0'"),
        (row(categories=["0a"] * 25 + ["zz"]), "line 2, column C26 = 'zz': must be 1 to 16 hexadecimal"),
        (row(categories=["0x1f"] + ["0a"] * 25), "line 2, column C1 = '0x1f'"),
        (row(categories=["-1"] + ["0a"] * 25), "line 2, column C1 = '-1'"),
    ],
)
def test_a_broken_line_is_named(write: Write, line: str, expected: str) -> None:
    """The message holds file, line number, column, value and what is allowed."""
    with pytest.raises(BadInput, match=rf"clicks\.tsv: {expected}"):
        CriteoTsv(write(row(), line, row()), MODEL)


def test_a_file_without_rows_or_that_cannot_be_read_is_refused(write: Write, tmp_path: Path) -> None:
    """Empty, absent and binary files are bad input."""
    with pytest.raises(BadInput, match="rows = 0"):
        CriteoTsv(write("", end=""), MODEL)
    with pytest.raises(BadInput, match="No such file"):
        CriteoTsv(tmp_path / "absent.tsv", MODEL)
    binary = tmp_path / "binary.tsv"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="readable text file"):
        CriteoTsv(binary, MODEL)


def test_another_header_is_refused(write: Write) -> None:
    """A CSV whose columns are in another order is named by its first wrong column."""
    names = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(26, 0, -1))]
    with pytest.raises(BadInput, match="line 1, column 15 = 'C26': must be C1"):
        CriteoTsv(write(",".join(names)), MODEL)


def test_a_model_of_another_shape_is_refused(write: Write) -> None:
    """Criteo data needs 13 dense features and 26 tables with one id each; the message says which does not fit."""
    path = write(row())
    with pytest.raises(BadInput, match="dense features = 12: Criteo data has 13"):
        CriteoTsv(path, dlrm([12, 4], tables(26, 9, 4), [1]))
    with pytest.raises(BadInput, match="tables = 25: Criteo data has 26"):
        CriteoTsv(path, dlrm([13, 4], tables(25, 9, 4), [1]))
    with pytest.raises(BadInput, match="table 't25' = 2: Criteo data has 1"):
        CriteoTsv(path, dlrm([13, 4], [*tables(25, 9, 4), EmbeddingTable("t25", 9, 4, pooling_factor=2)], [1]))


@needs_shared
def test_both_public_layouts_of_the_real_rows_read_alike() -> None:
    """The 200 real rows give the same batch from the raw layout and from the CSV with a header, and train."""
    raw = CriteoTsv(LOGS / "criteo_kaggle_raw_layout_200.tsv", MODEL).batch(0, 200)
    headed = CriteoTsv(LOGS / "deepctr_criteo_sample.csv", MODEL).batch(0, 200)
    np.testing.assert_array_equal(raw.dense, headed.dense)
    np.testing.assert_array_equal(raw.labels, headed.labels)
    assert raw.labels.sum() == 49
    for name, ids in raw.ids.items():
        np.testing.assert_array_equal(ids, headed.ids[name])
    oracle = Oracle(MODEL)
    losses = [oracle.step(raw) for _ in range(20)]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


@needs_shared
def test_edge_rows_are_read_up_to_the_non_hexadecimal_one(tmp_path: Path) -> None:
    """s15 odd rows: the fifth line is refused for its id, then the sixth for its length; without both the rest reads."""
    path = EDGES / "s15_criteo_odd_rows.tsv"
    with pytest.raises(BadInput, match=r"s15_criteo_odd_rows\.tsv: line 5, column C26 = 'zz'"):
        CriteoTsv(path, MODEL)
    lines = path.read_text(encoding="utf-8").split("\n")
    rest = tmp_path / "rest.tsv"
    rest.write_text("\n".join([*lines[:4], *lines[5:]]), encoding="utf-8")
    with pytest.raises(BadInput, match="line 5, columns = 39"):
        CriteoTsv(rest, MODEL)
    rest.write_text("\n".join([*lines[:4], *lines[6:]]), encoding="utf-8")
    data = CriteoTsv(rest, MODEL)
    batch = data.batch(0, len(data))
    assert len(data) == 5
    assert np.isfinite(batch.dense).all()
    assert not batch.dense[1].any()
    assert batch.dense[3, 0] == pytest.approx(np.log1p(2**31))


@needs_shared
def test_edge_files_of_equal_ids_and_of_few_rows_train() -> None:
    """s15: one id in a batch of 64, and 7 rows for batch 4 on 3 workers, give finite losses and no session starves."""
    same = CriteoTsv(EDGES / "s15_criteo_same_id_whole_batch.tsv", MODEL)
    few = CriteoTsv(EDGES / "s15_criteo_7_rows_batch_4_workers_3.tsv", MODEL)
    assert (len(same), len(few)) == (64, 7)
    assert np.isfinite([Oracle(MODEL).step(same.batch(0, 64))])
    oracle = Oracle(MODEL)
    assert np.isfinite(
        [oracle.step(few.batch(step * 3 + session, 4)) for step in range(4) for session in range(3)]
    ).all()


@needs_shared
def test_raw_indices_outside_their_table_are_refused() -> None:
    """s16: row 3 of 4 is fine; 4, -1 and 2^32 are refused naming table, position and range."""
    with (EDGES / "s16_index_out_of_range.csv").open(encoding="utf-8") as lines:
        cases = [(case["table"], int(case["rows"]), int(case["index"])) for case in csv.DictReader(lines)]
    table, rows, index = cases[0]
    check_ids(table, rows, np.array([index]))
    for table, rows, index in cases[1:]:
        with pytest.raises(BadInput, match=rf"ids.{table}\[0\] = {index}: rows of the table are 0 to {rows - 1}"):
            check_ids(table, rows, np.array([index]))
