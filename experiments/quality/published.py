"""Test losses that the DCT paper printed (Gupta et al., arXiv 2010.08899v1): its DLRM on Criteo's Kaggle data, one epoch.

Another data set and a far longer run than ours: what can be compared is the order of things and the sign of a change.
"""

from __future__ import annotations

#: Without compression; accuracy 78.78 % (Table 1).
BASE = 0.4538
#: By family and share dropped (eta). One cut: two workers; two cuts: three.
TEST_LOSS = {
    "DCT-MP, one cut": {0.75: 0.4532, 0.90: 0.4530, 0.95: 0.4534, 0.98: 0.4562},  # Table 1
    "DCT-MP, two cuts": {0.75: 0.4536, 0.90: 0.4537, 0.95: 0.4546},  # Table 1
    "DCT-MP, one cut, Laplace": {0.75: 0.4529, 0.90: 0.4529, 0.95: 0.4528, 0.98: 0.4535},  # Table 6
    "DCT-DP": {0.75: 0.4534, 0.90: 0.4536, 0.95: 0.4538, 0.98: 0.4537, 0.995: 0.4547},  # Table 2
    "hybrid, two cuts": {0.75: 0.4535, 0.90: 0.4537, 0.95: 0.4548},  # Table 3
    "sketch of activations": {0.50: 0.4618, 0.75: 0.4656, 0.90: 0.4721},  # Table 7
    "top-k of their gradient": {0.50: 0.4561, 0.75: 0.4588, 0.90: 0.4789},  # Table 8, with error feedback
}
#: Figure 2, read from its vector graphics: mean threshold of one layer's gradient by share dropped, over an epoch.
GRADIENT_THRESHOLD = {0.50: 7.67e-5, 0.75: 3.76e-4, 0.90: 1.08e-3, 0.95: 1.95e-3, 0.98: 3.51e-3, 0.99: 5.29e-3}
#: Figure 5, read likewise: threshold of activations at the start and at the end, without DCT-MP and with it.
ACTIVATION_THRESHOLD = {
    0.95: ((0.920, 0.70), (0.940, 0.28)),
    0.90: ((0.712, 0.415), (0.679, 0.14)),
    0.75: ((0.375, 0.027), (0.329, 0.002)),
}
#: Figure 6b (the first pair from the text, the others read by eye): share kept under a Laplace threshold, start and end.
LAPLACE_KEPT = {0.25: (0.25, 0.13), 0.10: (0.14, 0.075), 0.05: (0.09, 0.05), 0.02: (0.047, 0.033)}


def published_change(family: str, dropped: float) -> float | None:
    """Return the printed change of the test loss in percent (positive is worse); None where nothing was printed."""
    loss = TEST_LOSS.get(family, {}).get(dropped)
    return None if loss is None else 100 * (loss / BASE - 1)
