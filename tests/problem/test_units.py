"""Units: parsing, printing, and the two together on the numbers that vendors print."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from problem import units


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("64GiB", 64 * 2**30),
        ("64Gi", 64 * 2**30),
        ("64GB", 64 * 10**9),
        ("64G", 64 * 10**9),
        ("1TiB", 2**40),
        ("1.5 KiB", 1536),
        ("180_000_000_000", 180 * 10**9),
        ("5e10", 5 * 10**10),
        (4096, 4096),
        (1e9, 10**9),
        ("0", 0),
        (2**62 + 1, 2**62 + 1),
    ],
)
def test_bytes(text, size):
    """Sizes are read exactly, and GB is not GiB."""
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["512m", "64Gb", "64 gib", "", "GiB", "1e3e3", "-1GB", "nan", True, None, "1.2.3", "0123"]
)
def test_bytes_refused(text):
    """Thousandths, bits, wrong case, negative and octal-looking sizes are refused, not guessed."""
    with pytest.raises(ValueError, match=r"must|unit|zero"):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("12.5Gb/s", 1.5625e9),
        ("12.5GB/s", 12.5e9),
        ("100Gbps", 12.5e9),
        ("25 Gbit/s", 3.125e9),
        ("1.25E9Bps", 1.25e9),
        ("1.25Gbps", 0.15625e9),
        ("1GiB/s", 2.0**30),
    ],
)
def test_rates(text, rate):
    """Bits and bytes per second are told apart by their case."""
    assert units.parse_rate(text) == rate


def test_bare_rate_needs_a_stated_unit():
    """A number without unit is a rate only where the field says in which unit."""
    assert units.parse_rate("1e2", bare="Gb/s") == 12.5e9
    with pytest.raises(ValueError, match="unit"):
        units.parse_rate("100")


@pytest.mark.parametrize(
    ("text", "seconds"), [("5us", 5e-6), ("0.005ms", 5e-6), ("5e-6", 5e-6), ("250ns", 2.5e-7), ("1 s", 1)]
)
def test_seconds(text, seconds):
    """Three spellings of five microseconds are the same float."""
    assert units.parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["22:22", "5m", "1h", "-1ms", float("inf")])
def test_seconds_refused(text):
    """Clock times and ambiguous minutes are refused."""
    with pytest.raises(ValueError, match=r"must|unit"):
        units.parse_seconds(text)


@pytest.mark.parametrize(("value", "count"), [("18", 18), (18.0, 18), ("4e6", 4_000_000), (2**63, 2**63)])
def test_counts(value, count):
    """Whole numbers may be written as floats."""
    assert units.parse_count(value) == count


@pytest.mark.parametrize("value", ["0123", "1.5", True, "4M", "ten", [1], 1e400])
def test_counts_refused(value):
    """What is not plainly a whole number is refused."""
    with pytest.raises(ValueError, match=r"must|unit|zero"):
        units.parse_count(value)


@pytest.mark.parametrize(
    ("printed", "parse", "show"),
    [
        ("12.5 Gb/s", units.parse_rate, units.format_rate),  # Ethernet multi-host port, arXiv 2010.08899
        ("25 Gb/s", units.parse_rate, units.format_rate),  # arXiv 2011.05497 Table I
        ("100 Gb/s", units.parse_rate, units.format_rate),
        ("85 GB/s", units.parse_rate, units.format_bandwidth),  # 4 x DDR4-2666
        ("900 GB/s", units.parse_rate, units.format_bandwidth),  # V100 HBM2
        ("256 GiB", units.parse_bytes, units.format_bytes),
        ("2 TiB", units.parse_bytes, units.format_bytes),
        ("15.7 TFLOP/s", units.parse_flops, units.format_flops),  # V100
        ("6 GFLOP/s", units.parse_flops, units.format_flops),
        ("5 us", units.parse_seconds, units.format_seconds),
        ("256 ms", units.parse_seconds, units.format_seconds),  # arXiv 1906.00091 section 5.2
    ],
)
def test_datasheet_round_trip(printed, parse, show):
    """Each datasheet row comes back as the vendor printed it."""
    assert show(parse(printed)) == printed


@given(st.integers(0, 2**80))
def test_printed_sizes_are_near(size):
    """A printed size reads back within its four digits."""
    assert math.isclose(units.parse_bytes(units.format_bytes(size)), size, rel_tol=1e-3, abs_tol=0.5)


@given(st.floats(1e-9, 1e15))
def test_printed_rates_are_near(rate):
    """A printed rate reads back within its four digits, whatever its magnitude."""
    assert math.isclose(units.parse_rate(units.format_rate(rate)), rate, rel_tol=1e-3)
    assert math.isclose(units.parse_rate(units.format_bandwidth(rate)), rate, rel_tol=1e-3)


@given(st.integers(0, 10**6), st.sampled_from(sorted(units.BYTE_UNITS)))
def test_sizes_scale_with_their_unit(number, unit):
    """A size is its number times its unit, exactly."""
    assert units.parse_bytes(f"{number}{unit}") == number * units.BYTE_UNITS[unit]


def test_counts_are_printed_short():
    """Numbers of things print with a decimal prefix."""
    assert units.format_count(33_762_577) == "33.76 M"
    assert units.format_count(26) == "26"


def test_slow_models_are_not_printed_as_zero() -> None:
    """Whole samples per second, three digits where there are few: a step of 8.6 s is 0.116 samples/s, not 0."""
    printed = [units.format_throughput(value) for value in (1 / 8.589934591, 11.37, 1234.5)]
    assert printed == ["0.116", "11.4", "1,234"]
