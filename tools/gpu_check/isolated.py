"""Running a part of the check in a process of its own, which may fail, die or hang. What it has reported
is kept, and it is restarted behind the case that it failed at.

A part prints JSON tables, one per line. A table with ``begun`` names the case that begins, and may have
``limit``, the seconds that the case may take.
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
"""Returns the command that runs a part without the named cases, within a number of seconds."""

LOOK = 0.25
"""Seconds between reads of what a part has printed."""
LAST_WORDS = 2.0
"""Seconds for a part that is cut off to print where it is."""
WORTH = 20.0
"""Seconds that must be left for restarting a part."""
KEPT = 6000
"""Characters of a traceback that are kept."""
_OVER: list[bool] = []
"""Not empty once the whole run is over: then no part continues. (It is not an Event: a second signal's
handler would wait forever for its lock, which the first one's holds.)"""


def end_all() -> None:
    """Have all running parts cut off, each by the thread that watches it, and no others begun."""
    _OVER.append(True)


def is_over() -> bool:
    """Return whether no more parts are to begin."""
    return bool(_OVER)


def part(
    command: Command,
    limit: float,
    found: Table | None = None,
    told: Callable[[], object] = lambda: None,
    **about: Any,
) -> Table:
    """Return what a part reports in at most ``limit`` seconds. It is restarted behind each case in which
    it ends badly, as long as there is time. Results are put into ``found`` as they come, and ``told`` is
    called then. ``about`` are arguments of Popen."""
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
    """Run the part once, and put what it reports into ``found``. Return what went wrong, with a
    traceback, or an empty table."""
    with tempfile.TemporaryDirectory() as folder:
        # Files rather than pipes, because a pipe stays open as long as any process that the part has
        # started.
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
    """Wait until the process ends or its time is over. Return why it was cut off, if it was."""
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
    """Have the process print where it is, and end it with everything that it has started. Return whether
    it has ended."""
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGUSR1)
    _ends(process, LAST_WORDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return _ends(process, 10.0)  # it may not, if it waits for a device that hangs


def _ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return True
    return False


def merge(found: Table, line: str) -> Table:
    """Merge one line of a part's output into its result, and return the line's table. Other output is
    kept as it is."""
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
