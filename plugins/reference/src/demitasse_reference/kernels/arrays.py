"""The types used in kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Reals: TypeAlias = NDArray[np.float64]
"""An array of real numbers, as every kernel sees them."""

Values: TypeAlias = NDArray[Any]
"""An array of any element type: labels, masks, indices, counters, stored images."""

Extents: TypeAlias = Sequence[int]
"""A shape, or one number for each spatial dimension."""

Index: TypeAlias = tuple[int | slice | EllipsisType, ...]
"""An index that selects a part of an array."""

Kernels: TypeAlias = Mapping[str, Callable[..., Any]]
"""Functions by the name of the operation that each computes."""
