"""A NaN that oneDNN's ReLU turns into a number is reported because it spoils parameters."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import NumericsError, compose

FIRST = {
    "convolution": ("Convolution", {"outputs": 4, "kernel": 3}),
    "inner product": ("InnerProduct", {"outputs": 4}),
}


@pytest.mark.parametrize("kind", FIRST)
@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize(("sample", "told"), [(3, 0), (8 * 7 + 1, 20)])
def test_a_sample_that_is_no_number_ends_a_training(
    toy: ModuleType, kind: str, precision: str, sample: int, told: int
) -> None:
    name, options = FIRST[kind]
    net = toy.net(
        toy.layer("samples", "Samples", "", "data label", batch=8),
        toy.layer("first", name, "data", "first", **options),
        toy.layer("active", "ReLU", "first", "first"),
        toy.layer("scores", "InnerProduct", "first", "scores", outputs=3),
        toy.layer("loss", "SoftmaxLoss", "scores label", "loss"),
    )
    arrays: dict[str, Any] = toy.images(8 * 30)
    arrays["data"][sample, 0, 2, 2] = np.nan
    with compose(toy.machine(), ["cpu", "training", "snapshots", toy.toy(arrays)]) as runtime:
        trainer = runtime.trainer(toy.solver(net), precision=precision)
        with pytest.raises(NumericsError, match=f"iteration {told}: .*'first'.*not finite") as caught:
            trainer.step(40)
        assert "no snapshot has been written" in str(caught.value)
        assert trainer.iteration == told + 1
