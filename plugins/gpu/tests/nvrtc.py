"""NVIDIA's run-time compiler, without a GPU: from its wheel (nvidia-cuda-nvrtc), or from a toolkit."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

NO_COMPILER = "no NVRTC to compile CUDA kernels with: pip install nvidia-cuda-nvrtc"
_VERSIONS = ("13", "12")


class CompileError(Exception):
    """A source does not compile; has the compiler's message."""


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return NVRTC, or None if it is not installed."""
    places = [
        path
        for folder in map(Path, sys.path)
        for path in sorted((folder / "nvidia").glob("*/lib/libnvrtc.so.*"))
    ]
    for name in (*map(str, places), *(f"libnvrtc.so.{version}" for version in _VERSIONS)):
        # It opens its built-in functions by name, and finds them if they are loaded already.
        beside = sorted(Path(name).parent.glob("libnvrtc-builtins.so.*")) if "/" in name else []
        try:
            for builtins in beside:
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def compiled(source: str, name: str, options: Sequence[str]) -> bytes:
    """Return the machine code (or, for a virtual architecture, the assembly text) of CUDA source text.
    Raises CompileError; a warning counts as an error."""
    nvrtc = library()
    assert nvrtc is not None
    program = ctypes.c_void_p()
    text = source.encode()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, name.encode(), 0, None, None)
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = nvrtc.nvrtcCompileProgram(program, len(options), given)
        if (log := _of(nvrtc, "ProgramLog", program).decode().strip("\0\n ")) or failed:
            raise CompileError(f"{name} {' '.join(options)}:\n{log}")
        real = any(option.startswith("--gpu-architecture=sm_") for option in options)
        return _of(nvrtc, "CUBIN" if real else "PTX", program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _of(nvrtc: ctypes.CDLL, what: str, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    room = ctypes.create_string_buffer(max(1, size.value))
    getattr(nvrtc, f"nvrtcGet{what}")(program, room)
    return room.raw[: size.value]
