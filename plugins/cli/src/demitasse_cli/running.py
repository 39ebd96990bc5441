"""A training from its first iteration to its report."""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from demitasse import write_json
from demitasse_cli import garbage, launch, report
from demitasse_cli.history import History, came_to
from demitasse_cli.interrupts import Interrupts
from demitasse_cli.main import BROKEN_PIPE
from demitasse_cli.outlets import Outlet
from demitasse_cli.progress import Live, Meter, shown
from demitasse_cli.timeline import Timeline
from demitasse_cli.until import Until

if TYPE_CHECKING:
    from demitasse import Runtime


def run(
    runtime: Runtime,
    trainer: Any,
    about: Mapping[str, Any],
    quiet: bool = False,
    timeline: Path | None = None,
    json_path: str | None = None,
    effects: Mapping[int, str] = MappingProxyType({}),
    until: Until | None = None,
) -> int:
    """Train to the end or to a signal, and report. ``effects`` are those of signals that do not stop. A
    run that fails also writes its report, which then has the error, and its timeline."""
    stream: Any = Outlet(report.lines_to(json_path))
    history, started = History(), time.perf_counter()
    meter = Meter(trainer.iteration, trainer.solver.max_iterations)
    show = shown(meter, trainer.solver.display_interval, stream, quiet)
    trainer.listeners += [show, history, lambda event: garbage.settle()]
    recorder = Timeline()
    if timeline is not None:
        trainer.listeners.append(recorder)
    record = {"iterations": trainer.iteration, "loss": None, **about}

    def write_report() -> None:
        if json_path is not None:
            told = _told(runtime, trainer, history, time.perf_counter() - started, meter.overall)
            write_json(json_path, record | told)

    last = trainer.solver.max_iterations
    if trainer.iteration > 0 and trainer.iteration >= last:
        show.close()
        record |= {"phases": {}, "interrupted": False}
        history.snapshot = Path(about["resumed"]) if about.get("resumed") else None
        write_report()
        at = f"the snapshot is at iteration {trainer.iteration}"
        print(f"nothing to do: {at}, the solver ends at {last}", file=stream, flush=True)
        return 0
    terminal = stream.fileno() if isinstance(show, Live) else None
    try:
        with closing(show), Interrupts(terminal, effects) as interrupts:

            def stop() -> bool:
                return interrupts.stop() or stream.lost is not None

            result = trainer.run(stop=stop, save=interrupts.snapshot, until=until)
    except BaseException as error:
        if history.losses:
            record |= {"loss": history.losses[-1][1], "error": f"{type(error).__name__}: {error}"}
            try:
                write_report()
                if timeline is not None:
                    recorder.write(timeline)
            except OSError as other:  # perhaps a full disk, which may be why the run failed
                click.echo(f"{launch.name()}: {other}", err=True)
        raise
    stopped = interrupts.stop() or stream.lost is not None or trainer.stopped
    record |= {"loss": result.loss, "phases": result.phases, "interrupted": stopped}
    word = "interrupted" if stopped else "done"
    line = came_to(trainer.iteration, result.loss, history, time.perf_counter() - started)
    try:
        if timeline is not None:
            if not stopped:
                recorder.profile(trainer.profile(1))
            recorder.write(timeline)
    finally:
        try:
            write_report()
        finally:
            print(f"{word}: {line}", file=stream, flush=True)
    return interrupts.status or unheard(stream.lost, history.snapshot)


def _told(
    runtime: Runtime, trainer: Any, history: History, seconds: float, speed: float | None
) -> dict[str, Any]:
    """Return what a report says about a run so far."""
    return {
        "iterations": trainer.iteration,
        "scores": history.scores,
        "seconds": seconds,
        "samples_per_second": speed,
        "composition": runtime.composition.to_dict(),
        "history": history.losses,
        "tests": history.tests,
        "snapshot": history.snapshot,
        "batch": trainer.batch,
        "workers": trainer.workers,
        "synchronisation": trainer.notes,
    }


def unheard(lost: OSError | None, snapshot: Path | None) -> int:
    """Return the exit status of a run whose output was lost: SIGPIPE's if the reader went away. Raises
    OSError if it was lost otherwise, as on a full disk."""
    if lost is None:
        return 0
    if lost.errno in (errno.EPIPE, errno.EIO):  # EIO: the terminal is gone
        return BROKEN_PIPE
    raise OSError(f"the output cannot be written: {lost.strerror}; stopped after snapshot {snapshot}")
