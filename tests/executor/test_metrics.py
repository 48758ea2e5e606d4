"""Metrics against definitions worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from executor.metrics import auc, log_loss, measure, normalized_entropy


def test_predicting_the_base_rate_has_normalized_entropy_one() -> None:
    """A constant logit at the base rate gives NE 1, AUC 1/2, and the accuracy of the commoner label."""
    labels = np.array([1, 0, 0, 0], np.float32)
    result = measure(np.full(4, math.log(1 / 3)), labels)
    assert result.normalized_entropy == pytest.approx(1.0, rel=1e-12)
    assert result.loss == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))
    assert (result.auc, result.accuracy, result.base_rate, result.samples) == (0.5, 0.75, 0.25, 4)


def test_loss_of_two_samples_by_hand() -> None:
    """p = 0.8 for a click and p = 0.4 for none: mean of -log 0.8 and -log 0.6."""
    logits = np.log(np.array([4.0, 2.0 / 3.0]))
    assert log_loss(logits, np.array([1.0, 0.0])) == pytest.approx(-(math.log(0.8) + math.log(0.6)) / 2)


def test_extreme_logits_stay_finite() -> None:
    """A confident wrong prediction costs its logit, not infinity."""
    logits = np.array([-1e5, 1e5], np.float32)
    assert log_loss(logits, np.array([1.0, 0.0], np.float32)) == pytest.approx(1e5)


def test_auc_is_the_share_of_pairs_in_order() -> None:
    """AUC equals the count over all (positive, negative) pairs, ties one half."""
    draw = np.random.default_rng(0)
    scores, labels = draw.integers(0, 6, 60).astype(np.float32), (draw.random(60) < 0.4).astype(np.float32)
    positive, negative = scores[labels == 1][:, None], scores[labels == 0][None, :]
    expected = np.mean((positive > negative) + 0.5 * (positive == negative))
    assert auc(scores, labels) == pytest.approx(float(expected), rel=1e-12)


def test_equal_labels_leave_nothing_to_predict() -> None:
    """Without both labels NE and AUC are undefined (NaN), the loss is not."""
    for label in (0.0, 1.0):
        result = measure(np.zeros(3), np.full(3, label))
        assert math.isnan(result.normalized_entropy)
        assert math.isnan(result.auc)
        assert result.loss == pytest.approx(math.log(2))
    assert math.isnan(normalized_entropy(0.1, 1.0))
