"""The log of Caffe's commands ``test`` and ``time``, in Caffe's format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import Runtime
from demitasse_caffe.training_log import Lines, scored


class CommandLog:
    """A log of a test of weights, or of the times of layers, in files and on standard error."""

    def __init__(self, places: Sequence[str]) -> None:
        """Open the log in ``places``: files, folders, and - for standard error. Raise CompositionError
        if one of them cannot be written."""
        self._lines = Lines(places)

    def _say(self, line: int, text: str) -> None:
        self._lines.say(f"caffe.cpp:{line}", text)

    def batches(self, count: int) -> None:
        """Log the beginning of a test of ``count`` batches."""
        self._say(281, f"Running for {count} iterations.")

    def batch(self, number: int, outputs: Mapping[str, Any]) -> None:
        """Log the outputs of a batch; batches are numbered from 0."""
        for text in scored(outputs, {}):
            self._say(304, f"Batch {number}, {text}")

    def scores(self, means: Mapping[str, Any], weights: Mapping[str, float]) -> None:
        """Log the means over all batches. ``weights`` are the weights of those that
        contribute to the loss."""
        loss = sum(weight * np.sum(means[name]) for name, weight in weights.items() if name in means)
        self._say(309, f"Loss: {loss:g}")
        for text in scored(means, weights):
            self._say(321, text)

    def times(self, layers: Iterable[tuple[str, float, float]], iterations: int) -> None:
        """Log each layer's mean time in seconds, forward and backward."""
        self._say(366, "*** Benchmark begins ***")
        self._say(367, f"Testing for {iterations} iterations.")
        self._say(402, "Average time per layer: ")
        forward = backward = 0.0
        for name, ahead, back in layers:
            self._say(405, f"{name:>10}\tforward: {ahead * 1e3:g} ms.")
            self._say(408, f"{name:>10}\tbackward: {back * 1e3:g} ms.")
            forward, backward = forward + ahead, backward + back
        both = forward + backward
        self._say(413, f"Average Forward pass: {forward * 1e3:g} ms.")
        self._say(415, f"Average Backward pass: {backward * 1e3:g} ms.")
        self._say(417, f"Average Forward-Backward: {both * 1e3:g} ms.")
        self._say(419, f"Total Time: {both * iterations * 1e3:g} ms.")
        self._say(420, "*** Benchmark ends ***")


def caffe_log(runtime: Runtime, places: Sequence[str]) -> CommandLog:
    """Return a log in these places; this is the program ``caffe_log``."""
    return CommandLog(places)
