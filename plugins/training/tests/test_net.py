"""Nets that run forward on given inputs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import CompositionError, ModelError, WorkerError


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
    """A device's memory may have room for one of them, but not for both."""
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
            WorkerError, match=r"^this net reads samples and was closed with its runtime"
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
    with pytest.raises(WorkerError, match="was closed"):
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


def test_every_forward_pass_and_every_batch_of_a_test_draws_anew(tmp_path: Path) -> None:
    """The draws are those of a training's iteration, whichever of several workers tests the batch."""
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
