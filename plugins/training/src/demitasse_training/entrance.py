"""Threads that compute tell their memory's allocator, once each."""

from __future__ import annotations

import threading
from collections.abc import Callable

from demitasse import Allocator, blamed


class Entrance:
    """Called by each thread before it computes; the first call lets the allocator bind the thread near
    its memory. ``leave`` undoes this for all threads."""

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator
        self._enter = getattr(allocator, "enter", None)
        self._here = threading.local()
        self._undo: list[Callable[[], object]] = []

    def __call__(self) -> None:
        if self._enter is not None and not hasattr(self._here, "entered"):
            with blamed(self._allocator, "in enter"):
                undo = self._enter()
            if callable(undo):
                self._undo.append(undo)
            self._here.entered = True

    def leave(self) -> None:
        """Unbind all threads. A thread that computes again after this enters anew."""
        self._here = threading.local()
        while self._undo:
            with blamed(self._allocator, "undoing enter"):
                self._undo.pop()()
