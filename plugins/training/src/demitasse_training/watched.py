"""A wrapper around a plugin's synchronisation, whose errors name the plugin."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import NoneType
from typing import Any

from demitasse import (
    Bucket,
    FlatMemory,
    GradientSync,
    Group,
    PluginError,
    Span,
    Team,
    Work,
    blamed,
    nearest,
    whose,
)

WORKS = ("reduce", "distribute", "begin", "before_forward", "schedule", "end", "update_memory")
"""A synchronisation must override at least one of these, or each worker would train by itself."""


class Meeting(threading.Barrier):
    """A team's barrier. Siblings are bound, and brought to rest, one after the other; who waits then
    would wait forever. For the thread that calls them (``alone``), waiting is an error."""

    alone: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait as the barrier does. Raises RuntimeError in a thread that would be the only one to
        arrive."""
        if self.alone == threading.get_ident() and self.parties > 1:
            raise RuntimeError(
                "siblings are called one after the other here, so none can wait for another at the "
                "barrier: wait in the work that a method returns; in quiesce, the first one called can "
                "act for all, through team.memory"
            )
        return super().wait(timeout)

    @classmethod
    def of(cls, team: Team) -> Meeting:
        """Return the team's barrier, replacing it by a Meeting before anybody else uses it."""
        if not isinstance(team.barrier, cls):
            team.barrier = cls(team.size)
        return team.barrier


class Watched(GradientSync):
    """Forwards calls to ``level``, which ``plugin`` made for a worker of the team that meets at
    ``meeting``. Errors of its methods and works become a PluginError that names both, as does a result
    that is not a work or not a part of the span."""

    def __init__(self, plugin: str, level: GradientSync, meeting: Meeting | None = None) -> None:
        self.index, self.size = level.index, level.size
        self._meeting = meeting
        self._level, self._who = level, f"plugin {plugin!r}, {type(level).__name__}"
        self.plugin, self.keeps = plugin, has_own(level, "saved")

    def bind(self, memory: FlatMemory) -> None:
        """Bind the level, once all siblings have their memory."""
        with self._calling("bind"):
            self._level.bind(memory)

    def update_memory(self, memory: FlatMemory) -> FlatMemory:
        """Return the level's memory for updates."""
        with self._calling("update_memory"):
            return self._level.update_memory(memory)

    def begin(self) -> Work | None:
        """Return the level's work, if any."""
        return self._work("begin")

    def before_forward(self, bucket: Bucket) -> Work | None:
        """Return the level's work, if any."""
        return self._work("before_forward", bucket)

    def owned(self, span: Span) -> Span:
        """Return the part that the level owns, which must lie in ``span``."""
        with self._calling("owned"):
            part = self._level.owned(span)
        if not isinstance(part, Span) or (
            part and not span.start <= part.start < part.stop <= span.stop
        ):
            raise PluginError(f"{self._who}: owned returned {part!r} (valid: a part of {span})")
        return part

    def reduce(self, bucket: Bucket, span: Span) -> Work | None:
        """Return the level's work, if any."""
        return self._work("reduce", bucket, span)

    def distribute(self, bucket: Bucket, span: Span) -> Work | None:
        """Return the level's work, if any."""
        return self._work("distribute", bucket, span)

    def schedule(self, bucket: Bucket, chain: Work) -> Work:
        """Return the level's work; the chain itself if the level returns that."""
        with self._calling("schedule"):
            given = self._level.schedule(bucket, chain)
        if given is None:
            raise PluginError(
                f"{self._who}: schedule returned None (valid: a function without arguments)"
            )
        return given if given is chain else self._told("schedule", given)

    def total(self, mine: Any, total: Any) -> Work | None:
        """Return the level's work, if any."""
        return self._work("total", mine, total)

    def end(self) -> Work | None:
        """Return the level's work, if any."""
        return self._work("end")

    def quiesce(self) -> None:
        """Bring the level to rest."""
        with self._calling("quiesce"):
            self._level.quiesce()

    def saved(self) -> Any:
        """Return the level's state. Raises PluginError if a snapshot cannot hold it."""
        with self._calling("saved"):
            state = self._level.saved()
        if strange := strange_in(state):
            valid = "valid: None, numbers, text, bytes, lists of these, and mappings by text or number"
            raise PluginError(f"{self._who}: saved returned a {strange} ({valid})")
        return state

    def restore(self, saved: Any) -> None:
        """Give the level its saved state."""
        with self._calling("restore"):
            self._level.restore(saved)

    def close(self) -> None:
        """Close the level."""
        with self._calling("close"):
            self._level.close()

    @contextmanager
    def _calling(self, method: str) -> Iterator[None]:
        """Blame the level for errors of a method, in which it must not wait for siblings."""
        meeting = self._meeting or Meeting(1)
        meeting.alone = threading.get_ident()
        try:
            with blamed(self._who, f"in {method}"):
                yield
        finally:
            meeting.alone = None

    def _work(self, method: str, *given: Any) -> Work | None:
        with self._calling(method):
            work = getattr(self._level, method)(*given)
        return work if work is None else self._told(method, work)

    def _told(self, method: str, work: Any) -> Work:
        if not callable(work):
            valid = "valid: None, or a function without arguments"
            raise PluginError(f"{self._who}: {method} returned {work!r:.99} ({valid})")
        return _blaming(self._who, f"at work for {method}", work)


def _blaming(who: str, doing: str, work: Callable[[], None]) -> Work:
    def run() -> None:
        with blamed(who, doing):
            work()

    return run


def check_level(plugin: str, level: object, group: Group, simulated: bool = False) -> None:
    """Raise PluginError if ``level`` is not a synchronisation of a worker with all siblings in its
    group. If these are ``simulated``, it need not do anything."""
    if not isinstance(level, GradientSync):
        raise PluginError(
            f"plugin {plugin!r}: gradient_sync returned {level!r}, which is not a GradientSync"
        )
    who = f"plugin {plugin!r}: {type(level).__name__}"
    for name in ("index", "size", "bucket_bytes"):
        value: object = getattr(level, name)
        if type(value) is bool or not hasattr(value, "__index__"):
            raise PluginError(f"{who} has {name} {value!r} (valid: a whole number)")
    if not isinstance(getattr(type(level), "notes", None), property):  # which takes time if it predicts
        notes_of(level, who)
    siblings = group.team.size if group.team is not None else 1
    if level.size < siblings:
        raise PluginError(
            f"{who} has size {level.size}, but there are {siblings} siblings, which would train apart; "
            f"set its index and size (group.index and group.team.size)"
        )
    if simulated or level.size == 1 or level.shares_parameters:
        return
    if not any(has_own(level, name) for name in WORKS):
        own = {name for name in dir(type(level)) if not name.startswith("_")} - {*dir(GradientSync)}
        near = sorted(f"{name!r} ({guess}?)" for name in own if (guess := nearest(name, WORKS)))
        meant = f"; it defines {', '.join(near)}" if near else ""
        raise PluginError(
            f"{who} has size {level.size} but nothing to do, so siblings would train apart{meant} "
            f"(valid: some of {', '.join(WORKS)})"
        )


def notes_of(level: GradientSync, who: str = "") -> list[str]:
    """Return a level's notes. Raises PluginError if they are no list of strings."""
    notes: object = level.notes
    if not isinstance(notes, list | tuple) or not all(isinstance(note, str) for note in notes):
        raise PluginError(f"{who or whose(level)} has notes {notes!r:.99} (valid: a list of strings)")
    return [*notes]


def strange_in(value: Any) -> str:
    """Return the type of the first part of a value that is not plain data; "" if there is none."""
    if type(value) is dict:
        keys = [type(key).__name__ for key in value if type(key) not in (int, str)]
        return next(iter(keys), "") or strange_in([*value.values()])
    if type(value) is list:
        return next(filter(None, map(strange_in, value)), "")
    return "" if type(value) in (NoneType, bool, int, float, str, bytes) else type(value).__name__


def has_own(level: GradientSync, method: str) -> bool:
    """Whether the level overrides a method of GradientSync."""
    return getattr(getattr(level, method), "__func__", None) is not getattr(GradientSync, method)
