"""A part of the check in a separate process, which may fail, die or hang. What it has reported by then
is kept, and it is started again after the case at which it failed.

A part prints JSON tables, one per line. A table with ``begun`` names the case that begins; ``limit``
says how many seconds it may take.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

Table = dict[str, Any]
Command = Callable[[Sequence[str], float], Sequence[str]]
"""Returns the command that runs a part without the named cases, for so many seconds."""

LOOK = 0.25
"""Seconds between checks of a part's output."""
LAST_WORDS = 2.0
"""How many seconds a part that is cut off has to say where it is."""
WORTH = 20.0
"""A part is restarted only if at least so many seconds are left."""
KEPT = 6000
"""How many characters of a traceback are kept."""
_OVER: list[bool] = []
"""Not empty once the whole run is over, so that no part continues. (Not an Event: a second signal's
handler would wait forever for its lock within the first one's.)"""


def end_all() -> None:
    """Have all running parts cut off, each by its watcher, and start no more."""
    _OVER.append(True)


def is_over() -> bool:
    """Whether no further part may be started."""
    return bool(_OVER)


def part(
    command: Command,
    limit: float,
    found: Table | None = None,
    told: Callable[[], object] = lambda: None,
    **about: Any,
) -> Table:
    """Return what a part finds in at most ``limit`` seconds. It is restarted after each case in which it
    ends badly, as long as there is time. Findings are put in ``found`` as they arrive, and ``told`` is
    then called. ``about`` is passed to Popen."""
    start, found = time.monotonic(), Table() if found is None else found
    while True:
        left = limit - (time.monotonic() - start)
        before = len(found.get("begun", ()))
        problem = _attempt(command(found.get("begun", ()), left), left, found, told, about)
        if problem:
            found.setdefault("failures", []).append(problem)
        begun = found.get("begun", [])
        if not problem or len(begun) == before or limit - (time.monotonic() - start) < WORTH:
            break
        if _OVER:
            break
    found["seconds"] = time.monotonic() - start
    if failures := found.get("failures"):
        found["error"] = failures[-1]["error"]
    return found


def _attempt(
    command: Sequence[str], limit: float, found: Table, told: Callable[[], object], about: Table
) -> Table:
    """Run a part once, and put its output in ``found``. Returns what went wrong, with a traceback, if
    anything did."""
    with tempfile.TemporaryDirectory() as folder:
        # Files rather than pipes: a pipe stays open while any process that the part started lives.
        said, errors = Path(folder) / "out", Path(folder) / "err"
        with said.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True, **about)
        with said.open(encoding="utf-8", errors="replace") as lines:
            cut = _watch(process, limit, lines, found, told)
        text = errors.read_text("utf-8", "replace")[-KEPT:]
    if not cut and not process.returncode:
        return {}
    ends = [line for line in text.splitlines() if line.strip()]
    how = f"ended with status {process.returncode}: {ends[-1] if ends else 'it said nothing'}"
    case = found.get("begun", [""])[-1]
    return {"case": case, "error": f"{case}: {cut or how}".removeprefix(": "), "traceback": text}


def _watch(
    process: subprocess.Popen[bytes],
    limit: float,
    lines: Any,
    found: Table,
    told: Callable[[], object],
) -> str:
    """Wait until it ends or its time is over; say why it was cut off, if it was."""
    start = began = time.monotonic()
    patience, rest = limit, ""
    while True:
        ended = _ends(process, LOOK)
        *whole, rest = (rest + lines.read()).split("\n")
        for line in whole:
            if "begun" in (said := merge(found, line)):
                began, patience = time.monotonic(), float(said.get("limit", limit))
        if whole:
            told()
        if ended:
            if rest:
                merge(found, rest)
            return ""
        now = time.monotonic()
        if _OVER or now - start > limit or now - began > patience:
            when = "with the whole run" if _OVER else f"after {min(limit, patience):.0f} s"
            return f"cut off {when}" + ("" if _end(process) else ", and not to be ended")


def _end(process: subprocess.Popen[bytes]) -> bool:
    """Have it say where it is, and end it with all processes it started. Returns whether it has
    ended."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGUSR1)
    _ends(process, LAST_WORDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return _ends(process, 10.0)  # a process that waits for a hanging device may not end


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return True
    return False


def merge(found: Table, line: str) -> Table:
    """Merge one line of a part's output into its result, and return it; other output is kept as text."""
    try:
        said = json.loads(line)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        found.setdefault("output", []).append(line[:500])
        return {}
    if "begun" in said:
        found.setdefault("begun", []).append(said["begun"])
        return said
    for key, value in said.items():
        if isinstance(value, list):
            found.setdefault(key, []).extend(value)
        else:
            found[key] = value
    return said
