"""Nets that only run forward: what normalises or scales a product's channels is in its weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from real_files import DATA

import demitasse
from demitasse import PLAIN, Place, Request, Runtime, TensorSpec
from demitasse_cli.main import main
from demitasse_cpu.kernels import FACTORIES
from demitasse_cpu.onednn.inner_product import bfloat16_kernel
from demitasse_cpu.onednn.library import library
from demitasse_reference.kernels import KERNELS
from demitasse_training.folding import FOLD

INPUT = (
    'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 3 dim: 8 dim: 7 dim: 6 } } }'
)
PRODUCT = """
layer { name: "product" type: "Convolution" bottom: "x" top: "y" convolution_param {
  num_output: 32 kernel_size: 3 pad: 1 weight_filler { type: "gaussian" std: 0.2 }
  bias_filler { type: "gaussian" std: 1 } } }"""
NORM = 'layer { name: "norm" type: "BatchNorm" bottom: "y" top: "y" }'
SCALE = """
layer { name: "scale" type: "Scale" bottom: "y" top: "y" scale_param { bias_term: true
  filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 } } }"""
RELU = 'layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }'
RELU6 = 'layer { name: "relu6" type: "ReLU6" bottom: "y" top: "y" }'
LAST = """
layer { name: "last" type: "Pooling" bottom: "y" top: "out" pooling_param { global_pooling: true } }"""
USUAL = (INPUT, PRODUCT, NORM, SCALE, RELU, LAST)
TOLERANCE = {"f32": 2e-5, "f64": 1e-12, "bf16": 0.06}
"""Of the largest. In bf16 336 terms are rounded to eight bits, and slopes of up to 3 follow."""


@pytest.fixture(scope="module", params=["reference", "cpu"])
def runtime(request: pytest.FixtureRequest) -> Iterator[Runtime]:
    plugins = ["caffe", "datasets", "training", "snapshots", request.param, "reference"]
    with demitasse.compose(plugins=list(dict.fromkeys(plugins))) as composed:
        yield composed


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("nets")

    def write(*layers: str) -> Path:
        path = folder / "net.prototxt"
        path.write_text("\n".join(layers))
        return path

    return write


def settle(net: Any, seed: int = 5) -> None:
    """Statistics as of a net that was trained."""
    random = np.random.default_rng(seed)
    for arrays in net.params.values():
        if len(arrays) == 3:
            arrays[0][...] = random.normal(size=arrays[0].shape)
            arrays[1][...] = random.uniform(1, 4, arrays[1].shape)
            arrays[2][...] = 1.5


def operations(net: Any) -> list[str]:
    """What its plan does at each forward."""
    return [entry.operation for entry in net.plan.entries if not entry.once]


def apart(net: Any) -> list[str]:
    """The layers that are operations of their own though they normalise or scale."""
    names = ("batch_norm", "scale")
    forward = (entry for entry in net.plan.entries if entry.phase == "forward")
    return [entry.layer for entry in forward if entry.operation.startswith(names)]


def folded(net: Any) -> list[str]:
    """The layers whose work is in the weights of another."""
    return [e.layer for e in net.plan.entries if e.operation == FOLD.name and e.once]


def agree(
    runtime: Runtime, path: Path, precision: str, weights: Path | None = None, **inputs: np.ndarray
) -> Any:
    """The net, after it has given what it gives with all layers apart."""
    whole = runtime.net(path, precision=precision, weights=weights, seed=3, retain="all")
    if weights is None:
        settle(whole)
        weights = runtime.write(path.with_name("w.demitasse"), demitasse.Weights(dict(whole.params)))
    net = runtime.net(path, precision=precision, weights=weights)
    (ours,), (theirs,) = (each.forward(**inputs).values() for each in (net, whole))
    size = float(np.abs(theirs).max())
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=TOLERANCE[precision] * size)
    return net


def values(seed: int = 0, batch: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(batch, 8, 7, 6)).astype(np.float32)


@settings(max_examples=examples(25), derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@pytest.mark.parametrize("precision", TOLERANCE)
def test_folded_layers_give_what_they_give_apart(
    runtime: Runtime, written: Any, precision: str, data: st.DataObject
) -> None:
    def one_of(*choices: Any) -> Any:
        return data.draw(st.sampled_from(choices))

    kind, bias = one_of("convolution", "convolution", "inner_product"), one_of("true", "false")
    product = PRODUCT.replace("num_output: 32", f"num_output: {one_of(16, 24, 32)} bias_term: {bias}")
    if kind == "inner_product":
        product = product.replace("kernel_size: 3 pad: 1", f"transpose: {one_of('true', 'false')}")
        product = product.replace("Convolution", "InnerProduct").replace(
            "convolution_", "inner_product_"
        )
    else:
        product = product.replace("pad: 1", f"pad: {one_of(0, 1)} group: {one_of(1, 2, 8)}")
    epsilon, scale = f"batch_norm_param {{ eps: {one_of(1e-5, 1e-3, 0.5)} }}", one_of("true", "false")
    after = one_of(
        [NORM], [SCALE], [NORM, SCALE], [SCALE, NORM], [NORM, SCALE, SCALE.replace('"sc', '"2sc')]
    )
    after = [
        layer.replace('top: "y"', f'top: "y" {epsilon}') if layer == NORM else layer for layer in after
    ]
    after = [layer.replace("bias_term: true", f"bias_term: {scale}") for layer in after]
    relu = one_of([], [RELU], [RELU6], [RELU.replace("top", "relu_param { negative_slope: 0.2 } top")])
    last = (
        LAST if kind == "convolution" else 'layer { name: "last" type: "TanH" bottom: "y" top: "out" }'
    )
    net = agree(runtime, written(INPUT, product, *after, *relu, last), precision, x=values())
    assert not apart(net)
    assert folded(net)


def test_what_follows_a_normalisation_is_the_products_to_do(runtime: Runtime, written: Any) -> None:
    net = runtime.net(written(*USUAL))
    assert folded(net) == ["norm"]
    assert not apart(net)
    if any(entry.plugin == "cpu" for entry in net.plan.entries):
        assert "convolution_relu" in operations(net)


@pytest.mark.parametrize("precision", TOLERANCE)
def test_a_function_that_follows_is_the_products_to_do(
    runtime: Runtime, written: Any, precision: str
) -> None:
    net = agree(runtime, written(INPUT, PRODUCT, NORM, SCALE, RELU6, LAST), precision, x=values())
    assert folded(net)
    done = [name for name in operations(net) if name.startswith(("convolution", "clip"))]
    by_cpu = any(entry.plugin == "cpu" for entry in net.plan.entries)
    lib = library()
    one = by_cpu and lib is not None and precision != "f64"
    if precision == "bf16":
        one = one and bool(bfloat16_kernel(lib))  # else loops compute products
    assert done == (["convolution_clip"] if one else ["convolution", "clip"])


@pytest.mark.parametrize("transpose", ["false", "true"])
def test_a_products_results_may_lie_along_any_axis(
    runtime: Runtime, written: Any, transpose: str
) -> None:
    """As of ONNX's MatMul and the Add of its bias."""
    product = (
        'layer { name: "product" type: "InnerProduct" bottom: "x" top: "y" '
        "inner_product_param { axis: 2 "
        f"num_output: 9 transpose: {transpose} weight_filler {{ type: 'gaussian' std: 0.2 }} }} }}"
    )
    last = 'layer { name: "last" type: "TanH" bottom: "y" top: "out" }'
    along = SCALE.replace("scale_param {", "scale_param { axis: 2")
    net = agree(runtime, written(INPUT, product, along, last), "f32", x=values())
    assert folded(net) == ["scale"]
    assert not apart(net)
    # The eight rows of a sample are not the product's results, whatever is learned for them.
    net = agree(runtime, written(INPUT, product, SCALE, last), "f32", x=values())
    assert apart(net) == ["scale"]


def test_weights_are_folded_in_float32_before_they_are_rounded(runtime: Runtime, written: Any) -> None:
    (fold,) = (
        e
        for e in runtime.net(written(*USUAL), precision="bf16").plan.entries
        if e.operation == FOLD.name
    )
    assert {b.spec.stored for b in (*fold.inputs, *fold.outputs) if b is not None} == {"float32"}


ELSEWHERE = {
    "a layer beside it": [
        'layer { name: "beside" type: "Pooling" bottom: "y" top: "out2" '
        "pooling_param { global_pooling: true } }",
        NORM.replace('top: "y"', 'top: "z"'),
        LAST.replace('bottom: "y"', 'bottom: "z"'),
    ],
    "nobody, for it is an output": [
        'layer { name: "unread" type: "Silence" bottom: "x" }',
        SCALE.replace('bottom: "y"', 'bottom: "x"').replace('top: "y"', 'top: "z"'),
    ],
    "a scale that is another blob": [
        'layer { name: "s" type: "Input" top: "s" input_param { shape { dim: 32 } } }',
        'layer { name: "scale" type: "Scale" bottom: "y" bottom: "s" top: "out" }',
    ],
    "a scale of lines": [
        SCALE.replace("scale_param {", "scale_param { axis: 2").replace('top: "y"', 'top: "o"')
    ],
    "a scale of channels and lines": [SCALE.replace("scale_param {", "scale_param { num_axes: 2")],
    "a normalisation by the batch": [
        NORM.replace("top:", "batch_norm_param { use_global_stats: false } top:")
    ],
    "statistics that the net changes": [
        NORM.replace("top:", 'param { name: "m" } param { name: "v" } param { name: "f" } top:'),
        NORM.replace('"norm"', '"second"').replace(
            "top:",
            'param { name: "m" } param { name: "v" } param { name: "f" } '
            "batch_norm_param { use_global_stats: false } top:",
        ),
    ],
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_what_cannot_be_folded_is_not(runtime: Runtime, written: Any, case: str) -> None:
    net = runtime.net(written(INPUT, PRODUCT, *ELSEWHERE[case]))
    assert not folded(net)
    assert apart(net)


def test_blobs_that_can_be_looked_at_are_not_folded(runtime: Runtime, written: Any) -> None:
    path = written(*USUAL)
    for backward in (None, "every blob"):
        net = runtime.net(path, retain="all", backward=backward)
        assert not folded(net)
        assert apart(net) == ["norm", "scale"]


def test_tests_of_a_trainer_follow_its_parameters(runtime: Runtime, tmp_path: Path) -> None:
    layers = [layer.replace('"y"', '"out"') if "Pool" in layer else layer for layer in USUAL[1:5]]
    data = (
        'layer { name: "x" type: "Data" top: "x" top: "label" data_param { source: "-" batch_size: 3 } }'
    )
    score = """
layer { name: "score" type: "InnerProduct" bottom: "y" top: "score" inner_product_param { num_output: 3
  weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss" }"""
    (tmp_path / "net.prototxt").write_text("\n".join([data, *layers, score]))
    (tmp_path / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.05 lr_policy: "fixed" max_iter: 9 random_seed: 3 test_iter: 2 '
        "test_interval: 100 snapshot_after_train: false"
    )
    samples = {"data": values(4, 6), "label": np.arange(6) % 3}
    given = {"train": samples, "test": samples}
    with runtime.trainer(tmp_path / "solver.prototxt", data=given, precision="f64") as trainer:
        for _ in range(2):
            trainer.step(2)
            saved = trainer.snapshot(tmp_path / "saved")
            deployed = runtime.net(
                tmp_path / "net.prototxt", weights=saved, data={"test": samples}, precision="f64"
            )
            assert folded(deployed) == ["norm"]
            assert trainer.test()["loss"] == pytest.approx(deployed.test(2)["loss"], rel=1e-9)


def test_who_takes_parameters_finds_layers_apart(runtime: Runtime, written: Any) -> None:
    path = written(*USUAL)
    net = runtime.net(path, seed=3)
    before = net.forward(x=values())["out"]
    assert folded(net) == ["norm"]
    assert len(net.params) == 3 and not folded(net)
    assert np.array_equal(net.outputs()["out"], before)
    assert np.array_equal(net.blobs["out"].data, before)
    assert np.array_equal(net.blobs["x"].data, values())
    np.testing.assert_allclose(net.forward()["out"], before, rtol=1e-5)  # of the same x
    for step in range(2):
        others = runtime.net(path, seed=3, retain="all")
        for each in (net, others):
            settle(each, seed=step)
            each.params["scale"][0][...] *= 2
        after = net.forward(x=values())["out"]
        if step == 0:
            assert not np.allclose(after, before)
            np.testing.assert_allclose(after, others.forward(x=values())["out"], rtol=1e-4, atol=1e-4)


def test_a_profile_has_what_every_forward_pass_does(runtime: Runtime, written: Any) -> None:
    net = runtime.net(written(*USUAL))
    assert folded(net) == ["norm"]
    assert [entry.operation for entry, _ in net.profile(2)] == operations(net)


@pytest.mark.parametrize("precision", TOLERANCE)
def test_folded_weights_outlive_plans_for_other_batches(
    runtime: Runtime, written: Any, precision: str
) -> None:
    net, large = runtime.net(written(*USUAL), precision=precision), values(1, 9)
    first = net.forward(x=large)["out"]
    for batch in (1, 9, 2, 9):
        found = net.forward(x=large[:batch])["out"]
        np.testing.assert_allclose(found, first[:batch], rtol=0, atol=TOLERANCE[precision] * 10)
    assert np.array_equal(net.forward(x=large)["out"], first)


def test_explain_says_which_layers_are_folded(written: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(written(*USUAL)), "--precision", "f32"]) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if FOLD.name in line)
    assert " norm " in line


NETS = {
    "ResNet-50": ("KaimingHe+deep-residual-networks/prototxt/ResNet-50-deploy.prototxt", 53),
    "MobileNet": ("shicai+MobileNet-Caffe/mobilenet_deploy.prototxt", 27),
    "MobileNet v2": ("shicai+MobileNet-Caffe/mobilenet_v2_deploy.prototxt", 53),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "MobileNet v2")) for name in NETS]
)
def test_published_nets_have_no_normalisation_left(name: str, tmp_path: Path) -> None:
    """One whose layers are depthwise, of points, and summed; the slow tests have the others."""
    path, count = DATA / "prototxt" / NETS[name][0], NETS[name][1]
    if not path.is_file():
        pytest.skip(f"no {path}")
    random = np.random.default_rng(0)
    with demitasse.compose() as runtime:
        net = runtime.net(path, retain="all")
        settle(net)
        for arrays in net.params.values():
            if arrays[0].ndim > 1:
                deviation = (2 / arrays[0][0].size) ** 0.5
                arrays[0][...] = random.normal(0, deviation, arrays[0].shape)
        weights = runtime.write(tmp_path / "w.caffemodel", demitasse.Weights(dict(net.params)))
        x = random.normal(size=net.graph.inputs["data"].shape).astype(np.float32)
        (scores,) = net.forward(data=x).values()
        assert scores.std() > 1e-6
        net = agree(runtime, path, "f32", weights, data=x)
    assert len(folded(net)) == count
    assert not apart(net)
    assert "relu" not in operations(net)


@settings(max_examples=examples(40), derandomize=True)
@given(
    absent=st.sets(st.sampled_from(["b", "statistics", "slope", "level"])),
    axis=st.sampled_from([0, 1]),
    factor=st.sampled_from([0.0, 1.5]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_the_cpus_kernel_agrees_with_the_reference(
    absent: set[str], axis: int, factor: float, dtype: str
) -> None:
    random = np.random.default_rng(len(absent))
    shape = (6, 4, 3, 3) if axis == 0 else (5, 7)
    given = {
        name: random.normal(size=shape[axis]) for name in ("b", "mean", "variance", "slope", "level")
    }
    given["variance"] = np.abs(given["variance"]) + 0.5
    given |= {"w": random.normal(size=shape), "factor": np.array([factor])}
    gone = {"mean", "variance", "factor"} if "statistics" in absent else set()
    names = [operand.name for operand in FOLD.inputs]
    inputs = [None if n in absent | gone else given[n].astype(dtype) for n in names]
    attributes = {"axis": axis, "epsilon": 0.01}
    specs = [None if x is None else TensorSpec(x.shape, dtype, PLAIN) for x in inputs]
    results = [np.empty(shape, dtype), np.empty(shape[axis], dtype)]
    made = tuple(TensorSpec(y.shape, dtype, PLAIN) for y in results)
    request = Request(FOLD, tuple(specs), made, attributes, Place("test"), fixed=True)
    (candidate,) = FACTORIES[FOLD.name](request)
    candidate.bind(inputs, results, None)()
    wide = [x if x is None else x.astype(np.float64) for x in inputs]
    for ours, exact in zip(results, KERNELS[FOLD.name](*wide, **attributes), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-5 if dtype == "float32" else 1e-12, atol=1e-6)
