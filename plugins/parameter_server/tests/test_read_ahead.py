"""A worker that waits for siblings reads the next iteration's samples meanwhile; the numbers do not
change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from demitasse import DataError

Train = Callable[..., Any]
Befall = Callable[[int, int], None]

pytestmark = pytest.mark.timeout(300, method="thread")


@pytest.fixture
def samples(toy: ModuleType) -> Callable[[Befall], Callable[[object], Any]]:
    """``samples(befall)``: a source that calls ``befall(first, read)`` before each read of a stream,
    with the number of the stream's first sample and that of the read."""

    def make(befall: Befall) -> Callable[[object], Any]:
        class Source(toy.ArraySource):  # type: ignore[misc,name-defined]
            def stream(self, first: int, count: int, step: int) -> Any:
                stream = super().stream(first, count, step)
                original, reads = stream.read, 0

                def read(out: Mapping[str, Any]) -> None:
                    nonlocal reads
                    befall(first, reads)
                    original(out)
                    reads += 1

                stream.read = read
                return stream

        return lambda spec: Source(toy.images())

    return make


def test_it_reads_while_it_waits(train: Train, samples: Any) -> None:
    """The second worker cannot begin before the first has read twice."""
    ahead = threading.Event()

    def befall(first: int, read: int) -> None:
        if first == 0 and read == 1:
            ahead.set()
        elif first > 0 and read == 0:
            assert ahead.wait(60), "the first worker does not read ahead"

    assert train(2, source=samples(befall)).step(2).iteration == 2


def test_the_last_iteration_of_a_stretch_reads_nothing_ahead(train: Train, samples: Any) -> None:
    """A test, or a snapshot, finds the samples that were trained on last."""
    reads: list[tuple[int, int]] = []
    trainer = train(2, source=samples(lambda first, read: reads.append((first, read))))
    for _ in range(4):
        trainer.step(3)
        assert sorted({read for first, read in reads if first == 0}) == list(range(trainer.iteration))


@pytest.mark.parametrize("workers", [2, 3])
def test_it_trains_as_one_step_after_the_other_does(train: Train, workers: int) -> None:
    told: list[float] = []
    whole, single = train(workers), train(workers)
    whole.listeners.append(lambda e: told.append(e.values["loss"]) if e.kind == "iteration" else None)
    whole.step(30)
    assert told == [single.step(1).loss for _ in range(30)]


def test_what_cannot_be_read_is_told_of_when_it_is_its_turn(train: Train, samples: Any) -> None:
    broken = True

    def befall(first: int, read: int) -> None:
        if broken and first == 0 and read == 3:
            raise DataError("samples.bin: sample 17 is cut off")

    trainer, right = train(2, source=samples(befall)), train(2)
    with pytest.raises(DataError, match="sample 17"):
        trainer.step(10)
    assert trainer.iteration == 3
    broken = False
    right.step(3)
    assert trainer.step(2).loss == right.step(2).loss


def test_a_run_that_was_stopped_goes_on_with_the_right_samples(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever worker had read ahead when the run stopped, and although a profile reads others'
    position."""
    monkeypatch.chdir(tmp_path)  # runs end with a snapshot
    stopped, right = train(2), train(2)
    for end in (3, 7, 12):
        stopped.run(stop=lambda end=end: stopped.iteration >= end)
        stopped.profile(1)
    right.step(stopped.iteration)
    assert stopped.step(5).loss == right.step(5).loss
