"""The scores of test nets; their iterations are divided among all workers of all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from demitasse import Processes
from demitasse_training.accord import Accord
from demitasse_training.net import Net, Told
from demitasse_training.tally import Tally
from demitasse_training.worker import Worker

Progress = Callable[[int, int], object]
"""Called with how many batches are done, and how many there are."""


class Scores:
    """For each test net, a net per worker. All read the first worker's parameters, but a worker with an
    accelerator reads its own. If processes run at iterations of their own, process 0 does the whole
    test."""

    def __init__(self, processes: Processes, workers: Sequence[Worker], accord: Accord) -> None:
        self.nets: list[list[Net]] = []
        self._processes, self._workers, self._accord = processes, workers, accord

    @property
    def _alone(self) -> bool:
        free = any(level.asynchronous for level in self._workers[0].levels)
        return free or self._processes.size == 1

    def __call__(
        self,
        iterations: Sequence[int],
        run: Callable[[Callable[[int], Tally]], list[Tally]],
        progress: Progress,
        stop: Callable[[], bool],
    ) -> dict[str, Any] | None:
        """Return the mean scores over each net's iterations, from the start of its data; names of a
        second net's scores begin with its number. ``run`` runs a task on every worker. The first worker
        here calls ``progress`` after each batch, and ``stop`` between batches. Once ``stop`` returns
        true in any process, the result is None; other processes still finish their part of the current
        net."""
        scores: dict[str, Any] = {}
        before, total = 0, sum(count for count, _ in zip(iterations, self.nets, strict=False))
        if self._alone and self._processes.rank > 0:
            return scores
        with self._first_statistics():
            for number, (nets, count) in enumerate(zip(self.nets, iterations, strict=False)):
                told = partial(_told, progress, before, total)
                tally = self._tally(nets, count, run, told, stop)
                if tally is None:
                    return None
                for name, value in tally.scores().items():
                    scores[name if number == 0 else f"{number}.{name}"] = value
                before += count
        return scores

    def close(self) -> None:
        """End the nets' reading."""
        for net in (net for nets in self.nets for net in nets):
            net.close()

    def _tally(
        self,
        nets: Sequence[Net],
        iterations: int,
        run: Callable[[Callable[[int], Tally]], list[Tally]],
        told: Told,
        stop: Callable[[], bool],
    ) -> Tally | None:
        share, ended = self._workers[0].share, False
        first, workers = (0, len(nets)) if self._alone else (share.index, share.workers)

        def asked() -> bool:
            nonlocal ended
            try:
                ended = ended or stop()
            except BaseException:
                ended = True  # for the other workers
                raise
            return ended

        def of_worker(w: int) -> Tally:
            if w == 0:
                return nets[w].tally(iterations, first, workers, told, asked)
            return nets[w].tally(iterations, first + w, workers, stop=lambda: ended)

        mine, *others = self._agreed(lambda: run(of_worker))
        if not self._alone:
            ended = bool(self._processes.total(np.array([float(ended)]))[0] > 0)
        if ended:
            return None
        mine.merge(others)
        return mine if self._alone else mine.total(self._processes)

    def _agreed(self, task: Callable[[], list[Tally]]) -> list[Tally]:
        """Run a task and return its result. If it fails in one process, all processes raise an error."""
        if self._alone:
            return task()
        self._accord.begin(1)
        try:
            done = task()
        except Exception as error:
            self._accord.fail(0, error)
            raise
        else:
            self._accord.arrive(0)
            return done
        finally:
            self._accord.end()

    @contextmanager
    def _first_statistics(self) -> Iterator[None]:
        """Within this, what forward passes change, such as running means, has the values of process 0's
        first worker."""
        first_here, *others = self._workers
        apart = [worker.statistics.arrays for worker in others if worker.place.streams]
        ours = first_here.statistics.arrays if apart or not self._alone else []
        changed = [array for arrays in (ours, *apart) for array in arrays]
        kept = [np.array(array) for array in changed]
        if ours and not self._alone:
            first = self._processes.rank == 0
            mine = [array.tobytes() for array in kept[: len(ours)]] if first else None
            for array, data in zip(ours, self._processes.gather(mine)[0], strict=True):
                array[...] = np.frombuffer(data, array.dtype).reshape(array.shape)
        for theirs in apart:
            for array, source in zip(theirs, ours, strict=True):
                array[...] = np.asarray(source)
        try:
            yield
        finally:
            for array, value in zip(changed, kept, strict=True):
                array[...] = value


def _told(progress: Progress, before: int, total: int, number: int, outputs: object) -> None:
    progress(before + number + 1, total)
