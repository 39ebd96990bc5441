"""Images at places that a learned transformation says, against the paper's sum and its slopes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import demitasse
import demitasse_caffe.pycaffe as caffe
from demitasse import DemitasseError, ModelError

PLUGINS = ["caffe", "datasets", "training", "snapshots"]
NET = """
force_backward: true
layer { name: "in" type: "Input" top: "x" top: "theta"
  input_param { shape { dim: 2 dim: 3 dim: 5 dim: 7 } shape { dim: 2 dim: LEARNED } } }
layer { name: "st" type: "SpatialTransformer" bottom: "x" bottom: "theta" top: "y" st_param { FIELDS } }
"""
FIXED = {"theta_1_2": 0.25, "theta_2_3": -0.125}


def by_hand(x: np.ndarray, A: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Pixel by pixel, as the paper's sum over all pixels has it (equation 5)."""
    samples, channels, height, width = x.shape
    y = np.zeros((samples, channels, *size))
    for n in range(samples):
        for i in range(size[0]):
            for j in range(size[1]):
                grid = [2 * i / size[0] - 1, 2 * j / size[1] - 1, 1]
                row, column = (A[n] @ grid + 1) / 2 * [height, width]
                down = np.maximum(0, 1 - np.abs(row - np.arange(height)))
                across = np.maximum(0, 1 - np.abs(column - np.arange(width)))
                y[n, :, i, j] = np.einsum("chw,h,w->c", x[n], down, across)
    return y


@pytest.fixture(params=["reference", "cpu"], autouse=True)
def runtime(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    names = dict.fromkeys([*PLUGINS, request.param, "reference"])
    with demitasse.compose(plugins=list(names)) as made:
        caffe.use(made)
        yield made
        caffe.use(None)


def net_of(fields: str, learned: int) -> caffe.Net:
    Path("net.prototxt").write_text(NET.replace("LEARNED", str(learned)).replace("FIELDS", fields))
    return caffe.Net("net.prototxt", caffe.TRAIN)


@pytest.mark.parametrize("some", [False, True])
def test_values_and_gradients(some: bool) -> None:
    """Partly outside of the images; some of the six numbers fixed, and another size."""
    random = np.random.default_rng(3)
    x = random.normal(size=(2, 3, 5, 7)).astype(np.float32)
    A = np.eye(2, 3) + random.normal(size=(2, 2, 3)) * 0.3
    A[:, 0, 1], A[:, 1, 2] = FIXED["theta_1_2"], FIXED["theta_2_3"]
    learned = [0, 2, 3, 4] if some else list(range(6))
    size = (4, 6) if some else (5, 7)
    fields = " ".join(f"{name}: {value}" for name, value in FIXED.items()) if some else ""
    net = net_of(f"{fields} output_H: 4 output_W: 6" if some else "", len(learned))
    theta = A.reshape(2, 6)[:, learned].astype(np.float32)
    A.reshape(2, 6)[:, learned] = theta
    net.blobs["x"].data[...], net.blobs["theta"].data[...] = x, theta
    np.testing.assert_allclose(net.forward()["y"], by_hand(x, A, size), rtol=1e-4, atol=1e-5)
    given = random.normal(size=(2, 3, *size)).astype(np.float32)
    net.blobs["y"].diff[...] = given
    net.backward()
    step = 1e-6

    def slope(change: np.ndarray, numbers: np.ndarray) -> float:
        ends = [by_hand(x + s * step * change, A + s * step * numbers, size) for s in (1, -1)]
        return float(((ends[0] - ends[1]) * given).sum() / 2 / step)

    for n, number in enumerate(learned):
        for sample in (0, 1):
            change = np.zeros((2, 6))
            change[sample, number] = 1
            found = net.blobs["theta"].diff[sample, n]
            expected = slope(np.zeros_like(x, np.float64), change.reshape(2, 2, 3))
            assert found == pytest.approx(expected, rel=1e-3, abs=1e-4), (sample, number)
    direction = random.normal(size=x.shape)
    found = float((net.blobs["x"].diff * direction).sum())
    assert found == pytest.approx(slope(direction, np.zeros((2, 2, 3))), rel=1e-3)


def test_the_images_get_no_gradient_where_the_file_says_so() -> None:
    net = net_of("to_compute_dU: false theta_1_1: 1 theta_1_2: 0 theta_2_1: 0 theta_2_2: 1", 2)
    random = np.random.default_rng(0)
    x = net.blobs["x"].data
    x[...] = random.normal(size=x.shape)
    net.blobs["theta"].data[...] = 0
    np.testing.assert_allclose(net.forward()["y"], x, rtol=1e-5, atol=1e-6)
    net.blobs["y"].diff[...] = 1
    net.backward()
    assert not net.blobs["x"].diff.any()
    assert net.blobs["theta"].diff.all()


def test_far_outside_and_no_numbers_give_nothing() -> None:
    net = net_of("", 6)
    net.blobs["x"].data[...] = 1
    net.blobs["theta"].data[...] = [[0, 0, 9, 0, 0, -9], [0, 0, 1e30, 0, 0, 0]]
    assert not net.forward()["y"].any()


def test_mistakes_are_told() -> None:
    for fields, learned, told in (
        ("theta_1_1: 1", 6, "does not have 5 numbers for each sample"),
        ('transform_type: "projective"', 6, "transform_type 'projective' is not supported"),
        ("output_H: 0", 6, r"output_H and output_W \(0, 7\) must be 1 or more"),
    ):
        with pytest.raises(ModelError, match=rf"layer 'st' \(SpatialTransformer\): .*{told}"):
            net_of(fields, learned)


FILLED = """
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "fc" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param { num_output: 6 weight_filler { type: "constant" } bias_filler { FILLER } } }
"""


def test_fillers_of_numbers_that_are_given(runtime: demitasse.Runtime) -> None:
    """A file is looked for beside the net, as all files are."""
    Path("nets").mkdir()
    path = Path("nets/net.prototxt")
    Path("nets/start.txt").write_text("1 0 0.5\n0 1e0 -2\n")
    for filler in (
        'type: "file" file: "examples/st/start.txt"',
        'type: "value" values: [1, 0, 0.5, 0, 1, -2]',
    ):
        path.write_text(FILLED.replace("FILLER", filler))
        net = runtime.net(str(path))
        assert net.params["fc"][1].tolist() == [1, 0, 0.5, 0, 1, -2]
    Path("nets/short.txt").write_text("1 0 0.5")
    Path("nets/words.txt").write_text("1 0 zero")
    for filler, told in (
        ('type: "file" file: "nowhere.txt"', "the filler's file 'nowhere.txt' was not found"),
        ('type: "file" file: "short.txt"', r"short.txt has 3 numbers for the 6 elements of \(6,\)"),
        ('type: "file" file: "words.txt"', "words.txt: could not convert string to float: 'zero'"),
        ('type: "file"', "filler file needs a file"),
        ('type: "value" values: 1', "filler value has 1 numbers for the 6 elements"),
    ):
        path.write_text(FILLED.replace("FILLER", filler))
        with pytest.raises(DemitasseError, match=told):
            runtime.net(str(path))
