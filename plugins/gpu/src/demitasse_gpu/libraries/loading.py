"""Finding NVIDIA's libraries: in Python packages, as CuPy does, or wherever the system finds them."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PREFIXES = {"cublasLt": "libcublasLt.so", "nvrtc": "libnvrtc.so", "cudnn": "libcudnn.so"}
MAJORS = {"cublasLt": (13, 12), "nvrtc": (13, 12), "cudnn": (9,)}
"""The major versions whose interface is supported, the preferred one first."""
FIRST = {"cudnn": ("cublasLt", "nvrtc")}
"""What must be loaded first if it lies in another package, because a library does not search there."""


@cache
def library(name: str) -> ctypes.CDLL | None:
    """Return the library of that name, or None if none can be loaded."""
    for other in FIRST.get(name, ()):
        library(other)
    for path in candidates(name):
        try:
            return ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        except OSError:
            continue  # another one may load; ``why_not`` says what each lacks
    return None


def why_not(name: str) -> str:
    """Return one line on why a library cannot be loaded; empty if it can."""
    if library(name) is not None:
        return ""
    reasons = []
    for path in candidates(name):
        try:
            ctypes.CDLL(path)
        except OSError as error:
            reasons.append(str(error))
    return reasons[0]


def candidates(name: str) -> list[str]:
    """Return where the library may be: in packages, by version, then wherever the system finds it."""
    found: list[tuple[int, str]] = []
    for folder in _folders():
        for path in sorted(folder.glob(f"**/lib/{PREFIXES[name]}.*")):
            version = re.search(r"\.so\.(\d+)$", path.name)
            if version and int(version[1]) in MAJORS[name]:
                found.append((MAJORS[name].index(int(version[1])), str(path)))
    return [path for _, path in sorted(found)] + [f"{PREFIXES[name]}.{m}" for m in MAJORS[name]]


def _folders() -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        yield Path(place)
