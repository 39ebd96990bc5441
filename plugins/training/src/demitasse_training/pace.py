"""The iterations of a crew, with workers in lockstep or each at its own pace, and reporting on them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from demitasse import DataError, ModelError, NumericsError, Processes, Solver, Step, WorkerError
from demitasse_training.accord import Accord, ElsewhereError
from demitasse_training.arguments import rate_of
from demitasse_training.crew import Crew
from demitasse_training.diagnosis import ELSEWHERE, causes, diagnose, lost_parameter
from demitasse_training.origins import traced
from demitasse_training.passes import Passes
from demitasse_training.siblings import may_go_on, parted
from demitasse_training.stretch import Stretch, in_order

log = logging.getLogger("demitasse.training")

LOOK = 20
"""Iterations between checks of the parameters: a check takes as long as reading all of them."""

Ask = Callable[[], bool]
Told = Callable[[float, float, Mapping[str, float]], float]


class Pace:
    """Runs iterations from ``iteration`` on. ``told(loss, seconds, phases)`` is called after each and
    returns the smoothed loss. ``kept()`` returns which snapshot is the last, for errors. ``keep(error)``
    is called when several processes have stopped together, before any of them ends. ``asked`` says
    whether somebody asked to stop, and to save, by the end of the last iteration."""

    def __init__(
        self,
        crew: Crew,
        accord: Accord,
        processes: Processes,
        solver: Solver,
        told: Told,
        kept: Callable[[], str],
        keep: Callable[[BaseException], None],
    ) -> None:
        self.iteration = 0
        self.asked = False, False
        self.whole = True  # whether parameters are known to be as a complete iteration left them
        self._crew, self._processes, self._solver = crew, processes, solver
        self._told, self._kept, self._keep, self._accord = told, kept, keep, accord
        self._compared = False  # whether siblings' parameters have been compared

    def advance(self, end: int, stop: Ask | None = None, save: Ask | None = None) -> float:
        """Train on, at most to iteration ``end``; return the last iteration's smoothed loss. Raises
        NumericsError and WorkerError with what a user needs to continue; parameters are as before the
        bad step."""
        steps, crew = self._crew.bind(self.iteration), self._crew
        crew.follow()
        meets = crew.lockstep or bool(crew.workers[0].meetings)
        together = meets or (self._processes.size > 1 and not crew.asynchronous)
        return (self._together if together else self._apart)(steps, end, stop, save)

    def _together(
        self, steps: Sequence[Step | Passes], end: int, stop: Ask | None, save: Ask | None
    ) -> float:
        iteration, rate = self.iteration, rate_of(self._solver, self.iteration)
        before, start = self._crew.clock(), time.perf_counter()
        self._crew.keep_statistics()
        workers, done = self._crew.workers, set[int]()

        def step(worker: int) -> float:
            try:
                with traced(workers[worker].reading.origins):
                    loss = steps[worker].run(iteration, rate)
            except Exception as error:
                self._accord.fail(worker, error)
                raise
            done.add(worker)
            return loss

        # A process of several ends upon an interrupt, and may have to call MPI from this thread.
        whole = self._processes.size > 1 or all(w.whole or w.engine is not None for w in workers)
        for worker in workers:
            worker.begin()
        self._accord.begin(len(workers), workers[0].meetings)
        self.whole = False
        try:
            self._processes.report(iteration)
            loss = in_order(self._crew.run(step, None if whole else list))
            self.iteration, self.whole = iteration + 1, True
            asked: tuple[bool, bool] | None = None
            if self._processes.size > 1:  # all do what one is asked to do
                told = np.array([loss, _ask(stop), _ask(save)], np.float64)
                loss, stops, saves = self._processes.total(told).tolist()
                asked = stops > 0, saves > 0
            self._compare()
        except BaseException as caught:
            self._accord.end()
            error, lone = caught, self._processes.size == 1
            if isinstance(caught, ElsewhereError) and lone and self._accord.error is not None:
                error = self._accord.error  # a sibling's
            unread = self._unread(error)
            if len(done) == len(steps) or all(worker.finished for worker in workers):
                self.iteration = iteration + 1  # the interrupt came after the iteration was complete
            elif self._accord.stopped or unread or not isinstance(error, Exception):
                self._crew.restore_statistics()
            self.whole = unread
            if self._accord.stopped:
                error = self._accord.ended(error, self._keep)
            self._failed(error)
            if isinstance(error, NumericsError):
                raise self._explained(error) from None
            if error is caught:
                raise
            raise error from None
        self._accord.end()
        if iteration % LOOK == 0:
            self._look(iteration)
        smoothed = self._told(loss, time.perf_counter() - start, self._crew.clock().taken(before))
        self.asked = asked or (_ask(stop), _ask(save))
        return smoothed

    def _apart(
        self, steps: Sequence[Step | Passes], end: int, stop: Ask | None, save: Ask | None
    ) -> float:
        """Train with each worker at its own pace, at most to ``end``, or less if asked to stop."""
        crew, workers = self._crew, self._crew.workers
        share, start, before = workers[0].share, time.perf_counter(), crew.clock()
        asked, smoothed = [False, False], math.nan

        def done(iteration: int, loss: float) -> bool:
            nonlocal start, before, smoothed
            self.iteration = iteration + 1
            if iteration % LOOK == 0 and (told := self._crew.lost_parameter()):
                raise NumericsError(f"iteration {iteration}: {told}")
            now, clock = time.perf_counter(), crew.clock()
            # Estimate the whole loss from the part that the workers of this process have.
            smoothed = self._told(loss * share.workers / len(steps), now - start, clock.taken(before))
            start, before = now, clock
            asked[:] = [flag or _ask(ask) for flag, ask in zip(asked, (stop, save), strict=True)]
            return any(asked) or crew.closed

        stretch = Stretch(self.iteration, end, len(steps), done)
        kept: dict[int, int] = {}  # by worker, the iteration before which its statistics were kept
        last: list[bool] = []  # for each that could not read: whether the others have caught up

        def step(worker: int, iteration: int) -> float:
            self._processes.report(iteration)
            workers[worker].statistics.keep()
            kept[worker] = iteration
            workers[worker].reading.goes_on = iteration + 1 < stretch.last
            try:
                rate = rate_of(self._solver, iteration) * workers[worker].portion
                with traced(workers[worker].reading.origins):
                    return steps[worker].run(iteration, rate)
            except Exception as error:
                if self._unread(error):
                    last.append(crew.asynchronous or stretch.caught_up(iteration))
                raise

        try:
            interrupted = stretch.end if self._processes.size == 1 else None
            crew.run(lambda w: stretch.run(w, lambda i: step(w, i)), interrupted)
        except BaseException as error:
            self.whole = self._unread(error) and all(last)
            self._failed(error)
            if self._processes.size == 1:
                crew.quiesce()
            if isinstance(error, NumericsError):
                for number, worker in enumerate(workers):
                    if crew.asynchronous or kept.get(number) != self.iteration:
                        worker.statistics.keep()
                raise self._explained(error) from None
            raise
        crew.quiesce()
        if self._processes.size > 1:  # all do what one is asked to do, once all have arrived here
            asked = [wish > 0 for wish in self._processes.total(np.array(asked, np.float64)).tolist()]
        self.asked = asked[0], asked[1]
        return smoothed

    def _compare(self) -> None:
        """After the first iteration, warn if siblings train apart: nothing else reveals a
        synchronisation that keeps them equal only in part. No check is made at levels that are meant to
        train apart."""
        alone = len(self._crew.workers) == self._processes.size == 1
        levels = self._crew.workers[0].levels
        if self._compared or alone or any(level.asynchronous or level.apart for level in levels):
            return
        self._compared = True
        if any(map(may_go_on, levels)):
            self._crew.quiesce()
        if told := parted(self._crew.workers, self._processes):
            log.warning(told)

    def _look(self, iteration: int) -> None:
        """Raise NumericsError if parameters are no longer finite although the loss is. A layer may turn
        NaN into a number (some processors compute the maximum of NaN and 0 as 0)."""
        if told := self._crew.lost_parameter():
            self.whole = False
            error = NumericsError(f"iteration {iteration}: {told}")
            self._failed(error)
            self._crew.keep_statistics()
            raise self._explained(error)

    def _unread(self, error: BaseException) -> bool:
        """Whether the error is that samples could not be read, or are not supported."""
        return isinstance(error, DataError) or any(w.reading.unread is error for w in self._crew.workers)

    def _failed(self, error: BaseException) -> None:
        """Tell other processes of the failure, and add the last snapshot to the error. Close the sample
        streams, so that samples are read again from here on."""
        self._processes.fail(error)
        self._crew.rewind()
        lasting = isinstance(error, WorkerError | ModelError)
        if lasting and not str(error).endswith(kept := self._kept()):
            error.args = (f"{error}; {kept}",)

    def _explained(self, error: NumericsError) -> NumericsError:
        """Return the error with findings from the nets; statistics are restored as they were kept."""
        crew, told, found = self._crew, str(error), list[str]()
        crew.restore_statistics()
        first = crew.workers[0]
        if lost := lost_parameter(first.plan.slots, first.flat.parameters):
            apart = crew.asynchronous and self._processes.size > 1  # others may be writing to them
            found = [*([] if lost in told else [lost]), *causes([] if apart else crew.workers)]
        elif not (crew.asynchronous and self._processes.size > 1):
            try:
                for worker in crew.workers:
                    if worker.step is not None and not math.isfinite(worker.step.loss()):
                        with traced(worker.reading.origins):  # a device reports bad labels only now
                            found.append(diagnose(worker.step, bool(worker.meetings)))
            finally:
                crew.restore_statistics()
            if any(told != ELSEWHERE for told in found):
                found = [told for told in found if told != ELSEWHERE]
        rate = f"learning rate {rate_of(self._solver, self.iteration):g}"
        return NumericsError("; ".join([told, *dict.fromkeys(found), rate, self._kept()]))


def _ask(question: Ask | None) -> bool:
    return question is not None and question()
