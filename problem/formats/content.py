"""Content: the bytes behind a path, whatever they are wrapped in, decoded once and only as far as somebody asks.

Knows gzip, tar archives (``archive.tar.gz/member``) and JSON files that hold several things (``models.json/name``), text
encodings and the syntaxes of :mod:`problem.documents`. Knows nothing of what the content means. Binary formats read
:meth:`Content.open`, a stream, so that a large file need not be in memory as a whole.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Any, cast

from problem.documents import Document, parse_json, parse_yaml
from problem.errors import BadInput

HEAD_BYTES = 4096
"""How much of a file is looked at before its format is known."""
GZIP_MAGIC = b"\x1f\x8b"
MAX_TEXT_BYTES = 2**31
"""Text that is parsed as a whole (JSON, YAML) may not be larger; a small gzip file can expand without end."""
_JSON_BEGIN = re.compile(r"\s*(\{\s*[\"}]|\[\s*[\[{\]])")
_TAR_ENDINGS = (".tar", ".tar.gz", ".tgz")


class Content:
    """What a path leads to.

    Parameters
    ----------
    path : str or Path
        A file, ``archive.tar.gz/member``, or ``file.json/name`` for one entry of a JSON file that holds several.

    Raises
    ------
    BadInput
        When there is no such file or member.
    """

    def __init__(self, path: str | Path) -> None:
        self.path, self.member = _split(Path(path))
        self.source = str(path)
        self.is_archive = self.path.name.endswith(_TAR_ENDINGS)
        self.name = Path(self.member or self.path.name.removesuffix(".gz")).name if self.in_archive else self._plain
        self.head = self._head()

    @property
    def in_archive(self) -> bool:
        """Whether the content is a member of an archive."""
        return self.is_archive and bool(self.member)

    @property
    def _plain(self) -> str:
        return self.path.name.removesuffix(".gz")

    @property
    def suffix(self) -> str:
        """Ending of the innermost file name, such as ``.json``."""
        return Path(self.name).suffix

    @property
    def stem(self) -> str:
        """Name without ending, or the name of the entry inside a JSON file."""
        return self.member if self.member and not self.is_archive else Path(self.name).stem

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the decompressed bytes for reading from the start.

        Raises
        ------
        BadInput
            When the file cannot be read, or what it is wrapped in is broken.
        """
        try:
            with self._unwrapped() as stream:
                yield stream
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            raise BadInput(self.source, "file", self.name, f"a readable file ({_reason(error)})") from None

    @contextmanager
    def _unwrapped(self) -> Iterator[IO[bytes]]:
        if self.in_archive:
            with tarfile.open(self.path) as archive:
                member = archive.extractfile(self.member)
                assert member is not None  # members() lists files only
                yield member
        elif self._is_gzip():
            with gzip.open(self.path) as packed:
                yield cast("IO[bytes]", packed)
        else:
            with self.path.open("rb") as file:
                yield file

    def _is_gzip(self) -> bool:
        with self.path.open("rb") as file:
            return file.read(2) == GZIP_MAGIC

    def _head(self) -> bytes:
        if self.is_archive and not self.member:
            return b""
        with self.open() as stream:
            return stream.read(HEAD_BYTES)

    @property
    def is_text(self) -> bool:
        """Whether the first bytes are text in UTF-8 (a character may be cut off at the end)."""
        if b"\0" in self.head:
            return False
        try:
            io.TextIOWrapper(io.BytesIO(self.head[:-4] if len(self.head) == HEAD_BYTES else self.head), "utf-8").read()
        except UnicodeDecodeError as error:
            return error.start > HEAD_BYTES - 8
        return True

    @property
    def head_text(self) -> str:
        """First bytes as text."""
        return self.head.decode("utf-8-sig", errors="replace") if self.is_text else ""

    @cached_property
    def text(self) -> str:
        """The whole content as text.

        Raises
        ------
        BadInput
            When it is not UTF-8, or too large to be a text that people wrote.
        """
        with self.open() as stream:
            data = stream.read(MAX_TEXT_BYTES + 1)
        if len(data) > MAX_TEXT_BYTES:
            raise BadInput(self.source, "file", self.name, f"at most {MAX_TEXT_BYTES} bytes of text")
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise BadInput(self.source, "file", self.name, "text in UTF-8") from None

    @cached_property
    def json(self) -> Document:
        """The content as JSON, or the entry of it that the path names.

        Raises
        ------
        BadInput
            On broken JSON, a key given twice, or no such entry.
        """
        document = parse_json(self.text, self.source)
        if not self.member or self.is_archive:
            return document
        entries = document.data if isinstance(document.data, dict) else {}
        if self.member not in entries:
            raise BadInput(self.source, "entry", self.member, f"one of {', '.join(map(str, entries))}")
        return Document(self.source, entries[self.member])

    @cached_property
    def yaml(self) -> Document:
        """The content as YAML with every scalar as text; anchors are followed.

        Raises
        ------
        BadInput
            On broken YAML, a key given twice, or aliases that expand without end.
        """
        return parse_yaml(self.text, self.source, aliases=True)

    @property
    def looks_like_json(self) -> bool:
        """Whether the text begins like a JSON object or a list of objects; a ``.json`` always is."""
        return self.suffix == ".json" or (self.suffix != ".toml" and bool(_JSON_BEGIN.match(self.head_text)))

    @cached_property
    def top_keys(self) -> frozenset[str]:
        """Top-level keys of a JSON or YAML mapping; empty for anything else."""
        data: Any = None
        if self.looks_like_json:
            data = self.json.data
        elif self.suffix in {".yaml", ".yml"} and self.is_text:
            data = self.yaml.data
        return frozenset(data) if isinstance(data, dict) else frozenset()

    def members(self) -> tuple[str, ...]:
        """Files in an archive, without the droppings of file managers.

        Raises
        ------
        BadInput
            When the archive is broken.
        """
        try:
            with tarfile.open(self.path) as archive:
                names = [member.name for member in archive if member.isfile()]
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            raise BadInput(self.source, "archive", self.path.name, f"a readable archive ({_reason(error)})") from None
        return tuple(name for name in names if not Path(name).name.startswith("._"))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _split(path: Path) -> tuple[Path, str]:
    """Return the file and what is asked for inside it."""
    for file in (path, *path.parents):
        if file.is_file():
            member = "" if file == path else str(path.relative_to(file))
            _check_member(path, file, member)
            return file, member
    reason = "a file, not a folder" if path.is_dir() else "No such file or directory"
    raise BadInput(path, "file", path.name, reason)


def _check_member(path: Path, file: Path, member: str) -> None:
    if not member or file.suffix == ".json":
        return
    if not file.name.endswith(_TAR_ENDINGS):
        raise BadInput(path, "file", member, f"{file.name} is a file: nothing lies inside it")
    archive = Content(file)
    if member not in archive.members():
        raise BadInput(path, "member", member, f"one of {', '.join(archive.members())}")


def unwrap(path: str | Path) -> Content:
    """Return the content of a path; an archive with a single file stands for that file.

    Raises
    ------
    BadInput
        When there is no such file, or an archive holds several and the path names none.
    """
    content = Content(path)
    if not content.is_archive or content.member:
        return content
    members = content.members()
    if len(members) != 1:
        shown = ", ".join(members[:3]) + (", ..." if len(members) > 3 else "")
        raise BadInput(path, "archive", f"{len(members)} files", f"one of them: {content.path.name}/NAME ({shown})")
    return Content(content.path / members[0])
