"""What a path leads to: gzip, archives, entries of a JSON file, and the syntaxes that formats share."""

from __future__ import annotations

import contextlib
import gzip
import io
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from problem.documents import parse_yaml
from problem.errors import BadInput
from problem.formats import wire
from problem.formats.content import Content, unwrap
from problem.formats.textproto import parse
from problem.formats.xml_tree import read_xml


def archive(path: Path, files: dict[str, str]) -> Path:
    """Write an archive of text files."""
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


def test_gzip_is_seen_through(tmp_path):
    """A gzip file is its content, and has the name and ending of what is inside."""
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"x": 1}'))
    content = Content(path)
    assert (content.name, content.suffix, content.stem, content.json.data) == ("a.json", ".json", "a", {"x": 1})


def test_broken_gzip_is_one_line(tmp_path):
    """A gzip file that is cut off is refused with its name."""
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"x": 1}' * 1000)[:20])
    with pytest.raises(BadInput, match="readable file"):
        Content(path)


def test_members_of_an_archive(tmp_path):
    """A member is named behind the archive; one file alone stands for it; several ask for a name; a wrong one lists them."""
    alone = archive(tmp_path / "one.tar.gz", {"._x": "junk", "dir/x.json": "[1]"})
    assert unwrap(alone).json.data == [1]
    both = archive(tmp_path / "two.tgz", {"a.json": "{}", "b.json": "[2]"})
    assert unwrap(both / "b.json").json.data == [2]
    with pytest.raises(BadInput, match=r"2 files.*two\.tgz/NAME"):
        unwrap(both)
    with pytest.raises(BadInput, match=r"one of a\.json, b\.json"):
        unwrap(both / "c.json")


def test_entries_of_a_json_file(tmp_path):
    """``file.json/name`` is one entry; a name that is not there is answered with those that are."""
    path = tmp_path / "several.json"
    path.write_text('{"a#1": {"x": 1}, "b": {}}')
    assert Content(path / "a#1").json.data == {"x": 1}
    assert Content(path / "a#1").stem == "a#1"
    with pytest.raises(BadInput, match="one of a#1, b"):
        _ = Content(path / "c").json


def test_nothing_lies_inside_a_text_file(tmp_path):
    """A path below a file that is no container is refused, and so are folders and files that are not there."""
    (tmp_path / "a.csv").write_text("x")
    for path in (tmp_path / "a.csv" / "b", tmp_path, tmp_path / "none"):
        with pytest.raises(BadInput, match=r"inside|folder|No such"):
            Content(path)


def test_yaml_aliases_are_bounded():
    """Anchors of foreign YAML are followed; a document that grows by aliases of aliases is refused, not expanded."""
    assert parse_yaml("a: &x [1]\nb: *x\n", "f", aliases=True).data == {"a": ["1"], "b": ["1"]}
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
    with pytest.raises(BadInput, match="aliases written out"):
        parse_yaml(bomb, "f", aliases=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('<!DOCTYPE p [<!ENTITY a "x">]><p>&a;</p>', "entity declarations"),
        ('<!DOCTYPE p [<!ENTITY a SYSTEM "file:///etc/passwd">]><p>&a;</p>', "entity declarations"),
        ("<p><q></p>", "valid XML"),
        ("<a>" * 300, "elements deep"),
    ],
)
def test_hostile_xml_is_refused(tmp_path, text, words):
    """Entities are never expanded or fetched; broken and bottomless XML is refused with its line."""
    path = tmp_path / "p.xml"
    path.write_text(text)
    with pytest.raises(BadInput, match=words) as caught:
        read_xml(Content(path))
    assert "p.xml:1" in str(caught.value)


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 2**64 - 1) | st.binary(max_size=40))))
def test_protobuf_fields_survive(pairs):
    """Fields that were put into a message are what is read from it, in order."""
    message = b"".join(wire.put(number, value) for number, value in pairs)
    assert list(wire.fields(message)) == pairs


@given(st.binary(max_size=60))
def test_any_bytes_are_fields_or_broken(data):
    """No bytes make the reader of messages fail in any other way than by saying that they are broken."""
    with contextlib.suppress(wire.Broken):
        assert all(number > 0 for number, _ in wire.fields(data))


def test_cut_off_stream_is_refused():
    """A stream of messages that ends inside one is refused; one with an impossible length too."""
    whole = wire.put_delimited(b"abc")
    assert list(wire.delimited(io.BytesIO(whole * 2), "f")) == [b"abc", b"abc"]
    for data in (whole[:-1], b"\xff" * 10):
        with pytest.raises(BadInput):
            list(wire.delimited(io.BytesIO(data), "f"))


def test_protobuf_text():
    """Nested messages, lists, comments, joined strings and the last value of a field."""
    message = parse("a { b: 1 b: 2 # no\n c: ['x', \"y\"] }\nd < e: 'p' 'q' >;\n", "f")
    inner = message.messages("a")[0]
    assert (inner.texts("b"), inner.text("b"), inner.texts("c")) == (["1", "2"], "2", ["x", "y"])
    assert message.messages("d")[0].text("e") == "pq"


@pytest.mark.parametrize("text", ["a {", "a: }", "{", "a: \x01", "a b", "a: ", "a {" * 200])
def test_broken_protobuf_text_is_refused(text):
    """Broken protobuf text is refused with a line."""
    with pytest.raises(BadInput, match="f:1"):
        parse(text, "f")
