"""The hardware description: a tree of levels with their memories, links and workers, and sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import demitasse
from demitasse.errors import DescriptionError, Location, unknown

if TYPE_CHECKING:
    from demitasse_descriptions import Quantity

OWN = ("threads", "streams")
"""Workers of these kinds share a process, each with its own thread; with streams, it drives a device."""


@dataclass(frozen=True)
class Link:
    """The link between siblings: the bandwidth of one, divided by ``oversubscription`` if all talk."""

    latency: Quantity | None = None
    bandwidth: Quantity | None = None
    oversubscription: float = 1


@dataclass(frozen=True)
class MemorySpace:
    """A memory, cache or storage. A sibling has ``count`` of them, and the figures are for one. Kernels
    know it as ``space``, allocators as ``at``, in which ``*`` stands for the sibling's number."""

    space: str
    capacity: Quantity | None = None
    bandwidth: Quantity | None = None
    latency: Quantity | None = None
    count: int = 1
    at: str | None = None
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class SyncSpec:
    """The plugin that synchronises siblings, and its options."""

    plugin: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False, metadata={"key": "*"})
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Level:
    """A level has ``count`` siblings in each ``parent`` (None: the level before). The rest describes one
    sibling: ``workers`` are threads, mpi, streams, simulated or None; ``kernels`` names the plugin that
    they prefer; ``peak``, and what layers reach of it (``sustained``), are in FLOP/s, ``clock`` in Hz;
    ``launch`` is the overhead of each kernel in seconds."""

    name: str
    count: int = 1
    parent: str | None = None
    workers: str | None = None
    mesh: tuple[int, ...] = ()
    memory: tuple[MemorySpace, ...] = ()
    link: Link | None = None
    sync: SyncSpec | None = None
    kernels: str | None = None
    peak: Quantity | None = None
    sustained: Quantity | None = None
    launch: Quantity | None = None
    clock: Quantity | None = None
    cores: int | None = None
    threads_per_core: int | None = None
    caches: tuple[MemorySpace, ...] = ()
    storage: tuple[MemorySpace, ...] = ()
    features: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    location: Location | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Machine:
    """Levels, outermost first, with the plugins to compose (None: the automatic ones), their options and
    the default precision. ``str`` gives its description. Raises DescriptionError if the levels do not
    form a tree or have impossible values."""

    name: str
    levels: tuple[Level, ...] = field(metadata={"key": "level"})  # as the file names it
    plugins: tuple[str, ...] | None = None
    precision: str = "f32"
    fingerprint: str = ""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    path: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        levels: dict[str, Level] = {}
        for level in self.levels:
            where = f"{level.location or self.origin}: level {level.name!r}"
            parent = level.parent or next(reversed(levels), None)
            if parent is not None and parent not in levels:
                raise DescriptionError(unknown("parent (a level before it)", parent, levels, where))
            if level.name in levels:
                raise DescriptionError(f"{where} is defined twice; give each level its own name")
            levels[level.name] = replace(level, parent=parent)
        object.__setattr__(self, "levels", tuple(levels.values()))
        demitasse.check_levels(self)
        self.sync_groups()

    @property
    def origin(self) -> str:
        """Where the machine was described, for messages."""
        return str(self.path) if self.path else f"machine {self.name!r}"

    @property
    def simulated(self) -> bool:
        """True unless the description was made on this machine or for any (fingerprint ``any``)."""
        return self.fingerprint != "any" and self.fingerprint != demitasse.fingerprint()

    def level(self, name: str) -> Level:
        """Return the level of that name. Raises DescriptionError if there is none."""
        named = {level.name: level for level in self.levels}
        if name not in named:
            raise DescriptionError(unknown("level", name, named, self.origin))
        return named[name]

    def sync_groups(self) -> tuple[tuple[SyncSpec, tuple[Level, ...]], ...]:
        """Return each ``sync``, innermost first, with the levels it synchronises, outermost first: its
        own and the enclosing ones that have siblings, up to the next ``sync``."""
        groups: list[tuple[SyncSpec, tuple[Level, ...]]] = []
        waiting: dict[str | None, tuple[Level, ...]] = {None: ()}
        for level in self.levels:
            levels = waiting[level.parent] + ((level,) if level.sync or level.count > 1 else ())
            waiting[level.name] = () if level.sync else levels
            groups[:0] = [(level.sync, levels)] if level.sync else []
        for level in self.levels:
            if sum(level in levels for _, levels in groups) > 1:
                where = f"{level.location or self.origin}: level {level.name!r}"
                raise DescriptionError(f"{where} is synchronised twice; give it a sync of its own")
        return tuple(groups)

    def __str__(self) -> str:
        return demitasse.describe(self)
