"""The fastest of a library's engines, kept on disk. A later process on such a device with such a library
need not measure them, and computes the same bits."""

from __future__ import annotations

import atexit
import json
import re
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from demitasse import __version__, cache_folder, replacing

if TYPE_CHECKING:
    from demitasse_gpu.device import Device

SOON = 1.0
"""Seconds after which a choice is written, together with those that followed it."""


class Choices:
    """The name of the fastest way by request: of this process, and, if ``library`` (its name and
    version) is given and the device remembers, of earlier processes."""

    def __init__(self, device: Device, library: str = "") -> None:
        self._known: dict[object, str] = {}
        self._kept: dict[str, str] = {}
        self._new, self._written = False, time.monotonic()
        self._path: Path | None = None
        if library and device.remember:
            apart = "" if device.graphs else " ungraphed"  # may choose what has no graph
            name = re.sub(
                r"[^\w.-]+", "-", f"{device.driver.properties.name} {library}{apart} {__version__}"
            )
            try:
                self._path = cache_folder("gpu") / f"{name}.json"
            except RuntimeError:
                return  # a user without a home directory
            self._kept = _read(self._path)
            atexit.register(_write_last, weakref.ref(self))

    def get(self, asked: object) -> str:
        """Return the fastest way's name, or "" if it is not known. Such a way may no longer exist."""
        return self._known.get(asked) or self._kept.get(repr(asked), "")

    def keep(self, asked: object, name: str, lasting: bool = True) -> str:
        """Keep a choice, for later processes too if it is ``lasting``, and return the name."""
        self._known[asked] = name
        if lasting and self._path is not None:
            self._kept[repr(asked)] = name
            self._new = True
            if time.monotonic() - self._written > SOON:
                self.write()
        return name

    def write(self) -> None:
        """Write new choices, merged with what other processes have written. If the folder cannot be
        written, the next process measures again."""
        if self._path is None or not self._new:
            return
        self._new, self._written = False, time.monotonic()
        self._kept = {**_read(self._path), **self._kept}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self._path) as partial:
                partial.write_text(json.dumps(self._kept), encoding="utf-8")
        except OSError:
            self._path = None


def _read(path: Path) -> dict[str, str]:
    """Return a file's choices; none if it does not exist or is not such a file."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, str)}


def _write_last(choices: weakref.ref[Choices]) -> None:
    found = choices()
    if found is not None:
        found.write()
