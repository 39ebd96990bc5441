"""The error for a bad sample in a batch."""

from __future__ import annotations

from demitasse import DataError


class SampleError(DataError):
    """An invalid number in a sample, such as a label that is not a class. ``sample`` is the sample's
    position in the worker's part of the batch, from which the reader of the samples can say where it
    came from. ``samples``, if not 0, is the number of samples that the kernel was given: if it is not
    the worker's part of the batch (a layer may pass only half of it), the position says nothing."""

    def __init__(self, told: str, sample: int = 0, samples: int = 0) -> None:
        super().__init__(told)
        self.sample, self.samples = sample, samples
