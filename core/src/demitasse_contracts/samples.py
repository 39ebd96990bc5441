"""What is wrong with one sample of a batch."""

from __future__ import annotations

from demitasse import DataError


class SampleError(DataError):
    """A number in a sample that cannot be, as a label that is no class. ``sample`` is the sample's place
    in what one worker has of a batch: who reads samples knows where that one is from, unless a layer
    has given a kernel other ones, as half of them; of how many that is the place tells ``samples``,
    where it is not 0."""

    def __init__(self, told: str, sample: int = 0, samples: int = 0) -> None:
        super().__init__(told)
        self.sample, self.samples = sample, samples
