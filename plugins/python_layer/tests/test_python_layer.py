"""The plugin's interface, its operations, and its blobs."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import numpy as np
import pytest

from demitasse import Place, PluginError, Request, TensorSpec, hookimpl
from demitasse.operations import VOCABULARY
from demitasse_python_layer import entries, finding, plugin
from demitasse_python_layer.blob import LayerBlob, ParameterBlobs
from demitasse_python_layer.operations import BACKWARD, FORWARD
from demitasse_python_layer.user_layer import UserLayer


def test_the_entry_point_loads_the_plugin() -> None:
    (point,) = importlib.metadata.entry_points(group="demitasse.plugins", name="python_layer")
    assert point.load() is plugin


def test_the_manifest_declares_the_hooks_and_is_used_only_when_named() -> None:
    manifest = tomllib.loads((Path(plugin.__file__).parent / "plugin.toml").read_text())
    marker = f"{hookimpl.project_name}_impl"
    hooks = {name for name, value in vars(plugin).items() if hasattr(value, marker)}
    assert set(manifest["roles"]) == hooks == {"operations", "layer_types", "kernels"}
    assert not manifest["automatic"]
    assert manifest["roles"]["layer_types"]["types"] == [kind.name for kind in plugin.layer_types()]


def test_kernels_are_offered_for_its_own_words_only() -> None:
    spec = TensorSpec((1,), "float32")
    layer = object()
    for word in (FORWARD, BACKWARD):
        attributes = {"layer": layer, "shapes": (), "wanted": ()}
        (candidate,) = plugin.kernels(Request(word, (spec,), (spec,), attributes, Place("machine")))
        assert candidate.kernel == "Python"
    relu = Request(VOCABULARY["relu"], (spec,), (spec,), {}, Place("machine"))
    assert list(plugin.kernels(relu)) == []


def test_a_blob_keeps_its_arrays_while_its_shape_stays() -> None:
    blob = LayerBlob((2, 3))
    assert (blob.num, blob.channels, blob.height, blob.width, blob.count) == (2, 3, 1, 1, 6)
    data = blob.data
    blob.reshape(2, 3)
    assert blob.data is data
    blob.reshape(4)
    assert blob.data.shape == blob.diff.shape == (4,)
    with pytest.raises(ValueError, match=r"\(-1,\) is not a shape"):
        blob.reshape(-1)


def test_parameters_are_added_in_order() -> None:
    blobs = ParameterBlobs("float64")
    blobs.add_blob(3).data[...] = 1
    blobs.add_blob(2, 2)
    assert [blob.shape for blob in blobs] == [(3,), (2, 2)]
    assert (len(blobs), blobs[0].data.dtype) == (2, np.float64)


def test_a_class_is_called_on_the_plans_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "doubling_layer.py").write_text(
        """
class Doubling:
    def setup(self, bottom, top):
        self.calls = ["setup"]
    def reshape(self, bottom, top):
        self.calls.append("reshape")
        top[0].reshape(*bottom[0].shape)
    def forward(self, bottom, top):
        self.calls.append("forward")
        top[0].data[...] = 2 * bottom[0].data
    def backward(self, top, propagate_down, bottom):
        self.calls.append(list(propagate_down))
        bottom[0].diff[...] = 2 * top[0].diff
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    user = UserLayer("doubling_layer", "Doubling", "text", 1, ["y"], "float64", "here")
    user.plan([(3,)])
    user.plan([(3,)])
    assert user.top_shapes == ((3,),)
    x, y, dy, dx = np.arange(3.0), np.zeros(3), np.ones(3), np.zeros(3)
    user.forward([x], [], [y])
    user.backward([dy], [y], [x], [], [dx], [True])
    assert (y.tolist(), dx.tolist()) == ([0, 2, 4], [2, 2, 2])
    made = user.object
    assert made.calls == ["setup", "reshape", "reshape", "reshape", "forward", [True]]
    assert (made.param_str, made.phase, str(made.phase)) == ("text", 1, "TEST")
    assert not user.reshaped(), "its tops follow its bottoms"


def test_what_cannot_stand_in_is_told_with_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = importlib.metadata.EntryPoint("caffe", "no_such_module:stand_in", finding.STAND_INS)
    monkeypatch.setattr(entries, "entry_points", lambda group: [broken])
    finding.stand_in.cache_clear()
    message = (
        r"entry point 'caffe' of demitasse.stand_ins .*no_such_module:stand_in raised ModuleNotFound"
    )
    with pytest.raises(PluginError, match=message):
        UserLayer("json", "JSONDecoder", "", 0, ["y"], "float32", "net.prototxt:1")
    finding.stand_in.cache_clear()


def test_a_top_in_place_is_its_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Caffe: the top has the bottom's shape, its values until they are changed, and shares its
    gradient."""
    (tmp_path / "clipping_layer.py").write_text(
        """
class Clipping:
    def setup(self, bottom, top):
        pass
    def reshape(self, bottom, top):
        assert top[1].shape == bottom[0].shape == (3,)
        top[0].reshape(1)
    def forward(self, bottom, top):
        top[0].data[0] = bottom[0].data.sum()
        bottom[0].data[bottom[0].data > 1] = 1
    def backward(self, top, propagate_down, bottom):
        self.seen = bottom[0].data.tolist()
        top[1].diff[bottom[0].data == 1] = 0
        bottom[0].diff[...] += top[0].diff
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    tops = ["sum", "x"]
    user = UserLayer("clipping_layer", "Clipping", "", 0, tops, "float64", "here", in_place={1: 0})
    user.plan([(3,)])
    assert user.top_shapes == ((1,), (3,))
    x, total, y, dx = np.array([0.5, 2, 3]), np.zeros(1), np.zeros(3), np.zeros(3)
    user.forward([x], [], [total, y])
    assert (x.tolist(), y.tolist(), total.tolist()) == ([0.5, 2, 3], [0.5, 1, 1], [5.5])
    dy = np.array([4.0, 5, 6])
    user.backward([np.ones(1), dy], [total, y], [x], [], [dx], [True])
    assert (dx.tolist(), dy.tolist(), user.object.seen) == ([5, 1, 1], [4, 5, 6], [0.5, 1, 1])


def test_a_reshape_that_does_nothing_tells_late_but_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lazy_layer.py").write_text(
        "class Lazy:\n    def reshape(self, bottom, top): pass\n    forward = backward = reshape\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for in_place, late in (({}, True), ({0: 0}, False)):
        user = UserLayer("lazy_layer", "Lazy", "", 0, ["x"], "float32", "here", in_place=in_place)
        user.plan([(3, 2)])
        assert user.tells_late == late
        assert user.top_shapes == (((3, 2),) if in_place else ((),))
