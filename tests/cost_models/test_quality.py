"""The table of what codecs cost in quality: complete rows, found by place and codec."""

from __future__ import annotations

from cost_models.quality import QualityChange, quality_change, quality_changes, worst_at_cuts
from placement.codecs import parse_codec


def test_every_measurement_is_whole() -> None:
    """Each row has a codec that plans can name, an interval round its mean, five seeds or more, and fewer bytes."""
    assert len(quality_changes()) >= 11
    for found in quality_changes():
        parse_codec(found.codec)
        assert found.low <= found.change <= found.high
        assert found.seeds >= 5
        assert 0 < found.wire <= 1
    keys = [(found.place, found.codec) for found in quality_changes()]
    assert len(set(keys)) == len(keys)


def test_a_guard_goes_by_the_worse_end_of_the_interval() -> None:
    """A mean of 0.04 % with an interval up to 0.2 % is not within 0.1 %."""
    found = QualityChange("cut", "x", 1500, 5, 0.5, 0.04, -0.12, 0.20)
    assert not found.is_within(0.1)
    assert found.is_within(0.2)


def test_what_was_not_measured_is_not_there() -> None:
    """No entry stands in for another place or share."""
    assert quality_change("bottom cut", "dct-mp:0.1") is not None
    assert quality_change("push", "dct-mp:0.1") is None
    assert worst_at_cuts("dct-mp:0.123") is None


def test_the_worst_of_all_cuts_is_the_one_with_the_highest_end() -> None:
    """DCT-MP at two cuts at once is worse than at one, and stands for both."""
    worst = worst_at_cuts("dct-mp:0.1")
    assert worst == quality_change("two cuts", "dct-mp:0.1")
    assert worst is not None
    assert worst.high >= max(one.high for one in quality_changes() if one.codec == "dct-mp:0.1")
