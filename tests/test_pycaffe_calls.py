"""What pycaffe scripts do besides: samples that they hold, callbacks, threads, phases, seeds."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycaffe_nets import PLUGINS, RANDOM, Make, branching

import demitasse
import demitasse_caffe.pycaffe as caffe
from demitasse import ModelError, ShapeError
from demitasse_caffe.pycaffe import layers as L  # noqa: N812 (its name in every script)
from demitasse_caffe.pycaffe.proto import caffe_pb2

pytestmark = pytest.mark.usefixtures("scripts")


def test_samples_that_fillers_make_and_samples_that_a_script_holds(make: Make) -> None:
    n = caffe.NetSpec()
    n.noise, n.ones = L.DummyData(
        ntop=2,
        shape=[{"dim": [4, 3]}, {"dim": [4]}],
        data_filler=[RANDOM, {"type": "constant", "value": 1}],
    )
    net = make(n, caffe.TRAIN)
    first = net.forward()["noise"].copy()
    assert first.std() > 0.1
    assert not np.array_equal(net.forward()["noise"], first), "anew for every batch"
    assert (net.blobs["ones"].data == 1).all()
    n = caffe.NetSpec()
    n.data, n.label = L.MemoryData(batch_size=2, channels=3, height=1, width=1, ntop=2)
    n.out = L.Flatten(n.data)
    net = make(n)
    images = np.arange(12, dtype=np.float32).reshape(4, 3, 1, 1)
    net.set_input_arrays(images, np.arange(4, dtype=np.float32))
    for start in (0, 2, 0):
        assert np.array_equal(net.forward()["out"], images[start : start + 2, :, 0, 0])
        assert net.blobs["label"].data.tolist() == [start, start + 1]
    with pytest.raises(ShapeError, match=r"3 samples and 3 labels are not whole batches of 2"):
        net.set_input_arrays(images[:3], np.arange(3))
    with pytest.raises(ShapeError, match=r"samples of 1x1x2 were given to blob 'data', .* are 3x1x1"):
        net.set_input_arrays(np.zeros((4, 1, 1, 2), np.float32), np.arange(4))
    with pytest.raises(ShapeError, match=r"samples of 2 were given to blob 'label', .* one number"):
        net.set_input_arrays(images, np.zeros((4, 2), np.float32))
    with pytest.raises(ModelError, match="for a net with a MemoryData layer; it has 0"):
        make(branching()).set_input_arrays(images, np.arange(4))


def test_callbacks_surround_every_layer(make: Make, x: np.ndarray) -> None:
    net = make(branching(), force_backward=True)
    told: list[tuple[str, int]] = []
    net.before_forward(lambda layer: told.append(("before", layer)))
    net.after_forward(lambda layer: told.append(("after", layer)))
    net.before_backward(lambda layer: told.append(("before back", layer)))
    net.after_backward(lambda layer: told.append(("back", layer)))
    plain = make(branching())
    plain.share_with(net)
    assert np.array_equal(net.forward(data=x)["score"], plain.forward(data=x)["score"])
    assert told == [(when, i) for i in range(6) for when in ("before", "after")]
    told.clear()
    net.backward(start="left", end="hidden")
    assert told == [(when, i) for i in (3, 2, 1) for when in ("before back", "back")]


def test_threads_are_served_one_after_the_other(make: Make, x: np.ndarray) -> None:
    """As Python's lock has it in Caffe: requests of a server may come at once. Kernels that ran in one
    arena at once had ended the process."""
    net = make(branching())
    began, entered = threading.Event(), threading.Event()
    told: list[tuple[str, int]] = []

    def look(layer: int) -> None:
        me = threading.current_thread().name
        told.append((me, layer))
        if me == "first":
            began.set()
            entered.wait(0.05)  # in vain, unless the second comes in between
        else:
            entered.set()

    net.before_forward(look)
    first = threading.Thread(target=lambda: net.forward(data=x), name="first")
    second = threading.Thread(target=net.reshape, name="reshaping")
    third = threading.Thread(target=net.forward, name="second")
    first.start()
    assert began.wait(10)
    net.blobs["data"].reshape(2, 6)  # waits, too
    second.start()
    third.start()
    for thread in (first, second, third):
        thread.join()
    assert told == [(name, layer) for name in ("first", "second") for layer in range(6)]
    assert net.blobs["score"].shape == (2, 3)


def test_layers_are_chosen_by_phase_level_and_stage(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        """
        layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 } } }
        layer { name: "deep" type: "ReLU" bottom: "data" top: "deep" include { min_level: 2 } }
        layer { name: "out" type: "ReLU" bottom: "data" top: "out" include { stage: "deploy" } }
        layer { name: "drop" type: "ReLU" bottom: "data" top: "drop" include { phase: TRAIN } }
        """
    )

    def layers(*arguments: Any, **options: Any) -> list[str]:
        return caffe.Net(str(path), *arguments, **options)._layer_names[1:]

    assert layers(caffe.TEST) == []
    assert layers(caffe.TRAIN) == ["drop"]
    assert layers(caffe.TEST, level=3) == ["deep"]
    assert layers(caffe.TEST, stages=["deploy", "other"]) == ["out"]
    assert layers(phase=caffe.TRAIN, level=2, stages=["deploy"]) == ["deep", "out", "drop"]


def test_the_phase_is_the_scripts_and_stages_are_the_files_too(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        """
        state { phase: TRAIN level: 2 stage: "own" }
        layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 2 } } }
        layer { name: "a" type: "ReLU" bottom: "data" top: "a" include { phase: TRAIN } }
        layer { name: "b" type: "ReLU" bottom: "data" top: "b" include { phase: TEST stage: "own" } }
        layer { name: "c" type: "ReLU" bottom: "data" top: "c" include { min_level: 2 } }
        """
    )
    assert caffe.Net(str(path), caffe.TEST)._layer_names == ["data", "b"]
    assert caffe.Net(str(path), caffe.TRAIN, level=2)._layer_names == ["data", "a", "c"]
    with demitasse.compose(plugins=PLUGINS) as runtime:
        assert list(runtime.net(path, phase="test").blobs) == ["data", "b", "c"]


def test_mistakes_are_said(make: Make, tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").write_text("name: 'x'")
    with pytest.raises(ModelError, match=r"no such file: .*nett.prototxt; did you mean"):
        caffe.Net(str(tmp_path / "nett.prototxt"), caffe.TEST)
    with pytest.raises(ModelError, match=r"TRAIN \(0\) or caffe.TEST \(1\); given None"):
        caffe.Net(str(tmp_path / "net.prototxt"))
    with pytest.raises(ModelError, match=r"unknown blob 'probe'"):
        make(branching()).forward(blobs=["probe"])
    with pytest.raises(ModelError, match=r"no layer between"):
        make(branching()).forward(start="left", end="hidden")


@pytest.mark.parametrize(
    ("kind", "mistake"),
    [
        (RuntimeError, lambda make: caffe.Net("nowhere.prototxt", caffe.TEST)),
        (RuntimeError, lambda make: make(branching()).set_input_arrays(np.zeros((4, 1)), np.zeros(4))),
        (ValueError, lambda make: make(branching()).forward(end="nothing")),
        (KeyError, lambda make: make(branching()).forward(blobs=["nothing"])),
        (ValueError, lambda make: caffe.io.array_to_datum(np.zeros(3))),
        (ValueError, lambda make: caffe.io.datum_to_array(caffe_pb2.Datum(data=b"1", channels=2))),
        (ValueError, lambda make: caffe.io.blobproto_to_array(caffe_pb2.BlobProto(data=[1, 2]))),
        (ValueError, lambda make: caffe.io.Transformer({"x": (1, 3, 2, 2)}).set_mean("x", [1, 2])),
    ],
)
def test_mistakes_are_caught_as_scripts_catch_caffes(
    make: Make, kind: type[Exception], mistake: Any
) -> None:
    with pytest.raises(kind) as raised:
        mistake(make)
    assert isinstance(raised.value, ModelError)
    assert str(raised.value)[0] not in "'\"", "a KeyError shows its text in quotation marks"


def test_what_caffe_has_for_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("demitasse.pycaffe"), "handlers", [])
    monkeypatch.setattr(logging.getLogger("demitasse.pycaffe"), "level", logging.WARNING)
    caffe.set_mode_cpu()
    caffe.set_mode_gpu()
    caffe.set_device(0)
    caffe.init_log()
    caffe.log("hello")
    assert {"Convolution", "InnerProduct"} <= set(caffe.layer_type_list())
    assert (caffe.solver_count(), caffe.solver_rank(), caffe.has_nccl()) == (1, 0, False)


def test_the_seed_is_the_scripts(make: Make) -> None:
    def weights() -> np.ndarray:
        return make(branching()).params["hidden"][0].data.copy()

    first = weights()
    caffe.set_random_seed(5)
    second, third = weights(), weights()
    caffe.set_random_seed(0)
    assert np.array_equal(second, third)
    assert not np.array_equal(first, second)
    assert np.array_equal(first, weights())


def test_what_a_script_writes_over_a_constant_blob_stays_and_random_ones_come_anew(make: Make) -> None:
    n = caffe.NetSpec()
    shapes = [{"dim": [5, 2, 3, 4]}, {"dim": [5]}]
    fillers = [RANDOM, {"type": "constant", "value": 3}]
    n.data, n.label = L.DummyData(shape=shapes, data_filler=fillers, ntop=2)
    n.twice = L.Power(n.label, scale=2)
    net = make(n, caffe.TRAIN)
    net.forward()
    first = net.blobs["data"].data.copy()
    assert net.blobs["twice"].data.ravel().tolist() == [6] * 5
    net.blobs["label"].data[...] = np.arange(5)
    net.forward()
    assert net.blobs["twice"].data.ravel().tolist() == [0, 2, 4, 6, 8]
    assert not np.array_equal(net.blobs["data"].data, first)


@pytest.mark.parametrize(
    "passing",
    [L.Split, L.Dropout, L.Slice, L.Concat, lambda data, ntop: L.Crop(data, data, axis=0)],
)
def test_a_gradient_reaches_an_input_through_layers_that_pass_it_on(make: Make, passing: Any) -> None:
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [2, 3]})
    n.out = passing(n.data, ntop=1)
    net = make(n)
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert np.array_equal(net.backward(out=given)["data"], given)
    assert np.array_equal(net.blobs["data"].diff, given)
    net.blobs["out"].diff[...] = 2 * given
    net.backward()
    assert np.array_equal(net.blobs["data"].diff, 2 * given)
