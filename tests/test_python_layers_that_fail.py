"""Layers of type Python that fail in a training: what was trained is kept, and the error says so."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pycaffe_nets import ON_REFERENCE, scripts_run_with

import demitasse
import demitasse_caffe.pycaffe as caffe
from demitasse import DataError, ModelError
from demitasse_caffe.pycaffe import layers as L  # noqa: N812 (its name in every script)

CLASSES = """
import caffe

class Through(caffe.Layer):
    calls = 0
    def setup(self, bottom, top):
        pass
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top):
        top[0].data[...] = bottom[0].data
    def backward(self, top, propagate_down, bottom):
        bottom[0].diff[...] = top[0].diff
    def count(self):
        self.calls += 1
        if self.calls == int(self.param_str):
            {}["a class that is not there"]

class FailsForward(Through):
    def forward(self, bottom, top):
        self.count()
        super().forward(bottom, top)

class FailsBackward(Through):
    def backward(self, top, propagate_down, bottom):
        self.count()
        super().backward(top, propagate_down, bottom)

class Unfinished(caffe.Layer):
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top):
        pass
"""


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[demitasse.Runtime]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("failing_classes.py").write_text(CLASSES)
    with scripts_run_with([*ON_REFERENCE, "python_layer"]) as made:
        yield made


def write(layer: str, call: int, interval: int = 0) -> None:
    n = caffe.NetSpec()
    n.data, n.label = L.Data(source="digits:train", batch_size=4, ntop=2)
    n.hidden = L.InnerProduct(n.data, num_output=4, weight_filler={"type": "xavier"})
    n.own = L.Python(n.hidden, module="failing_classes", layer=layer, param_str=str(call))
    n.score = L.InnerProduct(n.own, num_output=10, weight_filler={"type": "xavier"})
    n.loss = L.SoftmaxWithLoss(n.score, n.label)
    Path("net.prototxt").write_text(str(n.to_proto()))
    Path("solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 8 snapshot_prefix: "s" '
        f"snapshot: {interval} random_seed: 1"
    )


def test_what_was_trained_before_a_forward_failed_is_kept(runtime: demitasse.Runtime) -> None:
    """And a training goes on from there to the bits of one that did not fail."""
    write("FailsForward", 5)
    with runtime.trainer("solver.prototxt") as trainer, pytest.raises(DataError) as raised:
        trainer.run()
    assert str(raised.value).startswith("net.prototxt:")
    about = "layer 'own' (Python): failing_classes.FailsForward.forward raised KeyError: 'a class that"
    assert about in str(raised.value)
    assert str(raised.value).endswith(
        "failing_classes.py:17); iteration 4 is saved in s_iter_4.demitasse"
    )
    write("FailsForward", 0)
    with runtime.trainer("solver.prototxt", resume="s_iter_4.demitasse") as trainer:
        trainer.run()
        resumed = trainer.net.params["hidden"][0].copy()
    with runtime.trainer("solver.prototxt") as trainer:
        trainer.run()
        assert (trainer.net.params["hidden"][0] == resumed).all()


@pytest.mark.parametrize("interval", [0, 3])
def test_a_backward_that_failed_says_what_snapshot_there_is(
    runtime: demitasse.Runtime, interval: int
) -> None:
    """Some layers' parameters may be those of the next iteration by then."""
    write("FailsBackward", 5, interval)
    kept = "the last snapshot is s_iter_3.demitasse" if interval else "no snapshot has been written yet"
    with runtime.trainer("solver.prototxt") as trainer, pytest.raises(ModelError) as raised:
        trainer.run()
    assert "FailsBackward.backward raised KeyError" in str(raised.value)
    assert str(raised.value).endswith(f"failing_classes.py:17); {kept}")
    assert not Path("s_iter_4.demitasse").exists()


def test_a_method_that_a_class_lacks_is_named(runtime: demitasse.Runtime) -> None:
    write("Unfinished", 1)
    told = r"Unfinished.backward raised NotImplementedError: Unfinished has no backward"
    with runtime.trainer("solver.prototxt") as trainer, pytest.raises(ModelError, match=told):
        trainer.run()


@pytest.mark.parametrize("way", ["setup", "reshape", "forward", "backward"])
def test_scripts_catch_what_a_layer_raises_by_its_kind(runtime: demitasse.Runtime, way: str) -> None:
    """As in Caffe, where it passes through; it tells the layer, too."""
    Path("ending_classes.py").write_text(
        f"""
import caffe
from failing_classes import Through

class Over(Exception):
    def __init__(self, epoch, reason):
        self.epoch = epoch

class Ends(Through):
    def {way}(self, *arguments):
        raise Over(3, "the last epoch")
"""
    )
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [2, 3]})
    n.out = L.Python(n.data, module="ending_classes", layer="Ends")
    Path("net.prototxt").write_text(f"force_backward: true {n.to_proto()}")
    over: type[Exception] = importlib.import_module("ending_classes").Over
    with pytest.raises(over, match=rf"Ends.{way} raised Over") as raised:
        net = caffe.Net("net.prototxt", caffe.TRAIN)
        net.forward()
        net.backward()
    assert isinstance(raised.value, ModelError | DataError)
    assert raised.value.__cause__.epoch == 3
    del sys.modules["ending_classes"]
