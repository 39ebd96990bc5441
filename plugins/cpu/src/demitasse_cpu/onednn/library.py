"""Finds and loads oneDNN's library, and calls it with its status codes checked.

The wheel ``onednn-cpu-gomp`` contains it, built for OpenMP's threads; a system's own libdnnl.so.3 works
as well. The numbers are those of oneDNN's headers (include/oneapi/dnnl/dnnl_types.h, version 3).
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from functools import cache
from importlib import metadata
from typing import Any

from demitasse import PlanError
from demitasse_cpu.native import openmp

DISTRIBUTION = "onednn-cpu-gomp"
LIBRARY = "libdnnl.so.3"

CPU, IN_ORDER = 1, 1
MAX_DIMENSIONS = 12
TYPES = {"bfloat16": 2, "float32": 3, "int32": 4, "int8": 5, "uint8": 6}
FORWARD_TRAINING = 64
ANY = 1
USER_SCRATCHPAD = 1
ADD = 0x1FFF0
CONVOLUTION_DIRECT = 1

SRC, DST, WEIGHTS, BIAS, SCRATCHPAD = 1, 17, 33, 41, 80
ADDEND = 32768 | 2  # the second operand of the first post-op
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS, DIFF_BIAS = 129, 145, 161, 169

QUERY_NAME, QUERY_STRIDES, QUERY_ARGUMENT = 8, 14, 255
QUERY_BLOCKS, QUERY_BLOCK_SIZES, QUERY_BLOCK_DIMENSIONS = 263, 264, 265

_STATUSES = {2: "invalid arguments", 3: "unimplemented"}


class UnimplementedError(PlanError):
    """oneDNN has no kernel for what was requested."""


class Library:
    """The loaded library with an engine and a stream on this processor. Raises OSError if it cannot be
    loaded, and PlanError if it is another version."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.functions = ctypes.CDLL(path)
        self.functions.dnnl_version.restype = ctypes.POINTER(c_int)
        self.version = tuple(self.functions.dnnl_version()[:3])
        if self.version[0] != 3:
            raise PlanError(f"{path} is oneDNN {self.version}, but version 3 is needed")
        for name, result in _RESULTS.items():
            getattr(self.functions, name).restype = result
        self.engine, self.stream = c_void_p(), c_void_p()
        self.call("engine_create", byref(self.engine), CPU, c_size_t(0))
        self.call("stream_create", byref(self.stream), self.engine, IN_ORDER)
        execute = ctypes.cast(self.functions.dnnl_primitive_execute, c_void_p)
        self.execute = int(execute.value or 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call ``dnnl_<name>``. Raises UnimplementedError, MemoryError or PlanError if it fails."""
        status = getattr(self.functions, f"dnnl_{name}")(*arguments)
        if status == 3:
            raise UnimplementedError(f"oneDNN {name}: unimplemented")
        if status == 1:
            raise MemoryError(f"oneDNN {name}: out of memory")
        if status != 0:
            raise PlanError(f"oneDNN {name}: {_STATUSES.get(status, f'status {status}')}")

    def made(self, name: str, *arguments: Any) -> c_void_p:
        """Return the handle that ``dnnl_<name>`` creates."""
        handle = c_void_p()
        self.call(name, byref(handle), *arguments)
        return handle


_RESULTS = {
    "dnnl_primitive_desc_query_md": c_void_p,
    "dnnl_memory_desc_get_size": c_size_t,
}


@cache
def library() -> Library | None:
    """Return oneDNN, or None if it cannot be loaded; ``problem()`` then says why."""
    return _load()[0]


@cache
def problem() -> str:
    """Return why oneDNN is not available, or "" if it is."""
    return _load()[1]


@cache
def _load() -> tuple[Library | None, str]:
    if openmp() is None:  # so that we load it first, with our spin count
        return None, "OpenMP's library libgomp.so.1 is not there"
    reasons = []
    for path in _places():
        try:
            return Library(path), ""
        except (OSError, AttributeError, PlanError) as error:
            reasons.append(str(error))
    return None, "; ".join(reasons)


def _places() -> list[str]:
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return [LIBRARY]
    found = [str(file.locate()) for file in files if file.name == LIBRARY]
    return [*found, LIBRARY]


def extents(*values: int) -> Any:
    """Return dimensions in the form that oneDNN takes."""
    return (c_int64 * MAX_DIMENSIONS)(*values)


def name_of(descriptor: c_void_p, lib: Library) -> str:
    """Return oneDNN's name of a primitive's implementation."""
    text = c_char_p()
    lib.call("primitive_desc_query", descriptor, QUERY_NAME, 0, byref(text))
    return (text.value or b"").decode()


def attributes_with(
    lib: Library, addend: Any = None, function: tuple[int, float, float] | None = None
) -> c_void_p:
    """Return the attributes of a primitive: the caller provides its scratch memory, and optional
    post-ops follow it. These are the addition of a tensor with the descriptor ``addend``, and a
    ``function`` of each element, given as oneDNN's number for it with alpha and beta."""
    attributes = lib.made("primitive_attr_create")
    lib.call("primitive_attr_set_scratchpad_mode", attributes, USER_SCRATCHPAD)
    if function is not None or addend is not None:
        after = lib.made("post_ops_create")
        if addend is not None:
            lib.call("post_ops_append_binary", after, ADD, addend)
        if function is not None:
            kind, *numbers = function
            lib.call("post_ops_append_eltwise", after, kind, *map(ctypes.c_float, numbers))
        lib.call("primitive_attr_set_post_ops", attributes, after)
        lib.call("post_ops_destroy", after)
    return attributes


class Argument(ctypes.Structure):
    """dnnl_exec_arg_t."""

    _fields_ = (("argument", c_int), ("memory", c_void_p))
