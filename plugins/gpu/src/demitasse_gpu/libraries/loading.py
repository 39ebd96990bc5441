"""Finding NVIDIA's libraries: in Python packages, as CuPy does, or wherever the system does."""

from __future__ import annotations

import ctypes
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PREFIXES = {"cublasLt": "libcublasLt.so", "nvrtc": "libnvrtc.so", "cudnn": "libcudnn.so"}
MAJORS = {"cublasLt": (13, 12), "nvrtc": (13, 12), "cudnn": (9,)}
"""The versions whose interface is called here, the preferred first."""
FIRST = {"cudnn": ("cublasLt", "nvrtc")}
"""What must be loaded first where it lies in another package: a library does not look there."""


@cache
def library(name: str) -> ctypes.CDLL | None:
    """The library of that name, or None where there is none that can be loaded."""
    for other in FIRST.get(name, ()):
        library(other)
    for path in candidates(name):
        try:
            return ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        except OSError:
            continue  # another one may do; ``why_not`` says what each lacks
    return None


def why_not(name: str) -> str:
    """Why a library cannot be loaded, in a line; empty where it can."""
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
    """Where the library may be: in packages by version, then wherever the system finds it."""
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
