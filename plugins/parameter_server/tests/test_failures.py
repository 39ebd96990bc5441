"""A worker that fails ends the run with its error; no sibling waits for it, and the next run works."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import DataError, DescriptionError, NumericsError

Train = Callable[..., Any]
MODELS = ("bsp", "ssp", "asp")

pytestmark = pytest.mark.timeout(300, method="thread")


@pytest.fixture
def spoilt(toy: ModuleType) -> Callable[..., Any]:
    """``spoilt(worker, at, error)``: samples that raise at one read of one worker; without an error,
    they are NaN from then on."""
    return toy.spoilt  # type: ignore[no-any-return]


@pytest.mark.parametrize("worker", [0, 2])
@pytest.mark.parametrize("model", MODELS)
def test_its_error_is_raised_and_training_can_go_on(
    train: Train, spoilt: Any, model: str, worker: int
) -> None:
    error = DataError("samples.bin: sample 17 is cut off")
    trainer = train(3, source=spoilt(worker, 3, error), sync={"model": model})
    trainer.step(2)
    with pytest.raises(DataError) as caught:
        trainer.step(20)
    assert caught.value is error
    before = trainer.iteration
    assert 2 <= before < 22
    trainer.step(3)
    assert trainer.iteration == before + 3


@pytest.mark.parametrize("worker", [0, 2])
@pytest.mark.parametrize("model", MODELS)
def test_what_was_trained_before_is_kept(
    train: Train, spoilt: Any, tmp_path: Path, model: str, worker: int
) -> None:
    """By a barrier to the bit; else with what those have done besides who were ahead, if that is an
    iteration: one may be three ahead of who has done none."""
    solver = {"snapshot_prefix": str(tmp_path / "toy"), "max_iterations": 6}
    source = spoilt(worker, 4, DataError("sample 17 is cut off"))
    trainer = train(3, solver=solver, source=source, sync={"model": model})
    with pytest.raises(DataError, match=r"^sample 17 is cut off") as caught:
        trainer.run()
    if model != "bsp" and trainer.iteration == 0:
        assert (str(caught.value), [*tmp_path.iterdir()]) == ("sample 17 is cut off", [])
        return
    assert re.match(r"sample 17 is cut off; iteration \d is saved in ", str(caught.value))
    (kept,) = tmp_path.iterdir()
    assert str(caught.value).endswith(f"saved in {kept}")
    other = train(3, solver=solver, resume=kept, sync={"model": model})
    assert 1 <= other.iteration <= 3
    if model == "bsp":
        plain = train(3, solver=solver, sync={"model": model})
        plain.step(6)
        assert other.iteration == 3
        other.step(3)
        for layer, arrays in plain.net.params.items():
            for array, ours in zip(arrays, other.net.params[layer], strict=True):
                assert np.array_equal(array, ours)


@pytest.mark.parametrize("model", MODELS)
def test_no_number_reaches_the_parameters_and_the_last_snapshot_is_whole(
    train: Train, spoilt: Any, tmp_path: Any, model: str
) -> None:
    trainer = train(3, source=spoilt(1, 4, None), sync={"model": model})
    trainer.step(2)
    path = trainer.snapshot(tmp_path / "toy")
    with pytest.raises(
        NumericsError, match="loss is nan; the first layer whose output is not finite is "
    ):
        trainer.step(30)
    assert all(np.isfinite(a).all() for arrays in trainer.net.params.values() for a in arrays)
    assert train(3, resume=path).iteration == 2


def test_more_workers_than_samples_is_said_before_the_first_step(train: Train) -> None:
    with pytest.raises(DataError, match=r"batch of 10 does not give each of 11 workers"):
        train(11)


@pytest.mark.parametrize(
    ("sync", "message"),
    [
        ({"modle": "bsp"}, "unknown option 'modle'; did you mean 'model'"),
        ({"model": "sps"}, "unknown model 'sps'"),
        ({"staleness": 2}, 'staleness is the bound of model = "ssp"'),
        ({"model": "ssp", "staleness": -1}, "staleness = -1 .valid: a whole number, 0 or more"),
        ({"delay": 2.0}, "delay = 2.0 .valid: a list"),
        ({"servers": 2}, "servers is the number of processes that hold a shard, but the workers here"),
        ({"delay": [0, 0, 1]}, "delay has 3 numbers, but the level has 2 workers"),
        ({"bucket_bytes": 0}, "bucket_bytes = 0 .valid: a whole number, 1 or more"),
    ],
)
def test_a_wrong_option_is_named(train: Train, sync: dict[str, Any], message: str) -> None:
    with pytest.raises(DescriptionError, match=message):
        train(2, sync=sync)
