"""Click logs of others: formats by their looks, columns by their names, the rules of cells, faults by place."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.data import DataOptions, open_data
from executor.data.cells import hashed
from executor.data.rows import Rows
from executor.oracle import Oracle
from problem.errors import BadInput
from problem.model import EmbeddingTable, Model
from tests.executor.tiny import SHARED, dlrm, tables

LOGS = SHARED / "inputs" / "clicklogs"
needs_shared = pytest.mark.skipif(not LOGS.is_dir(), reason="the shared inputs are not beside the repository")

BAGS = [
    EmbeddingTable("user", 9, 4),
    EmbeddingTable("tags", 9, 4, pooling_factor=1.5, max_ids=3, pooling="mean"),
    EmbeddingTable("seen", 9, 4, pooling_factor=1.5, max_ids=2, pooling="weighted"),
]
MODEL = dlrm([2, 4], BAGS, [8, 1])

Write = Callable[..., Path]


@pytest.fixture(name="write")
def _write(tmp_path: Path) -> Write:
    def write(*lines: str, name: str = "clicks.csv") -> Path:
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


def checked(rows: Rows) -> None:
    """What every file must give: the arrays that the rules ask for."""
    np.testing.assert_array_equal(rows.labels, [1, 0, 1])
    np.testing.assert_allclose(rows.dense, [[0.5, 2], [0, -1], [1, 0]])
    np.testing.assert_array_equal(rows.ids["user"], [[3], [8], [0]])
    np.testing.assert_array_equal(rows.ids["tags"], [[1, 2, 3], [-1, -1, -1], [5, -1, -1]])
    np.testing.assert_array_equal(rows.ids["seen"], [[7, 8], [4, -1], [-1, -1]])
    np.testing.assert_array_equal(rows.weights["seen"][0], [0.5, 1.0])
    assert rows.weights["seen"][1, 0] == -2.0
    assert set(rows.weights) == {"seen"}


def test_csv_by_the_names_of_its_header(write: Write) -> None:
    """Tables, label and what is left over, in any order; quotes, blank lines and CR LF are as CSV has them; a bag
    that is too long is cut, a missing one is empty, a missing number 0."""
    path = write(
        "price,user,tags,clk,age,seen",
        '0.5,3,"1|2|3|4",1,2,7:0.5|8',
        "",
        ",8,,0,-1,4:-2\r",
        "1,0,5,1,,",
    )
    checked(open_data(path, MODEL))


def test_csv_with_tabs_and_named_columns(write: Write) -> None:
    """Names that are given win; columns that nothing reads are ignored."""
    path = write(
        "bought\tlabel\tuser\ttags\tseen\tprice\tage",
        "1\tx\t3\t1^2^3\t7:0.5^8\t0.5\t2",
        "0\ty\t8\t\t4:-2\t\t-1",
        "1\tz\t0\t5\t\t1\t0",
    )
    checked(open_data(path, MODEL, DataOptions(label="bought", dense=("price", "age"), format="csv")))


def test_slots_by_name_and_by_number(write: Write) -> None:
    """A slot that comes several times is a bag; tables whose name is no slot have the slot of their number."""
    lines = (
        "click:1 dense_feature:0.5 dense_feature:2 1:3 tags:1 tags:2 tags:3 3:7:0.5 3:8",
        "click:0 dense_feature:0 dense_feature:-1 1:8 3:4:-2",
        "click:1 dense_feature:1 dense_feature:0 1:0 tags:5",
    )
    checked(open_data(write(*lines, name="part-0"), MODEL))


def parquet(path: Path, **columns: Any) -> Path:
    """Write a Parquet file."""
    arrow, files = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    files.write_table(arrow.table(columns), path)
    return path


COLUMNS: dict[str, Any] = {
    "label": [1, 0, 1],
    "price": [0.5, None, 1.0],
    "age": [2, -1, 0],
    "user": [3, 8, 0],
    "tags": [[1, 2, 3, 4], [], [5]],
    "seen": ["7:0.5|8", "4:-2", None],
}


def test_parquet_with_lists(tmp_path: Path) -> None:
    """Columns of numbers, of lists and of text, some without a value."""
    checked(open_data(parquet(tmp_path / "a.parquet", **COLUMNS), MODEL))


def test_hashed_ids_are_the_stated_digest(write: Write) -> None:
    """Row = first 8 bytes of BLAKE2b, modulo; the same from a number as from its text, and in every process."""
    assert [hashed(text, 1000) for text in ("", "7", "Ed Wood (1994)")] == [756, 255, 706]
    model = dlrm([1, 4], tables(1, 1000, 4), [1])
    found = open_data(
        write("label,x,t0", "1,0,abc", "0,0,", "0,0,18446744073709551616"), model, DataOptions(hash_ids=True)
    )
    expected = [hashed(text, 1000) for text in ("abc", "", "18446744073709551616")]
    assert found.ids["t0"][:, 0].tolist() == expected


HEAD = "label,price,age,user,tags,seen"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("2,1,1,1,1,1", "line 3, column label = '2': must be 0 or 1"),
        (",1,1,1,1,1", "line 3, column label = '': must be 0 or 1"),
        ("1,a,1,1,1,1", "line 3, column price = 'a': must be a finite number or empty"),
        ("1,1,inf,1,1,1", "line 3, column age = 'inf': must be a finite number or empty"),
        ("1,1,1,9,1,1", "line 3, column user = '9': must be rows of table 'user', 0 to 8, unless ids are hashed"),
        ("1,1,1,-1,1,1", "line 3, column user = '-1': must be rows"),
        ("1,1,1,4294967296,1,1", "line 3, column user = '4294967296': must be rows"),
        ("1,1,1,,1,1", "line 3, column user = '': must have one id (table 'user' has no max_ids)"),
        ("1,1,1,1|2,1,1", "line 3, column user = '1|2': must have one id"),
        ("1,1,1,1,1|x,1", "line 3, column tags = '1|x': must be rows of table 'tags'"),
        ("1,1,1,1,1,1:z", "line 3, column seen = '1:z': must have finite weights"),
        ("1,1,1,1,1", "line 3, columns = 5: must be 6, as in the header"),
    ],
)
def test_a_broken_cell_is_named_by_its_place(write: Write, line: str, fault: str) -> None:
    """File, line, column, value, and what is allowed."""
    path = write(HEAD, "1,1,1,1,1,1", line)
    with pytest.raises(BadInput) as caught:
        open_data(path, MODEL)
    assert str(caught.value).startswith(f"{path}: {fault}")


@pytest.mark.parametrize(
    ("header", "fault"),
    [
        ("label,price,age,user,tags", "must have a column 'seen'"),
        ("price,age,user,tags,seen", "must have a column 'label'"),
        (HEAD + ",user", "names of columns must be distinct"),
        (HEAD + ",extra", "dense columns = 'price,age,extra': 2, as many as model 'tiny-dlrm' has"),
    ],
)
def test_columns_that_do_not_fit_are_named(write: Write, header: str, fault: str) -> None:
    """What is missing, doubled or left over in a header."""
    with pytest.raises(BadInput, match=fault):
        open_data(write(header, "1,1,1,1,1,1,1"), MODEL)


def test_files_that_are_no_click_logs(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An absent file, one without rows, a broken pair, a slot that is missing, other formats, Parquet without pyarrow."""
    broken = write("not parquet", name="broken.parquet")
    for path, fault in (
        (tmp_path / "absent.csv", "must be a readable text file"),
        (tmp_path / "absent.parquet", "must be a readable Parquet file"),
        (broken, "must be a readable Parquet file"),
        (write(HEAD), "rows = 0: the file must have at least one row"),
        (
            write("click:1 dense_feature:1 dense_feature:1 1:1", "click:1 odd", name="a"),
            "line 2 = 'odd': must be pairs",
        ),
        (write("click:1 dense_feature:1 1:1", name="b"), "line 1, slot dense_feature = 1: must come 2 times"),
        (tmp_path / "data.npz", "format = '.npz': must be one of criteo, csv, parquet, slots"),
    ):
        with pytest.raises(BadInput, match=fault):
            open_data(path, MODEL)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(BadInput, match=r"needs pyarrow: pip install hiertrain\[parquet\]"):
        open_data(broken, MODEL)


def trained(rows: Rows, model: Model) -> float:
    """Loss after one step on all rows."""
    return Oracle(model).step(rows.chosen(slice(None)))


@needs_shared
def test_the_public_samples_train() -> None:
    """Avazu, MovieLens (multi-hot genres, commas in titles), FuxiCTR as CSV (empty sequences) and as Parquet, PaddleRec
    slots: read without a conversion step, as many rows as they have, with a finite loss."""
    avazu = dlrm([1, 4], [EmbeddingTable(name, 50, 4) for name in ("site_id", "device_model", "id")], [1])
    fuxi = dlrm([1, 4], [EmbeddingTable("userid", 97, 4), EmbeddingTable("click_sequence", 97, 4, max_ids=4)], [1])
    parquet_model = dlrm([1, 4], [EmbeddingTable("userid", 26, 4), EmbeddingTable("adgroup_id", 96, 4)], [1])
    slots = dlrm([13, 4], [EmbeddingTable(f"c{i}", 1_000_001, 4) for i in range(1, 27)], [1])
    for name, model, options, rows in (
        ("deepctr_avazu_sample.csv", avazu, DataOptions(hash_ids=True, dense=("C14",)), 100),
        ("fuxictr_tiny_train_sample.csv", fuxi, DataOptions(hash_ids=True, dense=("price",)), 100),
        ("fuxictr_tiny_train.parquet", parquet_model, DataOptions(dense=("age_level",)), 100),
        ("paddlerec_criteo_slot_sample.txt", slots, DataOptions(), 80),
        ("deepctr_criteo_sample.csv", dlrm([13, 4], tables(26, 99, 4), [1]), DataOptions(), 200),
    ):
        found = open_data(LOGS / name, model, options)
        assert len(found) == rows, name
        assert math.isfinite(trained(found, model)), name
    movies = dlrm([1, 4], [EmbeddingTable("title", 97, 4), EmbeddingTable("genres", 40, 4, max_ids=6)], [1])
    with pytest.raises(BadInput, match="line 2, column rating = '4': must be 0 or 1"):
        open_data(LOGS / "deepctr_movielens_sample_multivalue.csv", movies, DataOptions("", True, "rating", ("age",)))
