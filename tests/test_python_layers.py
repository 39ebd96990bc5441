"""Layers of type Python: off unless allowed, and what they compute where they are."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycaffe_nets import LAYERS, ON_REFERENCE, net_here, scripts_run_with

import demitasse
import demitasse_caffe.pycaffe as caffe
from demitasse import CompositionError, ModelError, ShapeError
from demitasse_caffe.pycaffe import layers as L  # noqa: N812 (its name in every script)


@pytest.fixture
def allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[demitasse.Runtime]:
    monkeypatch.chdir(tmp_path)
    with scripts_run_with([*ON_REFERENCE, "python_layer"]) as made:
        yield made


def regression() -> caffe.NetSpec:
    n = caffe.NetSpec()
    n.data, n.target = L.Input(shape=[{"dim": [4, 3]}, {"dim": [4, 2]}], ntop=2)
    n.slope = L.Python(n.data, module=LAYERS, layer="Slope", param_str="2.5")
    n.out = L.InnerProduct(n.slope, num_output=2, weight_filler={"type": "gaussian", "std": 1})
    n.loss = L.Python(n.out, n.target, module=LAYERS, layer="HalfSquares", loss_weight=3)
    return n


def test_it_is_off_unless_it_is_composed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(str(regression().to_proto()))
    with demitasse.compose(plugins=ON_REFERENCE) as runtime:
        caffe.use(runtime)
        with pytest.raises(ModelError) as raised:
            caffe.Net("net.prototxt", caffe.TRAIN)
        with pytest.raises(CompositionError, match=r"compose it with plugins='\+python_layer'"):
            caffe.allow_python_layers()
        caffe.use(None)
    message = str(raised.value)
    assert "layer 'slope' (Python)" in message
    assert "the installed plugin 'python_layer' has it" in message
    assert "(+python_layer)" in message
    assert "runs code that a net's file names" in message
    automatic = {manifest.name for manifest in demitasse.discover() if manifest.automatic}
    assert "python_layer" not in automatic


@pytest.mark.usefixtures("allowed")
def test_values_gradients_and_parameters() -> None:
    net = net_here(regression())
    random = np.random.default_rng(0)
    x, target = random.normal(size=(4, 3)), random.normal(size=(4, 2))
    net.blobs["data"].data[...], net.blobs["target"].data[...] = x, target
    loss = net.forward()["loss"]
    W = net.params["out"][0].data.astype(np.float64)
    difference = 2.5 * x @ W.T - target
    assert net.params["slope"][0].data.tolist() == [2.5]
    assert loss[0] == pytest.approx((difference**2).sum() / 8, rel=1e-5)
    net.backward()
    d_out = 3 * difference / 4
    assert np.allclose(net.blobs["out"].diff, d_out, rtol=1e-4, atol=1e-6)
    assert np.allclose(net.params["out"][0].diff, d_out.T @ (2.5 * x), rtol=1e-4)
    assert net.params["slope"][0].diff[0] == pytest.approx(((d_out @ W) * x).sum(), rel=1e-4)
    before = net.params["slope"][0].diff.copy()
    net.backward()
    assert np.allclose(net.params["slope"][0].diff, 2 * before), "gradients add up"
    assert not net.blobs["target"].diff.any(), "nobody asked for it"


@pytest.mark.usefixtures("allowed")
def test_gradients_of_inputs_where_the_file_forces_them() -> None:
    net = net_here(regression(), force_backward=True)
    net.blobs["data"].data[...] = 1
    net.forward()
    net.backward()
    assert np.allclose(net.blobs["target"].diff, -net.blobs["out"].diff)
    assert np.allclose(net.blobs["data"].diff, 2.5 * net.blobs["slope"].diff)


@pytest.mark.usefixtures("allowed")
def test_what_an_older_script_imports_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``import caffe`` in a layer's own file, and what is in it, where no other caffe is installed."""
    (tmp_path / "as_published.py").write_text(
        textwrap.dedent("""
            import caffe
            from caffe import layers as L
            from caffe.proto import caffe_pb2
            import caffe.io

            class Twice(caffe.Layer):
                def setup(self, bottom, top):
                    assert caffe.io.load_image and L.ReLU and caffe_pb2.NetParameter
                def reshape(self, bottom, top):
                    top[0].reshape(*bottom[0].shape)
                def forward(self, bottom, top):
                    top[0].data[...] = 2 * bottom[0].data
                def backward(self, top, propagate_down, bottom):
                    bottom[0].diff[...] = 2 * top[0].diff
        """)
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [2, 3]})
    n.own = L.Python(n.data, module="as_published", layer="Twice")
    made = net_here(n).forward(data=np.ones((2, 3)))
    assert (made["own"] == 2).all()
    import as_published

    assert as_published.caffe is caffe, "one module by two names"
    for name in ("io", "net_spec", "proto", "proto.caffe_pb2"):
        mine = importlib.import_module(f"demitasse_caffe.pycaffe.{name}")
        assert importlib.import_module(f"caffe.{name}") is mine


def test_trainers_and_nets_of_the_runtime_take_them_too(allowed: demitasse.Runtime) -> None:
    n = caffe.NetSpec()
    n.data, n.label = L.Data(source="digits:train", batch_size=4, ntop=2)
    n.slope = L.Python(n.data, module=LAYERS, layer="Slope", param_str="0.5", param=[{"lr_mult": 0}])
    n.score = L.InnerProduct(n.slope, num_output=10, weight_filler={"type": "xavier"})
    n.loss = L.SoftmaxWithLoss(n.score, n.label)
    Path("net.prototxt").write_text(str(n.to_proto()))
    Path("solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed"')
    with allowed.trainer("solver.prototxt") as trainer:
        first = trainer.step(1).loss
        assert trainer.step(40).loss < first
        assert trainer.net.params["slope"][0].tolist() == [0.5]
    phases = {}
    n.slope = L.Python(n.data, module=LAYERS, layer="Phase", param_str="1")
    for phase in ("train", "test"):
        Path("phase.prototxt").write_text(str(n.slope.to_proto()))
        net = allowed.net("phase.prototxt", phase=phase)
        phases[phase] = float(net.forward()["Python1"].mean())
    assert phases == {"train": 0, "test": 1}


@pytest.mark.usefixtures("allowed")
def test_mistakes_say_file_layer_and_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def net(**parameters: Any) -> caffe.Net:
        n = caffe.NetSpec()
        n.data = L.Input(shape={"dim": [1, 3]})
        n.own = L.Python(n.data, **parameters)
        return net_here(n)

    where = r"net.prototxt:\d+: layer 'own' \(Python\): "
    with pytest.raises(ModelError, match=where + "python_param needs a module and a layer"):
        net(module=LAYERS)
    with pytest.raises(ModelError, match=where + r".*'no_such_module', which cannot be imported"):
        net(module="no_such_module", layer="X")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "ported_layers.py").write_text("import caffe.nothing\n")
    with pytest.raises(
        ModelError, match=where + ".* No module named 'caffe.nothing'.*; it is looked for"
    ):
        net(module="ported_layers", layer="X")
    (tmp_path / "neither_layers.py").write_text("import caffe\nprint 'Python 2' if\n")
    with pytest.raises(ModelError, match=r"neither_layers.py:2: .*; if it is Python 2, 2to3"):
        net(module="neither_layers", layer="X")
    with pytest.raises(ModelError, match=where + r"module .* has no class 'Slopes'"):
        net(module=LAYERS, layer="Slopes")
    with pytest.raises(ModelError, match=where + r".*Nothing has no reshape, forward, backward"):
        net(module=LAYERS, layer="Nothing")
    with pytest.raises(
        ModelError, match=where + r".*Broken.setup raised RuntimeError: this user's .*:\d+\)"
    ):
        net(module=LAYERS, layer="Broken")
    with pytest.raises(
        ShapeError, match=r"Choosing: forward made tops of \(\(1, 3\),\), but \(\(2, 3\)"
    ):
        chosen = net(module=LAYERS, layer="Choosing", param_str="1")
        chosen.blobs["data"].reshape(2, 3)
        chosen.blobs["data"].data[...] = [[1, 2, 3], [-1, 2, 3]]
        chosen.forward(start="own")


OLD = """
import caffe{imports}

class Times(caffe.Layer):
    def setup(self, bottom, top):
        pass
    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)
    def forward(self, bottom, top):
        top[0].data[...] = {factor}
    def backward(self, top, propagate_down, bottom):
        {line}
"""


def factor_of(module: str) -> float:
    """What its layer ``Times`` puts into each place of its top."""
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 3]})
    n.own = L.Python(n.data, module=module, layer="Times")
    (made,) = {*net_here(n).forward()["own"].ravel().tolist()}
    return made


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    ("name", "line", "old"),
    [
        ("prints", "print 'backward'", True),  # no Python 3
        ("counts", "for i in xrange(3): pass", True),  # does not run in it
        ("iterates", "for key in {}.iteritems(): pass", True),
        ("raises", "raise ValueError, 'x'", True),
        ("either", "for i in (range if sys.version_info > (3,) else xrange)(3): pass", False),
        ("defines", "xrange = range; xrange(3)", False),
        ("modern", "print('backward')", False),
    ],
)
def test_a_module_in_python_2_is_read_as_such_with_what_it_imports(
    name: str,
    line: str,
    old: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Quotients of whole numbers tell: in what it imports too, also where that was imported as Python 3
    before it showed, and not in what is imported afterwards. The caffe of a checkout is not meant."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "caffe").mkdir()  # of a checkout that was never built
    for file in ("__init__.py", "_caffe.cpp"):
        (tmp_path / "caffe" / file).touch()
    monkeypatch.delitem(sys.modules, "caffe", raising=False)
    (tmp_path / f"quotients_{name}.py").write_text("HALF = 7 / 2\n")
    (tmp_path / f"later_{name}.py").write_text("HALF = 7 / 2\n")
    factor = f"quotients_{name}.HALF"
    text = OLD.format(imports=f"\nimport quotients_{name}", factor=factor, line=line)
    (tmp_path / f"old_{name}.py").write_text(text)
    assert factor_of(f"old_{name}") == (3.0 if old else 3.5)
    assert importlib.import_module(f"later_{name}").HALF == 3.5
    said = [each.getMessage() for each in caplog.records if "Python 2" in each.getMessage()]
    assert said == (
        [f"module old_{name} ({tmp_path}/old_{name}.py) is Python 2 and is read as such"] * old
    )


@pytest.mark.usefixtures("allowed")
def test_what_was_imported_as_python_3_before_python_2_shows_is_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shared_half.py").write_text("HALF = 7 / 2\n")
    (tmp_path / "printing.py").write_text("print 'a word'\n")
    text = OLD.format(imports=", shared_half, printing", factor="shared_half.HALF", line="pass")
    (tmp_path / "importing.py").write_text(text)
    assert factor_of("importing") == 3.0


@pytest.mark.usefixtures("allowed")
def test_a_module_that_only_python_3_can_import_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it says that it is Python 2: up to there it may do."""
    monkeypatch.syspath_prepend(str(tmp_path))
    text = OLD.format(imports="", factor="HALF", line="for i in xrange(3): pass")
    (tmp_path / "half_old.py").write_text(f"HALF = {{3: 7 / 2}}[7 / 2 - 0.5]\n{text}")
    assert factor_of("half_old") == 3.5
    assert sys.modules["half_old"].HALF == 3.5


@pytest.mark.usefixtures("allowed")
def test_an_installed_module_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "packaged-1.0.dist-info").mkdir()
    text = OLD.format(imports="", factor="7 / 2", line="for i in xrange(3): pass")
    (tmp_path / "packaged.py").write_text(text)
    assert factor_of("packaged") == 3.5
    assert "Python 2" not in caplog.text


def test_the_process_default_lets_them_when_a_script_says_so() -> None:
    caffe.allow_python_layers()
    try:
        assert "Python" in caffe.layer_type_list()
    finally:
        caffe.allow_python_layers(False)
    assert "Python" not in caffe.layer_type_list()
