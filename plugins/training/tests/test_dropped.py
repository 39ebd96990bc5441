"""What a program drops is freed, even if the runtime that made it lives on."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

MakeRuntime = Callable[..., Any]


def test_samples_are_let_go_of_with_the_trainers_that_read_them(
    toy: ModuleType, runtime: MakeRuntime
) -> None:
    made = runtime()
    left = []
    for _ in range(3):
        arrays = toy.images()
        left.append(weakref.ref(arrays["data"]))
        with made.trainer(toy.solver(toy.classifier()), data={"train": arrays}) as trainer:
            trainer.step()
    del arrays, trainer
    gc.collect()
    assert [reference() for reference in left] == [None] * 3


def test_a_runtime_closes_the_sources_that_are_still_in_use(
    toy: ModuleType, runtime: MakeRuntime
) -> None:
    closed = []

    class Source(toy.ArraySource):  # type: ignore[misc, name-defined]
        def close(self) -> None:
            closed.append(self)

    made = runtime(source=lambda spec: Source(toy.images()))
    trainer = made.trainer(toy.solver(toy.classifier()))
    made.close()
    assert len(closed) == 1
    trainer.close()


def test_a_source_of_slots_that_no_weak_reference_reaches_is_closed_too(
    toy: ModuleType, runtime: MakeRuntime
) -> None:
    closed = []

    class Slots:
        __slots__ = ("fields", "size", "stream")

        def __init__(self) -> None:
            inner = toy.ArraySource(toy.images())
            self.fields, self.size, self.stream = inner.fields, inner.size, inner.stream

        def close(self) -> None:
            closed.append(self)

    made = runtime(source=lambda spec: Slots())
    with made.trainer(toy.solver(toy.classifier())) as trainer:
        trainer.step()
    made.close()
    assert closed
