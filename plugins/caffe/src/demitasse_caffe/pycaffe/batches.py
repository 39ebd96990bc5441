"""Splitting any number of samples into batches of a net's size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from demitasse import ShapeError


def batches(arrays: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[dict[str, np.ndarray]]:
    """Yield batches of ``arrays``. ``sizes`` gives the batch size of each array by name; the last batch
    is padded with zeros. Raise ShapeError if the arrays have different numbers of samples."""
    lengths = {len(array) for array in arrays.values()}
    if len(lengths) > 1:
        raise ShapeError(f"arrays of {', '.join(map(str, sorted(lengths)))} samples were given")
    for first in range(0, max(lengths, default=0), max(sizes.values(), default=1)):
        taken = {}
        for name, array in arrays.items():
            part = np.asarray(array)[first : first + sizes[name]]
            short = [(0, sizes[name] - len(part)), *[(0, 0)] * (part.ndim - 1)]
            taken[name] = np.pad(part, short)
        yield taken
