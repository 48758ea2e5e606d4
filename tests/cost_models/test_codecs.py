"""Codecs: bytes against the published formats, seconds against the measurements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.codecs import ROWWISE_BITS, SPARSE, Codec, Message

MILLION = 10**6
#: Compression ratios derived from Gupta et al. (KDD 2021), as printed: eta, COO32, idx16, bitmask, MP round trip.
PRINTED = [
    (0.75, "2.0", "2.7", "3.6", "3.8"),
    (0.90, "5.0", "6.7", "7.6", "8.6"),
    (0.95, "10", "13.3", "12.3", "15.2"),
    (0.98, "25", "33", "19.5", "28"),
    (0.99, "50", "67", "24", "39"),
    (0.995, "100", "133", "27.6", "48.5"),
]


def as_printed(ratio: float, like: str) -> str:
    """The ratio with as many decimals as the printed figure."""
    decimals = len(like.partition(".")[2])
    return f"{ratio:.{decimals}f}"


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: f"eta={row[0]}")
def test_sparse_formats_reproduce_the_published_ratios(row: tuple[float, str, str, str, str]) -> None:
    """A gradient of a million elements: dense bytes over sparse bytes, to every printed digit."""
    eta, coo32, idx16, bitmask, round_trip = row
    dense = Message(1, MILLION).bytes
    for codec, printed in ((Codec.COO32, coo32), (Codec.IDX16, idx16), (Codec.BITMASK, bitmask)):
        assert as_printed(dense / Message(1, MILLION, codec, 1 - eta).bytes, printed) == printed
    forward, backward = (Message(1000, 1000, codec, 1 - eta).bytes for codec in (Codec.BITMASK, Codec.VALUES))
    assert as_printed(2 * dense / (forward + backward), round_trip) == round_trip


def test_bitmask_beats_coo32_above_a_density_of_one_in_32() -> None:
    """The two formats cross at 3.1 % density: 4 bytes an index against 1/8 byte an element."""
    below, above = ({c: Message(1, MILLION, c, keep).bytes for c in SPARSE} for keep in (0.031, 0.0315))
    assert below[Codec.COO32] < below[Codec.BITMASK]
    assert above[Codec.COO32] > above[Codec.BITMASK]


@pytest.mark.parametrize(
    ("codec", "row_bytes"), [("rowwise8", 15), ("rowwise4", 13), ("rowwise2", 12), ("rowwise1", 11)]
)
def test_rowwise_rows_have_ten_bytes_of_header_and_whole_bytes_of_data(codec: str, row_bytes: int) -> None:
    """Caffe2's row of five elements: 10 + ceil(5 * bits / 8); its documented example has 2 bits and so 12 bytes."""
    assert Message(7, 5, Codec(codec)).bytes == 7 * row_bytes


def test_dense_formats() -> None:
    """Four bytes an element in fp32, two in fp16 and bf16."""
    sizes = {codec: Message(3, 100, codec).bytes for codec in (Codec.FP32, Codec.FP16, Codec.BF16)}
    assert sizes == {Codec.FP32: 1200, Codec.FP16: 600, Codec.BF16: 600}


def test_sparse_codecs_send_small_tensors_dense() -> None:
    """255 elements go dense whatever the codec, 256 are compressed."""
    for codec in SPARSE:
        assert Message(1, 255, codec, 0.01).bytes == 255 * 4
        assert Message(1, 256, codec, 0.01).bytes < 256 * 4


def test_rows_keep_whole_elements() -> None:
    """Each row keeps at least one element and rounds up; 10 % of 1000 is 100 in spite of binary fractions."""
    assert Message(8, 100, Codec.BITMASK, 0.001).kept == 8
    assert Message(1, 1000, Codec.COO32, 0.1).kept == 100


def test_sixteen_bit_indices_count_their_blocks() -> None:
    """Beyond 65,536 elements each further block adds the 4 bytes of its count."""
    assert Message(1, 65536, Codec.IDX16, 0.5).bytes == 32768 * 6
    assert Message(1, 131072, Codec.IDX16, 0.5).bytes == 65536 * 6 + 4


def test_seconds_give_back_the_measured_figures() -> None:
    """300,032 elements: bf16 166 us, fp16 494 us back, int8 1314 + 623 us, 1 % kept 1395 us (+ 971 us for an exact tau)."""
    size = 300_032
    assert Message(1, size, Codec.BF16).encode_seconds == pytest.approx(166e-6)
    assert Message(1, size, Codec.FP16).decode_seconds == pytest.approx(247e-6)
    eight = Message(1, size, Codec.ROWWISE8)
    assert (eight.encode_seconds, eight.decode_seconds) == (pytest.approx(1314e-6), pytest.approx(623e-6))
    assert Message(1, size, Codec.COO32, 0.01).encode_seconds == pytest.approx((1395 + 971) * 1e-6, rel=1e-3)
    assert Message(1, size, Codec.COO32, 0.01, 1000).encode_seconds == pytest.approx(1396e-6, rel=1e-3)
    assert Message(1, size, Codec.COO32, 0.1).decode_seconds == pytest.approx(113e-6, rel=1e-3)
    assert Message(1, size).encode_seconds == 0


@given(st.sampled_from(Codec), st.integers(1, 2000), st.integers(1, 2000), st.floats(0.001, 1))
def test_more_elements_never_take_fewer_bytes(codec: Codec, rows: int, cols: int, keep: float) -> None:
    """Once a tensor is not small, another row never makes the message smaller, and seconds are never negative."""
    message, longer = Message(rows, cols, codec, keep), Message(rows + 1, cols, codec, keep)
    if message.is_sparse == longer.is_sparse:
        assert message.bytes < longer.bytes
    assert message.encode_seconds >= 0
    assert message.decode_seconds >= 0


@pytest.mark.parametrize(("keep", "every"), [(0.0, 1), (1.1, 1), (0.5, 0)])
def test_impossible_settings_are_refused(keep: float, every: int) -> None:
    """Nothing kept, more than everything kept, and a threshold that is never set are refused."""
    with pytest.raises(ValueError, match="keep"):
        Message(1, 1000, Codec.COO32, keep, every)


def test_every_codec_has_a_size() -> None:
    """Each codec of the enumeration is dense, half, rowwise or sparse; none falls through to four bytes unnoticed."""
    smaller = {codec for codec in Codec if Message(4, 1000, codec, 0.1).bytes < 16000}
    assert smaller == set(Codec) - {Codec.FP32}
    assert set(ROWWISE_BITS) < smaller
