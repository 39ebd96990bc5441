"""Python's cyclic garbage collection, which is paused while a command starts.

What a command creates at its start (modules, compiled loops, plans) stays until the process ends.
Searching it for garbage again whenever it has grown by a quarter takes a tenth of a second and more.
"""

from __future__ import annotations

import gc

_pauses: list[None] = []
"""Has an element during a pause."""


def pause() -> None:
    """Pause garbage collection until ``settle``; no effect if it is already disabled."""
    if gc.isenabled():
        _pauses.append(None)
        gc.disable()


def settle() -> None:
    """End a pause: from now on, only new objects are searched for garbage."""
    if _pauses:
        _pauses.clear()
        gc.freeze()
        gc.enable()
