"""A NaN ends a training: at once, or if oneDNN's ReLU turns it into a number, because it spoils
parameters."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import NumericsError, compose
from demitasse_cpu.onednn.inner_product import bfloat16_kernel
from demitasse_cpu.onednn.library import library

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
    """``told`` is the iteration whose end checks the parameters that the NaN has spoiled."""
    name, options = FIRST[kind]
    bfloat16 = library() is not None and bfloat16_kernel(library())
    own = kind == "convolution" and precision == "bf16" and not bfloat16  # its ReLU keeps a NaN
    told, done = (sample // 8, sample // 8) if own else (told, told + 1)
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
        assert trainer.iteration == done
