"""The cross entropy with less weight for examples that are classified well. Lin et al. 2017, *Focal Loss
for Dense Object Detection*, section 3, with a softmax over all classes instead of a sigmoid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from demitasse_detection.boxes import Reals
from demitasse_detection.mining import class_numbers


def focal_loss(x: Any, label: Any, about: Mapping[str, Any]) -> tuple[float, Reals, Reals]:
    """Return the sum over labels of -alpha (1 - p)^gamma log p, divided by the normaliser,
    where p is softmax(x) at the label; the softmax; and the slopes. Raise DataError for a label
    that is not a class."""
    axis, gamma = about["axis"], about["gamma"]
    numbers, counted = class_numbers(x, label, about)
    scores = np.asarray(x, np.float64).reshape(len(numbers), x.shape[axis], -1)
    shifted = scores - scores.max(1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    beliefs, own = np.exp(logarithms), np.take_along_axis(logarithms, numbers, 1)
    rest = -np.expm1(own)  # 1 - p
    spared = about["alpha"] * np.where(counted, rest**gamma, 0.0)
    # Where p is 1, log p / (1 - p) is replaced by its limit.
    steep = np.divide(own, rest, out=np.full_like(own, -1.0), where=rest > 0)
    of_logarithm = spared * (gamma * np.exp(own) * steep - 1)
    picked = np.zeros_like(beliefs)
    np.put_along_axis(picked, numbers, 1.0, 1)
    over = max(
        1,
        {
            "valid": int(counted.sum()),
            "full": counted.size,
            "batch_size": x.shape[0],
            "none": 1,
        }[about["normalization"]],
    )
    loss = -float((spared * own).sum()) / over
    slopes = of_logarithm * (picked - beliefs) / over
    return loss, beliefs.reshape(x.shape), slopes.reshape(x.shape)
