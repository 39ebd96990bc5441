"""What a plugin's synchronisation states about itself, for a simulation: asked for, and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeVar

from demitasse import GradientSync, PluginError, blamed, whose

T = TypeVar("T")

SECONDS = "a finite number of seconds from 0"


def asked(sync: Any, name: str, given: Sequence[Any], check: Callable[[Any], T], valid: str) -> T:
    """Return what a method of a synchronisation returns, as ``check`` makes it. Raises PluginError,
    which names the plugin and the method, for any exception in it and for what is not ``valid``
    (``check`` raises TypeError or ValueError)."""
    with blamed(sync, f"in {name}"):
        made = getattr(sync, name)(*given)
        made = [*made] if hasattr(made, "__next__") else made
    try:
        return check(made)
    except (TypeError, ValueError) as error:
        said = str(error) if type(error) is ValueError else ""
        raise PluginError(
            f"{whose(sync)}: {name} returned {made!r:.99} (valid: {valid}){said and ': '}{said}"
        ) from error


def costs(sync: Any, *given: Any) -> tuple[float, float]:
    """Return the seconds to reduce and to distribute a bucket's span between threads."""

    def check(made: Any) -> tuple[float, float]:
        reduce, distribute = made
        return seconds(reduce), seconds(distribute)

    valid = f"two numbers, to reduce and to distribute, each {SECONDS}"
    return asked(sync, "costs", given, check, valid)


def workspace(sync: Any, elements: int) -> int:
    """Return the bytes that a synchronisation needs for so many elements; 0 if it states none."""
    if not hasattr(sync, "workspace_bytes"):
        return 0
    return asked(
        sync, "workspace_bytes", [elements], lambda made: int(seconds(made)), "a number of bytes"
    )


def described(sync: Any, nodes: int) -> Any:
    """Return the object that stands for the first of some nodes, which is told how many take part."""

    def check(made: Any) -> Any:
        if not isinstance(made, GradientSync) or not hasattr(made, "messages"):
            raise TypeError
        return made

    outer = asked(sync, "described", [], check, "a GradientSync with a method messages")
    if hasattr(outer, "taking_part"):
        with blamed(outer, "in taking_part"):
            outer.taking_part(nodes)
    return outer


def messages(sync: Any, buckets: Sequence[Any], reads: Sequence[int]) -> list[tuple[Any, ...]]:
    """Return (goal, indices, start, wait) of each message between nodes."""
    known = sorted(reads)
    alone = getattr(sync, "collective", {}) is None

    def check(made: Any) -> list[tuple[Any, ...]]:
        found = []
        for goal, indices, *moments in made:
            if isinstance(goal, str) and alone:
                raise ValueError(f"{goal!r} is a collective, but the object's collective is None")
            goal = goal if isinstance(goal, str) else seconds(goal)
            _in_plan(indices, known)
            for each in moments:
                _moment(each, known)
            start, wait = moments
            found.append((goal, tuple(indices), start, wait))
        return found

    valid = f"(goal, indices, start, wait) for each message; a goal is a collective's, or {SECONDS}"
    return asked(sync, "messages", (buckets, reads), check, valid)


def stages(sync: Any, buckets: Sequence[Any], ready: Sequence[float]) -> list[tuple[Any, ...]]:
    """Return (indices, stages before the update, stages after it) of buckets that go together."""
    known = [bucket.index for bucket in buckets]

    def check(made: Any) -> list[tuple[Any, ...]]:
        found = []
        for indices, *both in made:
            _in_plan(indices, known)
            before, after = ([(str(w), str(n), seconds(s)) for w, n, s in each] for each in both)
            found.append((tuple(indices), before, after))
        return found

    valid = f"(indices, stages before, stages after); a stage is (resource, name, seconds): {SECONDS}"
    return asked(sync, "stages", (buckets, ready), check, valid)


def sources(sync: Any) -> tuple[str, ...]:
    """Return the lines about where a synchronisation's numbers come from."""
    said = getattr(sync, "sources", ())
    if isinstance(said, str) or not all(isinstance(line, str) for line in said):
        raise PluginError(f"{whose(sync)}: sources is {said!r:.99} (valid: a list of strings)")
    return tuple(said)


def seconds(value: Any) -> float:
    """Return a number. Raises ValueError if it is negative or not finite."""
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{value!r} is not {SECONDS}")
    return number


def _in_plan(indices: Collection[int], known: Sequence[int]) -> None:
    for index in indices:
        if index not in known:
            raise ValueError(f"there is no bucket {index!r}, only {known[0]} to {known[-1]}")


def _moment(moment: Any, known: Sequence[int]) -> None:
    if moment in ("begin", "end"):
        return
    try:
        name, index = moment
    except (TypeError, ValueError):
        name, index = moment, None
    if name not in ("read", "final") or index not in known:
        raise ValueError(f"{moment!r} is no moment ('begin', ('read', index), ('final', index), 'end')")
