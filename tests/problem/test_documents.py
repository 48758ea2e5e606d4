"""Documents: syntax faults are one line that says where."""

import pytest

from problem.documents import parse_csv, parse_json, parse_toml, parse_yaml, read_document, read_text
from problem.errors import BadInput


@pytest.mark.parametrize(
    ("parse", "text", "told"),
    [
        (parse_json, '{"a": 1, "a": 2}', "a = 'given twice'"),
        (parse_json, '{"a": [1,\n 2,,]}', "f:2"),
        (parse_json, "[" * 100_000, "valid JSON"),
        (parse_json, "1" * 10_000, "valid JSON"),
        (parse_toml, "a = 1\na = 2\nb = 3", "line 2"),
        (parse_yaml, "a: 1\na: 2", "f:2: a = 'given twice'"),
        (parse_yaml, "a: [1\nb: 2", "f:2"),
        (parse_yaml, "a: &x 1\nb: *x", "alias"),
        (parse_yaml, "a: &x [*x]", "alias"),
        (parse_yaml, "a: 1\n---\nb: 2", "one document"),
    ],
)
def test_broken_syntax(parse, text, told):
    """Duplicate keys, broken syntax and aliases are refused with key or line, in one line."""
    with pytest.raises(BadInput) as caught:
        parse(text, "f")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_yaml_scalars_stay_text():
    """YAML types nothing by itself, and the line of each value is known."""
    document = parse_yaml("nodes:\n  - {name: no, cores: 0123}\n  - {name: 1e3}\n", "f")
    assert document.data == {"nodes": [{"name": "no", "cores": "0123"}, {"name": "1e3"}]}
    assert document.where(("nodes", 1, "name")) == "f:3"
    assert document.path(("nodes", 1, "name")) == "nodes[1](1e3).name"
    assert parse_yaml("", "f").data is None


def test_csv_lines():
    """Blank lines are skipped, empty cells left out, and lines counted as an editor does."""
    document = parse_csv("name,rows\n\na,1\nb,\n", "f", "tables")
    assert document.data == {"tables": [{"name": "a", "rows": "1"}, {"name": "b"}]}
    assert document.where(("tables", 1, "rows")) == "f:4"


@pytest.mark.parametrize("text", ["", "a,a\n1,2", "a,b\n1,2,3"])
def test_csv_refused(text):
    """A missing header, a column named twice and a line that is too long are refused."""
    with pytest.raises(BadInput):
        parse_csv(text, "f", "tables")


def test_files(tmp_path):
    """Missing files, folders, unknown endings and binary files are one line each; a byte order mark is skipped."""
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "mark.json").write_bytes(b"\xef\xbb\xbf{}")
    assert read_document(tmp_path / "mark.json").data == {}
    for name in ("none.json", "x.txt", "binary.json"):
        with pytest.raises(BadInput):
            read_document(tmp_path / name)
    with pytest.raises(BadInput):
        read_text(tmp_path)
