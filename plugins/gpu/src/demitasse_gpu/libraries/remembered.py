"""Which of a library's engines were the quickest, kept on disk: the next process on such a device with
such a library need not measure them, and computes the same bits."""

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
"""Seconds after which a choice is written, with those that followed it."""


class Choices:
    """The position of the quickest way by what was asked for, of this process; and, where ``library``
    (its name and version) is told and the device remembers, of those before it."""

    def __init__(self, device: Device, library: str = "") -> None:
        self._known: dict[object, int] = {}
        self._kept: dict[str, list[int]] = {}
        self._new, self._written = False, time.monotonic()
        self._path: Path | None = None
        if library and device.remember:
            name = re.sub(r"[^\w.-]+", "-", f"{device.driver.properties.name} {library} {__version__}")
            try:
                self._path = cache_folder("gpu") / f"{name}.json"
            except RuntimeError:
                return  # a user without a home
            self._kept = _read(self._path)
            atexit.register(_write_last, weakref.ref(self))

    def get(self, asked: object, ways: int) -> int | None:
        """The quickest of so many ways, where it is known. What was measured of another number of ways
        is of other ones."""
        if asked in self._known:
            return self._known[asked]
        choice, count = self._kept.get(repr(asked), (0, -1))
        return choice if count == ways and 0 <= choice < ways else None

    def keep(self, asked: object, ways: int, choice: int) -> int:
        """Know it from now on; gives the choice."""
        self._known[asked] = choice
        if self._path is not None:
            self._kept[repr(asked)] = [choice, ways]
            self._new = True
            if time.monotonic() - self._written > SOON:
                self.write()
        return choice

    def write(self) -> None:
        """Write what is new beside what others have written. Where the folder cannot be written, the
        next process measures again."""
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


def _read(path: Path) -> dict[str, list[int]]:
    """What a file holds; nothing where it is not there, or not such a file."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if _is_choice(value)}


def _is_choice(value: object) -> bool:
    return isinstance(value, list) and [type(each) for each in value] == [int, int]


def _write_last(choices: weakref.ref[Choices]) -> None:
    found = choices()
    if found is not None:
        found.write()
