"""A net's inputs and samples are checked before a kernel can hide what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import DataError, DataSpec, ModelError, PluginError, ShapeError


def test_images_of_a_size_that_the_parameters_do_not_fit_are_refused(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any
) -> None:
    """The net still works afterwards."""
    net = runtime().net(deployed, precision="f64")
    data = toy.images(4)["data"]
    before = net.forward(data=data)["probability"]
    message = (
        r"input 'data' has shape \(4, 1, 8, 8\) here; declared \(N, 1, 6, 6\): layer 'hidden' cannot "
        r"take this input: its parameter 0 has shape \(7, 36\), but would need \(7, 64\)"
    )
    with pytest.raises(ShapeError, match=message):
        net.forward(data=np.zeros((4, 1, 8, 8)))
    assert np.array_equal(net.forward(data=data)["probability"], before)


def test_an_unknown_input_is_named_with_the_nearest(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any
) -> None:
    net = runtime().net(deployed)
    with pytest.raises(ModelError, match=r"toy\.net: unknown input 'dta'; did you mean 'data'"):
        net.forward(dta=np.zeros((4, 1, 6, 6)))


class Elsewhere:
    """An array of another library, whose memory the host cannot address."""

    def __array__(self, *given: Any, **more: Any) -> Any:
        raise RuntimeError("memory of a device; copy it to the host")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((6, 6)), r"shape \(6, 6\) here; declared \(N, 1, 6, 6\): the ranks must agree"),
        (np.zeros((0, 1, 6, 6)), r"shape \(0, 1, 6, 6\) here; declared \(N, 1, 6, 6\): it is empty"),
        (np.full((4, 1, 6, 6), "a"), "elements of type <U1 .valid: real numbers"),
        (np.full((4, 1, 6, 6), None), "elements of type object .valid: real numbers"),
        ([[1.0], [1.0, 2.0]], "is not an array: .*inhomogeneous"),
        (Elsewhere(), "is not an array: memory of a device; copy it to the host"),
    ],
    ids=["rank", "empty", "texts", "objects", "ragged", "elsewhere"],
)
def test_what_is_no_array_for_an_input_is_refused_by_its_name(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any, value: Any, message: str
) -> None:
    net = runtime().net(deployed, precision="f64")
    data = toy.images(4)["data"]
    before = net.forward(data=data)["probability"]
    with pytest.raises(ModelError, match=rf"toy\.net: input 'data' .*{message}|input 'data' {message}"):
        net.forward(data=value)
    assert np.array_equal(net.forward(data=data)["probability"], before)


def test_numbers_that_the_nets_element_type_does_not_have_are_refused_by_the_inputs_name(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any
) -> None:
    data = toy.images(4)["data"].astype(np.float64)
    net = runtime().net(deployed)
    before = net.forward(data=data)["probability"]
    large = data.copy()
    large.flat[-1] = -1e39
    message = r"toy\.net: input 'data' has numbers of float64 beyond 3\.4e\+38, .* float32; scale them"
    with pytest.raises(ModelError, match=message):
        net.forward(data=large)
    assert np.array_equal(net.forward()["probability"], before)
    runtime().net(deployed, precision="f64").forward(data=large)


def test_a_blob_that_a_data_source_fills_is_no_input(
    toy: ModuleType, runtime: Callable[..., Any]
) -> None:
    net = runtime().net(toy.classifier(20, "test"))
    message = (
        r"toy\.net: blob 'data' is not an input: layer 'samples' \(Samples\) reads it from its data "
        r"source; use a net with an Input layer \(deploy\).*data=\{'test': \{...\}\}"
    )
    with pytest.raises(ModelError, match=message):
        net.forward(data=np.zeros((20, 1, 6, 6)))
    with pytest.raises(ModelError, match=r"unknown input 'first' \(valid: none\)"):
        net.forward(first=np.zeros((20, 4, 6, 6)))


def test_a_net_of_a_data_source_takes_arrays_as_its_samples(
    toy: ModuleType, runtime: Callable[..., Any]
) -> None:
    made, samples = runtime(), toy.images(20)
    net = made.net(toy.classifier(20, "test"), data={"test": samples}, retain="all")
    net.forward()
    assert np.array_equal(net.blobs["data"].data, samples["data"].astype(np.float32))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"tset": {}}, r"unknown phase of data 'tset'; did you mean 'test'\? \(valid: test, train\)"),
        ({"test": np.zeros(3)}, "data must map a phase to arrays .*given ndarray for 'test'"),
        ([1], "data must map a phase to arrays .*given list"),
        ({"test": {"data": np.zeros(3)}}, "the net has no layer that reads samples.*inputs: data"),
    ],
    ids=["unknown phase", "bare array", "list", "nothing reads"],
)
def test_data_that_would_not_be_read_is_refused(
    runtime: Callable[..., Any], deployed: Any, data: Any, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        runtime().net(deployed, data=data)


def test_an_input_is_seen_in_another_shape_by_a_blob_of_its_name(
    toy: ModuleType, runtime: Callable[..., Any]
) -> None:
    layers = (
        toy.layer("data", "Input", "", "data", shape=(4, 6)),
        toy.layer("flat", "Reshape", "data", "data", shape=(24,)),
    )
    net = runtime().net(toy.net(*layers, phase="test"))
    for value in (1, 2):
        made = net.forward(data=np.full((4, 6), value, np.float32))["data"]
        assert made.shape == (24,) and (made == value).all()


class NoSource:
    """An object that lacks parts of a data source."""

    size = 3

    def close(self) -> None:
        """Do nothing: nothing is open."""


def test_a_data_source_hook_that_returns_none_or_raises_is_said(
    toy: ModuleType, runtime: Callable[..., Any]
) -> None:
    def fail(spec: DataSpec) -> Any:
        raise KeyError(spec.source)

    with pytest.raises(
        PluginError,
        match=r"plugin 'toy': hook data_source returned .*NoSource.*fields, size, stream and close",
    ):
        runtime(source=lambda spec: NoSource()).net(toy.classifier(20, "test"))
    with pytest.raises(PluginError, match="plugin 'toy': hook data_source raised KeyError: 'toy'"):
        runtime(source=fail).net(toy.classifier(20, "test"))


@pytest.mark.parametrize(
    ("number", "place", "told"),
    [
        (
            np.nan,
            (2, 0, 3, 1),
            r"input 'data': sample 2 has nan at \(0, 3, 1\); all numbers must be finite",
        ),
        (np.inf, (0, 0, 0, 0), r"sample 0 has inf at \(0, 0, 0\)"),
        (-np.inf, (3, 0, 5, 5), r"sample 3 has -inf at \(0, 5, 5\)"),
    ],
)
def test_numbers_that_are_not_finite_are_told_before_a_kernel_hides_them(
    toy: ModuleType,
    runtime: Callable[..., Any],
    deployed: Any,
    number: float,
    place: tuple[int, ...],
    told: str,
) -> None:
    net = runtime().net(deployed)
    data = toy.images(4)["data"]
    before = net.forward(data=data)
    data[place] = number
    for given in (data, data.astype("f8"), data.astype("f2"), np.asfortranarray(data)):
        with pytest.raises(ModelError, match=told):
            net.forward(data=given)
    with pytest.raises(ModelError, match=told):
        net.forward(data=np.tile(data, (400, 1, 1, 1)))
    data[place] = 0
    large = np.full_like(data, 3e38)
    net.forward(data=large)  # its sum is not finite
    assert net.forward(data=toy.images(4)["data"]).keys() == before.keys()


def test_what_is_infinite_may_have_a_meaning_where_nothing_multiplies_it(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    shape = "input_param { shape { dim: 1 dim: 4 } }"
    path.write_text(
        f"layer {{ name: 'x' type: 'Input' top: 'x' {shape} }}"
        f"layer {{ name: 'mask' type: 'Input' top: 'mask' {shape} }}"
        "layer { name: 'sum' type: 'Eltwise' bottom: 'x' bottom: 'mask' top: 'sum' }"
        "layer { name: 'p' type: 'Softmax' bottom: 'sum' top: 'p' }"
    )
    net = demitasse.compose(plugins=["caffe", "training", "reference"]).net(path)
    x = np.ones((1, 4))
    for least in (-np.inf, np.finfo("f8").min, np.finfo("f4").min):
        made = net.forward(x=x, mask=np.array([[0, 0, least, 0]]))["p"]
        np.testing.assert_allclose(made, [[1 / 3, 1 / 3, 0, 1 / 3]], rtol=1e-6)
    with pytest.raises(ModelError, match=r"input 'mask': sample 0 has nan at \(2\)"):
        net.forward(x=x, mask=np.array([[0, 0, np.nan, 0]]))


def test_what_is_infinite_is_followed_to_what_multiplies_it(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        "layer { name: 'x' type: 'Input' top: 'x' input_param { shape { dim: 2 dim: 3 } } }"
        "layer { name: 'half' type: 'Power' bottom: 'x' top: 'half' power_param { scale: 0.5 } }"
        "layer { name: 'rest' type: 'ReLU' bottom: 'half' top: 'rest' }"
        "layer { name: 'y' type: 'InnerProduct' bottom: 'rest' top: 'y' inner_product_param {"
        " num_output: 2 weight_filler { type: 'xavier' } } }"
    )
    net = demitasse.compose(plugins=["caffe", "training", "reference"]).net(path)
    for number, told in ((np.inf, "sample 1 has inf"), (1e300, "beyond 3.4e\\+38")):
        with pytest.raises(ModelError, match=rf"input 'x'.* {told}"):
            net.forward(x=[[1, 2, 3], [4, number, 6]])


def test_samples_that_are_not_finite_end_a_test_that_reads_them(
    toy: ModuleType, runtime: Callable[..., Any]
) -> None:
    arrays = toy.images(40)
    arrays["data"][23, 0, 1, 2] = np.nan
    net = runtime(arrays=arrays).net(toy.classifier(20, "test"))
    assert net.test(1)
    with pytest.raises(DataError, match=r"layer 'samples': data: sample 3 has nan at \(0, 1, 2\)"):
        net.test(2)
