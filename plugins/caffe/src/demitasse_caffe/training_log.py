"""A training log in Caffe's format, with lines as glog writes them, from which scripts read
losses and scores."""

from __future__ import annotations

import errno
import getpass
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import CompositionError, Event, is_folder, printable

Say = Callable[[str, str], None]
"""A function that takes a line: its place in Caffe's sources, and its text."""

STANDARD_ERROR = "-"
LINK = "caffe.INFO"
"""The name of the link to the newest log in a folder."""

_SOLVER, _UPDATE = "solver.cpp", "sgd_solver.cpp"
_FORMATS = {
    ".caffemodel": "Snapshotting to binary proto file",
    ".caffemodel.h5": "Snapshotting to HDF5 file",
    ".solverstate": "Snapshotting solver state to binary proto file",
    ".solverstate.h5": "Snapshotting solver state to HDF5 file",
}


def glog(place: str, text: str, level: str = "I", when: float | None = None) -> str:
    """Return a line as glog writes it, with time and thread. A ``place`` without a
    line number gets 0."""
    at = datetime.fromtimestamp(time.time() if when is None else when)
    where = place if ":" in place else f"{place}:0"
    return f"{level}{at:%m%d %H:%M:%S.%f} {threading.get_native_id():5d} {where}] {text}"


class TrainingLog:
    """Reports on a training every ``display`` iterations, on tests and on snapshots,
    one line at a time."""

    def __init__(self, display: int, say: Say) -> None:
        self._display, self._say = display, say
        self._at, self._since = 0, time.perf_counter()

    def begin(self, name: str, iteration: int = 0) -> None:
        """Log the beginning of a net's training."""
        self._say("caffe.cpp:251", "Starting Optimization")
        self._say(f"{_SOLVER}:279", f"Solving {name}")
        self._at, self._since = iteration, time.perf_counter()

    def shows(self, iteration: int) -> bool:
        """Return whether an iteration (from 0) is logged."""
        return self._display > 0 and iteration % self._display == 0

    def iteration(
        self,
        iteration: int,
        loss: float,
        rate: float,
        outputs: Mapping[str, Any],
        weights: Mapping[str, float],
    ) -> None:
        """Log an iteration (from 0): its smoothed loss, the net's outputs with their weights in the
        loss, and the learning rate."""
        now = time.perf_counter()
        seconds = now - self._since
        pace = f"{(iteration - self._at) / (seconds or 1):g} iter/s, {seconds:g}s/{self._display} iters"
        self._say(f"{_SOLVER}:218", f"Iteration {iteration} ({pace}), loss = {loss:g}")
        self._at, self._since = iteration, now
        self._outputs("Train", f"{_SOLVER}:237", outputs, weights)
        self._say(f"{_UPDATE}:105", f"Iteration {iteration}, lr = {rate:g}")

    def tests(
        self, iteration: int, scores: Mapping[str, Any], weights: Sequence[Mapping[str, float]]
    ) -> None:
        """Log the mean scores of the test nets; the names of all but the first net's begin with the
        net's number. ``weights`` has each net's weights in its loss."""
        others = tuple(f"{number}." for number in range(1, len(weights)))
        for number, mine in enumerate(weights):
            front = f"{number}." if number else ""
            own = {
                name.removeprefix(front): score
                for name, score in scores.items()
                if name.startswith(front) and (number or not name.startswith(others))
            }
            self._say(f"{_SOLVER}:330", f"Iteration {iteration}, Testing net (#{number})")
            self._outputs("Test", f"{_SOLVER}:397", own, mine)

    def hear(self, event: Event) -> None:
        """Log the files in Caffe's formats that an event reports."""
        for path in event.values["paths"] if event.kind == "snapshot" else ():
            for suffix, words in _FORMATS.items():
                if path.name.endswith(suffix):
                    self._say(f"{_SOLVER}:447", f"{words} {path}")

    def end(self, early: bool) -> None:
        """Log the end of the training."""
        self._say(f"{_SOLVER}:326", f"Optimization {'stopped early' if early else 'Done'}.")

    def _outputs(
        self, phase: str, place: str, outputs: Mapping[str, Any], weights: Mapping[str, float]
    ) -> None:
        for number, text in enumerate(scored(outputs, weights)):
            self._say(place, f"    {phase} net output #{number}: {text}")


def scored(outputs: Mapping[str, Any], weights: Mapping[str, float]) -> Iterator[str]:
    """Yield ``name = value`` for each number of the outputs, sorted by name, with the contribution to
    the loss of those that have a weight."""
    for name in sorted(outputs):
        weight = weights.get(name, 0.0)
        for value in np.ravel(outputs[name]).tolist():
            part = f" (* {weight:g} = {weight * value:g} loss)" if weight else ""
            yield f"{name} = {value:g}{part}"


class Lines:
    """Lines of a log, written to files, and to standard error if asked, as they come."""

    def __init__(self, places: Sequence[str]) -> None:
        """Open the log. A place is a file, a folder, in which the log gets the name that glog would give
        it, or - for standard error. Raise CompositionError if a log cannot be written."""
        self._files = [_begun(Path(place)) for place in places if place != STANDARD_ERROR]
        self._stderr = STANDARD_ERROR in places

    def say(self, place: str, text: str) -> None:
        """Write a line, visible at once to anyone who follows the log."""
        line = printable(glog(place, text))
        for path in self._files:
            with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
                print(line, file=file)
        if self._stderr:
            print(line, file=sys.stderr, flush=True)


class Listener:
    """Writes a run's log from its events."""

    def __init__(self, lines: Lines) -> None:
        self._say = lines.say
        self._log = TrainingLog(0, self._say)
        self._last = 0
        self._train: Mapping[str, float] = {}
        self._tests: Sequence[Mapping[str, float]] = ()

    def __call__(self, event: Event) -> None:
        values = event.values
        if event.kind == "start":
            self._train, *self._tests = values["loss_weights"]
            self._last, self._log = values["iterations"], TrainingLog(values["display"], self._say)
            self._log.begin(values["net"], event.iteration)
        elif event.kind == "iteration" and self._log.shows(event.iteration - 1):
            about = values["smoothed"], values["rate"], values["terms"](), self._train
            self._log.iteration(event.iteration - 1, *about)
        elif event.kind == "test":
            self._log.tests(event.iteration, values["scores"], self._tests)
        elif event.kind == "snapshot":
            self._log.hear(event)
        elif event.kind == "end":
            self._log.end("error" in values or event.iteration < self._last)


def listener(wanted: Any) -> Callable[[Event], None] | None:
    """Return the log that the option ``log`` asks for: in a file, in a folder under the name that glog
    would give it, or (-) on standard error; or in several places, if it is a list. Return None for an
    empty list. Raise CompositionError if a log cannot be written."""
    places = [wanted] if isinstance(wanted, str) else wanted
    if not isinstance(places, list) or not all(isinstance(place, str) for place in places):
        raise CompositionError(
            f"option caffe.log = {wanted!r} (valid: a file, a folder, {STANDARD_ERROR} for standard "
            f"error, or a list of them)"
        )
    return Listener(Lines(places)) if places else None


def _begun(place: Path) -> Path:
    """Return the file of a new log, with glog's header already written."""
    head = [
        f"Log file created at: {datetime.now():%Y/%m/%d %H:%M:%S}",
        f"Running on machine: {socket.gethostname()}",
        "Log line format: [IWEF]mmdd hh:mm:ss.uuuuuu threadid file:line] msg",
    ]
    try:
        if is_folder(place):
            return _named(place, "\n".join([*head, ""]))
        place.write_text("\n".join([*head, ""]), encoding="utf-8")
    except OSError as error:
        raise CompositionError(f"option caffe.log: {place}: {error.strerror or error}") from error
    return place


def _named(folder: Path, head: str) -> Path:
    """Return a new log's file in a folder, and make caffe.INFO link to it if possible.
    Existing files are never overwritten: in a folder shared by all users, one may be
    somebody's link to another file."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user id, which has no name
        user = "invalid-user"
    who = f"{socket.gethostname()}.{user}"
    name = f"caffe.{who}.log.INFO.{datetime.now():%Y%m%d-%H%M%S}.{os.getpid()}"
    for each in (name, *(f"{name}.{number}" for number in range(1, 100))):
        with suppress(FileExistsError), (folder / each).open("x", encoding="utf-8") as file:
            file.write(head)
            name = each
            break
    else:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    link = folder / LINK
    # Ignored, as in glog: it may be another user's or another process's, or links do not exist.
    with suppress(OSError):
        link.unlink(missing_ok=True)
        link.symlink_to(name)
    return folder / name
