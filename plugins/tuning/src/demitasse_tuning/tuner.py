"""The tuner: it tries candidates once per machine and remembers the choice."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf, prod
from pathlib import Path
from typing import Any

from demitasse import (
    Allocator,
    Candidate,
    CompositionError,
    Request,
    option_place,
    shapes_by_operand,
    threads_here,
    unknown,
)
from demitasse_tuning.cache import Cache, Remembered, cache_file, say_once
from demitasse_tuning.key import labels, request_key
from demitasse_tuning.scratch import Scratch
from demitasse_tuning.trial import Outcome, choose, compare, reorder_seconds
from demitasse_tuning.waiting import Waits, waited

log = logging.getLogger("demitasse.tuning")

OPTIONS = ("tune", "cache")

TRIALS = 3
"""A choice that was made while other programs used the cores is made again by the next processes, until
the cores are free; after this many trials it stays."""

_tried_here = set[tuple[Path | None, str]]()
"""What was tried in this process: the file that remembers it, and the request's key."""

TINY, SMALL, LITTLE = 32 * 2**10, 256 * 2**10, 2**20
"""Limits below which a request is not tried: the bytes of all operands together, or the same for a
request with few floating-point operations, and what counts as few. Such a kernel takes microseconds, but
making one for the trial takes thousands of them: for LeNet's smallest operations, a tenth of the time of
its first hundred steps."""
CACHED, PRODUCTS = 4 * 2**20, 2**26
"""Limits below which a product of matrices is not tried: the bytes that stay in the caches, and the
floating-point operations that take tenths of a millisecond. Its kernels differ in what they reorder
rather than in how they compute. For LeNet's products, trials would cost a thirtieth of the time of its
first hundred steps."""


class CandidateTuner:
    """Picks the fastest candidate by trying all of them in memory of ``allocator``, one request at a
    time. ``versions`` are those of the plugins that offer kernels, by name. Options: ``tune`` is on, or
    off (first means the same) for the first candidate; ``cache`` is a folder for the file, or off.
    ``clock`` returns seconds, ``waits`` the seconds that each thread has waited for a core. Raises
    CompositionError for other options.

    Threads that pick at the same time take turns: each trial has the memory to itself, and a later
    thread gets the same choice."""

    def __init__(
        self,
        allocator: Allocator,
        versions: Mapping[str, str],
        options: Mapping[str, Any],
        clock: Callable[[], float] = time.perf_counter,
        waits: Waits = waited,
    ) -> None:
        for name in options:
            if name not in OPTIONS:
                where = option_place(options, "tuning", name)
                raise CompositionError(unknown("option", name, OPTIONS, where))
        folder = options.get("cache", "")
        if not isinstance(folder, str):
            where = option_place(options, "tuning", "cache")
            raise CompositionError(f"{where}: cache = {folder!r} (valid: a folder, or 'off')")
        self.seconds_spent = 0.0
        """The seconds that trials took so far, including binding and filling memory."""

        self._tune = options.get("tune", "on") == "on"
        self._versions, self._clock, self._waits = dict(versions), clock, waits
        self._scratch = Scratch(allocator)
        self._cache = _cache(folder if self._tune else "off")
        self._lone = Cache(None)
        """Choices of a forked process, which has fewer threads than others for the same requests."""

        self._met: set[str] = set()
        self._choices: dict[str, str] = {}
        self._preferred: dict[str, str] = {}
        self._turn = threading.RLock()

    def pick(self, plugin: str, request: Request, candidates: Sequence[Candidate]) -> tuple[int, str]:
        """Return the position of the candidate to use and how that is known: preferred by ``prefer``,
        remembered, or tried now. At a place that is only simulated, nothing runs."""
        if request.place.simulated:
            return 0, "not tried: simulated"
        key, names = request_key(plugin, request), labels(candidates)
        with self._turn:
            position, reason = self._pick(plugin, key, names, request, candidates)
            self._choices[key] = names[position]
        return position, reason

    def choices(self) -> dict[str, str]:
        """Return the kernel of each pick so far, by the key of its request, as text for a snapshot."""
        with self._turn:
            return dict(self._choices)

    def prefer(self, choices: Mapping[str, str]) -> None:
        """Make later picks follow what ``choices`` of another run returned, so that this run computes
        the same bits. Other requests are picked as usual."""
        with self._turn:
            self._preferred = dict(choices)

    def close(self) -> None:
        """Save the choices, and release the memory for trials; the next trial allocates it again."""
        with self._turn:
            self._cache.save()
            self._scratch.close()

    def _pick(
        self,
        plugin: str,
        key: str,
        names: list[str],
        request: Request,
        candidates: Sequence[Candidate],
    ) -> tuple[int, str]:
        if (kernel := self._preferred.get(key)) is not None:
            if kernel in names:
                return names.index(kernel), "preferred: as before"
            del self._preferred[key]
            offered = ", ".join(names)
            log.warning("kernel %r is no longer offered for %s (offered: %s)", kernel, key, offered)
        if not self._tune:
            return 0, "preferred: tuning off"
        if _takes_microseconds(request):
            reorders = [reorder_seconds(request, candidate) for candidate in candidates]
            return reorders.index(min(reorders)), "not tried: tiny"
        version = self._versions.get(plugin, "")
        lone = threads_here(request.place.threads) < request.place.threads
        found = self._cache.find(plugin, version, key, names)
        if found is None and lone:
            found = self._lone.find(plugin, version, key, names)
        if found is not None and (lone or not self._doubts(found, key)):
            return names.index(found.kernel), f"remembered: {_times(found)}"
        start = self._clock()
        _tried_here.add((self._cache.path, key))
        try:
            outcome = compare(
                plugin, request, candidates, self._scratch, self._clock, self._met, self._waits
            )
        except MemoryError:
            return self._untried("too little memory", found, names)
        finally:
            self._scratch.release()
            self.seconds_spent += self._clock() - start
        if outcome is None:
            return self._untried("none ran on made-up values", found, names)
        entry = _remembered(names, outcome, found, request, candidates)
        (self._lone if lone else self._cache).put(plugin, version, key, entry)
        return names.index(entry.kernel), f"tried: {_times(entry)}"

    @staticmethod
    def _untried(why: str, found: Remembered | None, names: list[str]) -> tuple[int, str]:
        """Return the choice if a trial was not possible: the one ``found``, which it was meant to
        improve, or else the preferred kernel."""
        if found is not None:
            return names.index(found.kernel), f"remembered: {_times(found)}"
        return 0, f"not tried: {why}"

    def _doubts(self, found: Remembered, key: str) -> bool:
        """Return whether a choice was made while other programs used the cores and may be improved now:
        not in the process that made it, and not forever."""
        return 0 < found.disturbed < TRIALS and (self._cache.path, key) not in _tried_here


def _remembered(
    names: list[str],
    outcome: Outcome,
    before: Remembered | None,
    request: Request,
    candidates: Sequence[Candidate],
) -> Remembered:
    """Return a trial's outcome. If other programs used the cores in it and in the trials ``before``, the
    least of all times counts, because interference only adds to a time."""
    seconds = dict(zip(names, outcome.seconds, strict=True))
    if not outcome.disturbed:
        return Remembered(names[outcome.best], seconds)
    if before is None:
        return Remembered(names[outcome.best], seconds, 1)
    for name, later in seconds.items():
        earlier = before.seconds.get(name)
        if later is not None and earlier is not None:
            seconds[name] = min(earlier, later)
    ran = {i: taken for i, name in enumerate(names) if (taken := seconds[name]) is not None}
    return Remembered(names[choose(request, candidates, ran)], seconds, before.disturbed + 1)


def _takes_microseconds(request: Request) -> bool:
    size = sum(spec.nbytes for spec in (*request.inputs, *request.outputs) if spec is not None)
    if request.operation.name.startswith("inner_product") and size < CACHED:
        return _flops(request) < PRODUCTS
    return size < TINY or (size < SMALL and _flops(request) < LITTLE)


def _flops(request: Request) -> float:
    """Return the floating-point operations by the vocabulary's rule; inf if an operand is variadic."""
    operation = request.operation
    if any(operand.variadic for operand in (*operation.inputs, *operation.outputs)):
        return inf
    if operation.flops is None:
        return float(sum(prod(spec.shape) for spec in request.outputs if spec is not None))
    return operation.flops(shapes_by_operand(request), request.attributes)


def _cache(folder: str) -> Cache:
    if folder == "off":
        return Cache(None)
    try:
        return Cache(cache_file(folder))
    except RuntimeError as error:
        then = "choices are not saved; set XDG_CACHE_HOME, or the option cache"
        say_once("in the user's home", "writing", f"{error} {then}")
        return Cache(None)


def _times(entry: Remembered) -> str:
    """Return the time of the chosen kernel, then the best of the others, as text."""
    others = [s for name, s in entry.seconds.items() if name != entry.kernel and s is not None]
    text = f"{1e3 * (entry.seconds[entry.kernel] or 0.0):.3g} ms"
    text += f", next {1e3 * min(others):.3g}" if others else ", the others failed"
    return f"{text}, on a busy machine" if entry.disturbed else text
