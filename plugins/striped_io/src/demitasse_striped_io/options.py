"""Options of a striped set, checked: from the specification, or written after the path,
``imagenet.striped?order=block&run=128``."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from demitasse import DataError, DataSpec, KernelFiles, address_space, launched, unknown
from demitasse_striped_io.order import ORDERS

CHOICES: Mapping[str, tuple[str, ...]] = {
    "order": ("", *ORDERS),
    "on_error": ("stop", "skip"),
    "io": ("page", "direct", "mpi"),
    "verify": ("first", "always", "never"),
    "mode": ("", "color", "gray"),
}
LARGEST_IMAGE = 1 << 15
IN_BYTES = ("memory", "rate", "striping_unit")
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True)
class Options:
    """How a set is read.

    ``order`` and ``run``: see order.py; empty and 0 stand for the set's own. ``on_error``: whether a
    sample that cannot be read stops the training, or is skipped and counted. ``io``: through the page
    cache, bypassing it, or by MPI-IO with the hints ``striping_factor`` and ``striping_unit``.
    ``threads``: how many read and decode; 0 for one per core, or 8 with direct I/O. ``ahead``:
    mini-batches read in advance. ``verify``: which reads compare checksums. ``rate``: limit of bytes per
    second from each stripe (0: no limit). ``patience``: seconds that a stripe may take for a mini-batch
    before that counts as a fault (0: no limit). ``memory``: a set of raw records of up to so many bytes
    is kept in memory; negative for an eighth of the machine's. ``height`` and ``width`` (encoded images
    are resized to them), ``mode``, ``crop``, ``random``, ``stream`` and ``skip`` are what Caffe's Data
    layer requests. ``transform`` crops, mirrors and scales samples when they are read: ``crop``,
    ``random``, ``mirror``, ``scale``, ``mean`` (one number, one per channel, or an image).
    """

    order: str = ""
    run: int = 0
    on_error: str = "stop"
    io: str = "page"
    threads: int = 0
    ahead: int = 3
    verify: str = "first"
    rate: float = 0.0
    patience: float = 0.0
    memory: int = -1
    striping_factor: int = 0
    striping_unit: int = 0
    height: int = 0
    width: int = 0
    mode: str = ""
    crop: int = 0
    random: bool = False
    stream: int = 0
    skip: int = 0
    transform: Mapping[str, Any] = field(default_factory=dict)

    @property
    def workers(self) -> int:
        """The number of threads that read and decode."""
        return self.threads or (max(8, cores()) if self.io == "direct" else cores())

    def resident(self) -> int:
        """A set of up to so many bytes is kept in memory."""
        if self.memory >= 0:
            return self.memory
        return physical_memory() // 8 // local_processes()


def local_processes() -> int:
    """How many processes of this run share the machine, according to MPI's launchers (Open MPI, MPICH)
    and srun."""
    if (found := launched()) and found.local:
        return found.local
    # By node of a step, such as 4(x2),3: use the largest, because SLURM_NODEID counts the allocation's
    # nodes.
    told = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    return max([1, *(int(count) for count in re.findall(r"(?:^|,)([0-9]+)", told))])


def check_system(name: str) -> None:
    """Raise DataError if the system lacks the calls by which sets are read and written."""
    if not hasattr(os, "pread"):
        raise DataError(
            f"{name}: striped sets are read and written by pread and pwrite, which this system "
            f"({platform.system()}) does not have; use Linux or macOS, or samples of another form"
        )


def physical_memory(files: KernelFiles | None = None) -> int:
    """Bytes of memory that this machine has or, if that is less, that a control group (of a container,
    or of a Slurm job) or ``ulimit -v`` leaves this process."""
    whole = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    files = files or KernelFiles()
    for line in files.text("proc/self/cgroup").splitlines():
        _, controllers, group = (*line.split(":", 2), "", "")[:3]
        first = controllers == "" or "memory" in controllers.split(",")
        base, name = ("", "max") if controllers == "" else ("/memory", "limit_in_bytes")
        # A container may see the host's path, although its files are at the mount point.
        around = (PurePosixPath("/", group), *PurePosixPath("/", group).parents) if first else ()
        for part in around:
            limit = files.number(f"sys/fs/cgroup{base}{str(part).rstrip('/')}/memory.{name}")
            whole += [limit] if limit else []
    addresses = address_space()
    return min(whole) if addresses is None else min(*whole, max(0, addresses[0] - addresses[1]))


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def split_query(source: str) -> tuple[str, dict[str, str]]:
    """Return a path and the options written after it. Raises DataError for an option without a value."""
    path, mark, query = source.partition("?")
    given = {}
    for part in query.split("&") if mark else ():
        name, sign, value = part.partition("=")
        if not sign or not name:
            raise DataError(f"{source!r}: {part!r} is not OPTION=VALUE")
        given[name] = value
    return path, given


def options_of(spec: DataSpec, query: Mapping[str, str], kept: Mapping[str, Any]) -> Options:
    """Return the options of a specification: its own take precedence over those after the path, and
    these over ``kept``, with which the set was made. Raises DataError that says what is wrong and what
    is valid."""
    known = {each.name: type(each.default) for each in fields(Options) if each.name != "transform"}
    made: dict[str, Any] = {}
    for name, value in {**kept, **query, **spec.options}.items():
        if name == "transform" and isinstance(value, Mapping):
            made[name] = _transform(value)
        elif name == "transform":
            raise DataError(f"transform is {value!r} (valid: a mapping, which a path cannot give)")
        elif name not in known:
            raise DataError(unknown("option of a striped set", name, [*known, "transform"]))
        else:
            made[name] = _value(name, value, known[name])
    return Options(**made)


def bytes_of(text: str) -> float:
    """Parse a number of bytes: ``4M``, ``256MiB``, ``1G``, ``77``. Raises ValueError."""
    short = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = short[-1:] if short[-1:] in ("k", "m", "g") else ""
    return float(short.removesuffix(unit)) * UNITS[unit]


def _value(name: str, value: Any, kind: type) -> Any:
    if name == "mode" and value == "native":  # what Caffe's Data layer sends by default
        return ""
    if name in CHOICES:
        if value not in CHOICES[name]:
            raise DataError(unknown(name, str(value), [each for each in CHOICES[name] if each]))
        return value
    try:
        if kind is bool:
            number: Any = {"true": True, "false": False, "1": True, "0": False}[str(value).lower()]
        elif name in IN_BYTES and isinstance(value, str):
            number = kind(bytes_of(value))
        else:
            number = kind(value)
    except (KeyError, TypeError, ValueError, OverflowError):
        valid = {bool: "true or false", float: "a number", int: "a whole number"}[kind]
        valid = "a number of bytes such as 64M" if name in IN_BYTES else valid
        raise DataError(f"{name} is {value!r} (valid: {valid})") from None
    least = -1 if name == "memory" else 1 if name == "ahead" else 0
    if kind is not bool and not least <= number < math.inf:
        raise DataError(f"{name} is {value} (valid: {least} or more)")
    if name in ("height", "width", "crop") and number > LARGEST_IMAGE:
        raise DataError(f"{name} is {value} (valid: 0 to {LARGEST_IMAGE:,})")
    return number


def _transform(given: Mapping[str, Any]) -> dict[str, Any]:
    valid = ("crop", "random", "mirror", "scale", "mean")
    for name in given:
        if name not in valid:
            raise DataError(unknown("part of transform", str(name), valid))
    try:
        return {
            "crop": int(given.get("crop", 0)),
            "random": bool(given.get("random", False)),
            "mirror": bool(given.get("mirror", False)),
            "scale": float(given.get("scale", 1.0)),
            "mean": np.atleast_1d(np.asarray(given.get("mean", 0.0), np.float32)),
        }
    except (TypeError, ValueError) as error:
        raise DataError(f"transform {dict(given)!r}: {error}") from None
