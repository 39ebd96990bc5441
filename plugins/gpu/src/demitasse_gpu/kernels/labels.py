"""Labels and indices that name nothing: which sample they are of.

A device cannot raise an error: such a label makes its loss not a number, which stops the step before
anything has changed. Who then seeks the layer calls its work alone, and that looks at the labels.
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
    """A loss's works, which raise DataError where they are called alone and a label is no class;
    ``of_sample`` is how many labels each sample has."""
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
    """Works that take rows of a table from ``source``, which raise DataError where they are called alone
    and an index is no row."""
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
