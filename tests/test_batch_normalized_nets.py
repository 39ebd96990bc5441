"""Nets with BatchNorm and Scale from prototxt to caffemodel: what training keeps, and what tests use."""

from pathlib import Path

import numpy as np
import pytest

import demitasse

LAYERS = """
layer {
  name: "norm" type: "BatchNorm" bottom: "data" top: "norm"
  param { lr_mult: 0 } param { lr_mult: 0 } param { lr_mult: 0 }
  batch_norm_param { moving_average_fraction: 0.75 eps: 0.01 }
}
layer {
  name: "scale" type: "Scale" bottom: "norm" top: "norm"
  scale_param { bias_term: true filler { value: 1.5 } }
}
layer { name: "relu" type: "ReLU" bottom: "norm" top: "norm" }
layer {
  name: "out" type: "InnerProduct" bottom: "norm" top: "out"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.1 } }
}
"""
TRAINED = f"""
name: "normalised"
layer {{ name: "data" type: "Data" top: "data" top: "label" data_param {{ source: "x" batch_size: 4 }} }}
{LAYERS}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "out" bottom: "label" top: "loss" }}
"""
DEPLOYED = f"""
name: "normalised"
layer {{
  name: "data" type: "Input" top: "data" input_param {{ shape {{ dim: 4 dim: 5 dim: 6 dim: 7 }} }}
}}
{LAYERS}
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 9 random_seed: 3 momentum: 0.9
weight_decay: 0.1 test_iter: 3 test_interval: 100 snapshot_after_train: false
"""
AXES = (0, 2, 3)


def samples() -> dict[str, np.ndarray]:
    random = np.random.default_rng(11)
    return {
        "data": random.normal(2, 3, size=(12, 5, 6, 7)).astype(np.float32),
        "label": random.integers(0, 3, 12),
    }


@pytest.fixture(params=["reference", "cpu"])
def runtime(request: pytest.FixtureRequest):
    plugins = ["caffe", "datasets", "training", "snapshots", request.param, "reference"]
    with demitasse.compose(plugins=list(dict.fromkeys(plugins))) as runtime:
        yield runtime


@pytest.fixture
def trained(runtime: demitasse.Runtime, tmp_path: Path):
    """A trainer after three batches of four samples, all different."""
    (tmp_path / "net.prototxt").write_text(TRAINED)
    (tmp_path / "deploy.prototxt").write_text(DEPLOYED)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    data = {"train": samples(), "test": samples()}
    with runtime.trainer(tmp_path / "solver.prototxt", data=data) as trainer:
        trainer.step(3)
        yield trainer


def batches() -> list[np.ndarray]:
    return np.split(samples()["data"].astype(np.float64), 3)


def expected_sums() -> list[np.ndarray]:
    mean, variance, factor = np.zeros(5), np.zeros(5), np.zeros(1)
    for batch in batches():
        mean = 0.75 * mean + batch.mean(axis=AXES)
        variance = 0.75 * variance + batch.var(axis=AXES, ddof=1)
        factor = 0.75 * factor + 1
    return [mean, variance, factor]


def normalised(x: np.ndarray, parameters: dict[str, list[np.ndarray]]) -> np.ndarray:
    """What the layers up to the ReLU make of x by the kept statistics."""
    mean, variance, factor = parameters["norm"]
    w, b = parameters["scale"]
    mean, deviation = mean / factor, np.sqrt(variance / factor + 0.01)
    shaped = [v[:, None, None].astype(np.float64) for v in (mean, deviation, w, b)]
    return np.maximum((x - shaped[0]) / shaped[1] * shaped[2] + shaped[3], 0)


def test_training_keeps_sums_of_its_batches_statistics(trained) -> None:
    for kept, expected in zip(trained.net.params["norm"], expected_sums(), strict=True):
        np.testing.assert_allclose(kept, expected, rtol=1e-5)
    scale, bias = trained.net.params["scale"]
    assert (scale != 1.5).all()
    assert bias.all()


def test_a_test_is_by_what_training_keeps(trained) -> None:
    data, parameters = samples(), trained.net.params
    w, b = (v.astype(np.float64) for v in parameters["out"])
    scores = normalised(data["data"], parameters).reshape(12, -1) @ w.T + b
    likely = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    expected = -np.log(likely[np.arange(12), data["label"]]).mean()
    before = [v.copy() for v in parameters["norm"]]
    assert trained.test()["loss"] == pytest.approx(expected, rel=1e-4)
    for kept, same in zip(trained.net.params["norm"], before, strict=True):
        assert np.array_equal(kept, same)


def test_statistics_come_back_from_a_caffemodel(
    runtime: demitasse.Runtime, trained, tmp_path: Path
) -> None:
    written = runtime.write(
        tmp_path / "net.caffemodel", runtime.read(trained.snapshot(tmp_path / "net")).weights()
    )
    blobs = runtime.read(written).weights().parameters
    assert [v.shape for v in blobs["norm"]] == [(5,), (5,), (1,)]
    net = runtime.net(tmp_path / "deploy.prototxt", weights=written, retain="all")
    for layer, arrays in trained.net.params.items():
        for ours, theirs in zip(net.params[layer], arrays, strict=True):
            assert np.array_equal(ours, theirs), layer
    x = batches()[1]
    net.forward(data=x)
    found = np.array(net.blobs["norm"])
    np.testing.assert_allclose(found, normalised(x, net.params), rtol=1e-4, atol=1e-5)


def test_training_goes_on_from_a_snapshot_to_the_same_bits(
    runtime: demitasse.Runtime, trained, tmp_path: Path
) -> None:
    path = trained.snapshot(tmp_path / "three")
    trained.step(2)
    data = {"train": samples(), "test": samples()}
    with runtime.trainer(tmp_path / "solver.prototxt", data=data, resume=path) as other:
        other.step(2)
        for layer, arrays in trained.net.params.items():
            for ours, theirs in zip(other.net.params[layer], arrays, strict=True):
                assert np.array_equal(ours, theirs), layer


BRANCHED = """
name: "branched"
layer { name: "data" type: "Data" top: "data" top: "label" data_param { source: "x" batch_size: 4 } }
layer { name: "first" type: "BatchNorm" bottom: "data" top: "data_norm" }
layer {
  name: "conv" type: "Convolution" bottom: "data_norm" top: "conv"
  convolution_param { num_output: 6 kernel_size: 3 pad: 1 weight_filler { type: "gaussian" std: 0.3 } }
}
layer { name: "norm" type: "BatchNorm" bottom: "conv" top: "norm" batch_norm_param { STATISTICS } }
layer {
  name: "scale" type: "Scale" bottom: "norm" top: "scale" LOSS_WEIGHT
  scale_param { bias_term: true filler { type: "gaussian" std: 1 } bias_filler { value: 0.2 } }
}
layer { name: "relu" bottom: "scale" top: "relu" ACTIVATION }
layer {
  name: "next" type: "Convolution" bottom: "relu" top: "next"
  convolution_param { num_output: 6 kernel_size: 1 weight_filler { type: "gaussian" std: 0.3 } }
}
layer { name: "next_norm" type: "BatchNorm" bottom: "next" top: "next" batch_norm_param { STATISTICS } }
layer {
  name: "next_scale" type: "Scale" bottom: "next" top: "next"
  scale_param { AXES filler { value: 1.1 } }
}
layer { name: "sum" type: "Eltwise" bottom: "next" bottom: "OTHER" top: "sum" }
layer {
  name: "out" type: "InnerProduct" bottom: "sum" top: "out"
  inner_product_param { num_output: 3 weight_filler { type: "gaussian" std: 0.1 } }
}
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "out" bottom: "label" top: "loss" }
"""
RELU = 'type: "ReLU"'
USUAL = {"STATISTICS": "", "LOSS_WEIGHT": "", "ACTIVATION": RELU, "AXES": "", "OTHER": "relu"}
KEPT = "use_global_stats: true eps: 0.5"
CLIP = 'type: "Clip" clip_param { min: -0.4 max: 0.7 }'
EVERY = {"first": "", "norm": "w b relu", "next_norm": "w"}
"""By layer, the operands and attributes that a normalisation has from the layers after it."""

CHANGES = {
    "as it is": ({}, EVERY),
    "by kept statistics": ({"STATISTICS": KEPT}, EVERY),
    "a ReLU leaks": (
        {"ACTIVATION": f"{RELU} relu_param {{ negative_slope: 0.1 }}"},
        EVERY | {"norm": "w b"},
    ),
    "a clip": ({"ACTIVATION": CLIP}, EVERY | {"norm": "w b clip"}),
    "a clip by kept statistics": (
        {"ACTIVATION": CLIP, "STATISTICS": KEPT},
        EVERY | {"norm": "w b clip"},
    ),
    "ReLU6": ({"ACTIVATION": 'type: "ReLU6"'}, EVERY | {"norm": "w b clip"}),
    "a clip has not all of a scale": (
        {"ACTIVATION": CLIP, "OTHER": "scale"},
        EVERY | {"norm": "w b"},
    ),
    "a scale adds to the objective": ({"LOSS_WEIGHT": "loss_weight: 0.01"}, EVERY | {"norm": "w b"}),
    "a normalised blob has two readers": ({"OTHER": "norm"}, EVERY | {"norm": ""}),
    "a scaled blob has two readers": ({"OTHER": "scale"}, EVERY | {"norm": "w b"}),
    "a scale is of planes": ({"AXES": "num_axes: 3"}, EVERY | {"next_norm": ""}),
}


def train_branched(
    runtime: demitasse.Runtime, tmp_path: Path, change: dict[str, str], retain: str | None = None
):
    text = BRANCHED
    for word, value in (USUAL | change).items():
        text = text.replace(word, value)
    (tmp_path / "net.prototxt").write_text(text)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    data = {"train": samples(), "test": samples()}
    return runtime.trainer(tmp_path / "solver.prototxt", data=data, precision="f64", retain=retain)


def joined(nodes) -> dict[str, str]:
    """By layer, what each normalisation does besides."""
    found = {}
    for node in nodes:
        kind = node.operation.name.removesuffix("_clip")
        if kind in ("batch_norm", "batch_norm_inference"):
            learned = [name for name, t in zip("wb", node.inputs[4:], strict=True) if t is not None]
            behind = [*["relu"][: node.attributes["relu"]], *["clip"][: kind != node.operation.name]]
            found[node.layer] = " ".join([*learned, *behind])
    return found


@pytest.mark.parametrize("change", CHANGES)
def test_what_follows_a_normalisation_is_part_of_it_where_nobody_else_reads_between(
    runtime: demitasse.Runtime, tmp_path: Path, change: str
) -> None:
    changed, expected = CHANGES[change]
    with train_branched(runtime, tmp_path, changed) as trainer:
        assert joined(trainer.net.graph.nodes) == expected
    with train_branched(runtime, tmp_path, changed, "all") as trainer:
        assert joined(trainer.net.graph.nodes) == dict.fromkeys(expected, "")
        assert {"norm", "scale", "relu", "next"} <= set(trainer.net.plan.buffers)


@pytest.mark.parametrize("change", CHANGES)
def test_layers_in_one_operation_train_as_they_do_apart(
    runtime: demitasse.Runtime, tmp_path: Path, change: str
) -> None:
    with (
        train_branched(runtime, tmp_path, CHANGES[change][0]) as together,
        train_branched(runtime, tmp_path, CHANGES[change][0], "all") as apart,
    ):
        for _ in range(4):
            assert together.step().loss == pytest.approx(apart.step().loss, rel=1e-10)
        for layer, arrays in apart.net.params.items():
            for ours, theirs in zip(together.net.params[layer], arrays, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10, err_msg=layer)


@pytest.mark.parametrize("activation", [RELU, CLIP, 'type: "ReLU6"'])
def test_a_deployed_net_in_one_operation_gives_what_it_gives_apart(
    runtime: demitasse.Runtime, tmp_path: Path, trained, activation: str
) -> None:
    weights = trained.snapshot(tmp_path / "net")
    x = batches()[2]
    found = []
    (tmp_path / "other.prototxt").write_text(DEPLOYED.replace(RELU, activation))
    for retain in (None, "all"):
        net = runtime.net(tmp_path / "other.prototxt", weights=weights, retain=retain, precision="f64")
        found.append(np.array(net.forward(data=x)["out"]))
        layers = [entry.layer for entry in net.plan.entries]
        assert layers == (["norm", "out"] if retain is None else ["norm", "scale", "relu", "out"])
    np.testing.assert_allclose(*found, rtol=1e-10, atol=1e-12)


def test_a_blob_within_an_operation_cannot_be_looked_at(
    runtime: demitasse.Runtime, tmp_path: Path
) -> None:
    with train_branched(runtime, tmp_path, {}) as trainer:
        trainer.step()
        with pytest.raises(demitasse.ModelError, match=r"blob 'norm'.*retain='all'"):
            _ = trainer.net.blobs["norm"].data


def test_a_blob_of_one_axis_is_of_one_channel(runtime: demitasse.Runtime, tmp_path: Path) -> None:
    net = tmp_path / "rows.prototxt"
    net.write_text(
        """
        layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 9 } } }
        layer { name: "norm" type: "BatchNorm" bottom: "data" top: "norm"
          batch_norm_param { eps: 0.01 } }
        """
    )
    rows = np.random.default_rng(5).normal(2, 3, 9).astype(np.float32)
    trained = runtime.net(net, phase="train", retain="all", backward="every blob")
    found = trained.forward(data=rows)["norm"]
    mean, variance = rows.mean(dtype=float), rows.var(dtype=float)
    assert np.allclose(found, (rows - mean) / np.sqrt(variance + 0.01), atol=1e-5)
    kept = [array.ravel().tolist() for array in trained.params["norm"]]
    assert kept == [[pytest.approx(mean)], [pytest.approx(variance * 9 / 8)], [1]]
    tested = runtime.net(net, phase="test")
    for mine, theirs in zip(tested.params["norm"], trained.params["norm"], strict=True):
        mine[...] = theirs
    found = tested.forward(data=rows)["norm"]
    assert np.allclose(found, (rows - mean) / np.sqrt(variance * 9 / 8 + 0.01), atol=1e-5)


@pytest.mark.parametrize(
    ("layers", "told"),
    [
        (LAYERS, ["layer 'norm': each of the 2 workers has statistics of its own samples"]),
        (
            LAYERS + 'layer { name: "other" type: "BatchNorm" bottom: "out" top: "out" }',
            ["layer 'norm' (and 1 more): each of the 2 workers has statistics of its own samples"],
        ),
        (LAYERS.replace("eps: 0.01", "use_global_stats: true"), []),
    ],
)
def test_statistics_of_several_workers_are_told(
    layers: str, told: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Servers that do not wait for each other have workers at iterations of their own."""
    machine = (Path(__file__).parents[1] / "hwdesc" / "two-workers.toml").read_text()
    free = machine.replace('{ plugin = "reference" }', '{ plugin = "parameter_server", model = "asp" }')
    (tmp_path / "free.toml").write_text(free)
    (tmp_path / "net.prototxt").write_text(TRAINED.replace(LAYERS, layers))
    (tmp_path / "solver.prototxt").write_text(SOLVER.replace("test_iter: 3 test_interval: 100", ""))
    plugins = ["caffe", "datasets", "training", "snapshots", "parameter_server", "reference"]
    for hw, given, expected in [
        (tmp_path / "free.toml", "global", told),
        (tmp_path / "free.toml", "local", []),
        ("two-workers", "global", []),
    ]:
        caplog.clear()
        with demitasse.compose(hw, plugins) as runtime:
            solver = tmp_path / "solver.prototxt"
            runtime.trainer(solver, data={"train": samples()}, statistics=given).close()
        found = [each.getMessage() for each in caplog.records if each.name == "demitasse.training"]
        assert [text.partition(", as with Caffe")[0] for text in found] == expected


@pytest.mark.parametrize("plugins", [[], ["cpu"]], ids=["reference", "cpu"])
def test_two_workers_normalise_by_all_samples(tmp_path: Path, plugins: list[str]) -> None:
    (tmp_path / "net.prototxt").write_text(TRAINED)
    (tmp_path / "solver.prototxt").write_text(SOLVER.replace("test_iter: 3 test_interval: 100", ""))
    found = {}
    for hw in ("auto", "two-workers"):
        names = ["caffe", "datasets", "training", "snapshots", *plugins, "reference"]
        with demitasse.compose(hw, names) as runtime:
            data = {"train": samples()}
            with runtime.trainer(tmp_path / "solver.prototxt", data=data, precision="f64") as trainer:
                trainer.step(4)
                found[hw] = {k: [a.copy() for a in v] for k, v in trainer.net.params.items()}
    for layer, arrays in found["auto"].items():
        for one, two in zip(arrays, found["two-workers"][layer], strict=True):
            np.testing.assert_allclose(two, one, rtol=1e-9, atol=1e-12, err_msg=layer)
