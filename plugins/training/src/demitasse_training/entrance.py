"""Threads that compute tell their memory's allocator so, once each."""

from __future__ import annotations

import threading

from demitasse import Allocator


class Entrance:
    """Called by a thread before it computes: lets the allocator bind it near, the first time."""

    def __init__(self, allocator: Allocator) -> None:
        self._enter = getattr(allocator, "enter", None)
        self._here = threading.local()

    def __call__(self) -> None:
        if self._enter is not None and not hasattr(self._here, "entered"):
            self._enter()
            self._here.entered = True
