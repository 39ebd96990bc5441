"""When Python looks for garbage in cycles: not while a command starts.

What a start makes, modules, compiled loops and plans, stays until the process ends. To look through it
again and again, each time that there is a quarter more of it, takes a tenth of a second and more.
"""

from __future__ import annotations

import gc

_pauses: list[None] = []
"""One while there is a pause."""


def pause() -> None:
    """Look for no garbage until ``settle``; without effect where it is not looked for already."""
    if gc.isenabled():
        _pauses.append(None)
        gc.disable()


def settle() -> None:
    """End a pause: look for garbage among what is made from now on."""
    if _pauses:
        _pauses.clear()
        gc.freeze()
        gc.enable()
