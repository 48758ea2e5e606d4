"""How good predictions are: log loss, normalised entropy, accuracy, area under the ROC curve.

Works on logits and labels in float64; knows nothing of models or batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Metrics:
    """Quality of a set of predictions.

    Parameters
    ----------
    loss : float
        Mean log loss, in nats.
    normalized_entropy : float
        ``loss`` over the entropy of the base rate (:func:`normalized_entropy`); below 1 is better than the base rate.
    accuracy : float
        Share of samples whose label the prediction at threshold 1/2 gets right.
    auc : float
        Area under the ROC curve (:func:`auc`).
    base_rate : float
        Share of positive labels.
    samples : int
        Number of samples.
    """

    loss: float
    normalized_entropy: float
    accuracy: float
    auc: float
    base_rate: float
    samples: int


def measure(logits: Values, labels: Values) -> Metrics:
    """Return all metrics of logits (N,) against labels (N,) in {0, 1}, N > 0."""
    loss, base_rate = log_loss(logits, labels), float(np.mean(labels, dtype=np.float64))
    accuracy = float(np.mean((logits > 0.0) == (labels > 0.5)))
    entropy = normalized_entropy(loss, base_rate)
    return Metrics(loss, entropy, accuracy, auc(logits, labels), base_rate, len(labels))


def log_loss(logits: Values, labels: Values) -> float:
    """Return the mean of log(1 + exp(z)) - y z, for logits z (N,) and labels y (N,); finite for any finite logit."""
    wide = logits.astype(np.float64)
    return float(np.mean(np.logaddexp(0.0, wide) - labels * wide))


def normalized_entropy(loss: float, base_rate: float) -> float:
    """Return mean log loss over the entropy of the base rate (He et al., ADKDD 2014, equation 1).

    NaN if all labels are equal: the entropy is then 0 and there is nothing to predict.
    """
    if not 0.0 < base_rate < 1.0:
        return math.nan
    return loss / -(base_rate * math.log(base_rate) + (1.0 - base_rate) * math.log1p(-base_rate))


def auc(scores: Values, labels: Values) -> float:
    """Return the probability that a positive sample scores above a negative one, ties counting one half.

    From the sum of ranks of the positives (Mann and Whitney 1947), tied scores taking their mean rank. NaN if all
    labels are equal.
    """
    positive = labels > 0.5
    positives = int(positive.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return math.nan
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2.0
    rank_sum = float(mean_ranks[place][positive].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)
