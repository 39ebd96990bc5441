"""Numbers that are no longer finite stop a run before they reach a parameter."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import Candidate, NumericsError, compose

Train = Callable[..., Any]


def images_with_infinity(toy: ModuleType, sample: int) -> dict[str, Any]:
    arrays: dict[str, Any] = toy.images(40)
    arrays["data"][sample, 0, 2, 2] = np.inf
    return arrays


@pytest.mark.parametrize(("counts", "sample"), [((), 20), ((3,), 29), ((2, 3), 20)], ids=str)
def test_a_sample_that_is_infinite_is_traced_to_its_layer(
    toy: ModuleType,
    train: Train,
    copied: Any,
    differ: Any,
    tmp_path: Path,
    counts: tuple[int, ...],
    sample: int,
) -> None:
    """Both samples are in iteration 2: one is the first worker's, one the last worker's."""
    trainer = train(None, *counts, arrays=images_with_infinity(toy, sample))
    trainer.step(2)
    path, before = trainer.snapshot(tmp_path / "toy"), copied(trainer.net)
    with pytest.raises(NumericsError) as caught:
        trainer.step(5)
    message = str(caught.value)
    assert "iteration 2: the loss is nan" in message
    assert "the first layer whose output is not finite is 'first' (convolution" in message
    assert "its input 'samples.data' is not finite either" in message
    assert f"the last snapshot is {path}" in message
    assert trainer.iteration == 2
    assert differ(copied(trainer.net), before) == 0.0


def test_the_second_pass_is_watched_too(toy: ModuleType, train: Train, copied: Any, differ: Any) -> None:
    """Gradients of the first pass are there already; they are not used."""
    trainer = train(arrays=images_with_infinity(toy, 35), solver={"passes": 2})
    trainer.step(1)
    before = copied(trainer.net)
    with pytest.raises(
        NumericsError, match=r"iteration 1: the loss is nan.*no snapshot has been written"
    ):
        trainer.step(1)
    assert differ(copied(trainer.net), before) == 0.0


@pytest.mark.parametrize("counts", [(), (3,)], ids=str)
def test_a_learning_rate_that_is_too_large_is_traced_to_the_first_layer_that_overflows(
    train: Train, copied: Any, differ: Any, tmp_path: Path, counts: tuple[int, ...]
) -> None:
    """Parameters of 1e150 are finite, but the product of two of them is not."""
    trainer = train(None, *counts, solver={"rate": 1e160})
    trainer.step(1)
    path, before = trainer.snapshot(tmp_path / "toy"), copied(trainer.net)
    assert all(np.isfinite(array).all() for arrays in before.values() for array in arrays)
    with pytest.raises(NumericsError) as caught:
        trainer.step(3)
    message = str(caught.value)
    assert "iteration 1: the loss is nan" in message
    assert "whose output is not finite is 'second' (convolution, computed by reference)" in message
    assert "learning rate 1e+160" in message
    assert f"the last snapshot is {path}" in message
    assert differ(copied(trainer.net), before) == 0.0


@pytest.mark.parametrize("at_first", [True, False])
def test_parameters_that_diverged_are_named(train: Train, at_first: bool) -> None:
    """They are found by the check after the first iteration, or else by the next loss."""
    trainer = train(solver={"rate": math.inf if at_first else 0.01})
    if not at_first:
        trainer.step(1)
        trainer.net.params["scores"][0][...] = np.inf
    with pytest.raises(NumericsError) as caught:
        trainer.step(1)
    assert f"iteration {1 - at_first}: " in str(caught.value)
    assert "of layer 'scores' is no longer finite" in str(caught.value)
    assert "lower the learning rate" in str(caught.value)


LOST = r"parameter [01] of layer 'first' is no longer finite; "
CULPRIT = r"'rectified' \(relu_backward, computed by stranger\)"
END = "; learning rate 0.01; no snapshot has been written yet"


def spoiling(toy: ModuleType, spoilt: Callable[[int], bool], *counts: int) -> Any:
    """A runtime in which a third-party backward ReLU makes NaNs in calls whose number is ``spoilt``."""
    calls: list[None] = []

    def bind(inputs: Any, outputs: Any, workspace: Any) -> Callable[[], None]:
        def work() -> None:
            outputs[0][...] = np.nan if spoilt(len(calls)) else inputs[1]
            calls.append(None)

        return work

    def kernels(request: Any) -> Any:
        return [Candidate("mine", bind)] if request.operation.name == "relu_backward" else []

    stranger = toy.plugin("stranger", kernels=kernels, roles={"kernels": {"spaces": ["host"]}})
    return compose(toy.machine(*counts), [stranger, "reference", "training", "snapshots", toy.toy()])


@pytest.mark.parametrize("counts", [(), (2,), (2, 2)], ids=str)
@pytest.mark.parametrize("options", [{}, {"passes": 2}, {"snapshot_gradients": True}], ids=str)
def test_a_gradient_that_is_not_finite_is_traced_to_the_kernel_that_makes_it(
    toy: ModuleType, counts: tuple[int, ...], options: dict[str, Any]
) -> None:
    """After the update, parameters of the layers before it can no longer start any pass."""
    with spoiling(toy, lambda call: True, *counts) as runtime:
        trainer = runtime.trainer(toy.solver(toy.classifier(), **options), precision="f64")
        with pytest.raises(NumericsError) as caught:
            trainer.step(3)
        after = [np.isnan(array).all() for array in trainer.net.params["first"]]
    told = rf"iteration 0: {LOST}the first layer whose gradient is not finite is {CULPRIT}{END}"
    assert re.fullmatch(told, str(caught.value))
    assert after == [True, True]  # as the update left them


@pytest.mark.parametrize("counts", [(), (2,)], ids=str)
def test_the_next_loss_tells_of_such_a_gradient_too(toy: ModuleType, counts: tuple[int, ...]) -> None:
    with spoiling(toy, lambda call: call >= 4 * math.prod(counts), *counts) as runtime:
        trainer = runtime.trainer(toy.solver(toy.classifier()), precision="f64")
        with pytest.raises(NumericsError) as caught:
            trainer.step(9)
    told = rf"{LOST}the first layer whose gradient is not finite is {CULPRIT}{END}"
    assert re.fullmatch(rf"iteration 5: the loss is nan; {told}", str(caught.value))


@pytest.mark.parametrize("counts", [(), (2,)], ids=str)
def test_of_a_gradient_that_is_finite_again_what_is_left_tells(
    toy: ModuleType, counts: tuple[int, ...]
) -> None:
    """Gradients are kept for snapshots; a pass over the next samples would show nothing."""
    with spoiling(toy, lambda call: call // math.prod(counts) == 0, *counts) as runtime:
        trainer = runtime.trainer(toy.solver(toy.classifier(), snapshot_gradients=True), precision="f64")
        with pytest.raises(NumericsError) as caught:
            trainer.step(9)
    left = (
        r"the first gradient of the last update that is not finite is that of 'first' \(\w+, computed "
        r"by "
    )
    assert re.fullmatch(rf"iteration 0: {LOST}{left}reference\){END}", str(caught.value))


def test_the_message_is_told_once_for_each_worker_that_saw_it(toy: ModuleType, train: Train) -> None:
    trainer = train(None, 2, arrays=images_with_infinity(toy, 9))
    with pytest.raises(NumericsError) as caught:
        trainer.step(1)
    assert str(caught.value).count("the first layer whose output") == 1


def test_no_snapshot_takes_the_last_good_one_s_place_when_an_update_overflowed(
    train: Train, tmp_path: Path
) -> None:
    """No loss has been computed since the last update."""
    trainer = train()
    trainer.step(1)
    good = trainer.snapshot(tmp_path / "toy")
    trainer.step(1)
    trainer.net.params["first"][0][0, 0, 0, 0] = np.nan
    words = rf"iteration 2: parameter 0 of layer 'first' is no longer finite.*last snapshot is {good}"
    with pytest.raises(NumericsError, match=words):
        trainer.snapshot(tmp_path / "toy")
    assert [path.name for path in tmp_path.iterdir()] == [good.name]
