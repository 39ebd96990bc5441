"""A described machine beside its published figures."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench import nets, prototxt

import demitasse

PUBLISHED = {
    ("resnet50", 64): (219, 1734),
    ("resnet50", 32): (195, 1485),
    ("vgg16", 64): (154, 1081),
    ("vgg16", 32): (144, 820),
}
"""Images a second on one and on eight P100 of a DGX-1, by net and images on each: TensorFlow's
benchmarks of May 2017, synthetic samples."""


@pytest.mark.parametrize(("net", "images"), PUBLISHED)
def test_a_p100_trains_as_fast_as_published_and_eight_at_most_as_predicted(
    net: str, images: int, tmp_path: Path
) -> None:
    """The description's rates are fitted on 64 images. What eight lose by waiting for the slowest and by
    messages that slow their computing, a description does not say. Each normalised its own samples."""
    made = nets.NETS[net]()
    made.batch, shapes = images, {"data": (3, 224, 224), "label": ()}
    solver, how = prototxt.write(made, tmp_path), {"scaling": "weak", "statistics": "local"}
    with demitasse.compose("dgx1-p100") as runtime:
        one, eight = (runtime.simulate(solver, samples=shapes, nodes=n, **how) for n in (1, 8))
    measured, together = PUBLISHED[net, images]
    assert one.samples_per_second == pytest.approx(measured, rel=0.02 if images == 64 else 0.15)
    assert together <= 1.01 * eight.samples_per_second <= 1.55 * together
    assert one.fits and eight.joined == "8 gpus"
