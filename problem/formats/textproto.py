"""Protobuf text format (https://protobuf.dev/reference/protobuf/textformat-spec/) without a schema.

A message becomes a mapping from field name to the list of its values in order; a value is text, a number as text, or a
message. Lists ``[a, b]`` are that many values; ``field: {}``, ``field {}`` and ``<>`` are the same; commas, semicolons and
comments are skipped. Knows syntax only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from problem.errors import BadInput

MAX_DEPTH = 100
_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|(?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|(?P<name>[A-Za-z_][\w.\-]*)"""
    r"""|(?P<number>[-+]?[\d.][\w.+-]*)|(?P<sign>[{}<>\[\]:,;])"""
)


@dataclass(frozen=True)
class Token:
    """A token: what it is (``string``, ``name``, ``number``, ``sign``, ``end``), its text and its line."""

    kind: str
    text: str
    line: int


class Message(dict[str, "list[str | Message]"]):
    """A message: the values of each field, in order."""

    def messages(self, *path: str) -> list[Message]:
        """Return all messages at a path of fields, such as ``("feature_config", "features")``."""
        found = [self]
        for name in path:
            found = [value for message in found for value in message.get(name, []) if isinstance(value, Message)]
        return found

    def text(self, name: str, default: str = "") -> str:
        """Return the last scalar value of a field (the last one counts), or the default."""
        return next((value for value in reversed(self.get(name, [])) if isinstance(value, str)), default)

    def texts(self, name: str) -> list[str]:
        """Return all scalar values of a field."""
        return [value for value in self.get(name, []) if isinstance(value, str)]


def parse(text: str, source: str) -> Message:
    """Parse a message.

    Raises
    ------
    BadInput
        On broken syntax or messages that are nested too deep; the message carries the line.
    """
    return _Parser(source, _tokens(text, source)).message("end", 0)


def _tokens(text: str, source: str) -> Iterator[Token]:
    at, line = 0, 1
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise BadInput(f"{source}:{line}", "document", text[at : at + 20], "protobuf text")
        if match.lastgroup:
            yield Token(match.lastgroup, match[0], line)
        line += match[0].count("\n")
        at = match.end()
    yield Token("end", "end", line)


class _Parser:
    """Recursive descent, one token ahead."""

    def __init__(self, source: str, tokens: Iterator[Token]) -> None:
        self._source, self._tokens = source, tokens
        self._next = next(tokens)

    def message(self, close: str, depth: int) -> Message:
        """Read fields up to ``close``."""
        if depth > MAX_DEPTH:
            raise self._refusal(f"at most {MAX_DEPTH} messages deep")
        found = Message()
        while self._next.text != close or self._next.kind == "string":
            name = self._take()
            if name.kind != "name":
                raise self._refusal("a field name", name)
            colon = self._accept(":")
            found.setdefault(name.text, []).extend(self._values(colon, depth))
            while self._accept(",", ";"):
                pass
        return found

    def _values(self, colon: bool, depth: int) -> list[str | Message]:
        if self._accept("["):
            values: list[str | Message] = []
            while not self._accept("]"):
                values += self._values(True, depth)
                self._accept(",")
            return values
        return [self._value(colon, depth)]

    def _value(self, colon: bool, depth: int) -> str | Message:
        token = self._take()
        if token.kind == "sign" and token.text in "{<":
            close = "}" if token.text == "{" else ">"
            message = self.message(close, depth + 1)
            self._take()
            return message
        if not colon or token.kind in {"sign", "end"}:
            raise self._refusal("a value", token)
        if token.kind == "string":
            return self._string(token)
        return token.text

    def _string(self, first: Token) -> str:
        """Return a string; neighbours are joined, escapes kept as they are."""
        text = first.text[1:-1]
        while self._next.kind == "string":
            text += self._take().text[1:-1]
        return text

    def _take(self) -> Token:
        token = self._next
        if token.kind != "end":
            self._next = next(self._tokens)
        return token

    def _accept(self, *signs: str) -> bool:
        if self._next.kind == "sign" and self._next.text in signs:
            self._take()
            return True
        return False

    def _refusal(self, allowed: str, token: Token | None = None) -> BadInput:
        found = token or self._next
        return BadInput(f"{self._source}:{found.line}", "document", found.text, allowed)
