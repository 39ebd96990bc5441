"""What kernels of a mesh are asked, and how near their results are to be."""

from __future__ import annotations

from typing import Any

import numpy as np
from drawn_examples import examples
from hypothesis import HealthCheck, settings


def numbers(*shape: int, seed: int = 0) -> Any:
    """Normal numbers."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def close(found: Any, right: Any, tolerance: float = 2e-6) -> None:
    """Equal up to rounding, measured against the largest."""
    scale = max(1e-30, float(np.abs(right).max())) if np.size(right) else 1.0
    np.testing.assert_allclose(found, right, rtol=0, atol=tolerance * scale)


def drawn(count: int) -> settings:
    """So many examples, the same each time: emulated kernels take long."""
    return settings(
        max_examples=examples(count),
        derandomize=True,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
