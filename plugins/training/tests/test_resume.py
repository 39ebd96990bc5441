"""An interrupted run continues as if it had not been interrupted."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import ModelError, NumericsError, ShapeError, SnapshotError

Train = Callable[..., Any]


@pytest.mark.parametrize(
    ("counts", "precision"), [((), "f32"), ((), "f64"), ((2,), "f64"), ((2, 3), "f32")], ids=str
)
def test_a_resumed_run_computes_the_same_bits(
    train: Train, copied: Any, differ: Any, tmp_path: Path, counts: tuple[int, ...], precision: str
) -> None:
    """Momentum, dropout, samples and two passes per iteration continue where they were."""
    options: dict[str, Any] = {"precision": precision, "solver": {"passes": 2}}
    whole = train(None, *counts, **options)
    expected = [whole.step(1).loss for _ in range(6)][3:]

    first = train(None, *counts, **options)
    first.step(3)
    path = first.snapshot(tmp_path / "toy")
    assert path == tmp_path / "toy_iter_3.demitasse"
    first.step(1)  # what comes after a snapshot does not matter

    second = train(None, *counts, resume=path, **options)
    assert second.iteration == 3
    assert [second.step(1).loss for _ in range(3)] == expected
    assert second.iteration == 6
    assert differ(copied(second.net), copied(whole.net)) == 0.0


@pytest.mark.parametrize("counts", [(), (2,)], ids=str)
def test_a_run_goes_on_from_memory_to_the_same_bits(
    train: Train, copied: Any, differ: Any, counts: tuple[int, ...]
) -> None:
    options: dict[str, Any] = {"solver": {"passes": 2}}
    whole = train(None, *counts, **options)
    whole.step(3)
    kept = whole.weights()
    best = copied(whole.net)
    expected = [whole.step(1).loss for _ in range(3)]
    sent = pickle.loads(pickle.dumps(kept))  # noqa: S301  made here
    for each in (kept, kept, sent):  # a run that continues from it leaves it unchanged
        again = train(None, *counts, resume=each, **options)
        assert again.iteration == 3
        assert differ(copied(again.net), best) == 0.0
        assert [again.step(1).loss for _ in range(3)] == expected
        assert differ(copied(again.net), copied(whole.net)) == 0.0


def test_what_no_run_goes_on_from_is_told(train: Train, tmp_path: Path) -> None:
    trainer = train()
    trainer.step(1)
    kept = trainer.weights()
    with pytest.raises(SnapshotError, match="the weights given has weights but no iteration"):
        train(resume=replace(kept, iteration=None))
    with pytest.raises(
        ModelError, match=r"resume must be a snapshot's path, or .*Weights.*; given bytes"
    ):
        train(resume=b"toy_iter_1.demitasse")
    with pytest.raises(SnapshotError, match=r"trainer\.weights\(\) gives one in memory; given BytesIO"):
        trainer.snapshot(io.BytesIO())
    trainer.net.params["scores"][1][0] = np.nan
    with pytest.raises(NumericsError, match="of layer 'scores' is no longer finite"):
        trainer.weights()


def test_taking_a_snapshot_changes_nothing(
    train: Train, copied: Any, differ: Any, tmp_path: Path
) -> None:
    ours, theirs = train(), train()
    for _ in range(3):
        ours.step(1)
        ours.snapshot(tmp_path / "toy")
    theirs.step(3)
    assert differ(copied(ours.net), copied(theirs.net)) == 0.0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"toy_iter_{i}.demitasse" for i in (1, 2, 3)
    ]


def test_another_number_of_workers_goes_on_with_the_same_mathematics(
    train: Train, copied: Any, differ: Any, tmp_path: Path
) -> None:
    alone = train()
    alone.step(5)
    path = alone.snapshot(tmp_path / "toy")
    alone.step(5)
    trainer = train(None, 3, resume=path)
    trainer.step(5)
    assert differ(copied(trainer.net), copied(alone.net)) < 1e-10


def test_resuming_needs_no_seed_of_its_own(
    train: Train, copied: Any, differ: Any, tmp_path: Path
) -> None:
    first = train(solver={"seed": 11})
    first.step(3)
    path = first.snapshot(tmp_path / "toy")
    first.step(3)
    second = train(solver={"seed": None}, resume=path)
    assert second.seed == 11
    second.step(3)
    assert differ(copied(second.net), copied(first.net)) == 0.0


def with_scores(toy: ModuleType, name: str, outputs: int) -> Any:
    """The toy classifier whose last layer has another name or number of outputs."""
    return toy.net(
        *(
            toy.layer(name, "InnerProduct", "third", "scores", outputs=outputs)
            if each.name == "scores"
            else each
            for each in toy.classifier().layers
        )
    )


@pytest.fixture
def snapshot(train: Train, tmp_path: Path) -> Path:
    """A snapshot after three iterations of the toy classifier."""
    trainer = train()
    trainer.step(3)
    return trainer.snapshot(tmp_path / "toy")  # type: ignore[no-any-return]


def test_a_snapshot_of_another_net_names_the_layers_that_differ(
    toy: ModuleType, train: Train, snapshot: Path
) -> None:
    other = toy.net(
        *toy.classifier().layers[:2],
        toy.layer("answers", "InnerProduct", "first", "answers", outputs=3),
        toy.layer("loss", "SoftmaxLoss", "answers label", "loss"),
    )
    with pytest.raises(SnapshotError) as caught:
        train(other, resume=snapshot)
    message = str(caught.value)
    assert f"{snapshot} belongs to another net" in message
    assert "layer 'answers': absent there, [(3, 144), (3,)] here" in message
    assert "layer 'scores': [(3, 144), (3,)] there, absent here" in message
    assert "'first'" not in message, "that one is the same"


def test_a_snapshot_of_other_shapes_names_both(toy: ModuleType, train: Train, snapshot: Path) -> None:
    with pytest.raises(SnapshotError, match=r"'scores': \[\(3, 144\).*there, \[\(5, 144\).*here"):
        train(with_scores(toy, "scores", 5), resume=snapshot)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"solver": {"seed": 4}}, "random seed 3, but the solver says 4.*set random_seed to 3"),
        ({"solver": {"passes": 2}}, "with passes 1, but this run has 2: give iter_size 1 to continue"),
        (
            {"precision": "f32"},
            "with precision f64, but this run has f32: give precision f64 to continue",
        ),
        ({"batch": 8}, "with batch 10, but this run has 8: give a batch of 10 to continue"),
    ],
    ids=["seed", "passes", "precision", "batch"],
)
def test_a_snapshot_of_another_run_names_what_differs(
    toy: ModuleType, train: Train, snapshot: Path, changed: dict[str, Any], message: str
) -> None:
    net = toy.classifier(changed.pop("batch", 10))
    with pytest.raises(SnapshotError, match=message):
        train(net, resume=snapshot, **changed)


def test_weights_without_an_iteration_are_not_resumed(
    train: Train, snapshot: Path, tmp_path: Path
) -> None:
    trainer = train()
    weights = trainer.runtime.read(snapshot).weights()
    weights.iteration, weights.state = None, {}
    path = trainer.runtime.write(tmp_path / "bare.demitasse", weights)
    with pytest.raises(SnapshotError, match=r"has weights but no iteration.*give it as weights"):
        train(resume=path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iteration": -1}, r"was made at iteration -1 .valid: 0 to 2,147,483,647"),
        ({"iteration": 1 << 40}, r"was made at iteration 1099511627776 .valid: 0 to"),
        ({"record": {"seed": "x"}}, r"its record has the random seed 'x', not a whole number"),
        ({"record": {"seed": "x" * 5000}}, r"its record has the random seed 'x{99}\.\.\. \(5,002 ch"),
        ({"record": {"seed": 0.5}}, r"its record has the random seed 0.5, not a whole number"),
        ({"record": {"kernels": 1.5}}, r"its record of kernels is not a table of names by request"),
        ({"record": {"kernels": {"a": 3}}}, r"its record of kernels is not a table of names by request"),
    ],
    ids=str,
)
def test_a_whole_snapshot_of_what_no_training_leaves_is_refused(
    train: Train, snapshot: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    trainer = train()
    weights = trainer.runtime.read(snapshot).weights()
    weights.iteration = changes.get("iteration", weights.iteration)
    weights.record.update(changes.get("record", {}))
    path = trainer.runtime.write(tmp_path / "odd.demitasse", weights)
    with pytest.raises(SnapshotError, match=f"odd.demitasse:? {message}"):
        train(resume=path)


@pytest.mark.parametrize("part", ["parameters", "state"])
def test_complex_numbers_are_not_taken_for_real_ones(
    train: Train, snapshot: Path, tmp_path: Path, part: str
) -> None:
    trainer = train()
    weights = trainer.runtime.read(snapshot).weights()
    arrays = weights.parameters if part == "parameters" else next(iter(weights.state.values()))
    layer = next(iter(arrays))
    arrays[layer][0] = arrays[layer][0].astype(np.complex64)
    path = trainer.runtime.write(tmp_path / "odd.demitasse", weights)
    message = f"odd.demitasse: layer '{layer}' has complex64 in parameter 0, but real numbers are needed"
    with pytest.raises(SnapshotError, match=message):
        train(resume=path)
    if part == "parameters":
        with pytest.raises(ModelError, match=message):
            train(weights=path)


# Only weights.


def test_weights_are_loaded_by_name_of_layer(
    toy: ModuleType, train: Train, copied: Any, snapshot: Path
) -> None:
    """Parameters that the file lacks keep the values of their fillers."""
    net = with_scores(toy, "answers", 3)
    fresh, loaded = train(net), train(net, weights=snapshot)
    saved = train(resume=snapshot)
    assert loaded.iteration == 0
    ours, theirs, filled = (copied(of.net) for of in (loaded, saved, fresh))
    for layer in ("first", "second", "third"):
        assert all(np.array_equal(a, b) for a, b in zip(ours[layer], theirs[layer], strict=True))
        assert not np.array_equal(ours[layer][0], filled[layer][0])
    assert all(np.array_equal(a, b) for a, b in zip(ours["answers"], filled["answers"], strict=True))


def test_weights_are_given_to_all_workers(
    train: Train, copied: Any, differ: Any, snapshot: Path
) -> None:
    """All workers start from the file, and continue as one does."""
    alone, together = train(weights=snapshot), train(None, 3, weights=snapshot)
    alone.step(3)
    together.step(3)
    assert differ(copied(together.net), copied(alone.net)) < 1e-10


def test_later_files_overrule_earlier_ones(
    train: Train, copied: Any, differ: Any, snapshot: Path, tmp_path: Path
) -> None:
    trainer = train()
    trainer.step(1)
    other = trainer.snapshot(tmp_path / "other")
    both = train(weights=f"{other},{snapshot}")
    last = train(weights=[snapshot])
    assert differ(copied(both.net), copied(last.net)) == 0.0


@pytest.mark.parametrize("counts", [(), (2,)], ids=str)
def test_weights_of_another_shape_name_the_layer_and_both_shapes(
    toy: ModuleType, train: Train, snapshot: Path, counts: tuple[int, ...]
) -> None:
    with pytest.raises(ShapeError) as caught:
        train(with_scores(toy, "scores", 5), *counts, weights=snapshot)
    message = str(caught.value)
    assert str(snapshot) in message
    assert "layer 'scores', parameter 0" in message
    assert "the file's shape is (3, 144), the net's is (5, 144)" in message


def test_weights_of_no_layer_here_name_some_of_both(
    toy: ModuleType, train: Train, snapshot: Path
) -> None:
    net = toy.net(
        toy.layer("samples", "Samples", "", "data label", batch=4),
        toy.layer("score", "InnerProduct", "data", "score", outputs=3),
        toy.layer("loss", "SoftmaxLoss", "score label", "loss"),
    )
    with pytest.raises(ModelError, match=r"none of its layers.*first.*'scores' is close to 'score'"):
        train(net, weights=snapshot)
