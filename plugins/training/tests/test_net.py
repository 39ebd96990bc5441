"""Nets that run forward on what they are given."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import (
    CompositionError,
    DataError,
    DataSpec,
    Manifest,
    ModelError,
    PluginError,
    ShapeError,
    WorkerError,
)


@pytest.fixture
def deployed(toy: ModuleType) -> Any:
    """A classifier of images that are given by hand."""
    return toy.net(
        toy.layer("data", "Input", "", "data", shape=(4, 1, 6, 6)),
        toy.layer("hidden", "InnerProduct", "data", "hidden", outputs=7),
        toy.layer("active", "ReLU", "hidden", "hidden"),
        toy.layer("scores", "InnerProduct", "hidden", "scores", outputs=3),
        toy.layer("probability", "Softmax", "scores", "probability"),
        phase="test",
    )


def by_hand(params: dict[str, list[np.ndarray]], data: np.ndarray) -> np.ndarray:
    hidden = data.reshape(len(data), -1) @ params["hidden"][0].T + params["hidden"][1]
    scores = np.maximum(hidden, 0) @ params["scores"][0].T + params["scores"][1]
    result: np.ndarray = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return result


def test_a_net_computes_its_outputs(toy: ModuleType, runtime: Callable[..., Any], deployed: Any) -> None:
    net = runtime().net(deployed, precision="f64")
    data = toy.images(4)["data"]
    out = net.forward(data=data)
    assert {*out} == {"probability"}
    assert np.allclose(out["probability"], by_hand(net.params, data), rtol=0, atol=1e-14)
    assert np.array_equal(net.forward()["probability"], out["probability"]), "the input stays"


def test_a_larger_net_has_no_room_beside_the_memory_of_the_smaller(
    toy: ModuleType,
    runtime: Callable[..., Any],
    deployed: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A device's memory may hold one of them, and not both."""
    net = runtime().net(deployed, precision="f64")
    data = toy.images(400)["data"]
    first = net.forward(data=data[:4])["probability"]
    old, allocate, left = weakref.ref(net._arena), net._allocator.allocate, list[bool]()

    def watched(nbytes: int) -> Any:
        left.append(old() is not None)
        return allocate(nbytes)

    monkeypatch.setattr(net._allocator, "allocate", watched)
    for count in (400, 4):
        net.reshape({"data": (count, 1, 6, 6)})
        found = net.forward(data=data[:count])["probability"]
        assert np.allclose(found[:4], first, rtol=0, atol=1e-14)
    assert left
    assert not any(left)


def test_a_net_that_was_closed_computes_nothing_of_old_samples(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any
) -> None:
    composed = runtime()
    given, reading = composed.net(deployed), composed.net(toy.classifier(), phase="train")
    data = toy.images(4)["data"]
    expected, _ = given.forward(data=data)["probability"], reading.forward()
    composed.close()
    assert np.array_equal(given.forward(data=data)["probability"], expected)
    for use in (reading.forward, reading.test, reading.rewind):
        with pytest.raises(
            WorkerError, match=r"^this net reads samples, and is closed with its runtime"
        ):
            use()
    assert all(np.isfinite(array).all() for arrays in reading.params.values() for array in arrays)


def test_a_closed_runtime_makes_nothing(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any
) -> None:
    composed = runtime()
    trainer = composed.trainer(toy.solver(toy.classifier()))
    composed.close()
    solver = toy.solver(toy.classifier())
    for make in (lambda: composed.net(deployed), lambda: composed.trainer(solver)):
        with pytest.raises(WorkerError, match=r"^this runtime is closed; compose another$"):
            make()
    with pytest.raises(WorkerError, match="this trainer is closed"):
        trainer.step()
    composed.close()


def test_what_is_made_while_another_thread_closes_the_runtime_is_closed(
    toy: ModuleType, runtime: Callable[..., Any]
) -> None:
    made: list[Any] = []

    class Made:
        def close(self) -> None:
            made.append(self)

    plugin = toy.plugin("slow", programs=lambda: {"slow": lambda runtime: (runtime.close(), Made())[1]})
    found = runtime(plugins=[plugin]).program("slow")
    assert made == [found]


def test_with_closes_a_net(toy: ModuleType, runtime: Callable[..., Any], deployed: Any) -> None:
    composed = runtime()
    with composed.net(toy.classifier(), phase="train") as reading, composed.net(deployed) as given:
        reading.forward()
        expected = given.forward(data=toy.images(4)["data"])["probability"]
    with pytest.raises(WorkerError, match="is closed"):
        reading.forward()
    assert np.array_equal(given.forward()["probability"], expected), "what it has can be looked at"
    with pytest.raises(ZeroDivisionError), composed.net(deployed) as given:
        raise ZeroDivisionError
    assert given.closed


def test_another_batch_size_is_planned_anew_with_the_same_parameters(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any, copied: Any
) -> None:
    net = runtime().net(deployed, precision="f64")
    before = copied(net)
    for count in (7, 1, 4, 7):
        data = toy.images(count)["data"]
        out = net.forward(data=data)["probability"]
        assert out.shape == net.blobs["probability"].shape == (count, 3)
        assert np.allclose(out, by_hand(before, data), rtol=0, atol=1e-14)


def test_an_output_is_a_copy(toy: ModuleType, runtime: Callable[..., Any], deployed: Any) -> None:
    net = runtime().net(deployed)
    first = net.forward(data=toy.images(4)["data"])["probability"]
    kept = first.copy()
    net.forward(data=-toy.images(4)["data"])
    assert np.array_equal(first, kept)


def test_edited_parameters_count(toy: ModuleType, runtime: Callable[..., Any], deployed: Any) -> None:
    net = runtime().net(deployed, precision="f64")
    data = toy.images(4)["data"]
    net.params["scores"][1][...] = [0.0, 100.0, 0.0]
    assert (net.forward(data=data)["probability"].argmax(1) == 1).all()


def test_images_of_a_size_that_the_parameters_do_not_fit_are_refused(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any
) -> None:
    """And the net still works afterwards."""
    net = runtime().net(deployed, precision="f64")
    data = toy.images(4)["data"]
    before = net.forward(data=data)["probability"]
    message = (
        r"input 'data' has shape \(4, 1, 8, 8\) here; declared \(N, 1, 6, 6\): layer 'hidden' cannot "
        r"take it: its parameter 0 has shape \(7, 36\), and would need \(7, 64\)"
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


def test_an_unknown_blob_is_named_with_the_nearest(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any
) -> None:
    net = runtime().net(deployed)
    assert {*net.blobs} == {"data", "hidden", "scores", "probability"}
    with pytest.raises(KeyError, match="hiden"):
        _ = net.blobs["hiden"]


def test_all_blobs_can_be_looked_at_in_a_retained_net(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any
) -> None:
    net = runtime().net(deployed, precision="f64", retain="all")
    data = toy.images(4)["data"]
    net.forward(data=data)
    hidden = data.reshape(4, -1) @ net.params["hidden"][0].T + net.params["hidden"][1]
    assert np.allclose(net.blobs["hidden"].data, np.maximum(hidden, 0), rtol=0, atol=1e-14)
    assert np.array_equal(net.blobs["data"].data, data)


def test_a_net_takes_the_weights_of_a_trained_one(
    toy: ModuleType, runtime: Callable[..., Any], tmp_path: Path
) -> None:
    made = runtime(arrays=toy.images(40))
    tested = toy.classifier(20, "test")
    trainer = made.trainer(
        toy.solver(toy.classifier(), tested, test_iterations=(2,), rate=0.02), precision="f64"
    )
    trainer.step(20)
    path = trainer.snapshot(tmp_path / "toy")
    net = made.net(tested, weights=path, precision="f64")
    assert net.test(2) == trainer.test()
    assert net.test(2) == net.test(2), "always from the start of the data"
    other = made.net(tested, precision="f64")
    assert not np.array_equal(other.params["first"][0], net.params["first"][0])


def test_weights_in_memory_are_given_where_files_are(
    toy: ModuleType, runtime: Callable[..., Any], tmp_path: Path
) -> None:
    made = runtime(arrays=toy.images(40))
    solver = toy.solver(toy.classifier(), toy.classifier(20, "test"), test_iterations=(2,), rate=0.02)
    trainer = made.trainer(solver, precision="f64")
    trainer.step(20)
    weights = demitasse.Weights(dict(trainer.net.params))
    net = made.net(toy.classifier(20, "test"), weights=weights, precision="f64")
    assert net.test(2) == trainer.test()
    assert list(net.loaded) == ["the weights given"]
    first = np.full_like(trainer.net.params["first"][0], 0.5)
    bias = [0.25] * len(trainer.net.params["first"][1])
    mine = demitasse.Weights({"first": [first, bias]})  # type: ignore[list-item]
    path = trainer.snapshot(tmp_path / "toy")
    other = made.trainer(solver, weights=[path, mine], precision="f64")
    assert np.array_equal(other.net.params["first"][0], first), "the later ones count"
    assert np.array_equal(other.net.params["first"][1], bias)
    assert np.array_equal(other.net.params["second"][0], trainer.net.params["second"][0])
    first[...] = 0
    assert np.all(np.asarray(other.net.params["first"][0]) == 0.5), "they are copied"


def test_several_weights_in_memory_are_told_apart(
    toy: ModuleType, runtime: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    made = runtime(arrays=toy.images(40))
    params = dict(made.trainer(toy.solver(toy.classifier())).net.params)
    del params["third"]  # of a loss that is not tested
    parts = [demitasse.Weights({name: params[name]}) for name in params]
    net = made.net(toy.classifier(20, "test"), weights=iter(parts))
    assert list(net.loaded) == [f"the weights given ({n})" for n in range(1, len(parts) + 1)]
    assert not caplog.records, "each layer is in one of them"
    for name in params:
        assert np.array_equal(net.params[name][0], params[name][0])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"first": []}, "weights are a file's path, demitasse.Weights, or a list of these; given dict"),
        ([b"w.caffemodel"], "or a list of these; given bytes"),
        (demitasse.Weights({"first": [np.zeros(3)]}), "the weights given: layer 'first'"),
        (demitasse.Weights({"fist": [np.zeros(3)]}), "the weights given"),
    ],
    ids=["a mapping", "bytes", "another shape", "another layer"],
)
def test_what_are_no_weights_is_told(
    toy: ModuleType, runtime: Callable[..., Any], weights: Any, message: str
) -> None:
    made = runtime(arrays=toy.images(40))
    with pytest.raises(demitasse.DemitasseError, match=message):
        made.net(toy.classifier(20, "test"), weights=weights)
    with pytest.raises(demitasse.DemitasseError, match=message):
        made.trainer(toy.solver(toy.classifier()), weights=weights)


class Elsewhere:
    """An array of another library, whose memory the host does not address."""

    def __array__(self, *given: Any, **more: Any) -> Any:
        raise RuntimeError("memory of a device; copy it to the host")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros((6, 6)), r"shape \(6, 6\) here; declared \(N, 1, 6, 6\): the ranks must agree"),
        (np.zeros((0, 1, 6, 6)), r"shape \(0, 1, 6, 6\) here; declared \(N, 1, 6, 6\): it is empty"),
        (np.full((4, 1, 6, 6), "a"), "elements of type <U1; valid are real numbers"),
        (np.full((4, 1, 6, 6), None), "elements of type object; valid are real numbers"),
        ([[1.0], [1.0, 2.0]], "is no array: .*inhomogeneous"),
        (Elsewhere(), "is no array: memory of a device; copy it to the host"),
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


@pytest.mark.parametrize("seed", [1.5, "a", None, 2**64, -(2**63) - 1])
def test_a_seed_that_is_no_whole_number_of_64_bits_is_refused(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any, seed: Any
) -> None:
    made = runtime()
    with pytest.raises(ModelError, match=r"^seed must be a whole number .*; given"):
        made.net(deployed, seed=seed)
    if seed is not None:
        with pytest.raises(ModelError, match=r"^seed must be a whole number .*; given"):
            made.trainer(toy.solver(toy.classifier(), seed=seed))
    for whole in (np.int32(3), -1, 2**64 - 1):
        assert isinstance(made.net(deployed, seed=whole).seed, int)


def test_a_blob_that_a_data_source_fills_is_no_input(
    toy: ModuleType, runtime: Callable[..., Any]
) -> None:
    net = runtime().net(toy.classifier(20, "test"))
    message = (
        r"toy\.net: blob 'data' is no input: layer 'samples' \(Samples\) reads it from its data source; "
        r"a net with an Input layer \(deploy\).*data=\{'test': \{...\}\}"
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
        ({"test": np.zeros(3)}, "data maps a phase to arrays .*given ndarray for 'test'"),
        ([1], "data maps a phase to arrays .*given list"),
        ({"test": {"data": np.zeros(3)}}, "the net has no layer that reads samples.*inputs: data"),
    ],
    ids=["unknown phase", "bare array", "list", "nothing reads"],
)
def test_data_that_would_not_be_read_is_refused(
    runtime: Callable[..., Any], deployed: Any, data: Any, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        runtime().net(deployed, data=data)


def test_only_all_can_be_retained(runtime: Callable[..., Any], deployed: Any) -> None:
    with pytest.raises(CompositionError, match=r"unknown retain 'every' \(valid: None, 'all'\)"):
        runtime().net(deployed, retain="every")


def test_nets_and_blobs_say_what_they_are(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any
) -> None:
    made = runtime()
    net = made.net(deployed, retain="all")
    assert repr(net) == "<net toy (test), 5 layers, inputs data 4x1x6x6>"
    assert repr(net.blobs["hidden"]) == "<blob hidden 4x7, float32>"
    fed = made.net(toy.classifier(20, "test"))
    assert repr(fed) == "<net toy (test), 7 layers, samples from samples>"


def test_a_blob_is_an_array_to_numpy(
    toy: ModuleType, runtime: Callable[..., Any], deployed: Any
) -> None:
    net = runtime().net(deployed, retain="all")
    data = toy.images(4)["data"].astype(np.float32)
    net.forward(data=data)
    blob = net.blobs["data"]
    assert blob.dtype == np.float32
    assert np.array_equal(np.asarray(blob), data)
    assert np.asarray(blob, dtype=np.float64).dtype == np.float64
    assert np.shares_memory(np.asarray(blob), blob.data)
    assert not np.shares_memory(np.array(blob), blob.data)


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


def test_a_layer_type_of_a_plugin_that_is_not_composed_is_said(
    toy: ModuleType, runtime: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = Manifest("soft", roles={"layer_types": {"types": ("SoftCap", "Other")}})
    monkeypatch.setattr("demitasse_training.known_types.discover", lambda: (installed,))
    hint = (
        r"plugin 'soft' is installed and has it, but is not composed: add it to the plugins \(\+soft\)"
    )
    net = toy.net(toy.layer("cap", "SoftCap", "", "cap"), phase="test")
    with pytest.raises(
        ModelError, match=rf"toy\.net: layer 'cap'.*unknown layer type 'SoftCap'.*{hint}"
    ):
        runtime().net(net)
    net = toy.net(toy.layer("cap", "SoftCup", "", "cap"), phase="test")
    with pytest.raises(ModelError, match=r"'SoftCup'.*a plugin adds a type with the layer_types hook"):
        runtime().net(net)


def test_why_an_installed_plugin_cannot_be_used_is_said_where_its_type_is_missing(
    toy: ModuleType, runtime: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = {"layer_types": {"types": ("SoftCap",)}}
    unfit = Manifest("soft", roles=roles, problem="it is for demitasse '>=9'")
    torn = Manifest("tanned", problem="plugin.toml: unknown key 'automatik'")
    monkeypatch.setattr("demitasse_training.known_types.discover", lambda: (unfit, torn))
    net = toy.net(toy.layer("cap", "SoftCap", "", "cap"), phase="test")
    told = (
        r"'SoftCap'; plugin 'soft' is installed and has it, but cannot be used: it is for dem.* '>=9'$"
    )
    with pytest.raises(ModelError, match=told):
        runtime().net(net)
    net = toy.net(toy.layer("cap", "Tanned", "", "cap"), phase="test")
    told = r"that cannot be used, whatever they have: tanned \(plugin.toml: unknown key 'automatik'\)$"
    with pytest.raises(ModelError, match=rf"'Tanned'.*; installed plugins {told}"):
        runtime().net(net)


def test_whose_a_type_is_is_said_in_place_of_a_name_that_is_near(
    toy: ModuleType, runtime: Callable[..., Any]
) -> None:
    net = toy.net(toy.layer("shape", "Reshap", "", "shape"), phase="test")
    with pytest.raises(ModelError, match=r"unknown layer type 'Reshap'; did you mean 'Reshape'"):
        runtime().net(net)
    net = dataclasses.replace(net, foreign={"Reshap": "another's fork"})
    with pytest.raises(
        ModelError, match=r"unknown layer type 'Reshap', which is of another's fork, none of"
    ):
        runtime().net(net)


def test_a_type_that_nobody_has_is_told_before_one_that_is_installed_and_before_samples_are_opened(
    toy: ModuleType, runtime: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = Manifest("soft", roles={"layer_types": {"types": ("SoftCap",)}})
    monkeypatch.setattr("demitasse_training.known_types.discover", lambda: (installed,))
    source = toy.layer("data", "Samples", "", "data label", batch=2)
    cap, axpy = toy.layer("cap", "SoftCap", "data", "cap"), toy.layer("mix", "Axpy", "cap", "mix")
    told = (
        r"layer 'mix' \(Axpy\): unknown layer type 'Axpy' \(valid: .*\); a plugin "
        r"adds a type with the layer_types hook .*; also unknown: 'SoftCap' \(line"
    )
    with pytest.raises(ModelError, match=told):
        runtime().net(toy.net(source, cap, axpy, phase="test"))


class NoSource:
    """Less than a data source."""

    size = 3

    def close(self) -> None:
        """Nothing is open."""


def test_a_data_source_hook_that_returns_none_or_raises_is_said(
    toy: ModuleType, runtime: Callable[..., Any]
) -> None:
    def fail(spec: DataSpec) -> Any:
        raise KeyError(spec.source)

    with pytest.raises(
        PluginError,
        match=r"plugin 'toy': hook data_source gave .*NoSource.*fields, size, stream and close",
    ):
        runtime(source=lambda spec: NoSource()).net(toy.classifier(20, "test"))
    with pytest.raises(PluginError, match="plugin 'toy': hook data_source raised KeyError: 'toy'"):
        runtime(source=fail).net(toy.classifier(20, "test"))


@pytest.mark.parametrize(
    ("number", "place", "told"),
    [
        (np.nan, (2, 0, 3, 1), r"input 'data': sample 2 has nan at \(0, 3, 1\); valid are finite"),
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
    net.forward(data=large)  # whose sum is not finite
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


def test_every_forward_pass_and_every_batch_of_a_test_draws_anew(tmp_path: Path) -> None:
    """A training's draws of an iteration: whoever tests that batch, as one of several workers."""
    path = tmp_path / "net.prototxt"
    path.write_text(
        "layer { name: 'x' type: 'Input' top: 'x' input_param { shape { dim: 1 dim: 64 } } }"
        "layer { name: 'y' type: 'Dropout' bottom: 'x' top: 'y'"
        " dropout_param { sample_weights_test: true } }"
    )
    runtime = demitasse.compose(plugins=["caffe", "training", "reference"])
    x = np.ones((1, 64))
    net, again = runtime.net(path), runtime.net(path)
    first = [net.forward(x=x)["y"] for _ in range(10)]
    assert len({each.tobytes() for each in first}) == 10
    assert np.mean(first) == pytest.approx(1, abs=0.15)
    np.testing.assert_array_equal(first, [again.forward(x=x)["y"] for _ in range(10)])


def test_a_batch_of_a_test_is_mirrored_alike_whoever_tests_it(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        "layer { name: 'd' type: 'Data' top: 'data' top: 'label' transform_param { mirror: true }"
        " data_param { source: '-' batch_size: 1 } }"
        "layer { name: 'sort' type: 'Split' bottom: 'data' top: 'seen' }"
    )
    runtime = demitasse.compose(plugins=["caffe", "training", "reference", "datasets"])
    samples = {"data": np.tile(np.uint8([1, 0]), (40, 1, 1, 1)), "label": np.zeros(40)}
    net, seen, shared = runtime.net(path, data={"test": samples}), {}, {}
    net.test(40, told=lambda number, made: seen.update({number: made["seen"].ravel().tolist()}))
    assert 10 < sum(each == [1, 0] for each in seen.values()) < 30
    for first in (1, 0):
        net.tally(40, first, 2, lambda n, made: shared.update({n: made["seen"].ravel().tolist()}))
    assert shared == seen
