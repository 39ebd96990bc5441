"""What operations cost by a description's bandwidth and rates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import demitasse

NODE = """
[[level]]
name = "node"
memory = [{ space = "host", capacity = "1 GB", bandwidth = "10 GB/s", source = "assumed" }]
peak = "100 TFLOP/s"
"""

BATCH = 4 * 16 * 8 * 10 * 10
"""The bytes of the convolution's output: float32, 16 samples, 8 channels of 10 x 10."""


@pytest.fixture
def normalised(solver: Path) -> Path:
    """A solver of a net that normalises its convolution's output."""
    net = solver.parent / "net.prototxt"
    net.write_text(net.read_text().replace('type: "ReLU"', 'type: "BatchNorm"').replace("relu", "norm"))
    return solver


def passes(solver: Path, hw: Path) -> list[float]:
    """Return how often the normalisation passes over its batch, forward and backward."""
    with demitasse.compose(hw) as runtime:
        done = runtime.simulate(solver, samples={"data": (1, 12, 12), "label": ()})
    found = [each for each in done.timeline if each.facts.get("operation", "").startswith("batch_norm")]
    assert [each.phase for each in found] == ["forward", "backward"]
    return [each.seconds * 10e9 / BATCH for each in found]


def test_a_batch_is_read_again_once_its_statistics_are_known(
    normalised: Path, machine: Callable[[str], Path]
) -> None:
    """Forward: x for its mean and variance, x again, y. Backward: dy and x for two sums, both again,
    dx. On an H200, normalisations take what these bytes take there (plugins/gpu/MEASUREMENTS.md)."""
    assert passes(normalised, machine(NODE)) == pytest.approx([3, 5], rel=0.01)


def test_what_a_cache_holds_is_read_from_memory_once(
    normalised: Path, machine: Callable[[str], Path]
) -> None:
    def cached(kilobytes: int) -> list[float]:
        caches = f'[{{ space = "l2", capacity = "{kilobytes} kB", count = 2, source = "assumed" }}]'
        return passes(normalised, machine(f"{NODE}caches = {caches}\n"))

    assert 2 * 20 < BATCH / 1e3 < 2 * 30 < 2 * BATCH / 1e3 < 2 * 60
    assert cached(60) == pytest.approx([2, 3], rel=0.01)
    assert cached(30) == pytest.approx([2, 5], rel=0.01)
    assert cached(20) == pytest.approx([3, 5], rel=0.01)


def test_a_normalisations_own_rate_knows_of_all_passes(
    normalised: Path, machine: Callable[[str], Path]
) -> None:
    own = '\n[level.sustained]\nf32 = "90 TFLOP/s"\n[level.sustained.operations]\n'
    own += 'batch_norm = "80 TFLOP/s"\n'
    assert passes(normalised, machine(NODE + own)) == pytest.approx([2, 3], rel=0.01)
