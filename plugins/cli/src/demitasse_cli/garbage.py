"""When Python looks for garbage in cycles: not while a command starts.

What a start makes, modules, compiled loops and plans, stays until the process ends. To look through it
again and again, each time that there is a quarter more of it, takes a tenth of a second and more.
"""

from __future__ import annotations

import gc

_paused = False


def pause() -> None:
    """Look for no garbage until ``settle``; without effect where it is not looked for already."""
    global _paused
    _paused = gc.isenabled()
    gc.disable()


def settle() -> None:
    """End a pause: look for garbage among what is made from now on."""
    global _paused
    if _paused:
        _paused = False
        gc.freeze()
        gc.enable()
