"""The choices for a machine, in a file that several processes read and write."""

from __future__ import annotations

import atexit
import json
import logging
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demitasse import DemitasseError, after_fork, cache_folder, expanded, fingerprint, locked, replacing

log = logging.getLogger("demitasse.tuning")

SCHEMA = 1
SOON = 1.0
"""Seconds after which a choice is saved, along with those that followed it, so that those of a small net
are written once: writing the file takes as long as trying a small operation's kernel."""

# Messages given so far, as (path, reading or writing): a process has many tuners, one for each runtime,
# but gives each message once.
_said: set[tuple[str, str]] = set()


@dataclass(frozen=True)
class Remembered:
    """A choice: the label of the chosen candidate; the seconds of each candidate, None if it failed; and
    ``disturbed``, the number of trials, if other programs were using the cores in all of them, else
    0."""

    kernel: str
    seconds: Mapping[str, float | None]
    disturbed: int = 0


@dataclass(frozen=True)
class Choices:
    """What is remembered about the offers of one version of a plugin, by the key of the request."""

    version: str
    choices: Mapping[str, Remembered]


class CacheError(DemitasseError):
    """Says why the content of a file is not used."""


def cache_file(folder: str = "") -> Path:
    """Return the path of this machine's file, in ``folder`` or else in the user's cache folder. Raises
    RuntimeError if the user has no home directory."""
    if folder:
        return expanded(folder) / f"{fingerprint()}.json"
    return cache_folder("tuning") / f"{fingerprint()}.json"


def read(path: Path) -> dict[str, Choices]:
    """Return what the file holds, by plugin; nothing if it does not exist. Raises CacheError."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise CacheError(f"it cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise CacheError("it is damaged (not JSON)") from error
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise CacheError(f"its schema is not {SCHEMA}")
    if (maker := content.get("fingerprint")) != fingerprint():
        raise CacheError(
            f"it was made on another machine ({maker!r}, but this one is {fingerprint()!r})"
        )
    try:
        return {str(name): _choices(table) for name, table in content["plugins"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CacheError("it is damaged (no table of choices)") from error


def _choices(table: Any) -> Choices:
    found = {}
    for key, entry in table["choices"].items():
        kernel, seconds = entry["kernel"], entry["seconds"]
        numbers = [value for value in seconds.values() if value is not None]
        # json accepts NaN and Infinity, and in Python True is a number.
        if any(type(value) not in (int, float) or not 0 <= value < math.inf for value in numbers):
            raise ValueError(f"{key}: seconds are {seconds}")
        if seconds.get(kernel) is None:
            raise ValueError(f"{key}: {kernel!r} was chosen but not timed")
        if type(disturbed := entry.get("disturbed", 0)) is not int or disturbed < 0:
            raise ValueError(f"{key}: disturbed is {disturbed}")
        found[key] = Remembered(kernel, seconds, disturbed)
    if not isinstance(table["version"], str):
        raise TypeError("the version is not a string")
    return Choices(table["version"], found)


class Cache:
    """The choices in a file or, without a ``path``, only in memory. A thread saves them soon after they
    were made; so does ``save``, and the end of the process. Content that cannot be used is ignored and
    written anew, and choices that cannot be written are kept in memory; either is reported in one line
    per process."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._file: dict[str, Choices] = {}
        self._made: dict[str, Choices] = {}
        self._seen: object = None
        self._lock = threading.RLock()
        self._saver: threading.Timer | None = None

    def find(self, plugin: str, version: str, key: str, candidates: list[str]) -> Remembered | None:
        """Return the choice among exactly these candidates of this version of the plugin, or None."""
        for other in list(_unsaved):
            if other is not self and other.path == self.path:
                other.save()
        with self._lock:
            self._refresh()
            file = self._file
        for source in (self._made, file):
            known = source.get(plugin)
            if known is None:
                continue
            if known.version != version:
                self._say(
                    f"its choices are for {plugin} {known.version}, but this is {version or 'unknown'}"
                )
            elif (entry := known.choices.get(key)) is not None:
                if set(entry.seconds) == set(candidates):
                    return entry
                self._say(f"{plugin} offers other kernels now than those that were tried")
        return None

    def put(self, plugin: str, version: str, key: str, entry: Remembered) -> None:
        """Remember a choice, to be saved along with those that other processes have saved by then."""
        with self._lock:
            mine = self._made.get(plugin)
            others = mine.choices if mine is not None and mine.version == version else {}
            self._made[plugin] = Choices(version, {**others, key: entry})
            if self.path is None:
                return
            _unsaved.add(self)
            if self._saver is None:
                self._saver = threading.Timer(SOON, self._save)
                self._saver.name, self._saver.daemon = "tuning cache", True
                self._saver.start()

    def save(self) -> None:
        """Save at once what is not saved yet, and end the thread."""
        with self._lock:
            saver = self._saver
            self._save()
        if saver is not None:
            saver.join()

    def _save(self) -> None:
        with self._lock:
            if self._saver is not None:
                self._saver.cancel()
                self._saver = None
            try:
                if self in _unsaved and self.path is not None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    with locked(self.path.with_suffix(".lock")):
                        self._refresh()
                        self._write(self.path)
            except OSError as error:
                self._say(f"choices cannot be saved: {error.strerror or error}", "writing", "")
                self.path = None
            finally:
                _unsaved.discard(self)

    def _forked(self) -> None:
        """Start afresh in a forked process: the thread does not exist there, and will not release what
        it held."""
        self._lock, self._saver = threading.RLock(), None

    def _refresh(self) -> None:
        """Read the file again if it is not the one that was read or written last."""
        if self.path is None or (found := _signature(self.path)) == self._seen:
            return
        self._seen = found
        try:
            self._file = read(self.path)
        except CacheError as error:
            self._file = {}
            self._say(str(error))

    def _write(self, path: Path) -> None:
        merged = dict(self._file)
        for plugin, mine in self._made.items():
            theirs = merged.get(plugin)
            old = theirs.choices if theirs is not None and theirs.version == mine.version else {}
            merged[plugin] = Choices(mine.version, {**old, **mine.choices})
        with replacing(path) as partial:
            partial.write_text(_text(merged), "utf-8")
        self._file, self._seen = merged, _signature(path)

    def _say(
        self, problem: str, about: str = "reading", then: str = "; ignored, and written again"
    ) -> None:
        if self.path is not None:
            say_once(str(self.path), about, f"{problem}{then}")


_unsaved = set[Cache]()
"""Caches with choices still to be saved; being in this set keeps them alive until then."""


@atexit.register
def _save_all() -> None:
    for cache in list(_unsaved):
        cache.save()


def _forked() -> None:
    for cache in _unsaved:
        cache._forked()


after_fork(_forked)


def say_once(cache: str, about: str, message: str) -> None:
    """Log a line about a cache, but only the first time in this process that one concerns this."""
    if (cache, about) not in _said:
        _said.add((cache, about))
        log.warning("tuning cache %s: %s", cache, message)


def _text(plugins: Mapping[str, Choices]) -> str:
    """Return the file's content: JSON with one choice per line, which is also faster to write than
    indented JSON."""
    tables = []
    for name, known in sorted(plugins.items()):
        rows = ",\n".join(
            f"{json.dumps(key)}: {json.dumps(_row(e))}" for key, e in sorted(known.choices.items())
        )
        version = json.dumps(known.version)
        tables.append(f'{json.dumps(name)}: {{"version": {version}, "choices": {{\n{rows}\n}}}}')
    head = f'"schema": {SCHEMA}, "fingerprint": {json.dumps(fingerprint())}'
    return "{" + head + ', "plugins": {\n' + ",\n".join(tables) + "\n}}\n"


def _row(entry: Remembered) -> dict[str, Any]:
    row = {"kernel": entry.kernel, "seconds": dict(entry.seconds)}
    return {**row, "disturbed": entry.disturbed} if entry.disturbed else row


def _signature(path: Path) -> object:
    """Return something that changes when the file is written; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
