"""Reading how many bytes each domain's memory controllers moved, from the processor's uncore counters
(perf)."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from demitasse import KernelFiles
from demitasse_numa.topology import Topology

SOURCES = "sys/bus/event_source/devices"
PARANOID = "proc/sys/kernel/perf_event_paranoid"
KINDS = (
    ("uncore_imc", "cas_count_read", "cas_count_write"),
    ("amd_umc", "umc_cas_cmd.rd", "umc_cas_cmd.wr"),
)
"""For the beginning of a unit's name, its events for reads and writes (Intel's memory controllers;
AMD's from Zen 4 on)."""

NUMBERS = {"x86_64": 298, "aarch64": 241, "ppc64le": 319, "riscv64": 241}
LINE = 64
SCALES = {"MiB": 2**20, "Bytes": 1, "": LINE}
ATTRIBUTES = 128
"""Bytes of struct perf_event_attr as it is passed here; newer fields are zero."""


@dataclass(frozen=True)
class Counter:
    """One event of one memory controller: its ``type`` and ``config`` for perf, a processor that
    identifies its socket, whether it counts reads, and the bytes that one count stands for."""

    unit: str
    type: int
    config: int
    cpu: int
    reads: bool
    scale: float


@dataclass(frozen=True)
class Counters:
    """The events that can be counted here, or the reason why none can, and a remedy."""

    events: tuple[Counter, ...] = ()
    reason: str = ""
    remedy: str = ""


def counters(root: Path = Path("/")) -> Counters:
    """Return the memory controllers' counters that the system describes below ``root``."""
    files = KernelFiles(root)
    found = tuple(_described(files))
    if not found:
        return Counters((), "the system offers no counters of memory controllers (a virtual machine?)")
    paranoid = files.number(PARANOID)
    if files.own and paranoid is not None and paranoid > 0 and os.geteuid() != 0:
        return Counters(
            (),
            f"perf_event_paranoid is {paranoid}: only root may read the memory controllers' counters",
            f"as root: echo 0 > /{PARANOID}",
        )
    return Counters(found)


def _described(files: KernelFiles) -> Iterator[Counter]:
    try:
        units = sorted(path.name for path in (files.root / SOURCES).iterdir())
    except OSError:
        return
    for unit in units:
        for kind, *names in KINDS:
            if not re.fullmatch(rf"{kind}(_\d+)*", unit):
                continue
            folder = f"{SOURCES}/{unit}"
            number, cpus = files.number(f"{folder}/type"), files.numbers(f"{folder}/cpumask")
            for reads, name in zip((True, False), names, strict=True):
                config = _config(files, folder, files.text(f"{folder}/events/{name}"))
                if number is None or config is None:
                    continue
                scale = _number(files.text(f"{folder}/events/{name}.scale")) or 1.0
                size = scale * SCALES.get(files.text(f"{folder}/events/{name}.unit"), LINE)
                for cpu in sorted(cpus):
                    yield Counter(unit, number, config, cpu, reads, size)


def _config(files: KernelFiles, folder: str, words: str) -> int | None:
    """Return ``event=0x04,umask=0x03`` as a number, with each value at the bits that the unit's format
    names; None if a name is unknown."""
    config = 0
    for word in words.split(",") if words else ():
        key, _, value = word.partition("=")
        match = re.fullmatch(r"config:(\d+)(?:-\d+)?", files.text(f"{folder}/format/{key}"))
        if match is None:
            return None
        config |= int(value or "1", 0) << int(match[1])
    return config if words else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


class Reading:
    """Counters that run from the moment this object is created: ``bytes()`` returns what each domain's
    controllers have moved since. Raises OSError if the system refuses a counter."""

    def __init__(self, events: tuple[Counter, ...]) -> None:
        if sys.platform != "linux" or platform.machine() not in NUMBERS:
            raise OSError(f"no perf on {platform.system()} {platform.machine()}")
        self._events = events
        self._files: list[int] = []
        library = ctypes.CDLL(None, use_errno=True)
        library.syscall.restype = ctypes.c_long
        for event in events:
            head = struct.pack("=IIQ", event.type, ATTRIBUTES, event.config)
            attributes = ctypes.create_string_buffer(head, ATTRIBUTES)
            number = library.syscall(
                *(ctypes.c_long(NUMBERS[platform.machine()]), attributes, ctypes.c_long(-1)),
                *(ctypes.c_long(event.cpu), ctypes.c_long(-1), ctypes.c_long(0)),
            )
            if number < 0:
                error = ctypes.get_errno()
                self.close()
                raise OSError(error, f"{event.unit}: {os.strerror(error)}")
            self._files.append(int(number))

    def bytes(self, machine: Topology) -> dict[int, tuple[float, float]]:
        """Return the (read, written) bytes by the index of the controllers' domain. If a socket has
        several domains, one of them stands for all."""
        moved: dict[int, tuple[float, float]] = {}
        for event, file in zip(self._events, self._files, strict=True):
            domain = machine.of_cpu(event.cpu)
            index = domain.index if domain else 0
            (count,) = struct.unpack("=Q", os.read(file, 8))
            read, written = moved.get(index, (0.0, 0.0))
            value = count * event.scale
            moved[index] = (read + value, written) if event.reads else (read, written + value)
        return moved

    def close(self) -> None:
        """Stop counting."""
        while self._files:
            os.close(self._files.pop())
