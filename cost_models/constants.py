"""Constants of the cost models, each with its unit and where it comes from.

Knows published and measured numbers about machines and kernels. Knows nothing of models, batches or placement: the
formulas that use a constant are in the module that owns the formula.

"Measured, docs/costs.md" means: measured for this project on one machine (2 virtual cores of an AMD EPYC with 32 MB of
L3, NumPy 2.4 on OpenBLAS 0.3.31, one BLAS thread); the page lists the measurements.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constant:
    """A number that was read, measured or assumed somewhere.

    Parameters
    ----------
    value : float
        The number, in ``unit``.
    unit : str
        SI unit; ``1`` for a ratio.
    source : str
        Paper or URL with the printed value, or how it was measured, or the word "assumption".
    """

    value: float
    unit: str
    source: str

    def __str__(self) -> str:
        return f"{self.value:g} {self.unit} ({self.source})"


_TORCHREC = "TorchRec planner, torchrec/distributed/planner/constants.py at commit a48cef7"

#: Memory bandwidth that one core can draw by itself, with the others idle.
CORE_BANDWIDTH = Constant(
    12e9,
    "bytes/second",
    "single-thread STREAM on a Skylake-SP Xeon with DDR4-2666 gives 12 GB/s: "
    "https://www.anandtech.com/show/11544/intel-skylake-ep-vs-amd-epyc-7000-cpu-battle-of-the-decade, page 12",
)
#: Share of memory bandwidth that a fused embedding kernel reaches on a CPU.
FUSED_KERNEL_BANDWIDTH = Constant(1.0, "1", f"{_TORCHREC}: kernel bandwidth of a fused CPU kernel = 1 x DDR bandwidth")
#: Rows shorter than a full burst cost more per byte: (dimension below which it holds, factor), smallest first.
DIM_PENALTIES = (
    (64, Constant(1.75, "1", f"{_TORCHREC}: compute penalty of a dimension below 64")),
    (128, Constant(1.15, "1", f"{_TORCHREC}: compute penalty of a dimension below 128")),
)
#: Interpreter and call overhead of one operator.
DISPATCH_SECONDS = Constant(1.5e-6, "seconds/operator", "measured, docs/costs.md: 1-2 us an operator, the middle taken")

#: Looking at an id to find out whether its row is held.
ID_SECONDS = Constant(
    1.3e-9,
    "seconds/id",
    "measured, docs/costs.md: a shard that no id of the batch falls on, 41,000 to 205,000 ids, 16 to 64 columns",
)

#: One-way time of a small message over TCP, sender and receiver together.
TCP_MESSAGE_SECONDS = Constant(
    13e-6, "seconds/message", "measured, docs/costs.md: TCP loopback, 1 KB, half a round trip"
)
#: Streaming rate of TCP; both ends work at the same time, so each end is busy for up to bytes / rate.
TCP_STREAM_BANDWIDTH = Constant(2.3e9, "bytes/second", "measured, docs/costs.md: TCP loopback, 1 MB and 16 MB messages")
#: One-way time of a small message through a ring in shared memory with a pipe as doorbell.
RING_MESSAGE_SECONDS = Constant(
    4e-6, "seconds/message", "measured, docs/costs.md: ring + pipe, 1 KB, half a round trip"
)
#: Rate of the sender's copy into the ring, between the other work of a training step.
RING_SEND_BANDWIDTH = Constant(
    1.2e6 / 67.5e-6, "bytes/second", "measured, docs/costs.md: 60-75 us a 1.2 MB put in context"
)
#: Rate at which the receiver gets and first touches a message in the ring.
RING_RECEIVE_BANDWIDTH = Constant(
    1.2e6 / 45e-6, "bytes/second", "measured, docs/costs.md: 30-60 us a 1.2 MB get + touch"
)

#: Bytes of memory traffic for each byte of a buffer that is added to another.
SUM_TRAFFIC = Constant(3.0, "bytes/byte", "counted: read both operands, write one")
#: Bytes of memory traffic for each byte of parameters in an elastic exchange, at the sync server; the client, which only
#: adds the difference (3 bytes), is counted the same.
EXCHANGE_TRAFFIC = Constant(
    8.0,
    "bytes/byte",
    "counted: difference (2 reads, 1 write), scaling (1 read, 1 write), addition (2 reads, 1 write)",
)
