"""CUDA sources compiled with g++: each kernel becomes a function of a shared library."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from demitasse import locked

HERE = Path(__file__).parent
HEADER = HERE / "cuda.h"
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing")
CHECKED = ("-fsanitize=alignment", "-fno-sanitize-recover=all")
"""A device rejects an address that is not aligned for what is read there at once; a processor does
not."""

LINKED = ("-shared", "-Wl,-Bsymbolic")
"""With these, a kernel with the name of a C library function is the kernel."""

WARNINGS = ("-Wall", "-Wno-unknown-pragmas", "-Wno-unused-function", "-Wno-unused-variable")
_KERNEL = re.compile(r'extern\s+"C"\s+__attribute__\(\(used\)\)\s+void\s+(\w+)\s*\(')
_WRITTEN = re.compile(r'extern\s+"C"\s+__global__\s+(?:__launch_bounds__\([^)]*\)\s+)?void\s+(\w+)\s*\(')
_BY_MACRO = re.compile(r'\\\n\s*extern\s+"C"\s+__global__')
_INCLUDED = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
_MOST_PARAMETERS = 64


@functools.cache
def compiler() -> str | None:
    """Return the C++ compiler, or None if there is none."""
    return shutil.which("g++") or shutil.which("clang++")


def kernels_of(source: str, options: Sequence[str] = ()) -> list[str]:
    """Return the names of the kernels that a source defines, also by macros. Only the compiler finds
    those; it takes a tenth of a second."""
    if not any(map(_BY_MACRO.search, _with_headers(source, options))):
        return _WRITTEN.findall(source)
    given = ("-include", str(HEADER), *options)
    return _KERNEL.findall(_compiled(("-E", "-P", *given, "-"), source))


def _with_headers(source: str, options: Sequence[str]) -> list[str]:
    """Return the source, and the headers that it names itself."""
    folders = [Path(option[2:]) for option in options if option.startswith("-I")]
    paths = (folder / name for name in _INCLUDED.findall(source) for folder in folders)
    return [source, *(path.read_text("utf-8") for path in paths if path.is_file())]


def _compiled(options: Sequence[str], text: str) -> str:
    """Return the compiler's output. Raises RuntimeError with its messages."""
    command = [compiler() or "g++", "-x", "c++", *FLAGS, *CHECKED, *WARNINGS, *options]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


@dataclass(frozen=True)
class EmulatedFunction:
    """A kernel as a function on the host. ``kinds`` has a letter for each parameter (p pointer, i and u
    integer, f floating point, s structure), ``sizes`` its bytes."""

    name: str
    run: ctypes._CFuncPtr
    kinds: str
    sizes: tuple[int, ...]


class Compiled:
    """Libraries by source and options. Each is compiled once in the life of this object, or of the
    folder in which they are kept."""

    def __init__(self) -> None:
        self._own = tempfile.TemporaryDirectory(prefix="cuda-on-cpu-")
        self.folder = Path(self._own.name)
        self._libraries: dict[str, tuple[ctypes.CDLL, list[str]]] = {}
        self._lock = threading.Lock()
        self._blocks: ctypes.CDLL | None = None

    def function(self, source: str, name: str, options: Sequence[str]) -> EmulatedFunction:
        """Return a kernel of a source. Raises RuntimeError with the compiler's message, and ValueError
        for a name that the source does not define."""
        with self._lock:
            library, names = self._library(source, tuple(options))
        if name not in names:
            raise ValueError(f"the source has no kernel {name!r}; it has {', '.join(names)}")
        kinds = ctypes.create_string_buffer(_MOST_PARAMETERS)
        sizes = (ctypes.c_int * _MOST_PARAMETERS)()
        count = getattr(library, f"describe_{name}")(kinds, sizes)
        run = getattr(library, f"run_{name}")
        return EmulatedFunction(name, run, kinds.raw[:count].decode(), tuple(sizes[:count]))

    def _library(self, source: str, options: tuple[str, ...]) -> tuple[ctypes.CDLL, list[str]]:
        key = hashlib.sha256("\0".join((source, *options)).encode()).hexdigest()[:24]
        if key not in self._libraries:
            if self._blocks is None:
                text = (HERE / "blocks.cpp").read_text(encoding="utf-8")
                self._blocks = ctypes.CDLL(self._compile("blocks", text, ()), mode=ctypes.RTLD_GLOBAL)
            names = kernels_of(source, options)
            shims = "\n".join(f"CUDA_ON_CPU({name})" for name in names)
            given = ("-include", str(self._header()), *options)
            path = self._compile(key, f"{source}\n{shims}\n", given)
            self._libraries[key] = ctypes.CDLL(path), names
        return self._libraries[key]

    def _header(self) -> Path:
        """Precompile CUDA's built-ins once for all sources, which is half of the work for most of
        them."""
        if Path(compiler() or "").name != "g++":
            return HEADER
        header, read = self.folder / HEADER.name, self.folder / f"{HEADER.name}.gch"
        with locked(header.with_suffix(".lock")):
            if not read.exists():
                header.write_bytes(HEADER.read_bytes())
                made = read.with_suffix(".part")
                _compiled(("-c", "-w", "-x", "c++-header", str(header), "-o", str(made)), "")
                made.replace(read)
        return header

    def _compile(self, key: str, text: str, options: Sequence[str]) -> str:
        path = self.folder / f"{key}.so"
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                made = path.with_suffix(".part")
                _compiled((*LINKED, *options, "-", "-o", str(made)), text)
                made.replace(path)
        return str(path)


@functools.cache
def compiled() -> Compiled:
    """Return what this process has compiled; drivers share it."""
    return Compiled()
