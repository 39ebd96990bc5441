"""Loops whose result is in an operand's memory, as in plans, are vectorised all the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

numba = pytest.importorskip("numba")

from demitasse_cpu.loops import (  # noqa: E402
    combinations,
    elementwise,
    pair_loss,
    plane_normalization,
    random_numbers,
)
from demitasse_cpu.native import Call  # noqa: E402

SIZE = 6000


def element_loops() -> dict[str, tuple[Any, tuple[Any, ...]]]:
    """Return loops with the types of their arguments; the result shares the memory of x."""
    x, marks = numba.float32[::1], numba.uint8[::1]
    n, factor = numba.int64, numba.float64
    return {
        "relu_backward": (elementwise.relu_backward, (x, x, x, factor, n, n)),
        "masked": (elementwise.masked, (x, marks, x, factor, n, n)),
        "chosen": (combinations.chosen, (x, numba.int32[::1], x, n, n, n)),
        "plane_scaled": (plane_normalization.plane_scaled, (x, x, x, x, factor, n, n, n, n)),
        "plane_normalised": (
            plane_normalization.plane_normalised,
            (x, x, x, x, x, factor, factor, n, n, n, n),
        ),
        "sigmoid_cross_entropy_loss_backward": (
            pair_loss.sigmoid_cross_entropy_loss_backward,
            (x, x, x, x, factor, factor, n, n),
        ),
        "scaled_sum_where": (elementwise.scaled_sum_where, (x, x, x, x, factor, factor, n, n)),
    }


@pytest.mark.parametrize("name", element_loops())
def test_no_check_of_what_overlaps_stands_before_the_vectors(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check for overlaps fails in place, and a loop without vectors then runs, thirty times as
    long."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))  # cached code has no listing
    kept, types = element_loops()[name]
    loop: Any = numba.njit(error_model="numpy", fastmath={"contract"})(kept.py_func)
    loop.compile(types)
    (words,) = loop.inspect_llvm().values()
    assert re.search(r"<\d+ x float>", words)
    assert "vector.memcheck" not in words


def dropped(x: np.ndarray, y: np.ndarray, channels: int, keeps_mask: bool) -> np.ndarray:
    """Run the loop on two samples and return the mask."""
    elements = x.size // 2
    drawn = np.zeros(-(-elements // 4) * 4, np.uint8)
    mask = np.zeros(x.size if keeps_mask else 0, np.uint8)
    numbers = np.array([1], np.uint64), np.array([0], np.uint64), np.array([3, 4], np.uint64)
    images = x, y, mask, keeps_mask, drawn.view(np.uint32), drawn
    Call(
        random_numbers.dropout,
        (*images, *numbers, np.uint64(2**31), 2.0, elements, channels, 0, 2),
    )()
    return mask


@pytest.mark.parametrize("channels", [1, 12])
@pytest.mark.parametrize("dtype", ["float32", "uint16"])
def test_dropout_in_place_is_dropout_apart(dtype: str, channels: int) -> None:
    x = np.random.default_rng(1).integers(16000, 16200, SIZE).astype(dtype)
    apart, unmarked, here = np.empty_like(x), np.empty_like(x), x.copy()
    mask = dropped(x, apart, channels, True)
    assert (dropped(here, here, channels, True) == mask).all()
    dropped(x, unmarked, channels, False)
    assert 0.45 < mask.mean() < 0.55
    assert (here == apart).all()
    assert (unmarked == apart).all()
    assert ((apart != 0) == (mask != 0)).all()
