"""Labels, rows and places are real numbers in blobs, of which float32 has no odd ones above 2**24."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from demitasse import ModelError, Runtime, compose

LARGEST = 2**24
INPUT = """
layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {shape} }} }} }}
layer {{ name: "t" type: "Input" top: "t" input_param {{ shape {{ dim: 1 }} }} }}
"""
EMBED = """
layer {{ name: "e" type: "Embed" bottom: "t" top: "y"
         embed_param {{ input_dim: {rows} num_output: 1 bias_term: false }} }}
"""


@pytest.fixture
def runtime(no_threads_left: None) -> Iterator[Runtime]:
    with compose(hw="auto", plugins=["caffe", "reference", "training"]) as made:
        yield made


def written(folder: Path, layers: str, *shape: int) -> Path:
    path = folder / "net.prototxt"
    path.write_text(INPUT.format(shape=" ".join(f"dim: {extent}" for extent in shape)) + layers)
    return path


@pytest.mark.parametrize(
    ("precision", "rows"), [("f32", LARGEST + 1), ("f64", LARGEST + 2)], ids=["f32", "f64"]
)
def test_the_last_row_that_a_number_tells_is_read(
    runtime: Runtime, tmp_path: Path, precision: str, rows: int
) -> None:
    net = runtime.net(written(tmp_path, EMBED.format(rows=rows), 1), precision=precision)
    learned = net.params["e"][0]
    learned[rows - 2 :] = [[3], [5]]
    for row, value in ((rows - 1, 5), (rows - 2, 3), (0, 0)):
        assert net.forward(x=np.zeros(1), t=np.array([row]))["y"].item() == value


@pytest.mark.parametrize(
    ("layers", "shape", "told"),
    [
        (EMBED.format(rows=LARGEST + 2), (1,), "input_dim is"),
        (
            'layer { name: "l" type: "SoftmaxWithLoss" bottom: "x" bottom: "t" top: "l" }',
            (1, LARGEST + 2),
            "the number of classes is",
        ),
        (
            'layer { name: "l" type: "Accuracy" bottom: "x" bottom: "t" top: "l" }',
            (1, LARGEST + 2),
            "the number of classes is",
        ),
        ('layer { name: "l" type: "ArgMax" bottom: "x" top: "l" }', (1, LARGEST + 2), "sample is"),
        (
            'layer { name: "l" type: "ArgMax" bottom: "x" top: "l" argmax_param { axis: 1 } }',
            (1, LARGEST + 2),
            "the extent of axis 1 is",
        ),
        (
            'layer { name: "l" type: "Pooling" bottom: "x" top: "y" top: "places" '
            "pooling_param { kernel_size: 2 stride: 2 } }",
            (1, 1, 2, LARGEST // 2 + 1),
            "the size of an image, in which maxima have places, is",
        ),
    ],
    ids=["embed", "loss", "accuracy", "largest", "largest of an axis", "places"],
)
def test_more_than_numbers_can_tell_is_refused_with_what_can(
    runtime: Runtime, tmp_path: Path, layers: str, shape: tuple[int, ...], told: str
) -> None:
    """One more than in the test above: the last would be taken for the one before it."""
    assert np.float32(LARGEST + 1) == np.float32(LARGEST)
    wanted = f"{told} 16,777,218, but blobs of float32 tell 16,777,217 .* precision f64"
    with pytest.raises(ModelError, match=wanted):
        runtime.net(written(tmp_path, layers, *shape))
