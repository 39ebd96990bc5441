"""The forms in which forks have CTC: sequence indicators, labels by steps, lengths, decoders."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agreement import TOLERANCE, Values, check_agreement, hook, make_request, run
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from slopes import parameter, slope, step
from small_nets import net_below

import demitasse
from demitasse import DataError, ModelError

STEPS, SAMPLES, CLASSES = 5, 3, 4
X = np.random.default_rng(4).normal(size=(STEPS, SAMPLES, CLASSES))
GOES_ON = np.array([[0, 0, 0], [1, 1, 0], [1, 1, 0], [0, 1, 0], [0, 1, 0]], float)
"""The samples have 3, 5 and 1 steps."""


def _decoded(v: Values) -> Any:
    steps, samples, classes = v.number(1, 7), v.number(1, 5), v.number(2, 6)
    taken = v.one_of(None, v.random.integers(0, steps + 1, samples).astype(v.dtype))
    attributes = {"blank": v.one_of(0, classes - 1), "merge": v.one_of(True, False)}
    return [v.real(steps, samples, classes), taken], attributes


def _distances(v: Values) -> Any:
    samples, classes = v.number(1, 5), v.number(2, 4)
    y = v.random.integers(-1, classes, (samples, v.number(1, 7))).astype(v.dtype)
    label = v.random.integers(-1, classes, (samples, v.number(1, 6), 1)).astype(v.dtype)
    return [y, label], {"blank": v.one_of(0, classes - 1)}


def _rows(v: Values) -> Any:
    places, samples = v.number(1, 6), v.number(1, 5)
    label = v.random.integers(-1, 4, (places, samples)).astype(v.dtype)
    lengths = v.one_of(None, v.random.integers(0, places + 1, samples).astype(v.dtype))
    return [label, lengths], {"shift": v.one_of(0, 1)}


def _lengths(v: Values) -> Any:
    steps, samples = v.number(1, 6), v.number(1, 5)
    label = v.one_of(None, v.random.integers(-1, 2, (samples, 2)).astype(v.dtype))
    return [v.random.integers(0, 2, (steps, samples)).astype(v.dtype), label], {}


CASES = {
    "ctc_greedy_decode": _decoded,
    "edit_distances": _distances,
    "labels_of_samples": _rows,
    "sequence_lengths": _lengths,
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=examples(30), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_cpu_agrees_with_reference(name: str, dtype: str, data: st.DataObject) -> None:
    check_agreement(name, *CASES[name](Values(data.draw, dtype)), dtype, TOLERANCE[dtype])


def ways(x: np.ndarray, label: Sequence[int], blank: int) -> float:
    """Minus the log of the chances of all paths of a sample (steps, classes) that say its label."""
    shares = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    chance = sum(
        np.prod([shares[t, c] for t, c in enumerate(path)])
        for path in itertools.product(range(x.shape[1]), repeat=len(x))
        if [c for c, _ in itertools.groupby(path) if c != blank] == list(label)
    )
    return float(-np.log(chance)) if chance else 0.0


@pytest.mark.parametrize("plugin", ["reference", "cpu"])
def test_an_edit_is_a_class_put_in_left_out_or_changed(plugin: str) -> None:
    y = np.array(
        [[1, 2, 3, -1], [1, 3, -1, -1], [2, 2, 2, 1], [-1, 1, 1, 1], [-1, 1, 1, 1], [3, 1, -1, 2]]
    )
    label = np.array([[1, 2, 3], [1, 2, 3], [2, 0, 1], [0, 0, 0], [2, 3, -1], [1, 3, -1]])
    inputs = [y.astype(float), label.astype(float)]
    request = make_request("edit_distances", inputs, {"blank": 0}, "float64")
    (candidate,) = hook(plugin)(request)
    distances, right = run(candidate, request, inputs)[-2:]
    np.testing.assert_allclose(distances, [0, 1 / 3, 2 / 4, 0, 1, 1])
    assert right.tolist() == [1, 0, 0, 1, 0, 0]


@pytest.mark.parametrize("plugin", ["reference", "cpu"])
@pytest.mark.parametrize("wrong", [6, -1, 1.5])
def test_steps_that_cannot_be_are_named(plugin: str, wrong: float) -> None:
    inputs = [X, np.array([3, wrong, 2.0])]
    request = make_request("ctc_greedy_decode", inputs, {"blank": 0}, "float64")
    (candidate,) = hook(plugin)(request)
    with pytest.raises(DataError, match=f"number of steps {wrong:g} of sample 1 of the batch is no"):
        run(candidate, request, inputs)


@pytest.fixture
def runtime() -> Iterator[Any]:
    with demitasse.compose(plugins=["-tuning"]) as made:
        yield made


def trained(runtime: Any, folder: Path, loss: str, **samples: np.ndarray) -> tuple[float, np.ndarray]:
    """The loss of scores X, and their gradient; samples by the names of the blobs that have them. They
    lie in a file: their first axis need not be that of the batch."""
    import h5py

    with h5py.File(folder / "samples.h5", "w") as file:
        for name, value in samples.items():
            file[name] = value
    (folder / "samples.txt").write_text(f"{folder / 'samples.h5'}\n")
    read = ""
    for name, value in samples.items():
        read += (
            f'layer {{ name: "{name}" type: "HDF5Data" top: "{name}" hdf5_data_param {{ '
            f'source: "samples.txt" batch_size: {len(value)} }} }}\n'
        )
    bottoms = " ".join(f'bottom: "{name}"' for name in samples)
    net = f'{read}{parameter("x", X)} layer {{ name: "loss" bottom: "x" {bottoms} top: "loss" {loss} }}'
    (folder / "net.prototxt").write_text(net)
    (folder / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 1 lr_policy: "fixed" max_iter: 9 random_seed: 5'
    )
    trainer = runtime.trainer(folder / "solver.prototxt", precision="f64")
    found, gradients = step(trainer, {"x": X})
    return found, gradients["x"]


BY_STEPS = np.array([[1, 0, 2], [2, 0, -1], [-1, -1, -1], [3, 3, 3], [-1, -1, -1]], float)
"""Labels by places: 1 2; 0 0; 2. What is behind a -1 is nobody's."""


@pytest.mark.parametrize(
    ("loss", "labels", "blank"),
    [
        ('type: "CTCLoss"', [[1, 2], [0, 0], [2]], 3),
        ('type: "CTCLoss" ctc_loss_param { blank_index: 3 }', [[1, 2], [0, 0], [2]], 3),
        ('type: "WarpCTCLoss" ctc_loss_param { blank_index: 3 }', [[1, 2], [0, 0], [2]], 3),
        ('type: "WarpCTCLoss"', [[2, 3], [1, 1], [3]], 0),
        ('type: "WarpCTCLoss" ctc_loss_param { blank_index: -1 }', [[2, 3], [1, 1], [3]], 0),
    ],
)
def test_labels_are_by_steps_beside_sequence_indicators(
    runtime: Any, tmp_path: Path, loss: str, labels: list[list[int]], blank: int
) -> None:
    taken = (3, 5, 1)

    def total(x: np.ndarray) -> float:
        return sum(ways(x[:t, n], labels[n], blank) for n, t in enumerate(taken))

    found, gradient = trained(runtime, tmp_path, loss, cont=GOES_ON, label=BY_STEPS)
    assert found == pytest.approx(total(X) / 3, rel=1e-12)
    np.testing.assert_allclose(gradient, slope(total, X), atol=1e-8)


def test_lengths_are_given_as_they_are(runtime: Any, tmp_path: Path) -> None:
    labels = np.array([[1, 2, 3], [2, 2, 1]], float)
    found, _ = trained(
        runtime,
        tmp_path,
        'type: "WarpCTCLoss"',
        steps=np.array([4.0, 2, 5]),
        lengths=np.array([2.0, 1, 0]),
        label=labels,
    )
    said = [[1, 2], [2], []]
    each = [ways(X[:t, n], said[n], 0) for n, t in enumerate((4, 2, 5))]
    assert found == pytest.approx(np.mean(each), rel=1e-12)


def test_two_bottoms_of_ctc_loss_are_learned_from_by_their_mean(runtime: Any, tmp_path: Path) -> None:
    rows = np.array([[1, 2], [3, 0], [0, 0]], float)

    def mean(x: np.ndarray) -> float:
        return float(np.mean([ways(x[:, n], said, 0) for n, said in enumerate(([1, 2], [3], []))]))

    found, gradient = trained(runtime, tmp_path, 'type: "CTCLoss"', label=rows)
    assert found == pytest.approx(mean(X), rel=1e-12)
    np.testing.assert_allclose(gradient, slope(mean, X), atol=1e-8)


def test_what_fills_a_batch_up_counts_nothing(runtime: Any, tmp_path: Path) -> None:
    """A sequence of one step without a label, as in ChWick's fork."""
    label = BY_STEPS.copy()
    label[:, 2] = -1
    found, gradient = trained(runtime, tmp_path, 'type: "CTCLoss"', cont=GOES_ON, label=label)
    assert found == pytest.approx((ways(X[:3, 0], [1, 2], 3) + ways(X[:, 1], [0, 0], 3)) / 3, rel=1e-12)
    assert not gradient[:, 2].any()


def decoder(runtime: Any, folder: Path, layer: str, **shapes: Sequence[int]) -> Any:
    return net_below(runtime, folder, layer, x=(6, 4, 3), **shapes)


BEST = np.array([[1, 1, 0, 1, 2, 2], [0, 0, 0, 0, 0, 0], [2, 2, 2, 1, 1, 1], [0, 1, 2, 1, 2, 0]])
SCORES = np.ascontiguousarray(np.eye(3)[BEST].transpose(1, 0, 2))
"""What four samples say at six steps."""


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("", [[1, 1, 2], [], [2, 1], [1, 2, 1, 2]]),
        ("ctc_merge_repeated: false", [[1, 1, 1, 2, 2], [], [2, 2, 2, 1, 1, 1], [1, 2, 1, 2]]),
        ("blank_index: -1", [[1, 0, 1], [0], [1], [0, 1, 1, 0]]),
    ],
)
def test_scores_alone_are_read_with_the_blank_0(
    runtime: Any, tmp_path: Path, parameters: str, said: list[list[int]]
) -> None:
    net = decoder(
        runtime,
        tmp_path,
        'layer { name: "d" type: "CTCGreedyDecoder" bottom: "x" top: "d" '
        f"ctc_decoder_param {{ {parameters} }} }}",
    )
    found = net.forward(x=SCORES)["d"]
    assert found.shape == (4, 6, 1, 1)
    np.testing.assert_array_equal(found[..., 0, 0], [row + [-1] * (6 - len(row)) for row in said])


def test_scores_beside_labels_give_how_far_and_how_many_are_right(runtime: Any, tmp_path: Path) -> None:
    net = decoder(
        runtime,
        tmp_path,
        'layer { name: "acc" type: "CTCGreedyDecoder" bottom: "x" bottom: "label" top: "acc" }',
        label=(4, 3, 1, 1),
    )
    labels = np.array([[1, 1, 2], [0, 0, 0], [2, 2, 1], [1, 0, 0]], float).reshape(4, 3, 1, 1)
    found = net.forward(x=SCORES, label=labels)["acc"]
    assert found.shape == (1, 2, 1, 1)
    np.testing.assert_allclose(found.reshape(-1), [1 - (0 + 0 + 1 / 3 + 3 / 4) / 4, 2 / 4], rtol=1e-6)


def test_scores_beside_sequence_indicators_are_read_with_the_last_blank(
    runtime: Any, tmp_path: Path
) -> None:
    net = decoder(
        runtime,
        tmp_path,
        'layer { name: "d" type: "CTCGreedyDecoder" bottom: "x" bottom: "cont" bottom: "label" '
        'top: "said" top: "scores" top: "accuracy" }'
        'layer { name: "e" type: "CTCGreedyDecoder" bottom: "x" bottom: "cont" top: "dec" '
        "ctc_decoder_param { ctc_merge_repeated: true } }"
        'layer { name: "f" type: "CTCGreedyDecoder" bottom: "x" bottom: "cont" bottom: "label" '
        'top: "said2" top: "accuracy2" }',
        cont=(6, 4),
        label=(6, 4),
    )
    cont = np.array([[0] * 4, [1] * 4, [1] * 4, [1, 0, 1, 1], [1, 0, 0, 1], [1, 0, 0, 1]], float)
    label = np.full((6, 4), -1.0)
    label[:3] = [[1, 0, -1, 0], [0, -1, -1, 1], [1, -1, -1, 0]]
    found = net.forward(x=SCORES, cont=cont, label=label)
    said = [[1, 0, 1], [0], [1], [0, 1, 1, 0]]
    rows = [row + [-1] * (6 - len(row)) for row in said]
    for name in ("said", "dec", "said2"):
        np.testing.assert_array_equal(found[name][..., 0, 0], rows)
    np.testing.assert_array_equal(found["scores"].reshape(-1), [-6, -3, -4, -6])
    for name in ("accuracy", "accuracy2"):
        assert found[name].shape == (1, 1, 1, 1)
        assert found[name].item() == pytest.approx(1 - (0 + 0 + 1 + 1 / 4) / 4)


def test_an_indicator_has_the_batch_of_its_bottom(runtime: Any, tmp_path: Path) -> None:
    """As in DeepDetect's fork."""
    net = decoder(
        runtime,
        tmp_path,
        'layer { name: "c" type: "ContinuationIndicator" bottom: "x" top: "c" '
        "continuation_indicator_param { time_step: 6 axis: 1 } }",
    )
    found = net.forward(x=SCORES)["c"]
    np.testing.assert_array_equal(found, np.repeat([[0], [1], [1], [1], [1], [1]], 4, axis=1))


@pytest.mark.parametrize(
    ("layer", "told"),
    [
        (
            'type: "CTCLoss" bottom: "x" bottom: "y" bottom: "y"',
            r"labels y .* should be \(places, samples\), a column for each of the 4 samples",
        ),
        (
            'type: "CTCLoss" bottom: "x" bottom: "z" bottom: "z"',
            "sequence indicators z .* should have the 6 steps",
        ),
        (
            'type: "WarpCTCLoss" bottom: "x" bottom: "y" bottom: "z" bottom: "z"',
            "y .* should have a number for each of the 4 samples",
        ),
        (
            'type: "CTCLoss" bottom: "x" bottom: "z" ctc_loss_param { output_delay: 2 }',
            "output_delay } is supported only as 0",
        ),
        (
            'type: "CTCLoss" bottom: "x" bottom: "z" ctc_loss_param { ctc_merge_repeated: false }',
            "ctc_merge_repeated } is supported only as true",
        ),
        ('type: "CTCGreedyDecoder" bottom: "x" top: "d"', "has 2 tops for 1 bottoms; at most 1"),
    ],
)
def test_what_does_not_fit_says_why(runtime: Any, tmp_path: Path, layer: str, told: str) -> None:
    with pytest.raises(ModelError, match=told):
        decoder(runtime, tmp_path, f'layer {{ name: "l" top: "l" {layer} }}', y=(5, 7), z=(5, 4))


def test_labels_with_more_room_than_steps_are_told(
    runtime: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    decoder(
        runtime,
        tmp_path,
        'layer { name: "loss" type: "CtcLoss" bottom: "x" bottom: "y" top: "l" }',
        y=(4, 7),
    )
    assert "'loss': labels have room for 7 classes and scores for 6 steps" in caplog.text
