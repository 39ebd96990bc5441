"""Layers of type Python: off unless allowed, and what they compute and learn where they are."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from pycaffe_nets import scripts_run_with

import demitasse
import demitasse_caffe.pycaffe as caffe
from demitasse import CompositionError, ModelError, ShapeError
from demitasse_caffe.pycaffe import layers as L  # noqa: N812 (its name in every script)

PLUGINS = ["caffe", "datasets", "reference", "training", "snapshots"]
MODULE = """
    import numpy as np
    import demitasse_caffe.pycaffe as caffe

    class HalfSquares(caffe.Layer):
        def setup(self, bottom, top):
            if len(bottom) != 2:
                raise Exception("needs two bottoms")

        def reshape(self, bottom, top):
            self.difference = np.zeros_like(bottom[0].data)
            top[0].reshape(1)

        def forward(self, bottom, top):
            self.difference[...] = bottom[0].data - bottom[1].data
            top[0].data[...] = (self.difference ** 2).sum() / bottom[0].num / 2

        def backward(self, top, propagate_down, bottom):
            for i, sign in enumerate((1, -1)):
                if propagate_down[i]:
                    bottom[i].diff[...] = sign * top[0].diff[0] * self.difference / bottom[i].num

    class Slope(caffe.Layer):
        def setup(self, bottom, top):
            self.blobs.add_blob(1).data[0] = float(self.param_str)

        def reshape(self, bottom, top):
            top[0].reshape(*bottom[0].shape)

        def forward(self, bottom, top):
            top[0].data[...] = self.blobs[0].data * bottom[0].data

        def backward(self, top, propagate_down, bottom):
            self.blobs[0].diff[0] += (top[0].diff * bottom[0].data).sum()
            if propagate_down[0]:
                bottom[0].diff[...] = self.blobs[0].data * top[0].diff

    class Images:
        "Images that grow by a row each time; no base class."
        def setup(self, bottom, top):
            self.setups = getattr(self, "setups", 0) + 1
            self.number = 0

        def reshape(self, bottom, top):
            top[0].reshape(1, 2, 3 + self.number, 4)
            top[1].reshape(1, 1, 3 + self.number, 4)

        def forward(self, bottom, top):
            top[0].data[...] = self.number + 1
            top[1].data[...] = self.setups
            self.number += 1

        def backward(self, top, propagate_down, bottom):
            pass

    class Scenes(caffe.Layer):
        "Scenes of a size of their own, with the class of every pixel."
        def setup(self, bottom, top):
            self.random = np.random.default_rng(int(self.param_str_))

        def reshape(self, bottom, top):
            height, width = self.random.integers(9, 14, 2)
            scene = np.zeros((height, width))
            scene[height // 3 :, width // 2 :] = 1
            self.image = np.stack([scene, 1 - scene]) + 0.1 * self.random.normal(size=(2, height, width))
            self.label = scene
            top[0].reshape(1, *self.image.shape)
            top[1].reshape(1, 1, *self.label.shape)

        def forward(self, bottom, top):
            top[0].data[...] = self.image
            top[1].data[...] = self.label

        def backward(self, top, propagate_down, bottom):
            pass

    class Broken(caffe.Layer):
        def setup(self, bottom, top):
            raise RuntimeError("this user's layer is broken")

    class Growing(Slope):
        "A column more, once or each time that it is asked for its shapes."
        def reshape(self, bottom, top):
            self.times = getattr(self, "times", 0) + 1
            more = self.times - 1 if self.param_str == "0" else self.times > 1
            top[0].reshape(*bottom[0].shape[:-1], bottom[0].shape[-1] + more)

        def forward(self, bottom, top):
            top[0].data[...] = 7

    class Phase(Slope):
        def forward(self, bottom, top):
            top[0].data[...] = self.phase

    class Fed(caffe.Layer):
        "Samples that the script gives it; their shapes are told when they are read."
        def give(self, samples):
            self.samples, self.number = samples, 0

        def setup(self, bottom, top):
            top[0].reshape(1, 1, 4, 4)

        def reshape(self, bottom, top):
            pass

        def forward(self, bottom, top):
            sample = self.samples[self.number]
            self.number += 1
            top[0].reshape(*sample.shape)
            top[0].data[...] = sample

        def backward(self, top, propagate_down, bottom):
            pass

    class Choosing(Slope):
        "As many rows as are positive."
        def forward(self, bottom, top):
            chosen = bottom[0].data[bottom[0].data[:, 0] > 0]
            top[0].reshape(*chosen.shape)
            top[0].data[...] = chosen

    class Picking(Choosing):
        "With the gradient of what it chose."
        def forward(self, bottom, top):
            self.chosen = bottom[0].data[:, 0] > 0
            Choosing.forward(self, bottom, top)

        def backward(self, top, propagate_down, bottom):
            bottom[0].diff[...] = 0
            bottom[0].diff[self.chosen] = top[0].diff

    class Targets(caffe.Layer):
        "A target for each place of its bottom, whose shape it tells when it makes them."
        def setup(self, bottom, top):
            top[0].reshape(*bottom[0].shape)
            self.calls = 0

        def reshape(self, bottom, top):
            pass

        def forward(self, bottom, top):
            self.calls += 1
            if bottom[0].data.max() > 99:
                raise RuntimeError("no target for that")
            top[0].reshape(*bottom[0].shape)
            top[0].data[...] = np.arange(bottom[0].count).reshape(bottom[0].shape) / 10

        def backward(self, top, propagate_down, bottom):
            pass

    class Sizes(Fed):
        "Images of sizes of their own, told when they are made."
        def setup(self, bottom, top):
            self.random = np.random.default_rng(int(self.param_str))
            top[0].reshape(1, 2, 9, 9)

        def forward(self, bottom, top):
            top[0].reshape(1, 2, *self.random.integers(9, 14, 2))
            top[0].data[...] = self.random.normal(size=top[0].data.shape)

    class Twice(Targets):
        "Twice its bottom."
        def forward(self, bottom, top):
            top[0].reshape(*bottom[0].shape)
            top[0].data[...] = 2 * bottom[0].data

        def backward(self, top, propagate_down, bottom):
            pass

    class Nothing:
        pass
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of a name of its own, where import finds it, in a working directory of its own."""
    name = f"layers_of_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return name


@pytest.fixture
def allowed() -> Iterator[demitasse.Runtime]:
    with scripts_run_with([*PLUGINS, "python_layer"]) as made:
        yield made


@pytest.fixture
def make(allowed: demitasse.Runtime) -> Callable[..., caffe.Net]:
    def net(spec: caffe.NetSpec, phase: int = caffe.TRAIN, *, force_backward: bool = False) -> caffe.Net:
        message = spec.to_proto()
        message.force_backward = force_backward
        Path("net.prototxt").write_text(str(message))
        return caffe.Net("net.prototxt", phase)

    return net


def regression(module: str) -> caffe.NetSpec:
    n = caffe.NetSpec()
    n.data, n.target = L.Input(shape=[{"dim": [4, 3]}, {"dim": [4, 2]}], ntop=2)
    n.slope = L.Python(n.data, module=module, layer="Slope", param_str="2.5")
    n.out = L.InnerProduct(n.slope, num_output=2, weight_filler={"type": "gaussian", "std": 1})
    n.loss = L.Python(n.out, n.target, module=module, layer="HalfSquares", loss_weight=3)
    return n


def test_it_is_off_unless_it_is_composed(module: str) -> None:
    Path("net.prototxt").write_text(str(regression(module).to_proto()))
    with demitasse.compose(plugins=PLUGINS) as runtime:
        caffe.use(runtime)
        with pytest.raises(ModelError) as raised:
            caffe.Net("net.prototxt", caffe.TRAIN)
        with pytest.raises(CompositionError, match=r"compose it with plugins='\+python_layer'"):
            caffe.allow_python_layers()
        caffe.use(None)
    message = str(raised.value)
    assert "layer 'slope' (Python)" in message
    assert "'python_layer' is installed" in message
    assert "(+python_layer)" in message
    assert "runs code that a net's file names" in message
    automatic = {manifest.name for manifest in demitasse.discover() if manifest.automatic}
    assert "python_layer" not in automatic


def test_values_gradients_and_parameters(make: Callable[..., caffe.Net], module: str) -> None:
    net = make(regression(module))
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


def test_gradients_of_inputs_where_the_file_forces_them(
    make: Callable[..., caffe.Net], module: str
) -> None:
    net = make(regression(module), force_backward=True)
    net.blobs["data"].data[...] = 1
    net.forward()
    net.backward()
    assert np.allclose(net.blobs["target"].diff, -net.blobs["out"].diff)
    assert np.allclose(net.blobs["data"].diff, 2.5 * net.blobs["slope"].diff)


def test_a_data_layer_may_give_every_image_its_size(make: Callable[..., caffe.Net], module: str) -> None:
    n = caffe.NetSpec()
    n.image, n.label = L.Python(module=module, layer="Images", ntop=2)
    n.conv = L.Convolution(n.image, num_output=1, kernel_size=1, weight_filler={"type": "xavier"})
    net = make(n, caffe.TEST)
    weight = float(net.params["conv"][0].data.sum())
    for number in range(4):
        result = net.forward()
        assert result["conv"].shape == (1, 1, 3 + number, 4)
        assert np.allclose(result["conv"], (number + 1) * weight)
        assert (result["label"] == 1).all(), "set up once"


def test_a_layer_within_a_net_may_give_as_many_rows_as_it_finds(
    make: Callable[..., caffe.Net], module: str
) -> None:
    """As layers that propose regions do: what lies behind is planned again, and each layer that runs a
    script's code is called once, those too that read samples."""
    n = caffe.NetSpec()
    n.image = L.Python(module=module, layer="Fed")
    n.rows = L.Reshape(n.image, shape={"dim": [-1, 2]})
    n.chosen = L.Python(n.rows, module=module, layer="Choosing", param_str="1")
    n.again = L.Python(n.chosen, module=module, layer="Slope", param_str="2")
    n.sum = L.InnerProduct(
        n.chosen, num_output=1, bias_term=False, weight_filler={"type": "constant", "value": 3}
    )
    net = make(n, caffe.TEST)
    random = np.random.default_rng(1)
    samples = [random.normal(size=(1, 1, size, 4)) for size in (4, 9, 9, 3)]
    for sample in samples:
        assert (sample.reshape(-1, 2)[:, 0] > 0).any()
    net.layers[0].give(samples)
    for sample in samples:
        rows = sample.reshape(-1, 2)
        chosen = rows[rows[:, 0] > 0]
        made = net.forward()
        np.testing.assert_allclose(made["sum"], 3 * chosen.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)
        assert net.blobs["chosen"].shape == chosen.shape
        np.testing.assert_allclose(made["again"], 2 * chosen, rtol=1e-6)
    assert net.layers[0].number == len(samples)


def test_a_training_follows_a_layer_that_finds_another_number_of_rows(
    allowed: demitasse.Runtime, module: str
) -> None:
    """The loss is the sum of what is positive of w x; its gradient the sum of those x."""
    n = caffe.NetSpec()
    n.image = L.Python(module=module, layer="Fed")
    n.rows = L.Reshape(n.image, shape={"dim": [-1, 2]})
    n.score = L.InnerProduct(
        n.rows, num_output=1, bias_term=False, weight_filler={"type": "constant", "value": 1}
    )
    n.picked = L.Python(n.score, module=module, layer="Picking", param_str="1", propagate_down=True)
    n.loss = L.Reduction(n.picked, loss_weight=1)
    Path("net.prototxt").write_text(str(n.to_proto()))
    Path("solver.prototxt").write_text(
        'train_net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" iter_size: 2 max_iter: 4'
    )
    solver = caffe.SGDSolver("solver.prototxt")
    random = np.random.default_rng(2)
    samples = [random.normal(size=(1, 1, size, 4)) for size in (4, 9, 9, 3)]
    solver.net.layers[0].give(samples)
    w = np.ones(2)
    for first in (0, 2):
        solver.step(1)
        gradient = np.zeros(2)
        for sample in samples[first : first + 2]:
            rows = sample.reshape(-1, 2)
            gradient += rows[rows @ w > 0].sum(0) / 2
        w -= 0.01 * gradient
        np.testing.assert_allclose(solver.net.params["score"][0].data[0], w, rtol=1e-5)
    assert solver.net.layers[0].number == len(samples)


def test_a_training_follows_targets_for_each_place_of_images_of_many_sizes(
    allowed: demitasse.Runtime, module: str
) -> None:
    """As Faster R-CNN's layers make them: a layer behind them cannot take an image of another size until
    they have run. Each runs once for an image; running means move once."""
    n = caffe.NetSpec()
    n.image = L.Python(module=module, layer="Fed")
    n.bn = L.BatchNorm(n.image, moving_average_fraction=0.5)
    n.score = L.Convolution(
        n.image, num_output=1, kernel_size=1, bias_term=False, weight_filler={"type": "constant"}
    )
    n.target = L.Python(n.score, module=module, layer="Targets")
    n.more = L.Python(n.target, module=module, layer="Targets")
    n.apart = L.EuclideanLoss(n.score, n.target, propagate_down=[True, False])
    n.further = L.EuclideanLoss(n.score, n.more, propagate_down=[True, False])
    Path("net.prototxt").write_text(str(n.to_proto()))
    Path("solver.prototxt").write_text(
        'train_net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" iter_size: 2 max_iter: 4'
    )
    solver = caffe.SGDSolver("solver.prototxt")
    random = np.random.default_rng(2)
    samples = [random.normal(size=(1, 1, size, 4)) for size in (6, 9, 9, 3)]
    layers = dict(zip(solver.net._layer_names, solver.net.layers, strict=True))
    layers["image"].give(samples)
    w, mean = 0.0, 0.0
    for first in (0, 2):
        solver.step(1)
        gradient = 0.0
        for sample in samples[first : first + 2]:
            target = np.arange(sample.size).reshape(sample.shape) / 10
            gradient += 2 * (sample * (w * sample - target)).sum() / 2
            mean = mean / 2 + sample.mean()
        w -= 0.01 * gradient
        np.testing.assert_allclose(solver.net.params["score"][0].data.item(), w, rtol=1e-4)
        np.testing.assert_allclose(solver.net.params["bn"][0].data.item(), mean, rtol=1e-4)
        assert solver.net.blobs["target"].shape == samples[first + 1].shape
    assert layers["image"].number == len(samples)
    assert [layers[name].calls for name in ("target", "more")] == [4, 4]


def test_a_net_goes_on_after_an_image_that_it_cannot_take(
    make: Callable[..., caffe.Net], module: str
) -> None:
    """Too small for a layer behind the targets, or an error in the user's own code: plans, blobs and
    running means are those from before."""
    n = caffe.NetSpec()
    n.image = L.Python(module=module, layer="Fed")
    n.bn = L.BatchNorm(n.image, moving_average_fraction=0.5)
    n.score = L.Convolution(
        n.image, num_output=1, kernel_size=1, weight_filler={"type": "constant", "value": 1}
    )
    n.target = L.Python(n.score, module=module, layer="Targets")
    n.apart = L.EuclideanLoss(n.score, n.target, propagate_down=[True, False])
    n.tail = L.Convolution(n.bn, num_output=1, kernel_size=2)
    net = make(n)
    image = dict(zip(net._layer_names, net.layers, strict=True))["image"]

    def means() -> list[float]:
        return [blob.data.item() for blob in net.params["bn"]]

    def forward(rows: int, value: float = 1.0) -> None:
        image.give([np.full((1, 1, rows, 4), value)])
        net.forward()
        assert net.blobs["target"].shape == (1, 1, rows, 4)

    forward(3)
    for rows, value, message in (
        (1, 1.0, r"layer 'tail' \(Convolution\)"),
        (5, 100.0, "no target for that"),
    ):
        before = means()
        with pytest.raises(demitasse.DemitasseError, match=message):
            forward(rows, value)
        assert means() == before
        assert net.blobs["target"].shape == (1, 1, 3, 4)
        forward(3)
        assert means() != before, "a pass moves them"
        for rows in (2, 6, 3):
            forward(rows)


@pytest.mark.parametrize("passes", [1, 2])
def test_targets_are_made_of_the_same_random_numbers_as_the_pass_that_uses_them(
    allowed: demitasse.Runtime, module: str, passes: int
) -> None:
    n = caffe.NetSpec()
    n.image = L.Python(module=module, layer="Fed")
    n.drop = L.Dropout(n.image)
    n.score = L.Convolution(n.drop, num_output=1, kernel_size=1, weight_filler={"type": "xavier"})
    n.target = L.Python(n.drop, module=module, layer="Twice")
    n.apart = L.EuclideanLoss(n.score, n.target, propagate_down=[True, False])
    Path("net.prototxt").write_text(str(n.to_proto()))
    Path("solver.prototxt").write_text(
        f'train_net: "net.prototxt" base_lr: 0 lr_policy: "fixed" iter_size: {passes} max_iter: 9'
    )
    solver, masks = caffe.SGDSolver("solver.prototxt"), set()
    for rows in (4, 9, 6, 9):
        solver.net.layers[0].give([np.ones((1, 1, rows, 4))] * passes)
        solver.step(1)
        drop = solver.net.blobs["drop"].data
        np.testing.assert_array_equal(solver.net.blobs["target"].data, 2 * drop)
        masks.add(tuple(drop.ravel()[:16]))
    assert len(masks) == 4, "each iteration has its own"


def test_samples_are_there_again_where_a_pass_begins_again(
    make: Callable[..., caffe.Net], module: str
) -> None:
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    with h5py.File("x.h5", "w") as file:
        file["data"] = x
    Path("list.txt").write_text("x.h5\n")
    n = caffe.NetSpec()
    n.data = L.HDF5Data(source="list.txt", batch_size=8)
    n.bn = L.BatchNorm(n.data)
    n.chosen = L.Python(n.data, module=module, layer="Choosing", param_str="1")
    net = make(n)
    for number in range(4):
        made = net.forward()
        rows = x[8 * number : 8 * number + 8]
        np.testing.assert_array_equal(made["chosen"], rows[rows[:, 0] > 0])
        np.testing.assert_array_equal(net.blobs["data"].data, rows)
        np.testing.assert_allclose(made["bn"].mean(0), 0, atol=1e-6)
    weight = sum(0.999**number for number in range(4))
    assert net.params["bn"][2].data.item() == pytest.approx(weight), "means moved four times"


def test_what_an_older_script_imports_is_there(
    make: Callable[..., caffe.Net], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    made = make(n).forward(data=np.ones((2, 3)))
    assert (made["own"] == 2).all()
    import as_published

    assert as_published.caffe is caffe, "one module by two names"
    for name in ("io", "net_spec", "proto", "proto.caffe_pb2"):
        mine = importlib.import_module(f"demitasse_caffe.pycaffe.{name}")
        assert importlib.import_module(f"caffe.{name}") is mine


def test_a_script_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import caffe\nLayer = caffe.Layer\n")
    (tmp_path / "layer_file.py").write_text(
        "import caffe\nclass Ones(caffe.Layer):\n    def setup(self, bottom, top): pass\n"
        "    def reshape(self, bottom, top): top[0].reshape(2)\n"
        "    def forward(self, bottom, top): top[0].data[...] = 1\n"
        "    def backward(self, top, propagate_down, bottom): pass\n"
    )
    (tmp_path / "n.prototxt").write_text(
        'layer { name: "a" type: "Python" top: "a" python_param { module: "layer_file" layer: "Ones" } }'
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, caffe, beside\n"
        "assert beside.Layer is caffe.Layer and __name__ == '__main__'\n"
        "net = caffe.Net(sys.argv[1], caffe.TEST)\n"
        "print(net.forward()['a'], sys.argv[2:])\n"
    )

    def run(*given: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "demitasse_caffe.pycaffe", *given]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = run("--python-layers", "script.py", "n.prototxt", "--gpu", "0")
    assert done.stdout == "[1. 1.] ['--gpu', '0']\n", done.stderr
    assert "python_layer" in run("script.py", "n.prototxt").stderr, "no code of a net's file unasked"
    assert run("scrip.py").stderr.startswith("scrip.py: no such script\nusage: python -m")
    assert run().returncode == 1


def test_a_layer_that_settles_on_a_shape_is_followed(
    make: Callable[..., caffe.Net], module: str
) -> None:
    def forward(often: str) -> np.ndarray:
        n = caffe.NetSpec()
        n.data = L.Input(shape={"dim": [1, 3]})
        n.own = L.Python(n.data, module=module, layer="Growing", param_str=often)
        return make(n).forward()["own"]

    np.testing.assert_array_equal(forward("1"), [[7, 7, 7, 7]])
    with pytest.raises(ShapeError, match=r"Growing: reshape made tops of \(\(1, \d\),\) where"):
        forward("0")


def test_a_script_calls_its_layer_which_tells_shapes_as_it_reads(
    make: Callable[..., caffe.Net], module: str
) -> None:
    """As Faster R-CNN's scripts do: net.layers has the layer's own object, and forward reshapes."""
    n = caffe.NetSpec()
    n.image = L.Python(module=module, layer="Fed")
    n.sum = L.Convolution(
        n.image, num_output=1, kernel_size=1, weight_filler={"type": "constant", "value": 2}
    )
    net = make(n, caffe.TEST)
    random = np.random.default_rng(0)
    samples = [random.normal(size=(1, 1, *size)) for size in ((4, 4), (5, 3), (5, 3), (2, 7))]
    layer = net.layers[0]
    assert layer is net.layer_dict["image"]
    assert (type(layer).__name__, layer.type, net.layers[1].type) == ("Fed", "Python", "Convolution")
    layer.give(samples)
    for sample in samples:
        assert np.allclose(net.forward()["sum"], 2 * sample)
        assert net.blobs["image"].shape == sample.shape
        net.blobs["image"].data[...] = 1
        assert np.allclose(net.forward(start="sum")["sum"], 2), "nothing is read by a layer left out"
    assert layer.number == len(samples)


def test_callbacks_see_each_layer_once_where_shapes_are_told_late(
    make: Callable[..., caffe.Net], module: str
) -> None:
    n = caffe.NetSpec()
    n.image = L.Python(module=module, layer="Fed")
    n.score = L.Convolution(
        n.image, num_output=1, kernel_size=1, weight_filler={"type": "constant", "value": 1}
    )
    n.target = L.Python(n.score, module=module, layer="Targets")
    n.apart = L.EuclideanLoss(n.score, n.target, propagate_down=[True, False])
    net = make(n)
    seen: list[int] = []
    net.before_forward(seen.append)
    image, target = net.layer_dict["image"], net.layer_dict["target"]
    stop = False

    def check(number: int) -> None:
        if stop and number == 1:
            raise RuntimeError("enough")

    net.after_forward(check)
    image.give([np.full((1, 1, rows, 4), rows) for rows in (3, 6, 2, 5, 4)])
    for rows in (3, 6, 2):
        seen.clear()
        net.forward()
        assert net.blobs["target"].shape == (1, 1, rows, 4)
        assert np.all(net.blobs["score"].data == rows)
        assert len(set(seen)) == len(seen) == len(net.layers)
    assert (image.number, target.calls) == (3, 3)
    stop = True
    with pytest.raises(RuntimeError, match="enough"):
        net.forward()
    stop = False
    net.forward()
    assert np.all(net.blobs["score"].data == 4), "nothing of the pass that ended early is taken again"


def of_many_sizes(module: str, weight: float) -> str:
    """A fully convolutional net on images of many sizes, whose only weights begin as one number."""
    n = caffe.NetSpec()
    n.image, n.label = L.Python(module=module, layer="Images", ntop=2)
    n.score = L.Convolution(
        n.image, num_output=1, kernel_size=1, weight_filler={"type": "constant", "value": weight}
    )
    n.loss = L.Python(n.score, n.label, module=module, layer="HalfSquares", loss_weight=1)
    return str(n.to_proto())


def test_a_solver_trains_through_them(
    allowed: demitasse.Runtime, module: str, make: Callable[..., caffe.Net]
) -> None:
    """Two images to an iteration."""
    Path("train.prototxt").write_text(of_many_sizes(module, 0.1))
    Path("solver.prototxt").write_text(
        'train_net: "train.prototxt" base_lr: 0.001 lr_policy: "fixed" max_iter: 2 iter_size: 2 '
        "snapshot_after_train: false"
    )
    solver = caffe.get_solver("solver.prototxt")
    solver.step(1)
    # Of images of 3 and of 4 rows, with pixels 1 and then 2.
    gradient = (12 * (0.2 - 1) * 1 + 16 * (0.4 - 1) * 2) / 2
    assert np.allclose(solver.net.params["score"][0].diff.ravel(), gradient, rtol=1e-5)
    assert np.allclose(solver.net.params["score"][0].data.ravel(), 0.1 - 0.001 * gradient, rtol=1e-5)
    solver.solve()
    assert solver.net.blobs["image"].shape == (1, 2, 6, 4)


def test_a_solvers_own_test_follows_images_of_many_sizes(
    allowed: demitasse.Runtime, module: str, caplog: pytest.LogCaptureFixture
) -> None:
    Path("net.prototxt").write_text(of_many_sizes(module, 0.5))
    Path("solver.prototxt").write_text(
        'net: "net.prototxt" test_iter: 2 test_interval: 5 base_lr: 0 lr_policy: "fixed" '
        "snapshot_after_train: false"
    )
    caplog.set_level("INFO", "demitasse.pycaffe")
    caffe.get_solver("solver.prototxt").step(1)
    # Scores of 1 and then 2 where labels are 1: half the squares of no difference, and of 4 x 4 ones.
    assert "    Test net output #0: loss = 4 (* 1 = 4 loss)" in caplog.messages


def test_a_fully_convolutional_net_learns_and_is_scored(allowed: demitasse.Runtime, module: str) -> None:
    """As scripts for segmentation have it: kernels set to interpolate, crops aligned, scores of a test
    net that shares the weights, every scene of another size."""

    def spec(seed: int) -> Any:
        n = caffe.NetSpec()
        n.data, n.label = L.Python(module=module, layer="Scenes", param_str=str(seed), ntop=2)
        n.conv = L.Convolution(
            n.data, num_output=4, kernel_size=3, pad=6, weight_filler={"type": "gaussian", "std": 0.3}
        )
        n.relu = L.ReLU(n.conv, in_place=True)
        n.pool = L.Pooling(n.relu, kernel_size=2, stride=2)
        n.small = L.Convolution(n.pool, num_output=2, kernel_size=1, weight_filler={"type": "xavier"})
        n.upscore = L.Deconvolution(
            n.small, num_output=2, kernel_size=4, stride=2, bias_term=False, param=[{"lr_mult": 0}]
        )
        n.score = caffe.coord_map.crop(n.upscore, n.data)
        n.loss = L.SoftmaxWithLoss(n.score, n.label, loss_param={"normalize": True, "ignore_label": 255})
        return n.to_proto()

    Path("train.prototxt").write_text(str(spec(1)))
    Path("val.prototxt").write_text(str(spec(2)))
    Path("solver.prototxt").write_text(
        'train_net: "train.prototxt" test_net: "val.prototxt" test_iter: 5 test_interval: 999999 '
        'base_lr: 0.2 lr_policy: "fixed" momentum: 0.9 test_initialization: false'
    )
    solver = caffe.SGDSolver("solver.prototxt")
    ramp = 1 - np.abs(np.arange(4) - 1.5) / 2
    kernel = solver.net.params["upscore"][0].data
    kernel[range(2), range(2), :, :] = np.outer(ramp, ramp)
    solver.step(40)
    assert np.array_equal(kernel[0, 0], np.outer(ramp, ramp).astype(np.float32)), "it does not learn"
    tested = solver.test_nets[0]
    tested.share_with(solver.net)
    right, pixels, sizes = 0, 0, set()
    for _ in range(5):
        tested.forward()
        label = tested.blobs["label"].data[0, 0]
        right += (tested.blobs["score"].data[0].argmax(0) == label).sum()
        pixels, sizes = pixels + label.size, sizes | {label.shape}
    assert len(sizes) > 1
    assert right / pixels > 0.9


def test_trainers_and_nets_of_the_runtime_take_them_too(allowed: demitasse.Runtime, module: str) -> None:
    n = caffe.NetSpec()
    n.data, n.label = L.Data(source="digits:train", batch_size=4, ntop=2)
    n.slope = L.Python(n.data, module=module, layer="Slope", param_str="0.5", param=[{"lr_mult": 0}])
    n.score = L.InnerProduct(n.slope, num_output=10, weight_filler={"type": "xavier"})
    n.loss = L.SoftmaxWithLoss(n.score, n.label)
    Path("net.prototxt").write_text(str(n.to_proto()))
    Path("solver.prototxt").write_text('net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed"')
    with allowed.trainer("solver.prototxt") as trainer:
        first = trainer.step(1).loss
        assert trainer.step(40).loss < first
        assert trainer.net.params["slope"][0].tolist() == [0.5]
    phases = {}
    n.slope = L.Python(n.data, module=module, layer="Phase", param_str="1")
    for phase in ("train", "test"):
        Path("phase.prototxt").write_text(str(n.slope.to_proto()))
        net = allowed.net("phase.prototxt", phase=phase)
        phases[phase] = float(net.forward()["Python1"].mean())
    assert phases == {"train": 0, "test": 1}


def test_trainers_and_nets_of_the_runtime_follow_images_of_many_sizes(
    allowed: demitasse.Runtime, module: str
) -> None:
    """As pycaffe's solvers do, each image once."""
    Path("net.prototxt").write_text(of_many_sizes(module, 0.1))
    Path("solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.001 lr_policy: "fixed" max_iter: 2 iter_size: 2 test_iter: 2 '
        "test_interval: 9 test_initialization: false snapshot_after_train: false"
    )

    def half_squares(weight: float, bias: float, n: int) -> tuple[float, float]:
        """The loss of the image with pixels ``n`` and 4 x (2 + n) of them, and what makes it so."""
        off = 2 * weight * n + bias - 1
        return 4 * (2 + n) * off**2 / 2, 4 * (2 + n) * off

    with allowed.trainer("solver.prototxt") as trainer:
        weight, bias = 0.1, 0.0
        for numbers in ((1, 2), (3, 4)):
            made = [half_squares(weight, bias, n) for n in numbers]
            assert trainer.step().loss == pytest.approx(np.mean([loss for loss, _ in made]), rel=1e-5)
            slopes = [slope for _, slope in made]
            weight -= 0.001 * np.dot(slopes, numbers) / 2
            bias -= 0.001 * sum(slopes) / 2
            learned = [np.ravel(array) for array in trainer.net.params["score"]]
            np.testing.assert_allclose(np.concatenate(learned), [weight, weight, bias], rtol=1e-5)
            assert trainer.net.blobs["image"].shape == (1, 2, 2 + numbers[-1], 4)
        expected = np.mean([half_squares(weight, bias, n)[0] for n in (1, 2)])
        assert trainer.test() == {"loss": pytest.approx(expected, rel=1e-5)}
    net = allowed.net("net.prototxt")
    for n in (1, 2, 3):
        assert net.forward()["loss"].item() == pytest.approx(half_squares(0.1, 0, n)[0], rel=1e-5)


def test_trainers_and_nets_of_the_runtime_follow_what_is_told_late(
    allowed: demitasse.Runtime, module: str
) -> None:
    """Targets for each place of images of many sizes, and as many rows as are positive: as pycaffe's
    solvers do, to the bit, dropped numbers and running means too."""
    n = caffe.NetSpec()
    n.image = L.Python(module=module, layer="Sizes", param_str="3")
    n.bn = L.BatchNorm(n.image, moving_average_fraction=0.5)
    n.drop = L.Dropout(n.bn)
    n.score = L.Convolution(n.drop, num_output=1, kernel_size=1, weight_filler={"type": "xavier"})
    n.target = L.Python(n.score, module=module, layer="Targets")
    n.apart = L.EuclideanLoss(n.score, n.target, propagate_down=[True, False], loss_weight=0.001)
    n.rows = L.Reshape(n.score, shape={"dim": [-1, 1]})
    n.picked = L.Python(n.rows, module=module, layer="Picking", param_str="1", propagate_down=True)
    n.loss = L.Reduction(n.picked, loss_weight=0.001)
    Path("net.prototxt").write_text(str(n.to_proto()))
    Path("solver.prototxt").write_text(
        'train_net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 3 iter_size: 2 '
        "random_seed: 1 snapshot_after_train: false"
    )
    solver = caffe.SGDSolver("solver.prototxt")
    solver.step(3)
    with allowed.trainer("solver.prototxt") as trainer:
        assert trainer.varying == ["image", "target"]
        trainer.run()
        for name, arrays in trainer.net.params.items():
            for mine, theirs in zip(arrays, solver.net.params[name], strict=True):
                np.testing.assert_array_equal(mine, theirs.data)
    net = allowed.net("net.prototxt", phase="train", retain="all")
    shapes = []
    for _ in range(4):
        made = net.forward()
        assert net.blobs["picked"].shape[1:] == (1,)
        assert np.isfinite(made["loss"])
        shapes.append(net.blobs["picked"].shape)
    assert len(set(shapes)) > 1


def test_mistakes_say_file_layer_and_reason(
    make: Callable[..., caffe.Net], module: str, tmp_path: Path
) -> None:
    def net(**parameters: Any) -> caffe.Net:
        n = caffe.NetSpec()
        n.data = L.Input(shape={"dim": [1, 3]})
        n.own = L.Python(n.data, **parameters)
        return make(n)

    where = r"net.prototxt:\d+: layer 'own' \(Python\): "
    with pytest.raises(ModelError, match=where + "python_param needs a module and a layer"):
        net(module=module)
    with pytest.raises(ModelError, match=where + r".*'no_such_module', which cannot be imported"):
        net(module="no_such_module", layer="X")
    (tmp_path / "ported_layers.py").write_text("import caffe.nothing\n")
    with pytest.raises(ModelError, match=where + ".* No module named 'caffe.nothing'; it is looked for"):
        net(module="ported_layers", layer="X")
    (tmp_path / "older_layers.py").write_text("import caffe\nprint 'Python 2'\n")
    with pytest.raises(ModelError, match=r"older_layers.py:2: Missing paren.*; if it is Python 2, 2to3"):
        net(module="older_layers", layer="X")
    with pytest.raises(ModelError, match=where + r"module .* has no class 'Slopes'"):
        net(module=module, layer="Slopes")
    with pytest.raises(ModelError, match=where + r".*Nothing has no reshape, forward, backward"):
        net(module=module, layer="Nothing")
    with pytest.raises(RuntimeError, match="this user's layer is broken"):
        net(module=module, layer="Broken")
    with pytest.raises(
        ShapeError, match=r"Choosing: forward made tops of \(\(1, 3\),\) where \(\(2, 3\)"
    ):
        chosen = net(module=module, layer="Choosing", param_str="1")
        chosen.blobs["data"].reshape(2, 3)
        chosen.blobs["data"].data[...] = [[1, 2, 3], [-1, 2, 3]]
        chosen.forward(start="own")


def test_the_process_default_lets_them_when_a_script_says_so(module: str) -> None:
    caffe.allow_python_layers()
    try:
        assert "Python" in caffe.layer_type_list()
    finally:
        caffe.allow_python_layers(False)
    assert "Python" not in caffe.layer_type_list()
