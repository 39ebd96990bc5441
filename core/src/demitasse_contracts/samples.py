"""Who opens samples, and the error for a bad sample in a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from demitasse import DataError, unread

if TYPE_CHECKING:
    from demitasse import Composition, DataSource, DataSpec


class SampleError(DataError):
    """An invalid number in a sample, such as a label that is not a class. ``sample`` is the sample's
    position in the worker's part of the batch, from which the reader of the samples can say where it
    came from. ``samples``, if not 0, is the number of samples that the kernel was given: if it is not
    the worker's part of the batch (a layer may pass only half of it), the position says nothing."""

    def __init__(self, told: str, sample: int = 0, samples: int = 0) -> None:
        super().__init__(told)
        self.sample, self.samples = sample, samples


def opened_source(
    composition: Composition, spec: DataSpec, hooks: Sequence[Callable[..., DataSource | None]]
) -> DataSource:
    """Return the source of the first of some hooks that opens the samples. If no kind was asked for, a
    hook's DataError (no such file, an unknown format) keeps no later one from being asked. If none opens
    them, raises the first DataError."""
    failed: DataError | None = None
    for hook in hooks:
        try:
            if (source := hook(spec=spec)) is not None:
                return source
        except DataError as error:
            if spec.kind is not None:
                raise
            failed = failed or error
    raise failed or DataError(unread(composition, spec))
