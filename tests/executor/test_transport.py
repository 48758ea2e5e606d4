"""Channels: two slots, credits, clocks on messages, and peers that are gone."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from executor.clock import Clock, ClockKind
from executor.errors import PeerGone
from executor.transport import LOOKS, SLOTS, Channel, Link, keep_only, looks_of, shared_array

pytestmark = pytest.mark.timeout(30)


class Waits:
    """Counts how often a worker has begun to wait."""

    def __init__(self) -> None:
        self.begun = 0
        self.now = False

    def waiting(self, yes: bool) -> None:
        """Note whether the worker waits."""
        self.begun += yes
        self.now = yes


def clock(now: float = 0.0) -> Clock:
    """A virtual clock that only messages move (nothing is modelled to take time)."""
    found = Clock(ClockKind.PACED, -1e9)
    found.now = now
    return found


def floats(*values: float) -> np.ndarray:
    """An array of float32."""
    return np.array(values, np.float32)


@pytest.fixture
def channel() -> Channel:
    """From ``a`` to ``b``: three floats and two ints, both ends in this process; half a second of network."""
    return Channel("a", "b", [((3,), np.float32), ((1, 2), np.int32)], Link(0.5))


def send(channel: Channel, value: float, at: float = 0.0) -> None:
    """Send a message made of one number."""
    channel.send([floats(value, value, value), np.full((1, 2), value, np.int32)], clock(at), Waits())


def close(*channels: Channel) -> None:
    """Close all ends."""
    keep_only(set(), {end for channel in channels for end in channel.ends("")[1]})


def test_messages_arrive_in_order_with_their_arrays(channel: Channel) -> None:
    """Shapes, types, values and order of what was sent; ``bytes`` is the size of one message."""
    assert channel.bytes == 3 * 4 + 2 * 4
    for value in (1, 2):
        send(channel, value)
    for value in (1, 2):
        first, second = channel.receive(clock(), Waits())
        np.testing.assert_array_equal(first, floats(value, value, value))
        np.testing.assert_array_equal(second, np.full((1, 2), value, np.int32))
    close(channel)


def test_a_message_is_copied_when_it_is_sent(channel: Channel) -> None:
    """The sender may overwrite its array at once."""
    array = floats(1, 1, 1)
    channel.send([array, np.zeros((1, 2), np.int32)], clock(), Waits())
    array.fill(7)
    np.testing.assert_array_equal(channel.receive(clock(), Waits())[0], floats(1, 1, 1))
    close(channel)


def test_a_received_message_stays_valid_until_the_next_one_is_received(channel: Channel) -> None:
    """The sender fills the other slot meanwhile, and waits before it comes round to this one."""
    send(channel, 1)
    received = channel.receive(clock(), Waits())[0]
    send(channel, 2)
    np.testing.assert_array_equal(received, floats(1, 1, 1))
    third = threading.Thread(target=send, args=(channel, 3), daemon=True)
    third.start()
    third.join(0.1)
    assert third.is_alive()  # both slots are in use: one unread, one still read in place
    np.testing.assert_array_equal(received, floats(1, 1, 1))
    np.testing.assert_array_equal(channel.receive(clock(), Waits())[0], floats(2, 2, 2))
    third.join(10)
    assert not third.is_alive()
    np.testing.assert_array_equal(channel.receive(clock(), Waits())[0], floats(3, 3, 3))
    close(channel)


def test_a_slot_that_has_come_back_is_used_again(channel: Channel) -> None:
    """A receiver that waits before a message is sent keeps the channel in one slot; one that still reads does not."""
    found: list[np.ndarray] = []
    for value in range(3):
        waits = Waits()
        other = threading.Thread(
            target=lambda waits=waits: found.append(channel.receive(clock(), waits)[0]), daemon=True
        )
        other.start()
        while not waits.now:
            pass
        send(channel, value)
        other.join(10)
    send(channel, 3)
    assert found[2][0] == 2
    assert len({array.ctypes.data for array in found}) == 1
    assert channel.receive(clock(), Waits())[0].ctypes.data != found[2].ctypes.data
    close(channel)


def test_a_sender_never_waits_for_its_first_two_messages(channel: Channel) -> None:
    """A step may send before the receiver of the step before has come to its end."""
    waits = Waits()
    for _ in range(SLOTS):
        channel.send([floats(1, 1, 1), np.zeros((1, 2), np.int32)], clock(), waits)
    assert waits.begun == 0
    close(channel)


def test_who_has_no_core_of_its_own_sleeps_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes look before they sleep only where each of them has a core."""
    monkeypatch.setattr("executor.transport.usable_cores", lambda: 2)
    assert [looks_of(processes) for processes in (1, 2, 3, 11)] == [LOOKS, LOOKS, 0, 0]


def test_many_messages_wrap_around_the_ring(channel: Channel) -> None:
    """Fifty messages through two slots come out as they went in."""
    for value in range(50):
        send(channel, value)
        np.testing.assert_array_equal(channel.receive(clock(), Waits())[0], floats(value, value, value))
    close(channel)


def test_a_message_carries_the_clock_and_the_network_adds_its_time(channel: Channel) -> None:
    """Sent at 2 s over half a second of network: nobody who received it is earlier than 2.5 s, or put back."""
    send(channel, 1, at=2.0)
    early, late = clock(1.0), clock(9.0)
    channel.receive(early, Waits())
    assert early.now == 2.5
    send(channel, 1, at=2.0)
    channel.receive(late, Waits())
    assert late.now == 9.0
    close(channel)


def test_a_slot_that_comes_back_carries_the_clock_of_the_receiver(channel: Channel) -> None:
    """A sender that needs a slot is not earlier than the receiver that gave it back; it need not wait when that has come."""
    send(channel, 1)
    send(channel, 2)
    channel.receive(clock(), Waits())
    channel.receive(clock(7.0), Waits())
    sender, waits = clock(1.0), Waits()
    channel.send([floats(3, 3, 3), np.zeros((1, 2), np.int32)], sender, waits)
    assert sender.now == 7.0
    assert waits.begun == 0
    close(channel)


def test_what_a_dead_sender_sent_still_arrives_then_it_is_gone(channel: Channel) -> None:
    """The end of a pipe comes after its contents."""
    send(channel, 1)
    sender_ends, everything = channel.ends("a")
    keep_only(everything - sender_ends, everything)
    assert channel.receive(clock(), Waits())[0][0] == 1
    with pytest.raises(PeerGone):
        channel.receive(clock(), Waits())
    keep_only(set(), everything - sender_ends)


def test_a_message_to_a_dead_receiver_says_so(channel: Channel) -> None:
    """A sender finds out when it needs a slot that will never come back."""
    receiver_ends, everything = channel.ends("b")
    keep_only(everything - receiver_ends, everything)
    for value in range(SLOTS):
        send(channel, value)
    with pytest.raises(PeerGone):
        send(channel, 3)
    keep_only(set(), everything - receiver_ends)


def test_ends_belong_to_the_two_workers(channel: Channel) -> None:
    """Each of the four ends is used by exactly one of the two; a third worker uses none."""
    a, everything = channel.ends("a")
    b, _ = channel.ends("b")
    assert len(everything) == 4
    assert a | b == everything
    assert not a & b
    assert channel.ends("c")[0] == set()
    close(channel)


def test_a_message_without_arrays_is_a_signal() -> None:
    """Turns and answers carry no bytes, only news."""
    channel = Channel("a", "b", ())
    channel.send([], clock(3.0), Waits())
    at = clock()
    assert channel.bytes == 0
    assert channel.receive(at, Waits()) == []
    assert at.now == 3.0
    close(channel)


@pytest.mark.parametrize("shape", [(0,), (3,), (2, 5), (0, 4)])
def test_shared_arrays_are_zero_and_have_no_name(shape: tuple[int, ...]) -> None:
    """Any shape, empty ones too; nothing appears in /dev/shm."""
    shared = Path("/dev/shm")
    before = set(shared.iterdir()) if shared.is_dir() else set()
    array = shared_array(shape, np.float32)
    assert array.shape == shape
    assert not array.any()
    array += 1
    assert (set(shared.iterdir()) if shared.is_dir() else set()) <= before
