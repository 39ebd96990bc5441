"""The same seed gives the same bits; any number of workers gives the same mathematics."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import CompositionError, DataError, keep_mask


@pytest.mark.parametrize(
    ("counts", "precision", "iterations"),
    [((), "f32", 50), ((), "f64", 50), ((3,), "f32", 15)],
    ids=str,
)
def test_the_same_seed_gives_the_same_bits(
    train: Callable[..., Any],
    copied: Any,
    differ: Any,
    counts: tuple[int, ...],
    precision: str,
    iterations: int,
) -> None:
    results = []
    for _ in range(2):
        trainer = train(None, *counts, precision=precision)
        losses = [trainer.step(1).loss for _ in range(iterations)]
        results.append((losses, copied(trainer.net)))
    assert results[0][0] == results[1][0]
    assert differ(results[0][1], results[1][1]) == 0.0


def test_another_seed_gives_other_parameters_and_masks(
    train: Callable[..., Any], copied: Any, differ: Any
) -> None:
    ours, theirs = train(), train(solver={"seed": 4})
    assert differ(copied(ours.net), copied(theirs.net)) > 1e-3


@pytest.mark.parametrize("counts", [(2,), (7,), (2, 3)], ids=str)
def test_workers_train_what_one_worker_trains(
    train: Callable[..., Any], copied: Any, differ: Any, counts: tuple[int, ...]
) -> None:
    """Including dropout, two passes and uneven shares (10 samples for 2, 7 and 6 workers)."""
    alone, trainer = train(solver={"passes": 2}), train(None, *counts, solver={"passes": 2})
    assert (alone.batch, trainer.batch) == (20, 20)
    for _ in range(4):
        assert trainer.step(1).loss == pytest.approx(alone.step(1).loss, abs=1e-11)
    assert 0 < differ(copied(trainer.net), copied(alone.net)) < 1e-10


def test_dropouts_mask_is_that_of_seed_layer_iteration_and_sample(
    toy: ModuleType, train: Callable[..., Any]
) -> None:
    """The second of two passes over five samples starts at sample five of the iteration."""
    net = toy.net(
        toy.layer("samples", "Samples", "", "data label", batch=5),
        toy.layer("drop", "Dropout", "data", "kept"),
        toy.layer("scores", "InnerProduct", "kept", "scores", outputs=3),
        toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
    )
    trainer = train(net, retain="all", solver={"passes": 2, "seed": 5})
    for iteration in range(3):
        trainer.step(1)
        data, kept = (trainer.net.blobs[name].data for name in ("data", "kept"))
        mask = keep_mask(5, 1, iteration, 5, data.shape, 0.5)
        assert np.array_equal(kept, data * mask * 2)


@pytest.mark.parametrize("workers", [2, 3])
def test_weak_scaling_multiplies_the_batch(
    toy: ModuleType, train: Callable[..., Any], copied: Any, differ: Any, workers: int
) -> None:
    """Each worker has a batch of the file's size: together they do what one worker does with all of
    them."""
    weak = train(toy.classifier(4), workers, scaling="weak")
    alone = train(toy.classifier(4 * workers))
    assert weak.batch == alone.batch == 4 * workers
    for _ in range(4):
        assert weak.step(1).loss == pytest.approx(alone.step(1).loss, abs=1e-11)
    assert differ(copied(weak.net), copied(alone.net)) < 1e-10


def test_weak_scaling_of_one_worker_changes_nothing(
    train: Callable[..., Any], copied: Any, differ: Any
) -> None:
    weak, strong = train(scaling="weak"), train()
    assert weak.step(5).loss == strong.step(5).loss
    assert differ(copied(weak.net), copied(strong.net)) == 0.0


def test_a_batch_smaller_than_the_workers_is_refused(toy: ModuleType, train: Callable[..., Any]) -> None:
    with pytest.raises(DataError, match=r"toy\.net.*'samples'.*batch of 2.*3 workers.*larger batch"):
        train(toy.classifier(2), 3)


def test_precision_is_the_type_of_parameters_and_blobs(train: Callable[..., Any]) -> None:
    single, double = train(precision="f32"), train(precision="f64")
    assert single.net.params["first"][0].dtype == "float32"
    assert double.net.params["first"][0].dtype == "float64"
    ours, theirs = single.step(5).loss, double.step(5).loss
    assert ours != theirs
    assert ours == pytest.approx(theirs, abs=1e-4)


def test_unknown_options_name_the_valid_ones(train: Callable[..., Any]) -> None:
    with pytest.raises(CompositionError, match=r"unknown precision 'f46'; did you mean 'f64'"):
        train(precision="f46")
    with pytest.raises(CompositionError, match=r"unknown scaling 'week'; did you mean 'weak'"):
        train(scaling="week")
