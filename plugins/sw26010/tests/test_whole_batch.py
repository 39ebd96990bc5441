"""Statistics of a batch that core groups share: the kernels compared with their formulas in float64, and
nets that train as one worker with all samples does."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mesh_problems import close, drawn, numbers

from demitasse import Level, Machine, MemorySpace, compose, load_machine
from demitasse_sw26010.kernels import candidates
from demitasse_sw26010.kernels.program import PLACES
from demitasse_sw26010.model.figures import LDM_BYTES
from demitasse_sw26010.model.mesh import COUNTERS
from demitasse_sw26010.model.registers import COLUMN, mesh_sums, sums_begin

ROOT = Path(__file__).parents[3]
Run = Callable[..., list[Any]]

fixed = drawn(15)
planes = st.lists(st.integers(1, 9), max_size=3)


def axes(x: Any) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def along(values: Any, x: Any) -> Any:
    """One value for each channel of x."""
    return np.reshape(values, (-1, *[1] * (x.ndim - 2)))


def moments_of(x: Any) -> Any:
    """The moments, in extended precision."""
    wide = x.astype(np.longdouble)
    total, squares = wide.sum(axes(x)), (wide * wide).sum(axes(x))
    return np.concatenate([total, squares, [x.size // x.shape[1]]])


@fixed
@given(st.integers(1, 9), st.integers(1, 70), planes, st.sampled_from([0.0, 300.0]))
def test_moments_are_sums_in_double_precision(
    run: Run, samples: int, channels: int, plane: list[int], mean: float
) -> None:
    x = numbers(samples, channels, *plane) + np.float32(mean)
    (moments,) = run("channel_moments", (x,))
    assert moments.dtype == np.float64
    magnitude = moments_of(np.abs(x)).astype(float)
    assert (np.abs(moments - moments_of(x).astype(float)) <= 1e-14 * magnitude).all()


@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 1, 700, 500), (131, 1, 3), (2, 2049), (3, 5000, 3), (40, 65, 13, 13)]
)
def test_moments_of_few_and_of_many_channels(run: Run, ask: Any, shape: tuple[int, ...]) -> None:
    """More than 2,048 channels are several passes, because LDM does not hold all sums."""
    x = numbers(*shape)
    (moments,) = run("channel_moments", (x,))
    close(moments, moments_of(x).astype(float), 1e-14)
    (candidate,) = candidates(ask("channel_moments", (x,), {}))
    assert sum(size for _, size in candidate.bind.explain().ldm) <= LDM_BYTES  # type: ignore[attr-defined]


def test_register_messages_add_up_many_numbers() -> None:
    random = np.random.default_rng(0)
    parts = random.integers(-99, 99, (64, 768)).astype(float)
    right = parts.sum(0)
    mesh_sums(np.zeros(COUNTERS), True, parts)
    found = np.full(768, np.nan)
    for cpe in range(64):
        begin = sums_begin(cpe, COLUMN, 768)
        found[begin : begin + 12] = parts[cpe, begin : begin + 12]
    assert (found == right).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 1, 1), (3, 70, 5), (5, 2, 3, 7)])
@pytest.mark.parametrize("averaged", [False, True])
@pytest.mark.parametrize("mean", [0.0, 300.0])
def test_moments_are_settled(run: Run, shape: tuple[int, ...], averaged: bool, mean: float) -> None:
    """Also of one number for each channel, which has no unbiased variance, and of a mean far from
    zero."""
    x, channels = numbers(*shape) + np.float32(mean), shape[1]
    kept = [np.abs(numbers(channels, seed=4)), np.abs(numbers(channels, seed=5)), np.ones(1, np.float32)]
    before = [one.astype(float) for one in kept]
    about = {"keep": 0.9, "averaged": averaged, "epsilon": 1e-3}
    moments = moments_of(x).astype(float)
    average, spread, inverse = run("settle_moments", (moments, *kept), about)
    X, count = x.astype(float), x.size // channels
    middle, variance = X.mean(axes(x)), X.var(axes(x))
    # Moments in double precision give the variance to within their rounding.
    lost = 1e-15 * max(1.0, mean * mean) * 10
    np.testing.assert_allclose(average, middle, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(spread, variance, rtol=1e-6, atol=lost)
    np.testing.assert_allclose(inverse, (variance + 1e-3) ** -0.5, rtol=2e-7 + lost / 1e-3)
    # A normalisation by the average and variance as they are stored multiplies by the same number.
    assert (inverse == ((spread.astype(float) + 1e-3) ** -0.5).astype(np.float32)).all()
    entering = 0.1 * middle, 0.1 * variance, 0.1
    if not averaged:
        entering = middle, variance * count / max(1, count - 1), 1.0
    for one, first, more in zip(kept, before, entering, strict=True):
        np.testing.assert_allclose(one, 0.9 * first + more, rtol=1e-6, atol=lost * count)


def test_a_variance_that_rounding_makes_negative_is_zero_and_nan_stays(run: Run) -> None:
    kept = [np.zeros(size, np.float32) for size in (2, 2, 1)]
    moments = np.array([3.0, np.nan, np.nextafter(3.0, 0.0), np.nan, 3.0])
    _, spread, inverse = run("settle_moments", (moments, *kept), {"epsilon": 1e-12})
    assert (spread[0], inverse[0], kept[1][0]) == (0.0, np.float32(1e6), 0.0)
    assert np.isnan([spread[1], inverse[1], kept[0][1], kept[1][1]]).all()


def shares(x: Any, count: int) -> list[Any]:
    return np.array_split(x, count)


@pytest.mark.parametrize(("workers", "channels", "plane"), [(1, 1, []), (2, 66, [3]), (4, 5, [7, 3])])
@pytest.mark.parametrize(("scaled", "shifted"), [(False, False), (True, True), (False, True)])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("mean", [0.0, 30.0])
def test_core_groups_normalise_as_one(
    run: Run,
    workers: int,
    channels: int,
    plane: list[int],
    scaled: bool,
    shifted: bool,
    relu: bool,
    mean: float,
) -> None:
    """Forward and backward of a batch in uneven shares, by what replaces ``batch_norm``."""
    samples = 2 * workers + 1
    x = numbers(samples, channels, *plane) + np.float32(mean)
    w = numbers(channels, seed=2) if scaled else None
    b = numbers(channels, seed=3) if shifted else None
    kept = [np.zeros(size, np.float32) for size in (channels, channels, 1)]
    one = np.ones(1, np.float32)
    moments = sum(run("channel_moments", (part,))[0] for part in shares(x, workers))
    average, spread, inverse = run("settle_moments", (moments, *kept), {"epsilon": 1e-3})
    about = {"epsilon": 1e-3, "relu": relu}
    y = [
        run("batch_norm_inference", (part, average, spread, one, w, b), about)[0]
        for part in shares(x, workers)
    ]
    X, count = x.astype(float), x.size // channels
    middle, deviation = X.mean(axes(x)), (X.var(axes(x)) + 1e-3) ** -0.5
    normal = (X - along(middle, x)) * along(deviation, x)
    made = normal * along(1.0 if w is None else w, x) + along(0.0 if b is None else b, x)
    close(np.concatenate(y), np.maximum(made, 0) if relu else made, 3e-5)
    # Numbers close to zero may be on either side of the ReLU.
    dy = np.where(np.abs(made) < 1e-4, np.float32(0), numbers(*x.shape, seed=1))
    dz = np.where(made > 0, dy, 0.0) if relu else dy.astype(float)
    dw, db = (dz * normal).sum(axes(x)), dz.sum(axes(x))
    operands = w, b, average, inverse
    sums, found = [0.0, 0.0], []
    for own in zip(shares(dy, workers), shares(x, workers), strict=True):
        none, *mine = run("batch_norm_backward", (*own, *operands), {"relu": relu}, absent=(0,))
        assert none is None
        sums = [a + np.float64(b) for a, b in zip(sums, mine, strict=True)]
    close(sums[0], dw, 1e-4)
    close(sums[1], db, 1e-5)
    both = np.concatenate(sums)
    for own in zip(shares(dy, workers), shares(x, workers), strict=True):
        operands_now = (*own, *operands, both, moments)
        found += run("batch_norm_whole_backward", operands_now, {"relu": relu})
    slope = along(deviation * (1.0 if w is None else w), x)
    right = slope * (dz - along(db, x) / count - normal * along(dw, x) / count)
    # The terms are rounded as they are stored, and may cancel.
    rounding = 1e-5 * np.abs(slope).max() * np.abs(dz).max()
    np.testing.assert_allclose(np.concatenate(found), right, rtol=0, atol=rounding)


def test_gradients_come_from_given_sums_and_numbers(run: Run) -> None:
    """Other workers' samples count: neither the sums nor the number of samples are this worker's own."""
    x, dy = numbers(2, 3, 4) + 5, numbers(2, 3, 4, seed=1)
    average, inverse, w = numbers(3, seed=2), np.abs(numbers(3, seed=3)) + 1, numbers(3, seed=4)
    sums, moments = np.arange(1.0, 7.0), np.array([0, 0, 0, 0, 0, 0, 50.0])
    (dx,) = run("batch_norm_whole_backward", (dy, x, w, None, average, inverse, sums, moments))
    normal = (x - average[:, None].astype(float)) * inverse[:, None]
    tilt, level = (each[:, None] / 50 for each in (sums[:3], sums[3:]))
    close(dx, w[:, None] * inverse[:, None].astype(float) * (dy - level - normal * tilt), 1e-6)


def test_a_clipped_result_has_no_gradient_here(ask: Any) -> None:
    x, line, sums = numbers(2, 3, 4), numbers(3), np.zeros(6)
    operands = (x, x, None, None, line, line, sums, np.zeros(7))
    for limit, offered in (("most", 0), ("least", 0), ("", 1)):
        about = {limit: 6.0} if limit else {"least": -math.inf, "most": math.inf}
        assert len(list(candidates(ask("batch_norm_whole_backward", operands, about)))) == offered


@pytest.mark.parametrize("kind", ["float32", "int32", "uint8", "int64"])
@pytest.mark.parametrize("shape", [(1,), (63,), (7, 1, 5, 200)])
def test_labels_are_counted(run: Run, kind: str, shape: tuple[int, ...]) -> None:
    label = np.random.default_rng(0).integers(0, 4, shape).astype(kind)
    for ignored in (2, -1, 255):
        (labels,) = run("count_labels", (label,), {"ignore_label": ignored})
        assert labels.dtype == np.float64
        assert labels.tolist() == [np.count_nonzero(label != ignored)]


def test_labels_are_counted_without_their_fractions(run: Run) -> None:
    label = np.array([2.0, 2.75, 1.99, -0.5, 3.0], np.float32)
    for ignored, right in ((2, 3), (1, 4), (0, 4)):
        assert run("count_labels", (label,), {"ignore_label": ignored})[0] == right


@pytest.mark.parametrize("shape", [(), (1,), (3, 70)])
@pytest.mark.parametrize("labels", [0.0, 1.0, 37.0])
def test_a_sum_is_divided_by_labels(run: Run, shape: tuple[int, ...], labels: float) -> None:
    x = numbers(*shape)
    (y,) = run("over_divisor", (x, np.array([labels])), {"share": 0.25})
    close(y, x.astype(float) / (0.25 * max(1.0, labels)), 1e-7)


@pytest.mark.parametrize(
    ("name", "inputs", "about"),
    [
        ("channel_moments", ((5, 3, 40, 9),), {}),
        ("channel_moments", ((2, 5000, 3),), {}),
        ("settle_moments", ((601,), (300,), (300,), (1,)), {}),
        (
            "batch_norm_whole_backward",
            ((9, 5, 6), (9, 5, 6), (5,), None, (5,), (5,), (10,), (11,)),
            {},
        ),
        ("count_labels", ((3000,),), {"ignore_label": 1}),
        ("over_divisor", ((), (1,)), {}),
    ],
)
def test_counting_without_data_is_what_computing_counts(
    ask: Any, bind: Any, name: str, inputs: Any, about: dict[str, Any]
) -> None:
    wide = {"settle_moments": (0,), "batch_norm_whole_backward": (6, 7), "over_divisor": (1,)}
    arrays = [
        None if s is None else np.ones(s, "float64" if i in wide.get(name, ()) else "float32")
        for i, s in enumerate(inputs)
    ]
    asked = ask(name, arrays, about)
    (candidate,) = candidates(asked)
    _, ins, outs = bind(asked, candidate, arrays)
    (part,) = candidate.bind.parts  # type: ignore[attr-defined]
    program, sides, counted = part.program, {"in": ins, "out": outs}, np.zeros(COUNTERS)
    operands = [sides[side][position] for side, position in part.places]
    flat = [np.empty(0, np.float32) if each is None else each.reshape(-1) for each in operands]
    program.compiled()(counted, True, *PLACES.arrays(program.ldm), *flat, *program.arguments())
    assert tuple(counted) == pytest.approx(tuple(vars(program.cost).values()))
    assert candidate.seconds == program.cost.seconds > 0


NET = """
name: "normalised"
layer {
  name: "data" type: "Data" top: "data" top: "label"
  data_param { source: "x" batch_size: 22 }
}
layer {
  name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param {
    num_output: 5 kernel_size: 3 bias_term: false weight_filler { type: "xavier" }
  }
}
layer {
  name: "norm" type: "BatchNorm" bottom: "conv" top: "norm"
  batch_norm_param { moving_average_fraction: 0.9 eps: 0.001 }
}
layer { name: "scale" type: "Scale" bottom: "norm" top: "norm" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "norm" top: "norm" }
layer {
  name: "hidden" type: "InnerProduct" bottom: "norm" top: "hidden"
  inner_product_param { num_output: 9 bias_term: false weight_filler { type: "xavier" } }
}
layer { name: "plain" type: "BatchNorm" bottom: "hidden" top: "plain" }
layer {
  name: "out" type: "InnerProduct" bottom: "plain" top: "out"
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } }
}
layer {
  name: "loss" type: "SoftmaxWithLoss" bottom: "out" bottom: "label" top: "loss"
  loss_param { ignore_label: 2 }
}
"""
SOLVER = """
net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 9 random_seed: 3 momentum: 0.9
weight_decay: 0.001 snapshot_after_train: false
"""


@pytest.fixture
def solver(tmp_path: Path) -> Path:
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    return tmp_path / "solver.prototxt"


def samples() -> dict[str, Any]:
    random = np.random.default_rng(11)
    data = random.normal(2, 3, (110, 3, 7, 6)).astype(np.float32)
    # Whether a label is ignored depends on where its sample is: workers do not have equally many.
    return {"data": data, "label": np.where(np.arange(110) % 22 < 5, 2, random.integers(0, 4, 110))}


def trained(machine: Machine | Path, solver: Path, **how: Any) -> tuple[list[float], dict[str, Any]]:
    with (
        compose(machine) as runtime,
        runtime.trainer(solver, data={"train": samples()}, **how) as trainer,
    ):
        losses = [trainer.step().loss for _ in range(4)]
        params = trainer.net.params.items()
        found = {f"{name} {i}": np.array(a) for name, each in params for i, a in enumerate(each)}
        return losses, found


def test_four_core_groups_train_as_one_worker_with_all_samples(
    solver: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reference computes in float64, with ``batch_norm`` as one operation."""
    plugins = ("caffe", "training", "datasets", "reference", "snapshots")
    alone = Machine("alone", (Level("node", memory=(MemorySpace("host"),)),), plugins, fingerprint="any")
    node = ROOT / "hwdesc/sw26010-node.toml"
    right_losses, right = trained(alone, solver)
    losses, found = trained(node, solver)
    assert "statistics" not in caplog.text
    assert losses == pytest.approx(right_losses, rel=1e-5)
    assert found.keys() == right.keys()
    for name, array in right.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-5 * np.abs(array).max())
    apart, _ = trained(node, solver, statistics="local")
    assert apart != pytest.approx(right_losses, rel=1e-3)


@pytest.mark.parametrize("name", ["sw26010-node", "taihulight"])
def test_a_described_machine_has_statistics_over_all_core_groups(
    name: str, solver: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = load_machine(ROOT / f"hwdesc/{name}.toml")
    with compose(machine) as runtime:
        done = runtime.simulate(solver, samples={"data": (3, 7, 6), "label": ()})
    assert "statistics" not in caplog.text
    assert done.seconds > 0
