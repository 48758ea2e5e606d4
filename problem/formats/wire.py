"""The protobuf wire format: messages as (field number, value) pairs, and back.

Source: https://protobuf.dev/programming-guides/encoding/. Four wire types are known (0 varint, 1 eight bytes, 2 length
and bytes, 5 four bytes); groups, which are no longer in use, are refused. No schema is needed to read a message; the
modules of the formats know what a field number means.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import IO

from problem.errors import BadInput

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
MAX_MESSAGE_BYTES = 2**30
"""A longer message is taken for a broken length."""
Value = int | bytes


class Broken(Exception):
    """The bytes are no protobuf message; the reader of a file turns this into a line that names the file."""


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield (number, value) of each field of a message: varints as unsigned integers, everything else as bytes.

    Raises
    ------
    Broken
        When the bytes are no message.
    """
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if not number:
            raise Broken("field number 0")
        if kind == VARINT:
            value, at = varint(data, at)
            yield number, value
        else:
            end = _end(data, at, kind)
            begin = end[0]
            yield number, data[begin : end[1]]
            at = end[1]


def _end(data: bytes, at: int, kind: int) -> tuple[int, int]:
    """Return begin and end of a field that is kept as bytes."""
    if kind == BYTES:
        length, at = varint(data, at)
    elif kind in {FIXED64, FIXED32}:
        length = 8 if kind == FIXED64 else 4
    else:
        raise Broken(f"wire type {kind}")
    if at + length > len(data):
        raise Broken("a field is cut off")
    return at, at + length


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned varint and the position behind it.

    Raises
    ------
    Broken
        When it is cut off or longer than 64 bits.
    """
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (2**64 - 1), at
        shift += 7
    raise Broken("a varint is cut off")


def signed(value: int) -> int:
    """Return the 64-bit two's complement number that an unsigned varint stands for (int32 and int64 fields)."""
    return value - 2**64 if value >= 2**63 else value


def packed(value: Value) -> list[int]:
    """Return the numbers of a repeated varint field: one number, or several packed into bytes."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        number, at = varint(value, at)
        found.append(number)
    return found


def text(value: Value) -> str:
    """Return a string field.

    Raises
    ------
    Broken
        When it is no text.
    """
    if isinstance(value, int):
        raise Broken("a number where text is expected")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise Broken("text that is not UTF-8") from None


def delimited(stream: IO[bytes], source: str) -> Iterator[bytes]:
    """Yield the messages of a file in which each one follows its own length; one message at a time is in memory.

    Raises
    ------
    BadInput
        When the file is cut off, or a length is not plausible.
    """
    while True:
        length = _length(stream, source)
        if length is None:
            return
        data = stream.read(length)
        if len(data) < length:
            raise BadInput(source, "message", f"{len(data)} bytes", f"{length} bytes: the file is cut off")
        yield data


def _length(stream: IO[bytes], source: str) -> int | None:
    """Read the varint before a message; None at the end of the file."""
    prefix = b""
    while byte := stream.read(1):
        prefix += byte
        if byte[0] < 0x80 or len(prefix) == 10:
            break
    if not prefix:
        return None
    try:
        length, _ = varint(prefix, 0)
    except Broken:
        length = MAX_MESSAGE_BYTES + 1
    if length > MAX_MESSAGE_BYTES:
        raise BadInput(source, "message length", prefix.hex(), f"a varint of at most {MAX_MESSAGE_BYTES}")
    return length


def put_varint(value: int) -> bytes:
    """Return a number as varint; negative ones as 64-bit two's complement."""
    value &= 2**64 - 1
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def put(number: int, value: int | bytes | str | float) -> bytes:
    """Return a field: numbers as varint, floats as eight bytes, text and bytes with their length."""
    if isinstance(value, float):
        return put_varint(number << 3 | FIXED64) + struct.pack("<d", value)
    if isinstance(value, int):
        return put_varint(number << 3 | VARINT) + put_varint(value)
    data = value.encode() if isinstance(value, str) else value
    return put_varint(number << 3 | BYTES) + put_varint(len(data)) + data


def put_delimited(message: bytes) -> bytes:
    """Return a message behind its length."""
    return put_varint(len(message)) + message
