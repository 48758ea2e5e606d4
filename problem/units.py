"""Units: the only place where a quantity with a unit becomes an SI number, and the reverse.

Knows prefixes, bits and bytes, and how datasheets print them. GB (1e9) and GiB (2**30) are different names here, and so
are Gb (bits) and GB (bytes): the case of a unit matters. Knows nothing of files and fields; every parser raises
:class:`ValueError` whose text says what is allowed, and the reader adds where the value stands.

Numbers are exact until the last step (:class:`fractions.Fraction`), so ``12.5Gb/s`` is 1.5625e9 bytes per second to
the bit and byte counts above 2**53 keep their last digit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction

_QUANTITY = re.compile(
    r"(?P<number>[-+]?(?:\d+(?:_\d{3})*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?)\s*(?P<unit>[A-Za-zµμ][A-Za-z/]*)?"
)
_LEADING_ZERO = re.compile(r"[-+]?0[\d_]")

_SI = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_DECIMAL = {**_SI, "K": 10**3}

#: Sizes: ``GB`` decimal, ``GiB`` binary; ``G`` and ``Gi`` mean the same as in Kubernetes manifests.
BYTE_UNITS: Mapping[str, Fraction] = {
    **{f"{prefix}B": Fraction(scale) for prefix, scale in {**_DECIMAL, **_BINARY}.items()},
    **{prefix: Fraction(scale) for prefix, scale in {**_DECIMAL, **_BINARY}.items() if prefix},
}
#: Rates in bytes per second: ``GB/s`` counts bytes, ``Gb/s`` bits.
RATE_UNITS: Mapping[str, Fraction] = {
    **{f"{p}B{per}": Fraction(s) for p, s in {**_DECIMAL, **_BINARY}.items() for per in ("/s", "ps")},
    **{f"{p}{bit}": Fraction(s, 8) for p, s in _DECIMAL.items() for bit in ("b/s", "bps", "bit/s")},
}
#: Times in seconds. Minutes are left out: ``5m`` is five minutes to some and five milliseconds to others.
SECOND_UNITS: Mapping[str, Fraction] = {
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    **dict.fromkeys(("us", "µs", "μs"), Fraction(1, 10**6)),
    "ns": Fraction(1, 10**9),
}
#: Rates of arithmetic in operations per second.
FLOP_UNITS: Mapping[str, Fraction] = {
    f"{prefix}{name}": Fraction(scale)
    for prefix, scale in _SI.items()
    for name in ("FLOP/s", "FLOPS", "flop/s", "flops")
}


def _quantity(value: object, units: Mapping[str, Fraction], bare: str | None, example: str) -> Fraction:
    """Return ``value`` in SI; ``bare`` is the unit of a number without one (None: refused)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must be {example}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("must be a finite number")
    text = str(value).strip()
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"must be {example}")
    if _LEADING_ZERO.match(match["number"]):
        raise ValueError("a leading zero reads as octal in some formats; write the number without it")
    unit = match["unit"] or bare
    if unit is None:
        raise ValueError(f"needs a unit: {example}")
    if unit not in units:
        raise ValueError(f"unknown unit {unit!r} (case matters): must be {example}")
    return Fraction(match["number"].replace("_", "")) * units[unit]


def _as_float(value: Fraction) -> float:
    """Return the nearest float; refuse what a float cannot hold."""
    try:
        return float(value)
    except OverflowError:
        raise ValueError("must be a finite number") from None


def _positive(value: Fraction) -> Fraction:
    """Refuse negative quantities."""
    if value < 0:
        raise ValueError("must not be negative")
    return value


def parse_count(value: object) -> int:
    """Return a whole number; ``1e6``, ``4_000_000`` and the float 64.0 count as whole, ``0123`` and True do not.

    Raises
    ------
    ValueError
        When the value is not a whole number.
    """
    number = _quantity(value, {"": Fraction(1)}, "", "a whole number, such as 18")
    if number.denominator != 1:
        raise ValueError("must be a whole number")
    return number.numerator


def parse_number(value: object) -> float:
    """Return a finite plain number.

    Raises
    ------
    ValueError
        When the value is not a finite number without unit.
    """
    if type(value) is float and math.isfinite(value):  # what the exact way returns for it, at once
        return value
    return _as_float(_quantity(value, {"": Fraction(1)}, "", "a number, such as 1.5"))


def parse_bytes(value: object) -> int:
    """Return a size in bytes, rounded to a whole byte; a number without unit is bytes.

    Raises
    ------
    ValueError
        On an unknown unit (``Gb`` is bits, ``512m`` is thousandths), a leading zero or a negative size.

    Examples
    --------
    >>> parse_bytes("64GiB"), parse_bytes("64GB")
    (68719476736, 64000000000)
    """
    return round(_positive(_quantity(value, BYTE_UNITS, "B", "a size in bytes, such as 64GiB or 64GB")))


def parse_rate(value: object, bare: str | None = None) -> float:
    """Return a rate in bytes per second.

    Parameters
    ----------
    value : object
        Text such as ``12.5Gb/s`` or ``85GB/s``, or a number when ``bare`` is given.
    bare : str, optional
        Unit of a number that has none, a key of :data:`RATE_UNITS`.

    Raises
    ------
    ValueError
        On an unknown unit, a leading zero or a negative rate.
    """
    return _as_float(_positive(_quantity(value, RATE_UNITS, bare, "a rate, such as 12.5Gb/s (bits) or 85GB/s (bytes)")))


def parse_seconds(value: object) -> float:
    """Return a time in seconds; a number without unit is seconds.

    Raises
    ------
    ValueError
        On an unknown unit (``5m`` is ambiguous), a clock time such as ``22:22``, a leading zero or a negative time.
    """
    return _as_float(_positive(_quantity(value, SECOND_UNITS, "s", "a time, such as 5us, 0.005ms or 5e-6 (seconds)")))


def parse_flops(value: object) -> float:
    """Return a rate of arithmetic in operations per second; a number without unit is flop/s.

    Raises
    ------
    ValueError
        On an unknown unit, a leading zero or a negative rate.
    """
    return _as_float(_positive(_quantity(value, FLOP_UNITS, "FLOP/s", "a rate of arithmetic, such as 6GFLOP/s")))


def _scaled(value: float, scales: tuple[tuple[float, str], ...]) -> str:
    """Print ``value`` with four significant digits in the largest unit that it reaches."""
    size, unit = next(((size, unit) for size, unit in scales if abs(value) >= size), scales[-1])
    return f"{value / size:.4g} {unit}"


_TIB = tuple((2.0 ** (10 * power), unit) for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB"), (0, "B")))


def _decimal(unit: str) -> tuple[tuple[float, str], ...]:
    return ((1e12, f"T{unit}"), (1e9, f"G{unit}"), (1e6, f"M{unit}"), (1e3, f"k{unit}"), (1.0, unit))


def format_bytes(size_bytes: float) -> str:
    """Print a size in binary units, as memory is sold: ``64 GiB``."""
    return _scaled(size_bytes, _TIB)


def format_rate(bytes_per_second: float) -> str:
    """Print the rate of a NIC in bits per second, as vendors do: ``12.5 Gb/s``."""
    return _scaled(bytes_per_second * 8, _decimal("b/s"))


def format_bandwidth(bytes_per_second: float) -> str:
    """Print the bandwidth of a memory in bytes per second, as vendors do: ``85 GB/s``."""
    return _scaled(bytes_per_second, _decimal("B/s"))


def format_seconds(seconds: float) -> str:
    """Print a time: ``5 us``."""
    return _scaled(seconds, ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")))


def format_flops(flops_per_second: float) -> str:
    """Print a rate of arithmetic: ``6 GFLOP/s``."""
    return _scaled(flops_per_second, _decimal("FLOP/s"))


def format_count(count: float) -> str:
    """Print a number of things with a decimal prefix: ``33.76 M``."""
    return _scaled(count, _decimal("")).rstrip()


def format_throughput(samples_per_second: float) -> str:
    """Print samples per second: whole ones, or three digits where there are fewer than a hundred."""
    return f"{samples_per_second:,.0f}" if samples_per_second >= 100 else f"{samples_per_second:.3g}"
