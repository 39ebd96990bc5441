"""Errors for invalid labels and indices, with the sample that has them.

A device cannot raise an error. An invalid label makes the loss NaN, which stops the step before anything
has changed. The search for the layer then calls its work alone, and that checks the labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from demitasse import DataError, SampleError

if TYPE_CHECKING:
    from demitasse_gpu.launch import Checked


def checked(
    works: Sequence[Any], label: Any, classes: int, of_sample: int, ignored: float | None = None
) -> Checked:
    """Return a loss's works with a check: called alone, they raise SampleError, a DataError, if a label
    is not a class. ``of_sample`` is the number of labels per sample."""
    from demitasse_gpu.launch import Checked

    def check() -> None:
        if (found := _first_wrong(label, classes, ignored)) is None:
            return
        row, value = found
        sample = row // of_sample
        also = "" if ignored is None else f", or {ignored:g}, which is ignored"
        raise SampleError(
            f"label {value:g} of sample {sample} of the batch is not a class "
            f"(valid: whole numbers from 0 to {classes - 1}{also})",
            sample,
            prod(label.shape) // of_sample,
        )

    return Checked(label.device, works, check)


def checked_rows(works: Sequence[Any], index: Any, rows: int, source: str) -> Checked:
    """Return works that take rows of the table ``source``, with a check: called alone, they raise
    DataError if an index is not a row."""
    from demitasse_gpu.launch import Checked

    def check() -> None:
        if (found := _first_wrong(index, rows, None)) is not None:
            place, value = found
            told = f"{source}: index {value:g} at place {place} is not a row"
            raise DataError(f"{told} (valid: whole numbers from 0 to {rows - 1})")

    return Checked(index.device, works, check)


def _first_wrong(label: Any, classes: int, ignored: float | None) -> tuple[int, float] | None:
    import numpy as np

    values = np.asarray(label).reshape(-1).astype(np.float64)
    wrong = ~((values >= 0) & (values < classes) & (values == np.floor(values)))
    if ignored is not None:
        wrong &= values != ignored
    return (int(np.argmax(wrong)), float(values[np.argmax(wrong)])) if wrong.any() else None
