"""The topology as the hwloc library reports it, through its C interface (version 2); section 4.2 uses
it."""

from __future__ import annotations

import ctypes
import ctypes.util
from functools import cache
from pathlib import Path
from typing import Any

from demitasse import KernelFiles, listed_numbers
from demitasse_numa.topology import NODES, Node, Topology, arranged, processors

NAMES = ("libhwloc.so.15", "libhwloc.15.dylib")
CORE, NUMANODE = 3, 13
"""hwloc_obj_type_t of hwloc 2."""


class _Object(ctypes.Structure):
    """The beginning of ``struct hwloc_obj`` of hwloc 2, up to its sets."""


_Object._fields_ = [
    ("type", ctypes.c_int),
    ("subtype", ctypes.c_char_p),
    ("os_index", ctypes.c_uint),
    ("name", ctypes.c_char_p),
    ("total_memory", ctypes.c_uint64),
    ("attr", ctypes.POINTER(ctypes.c_uint64)),
    ("depth", ctypes.c_int),
    ("logical_index", ctypes.c_uint),
    ("next_cousin", ctypes.c_void_p),
    ("prev_cousin", ctypes.c_void_p),
    ("parent", ctypes.c_void_p),
    ("sibling_rank", ctypes.c_uint),
    ("next_sibling", ctypes.c_void_p),
    ("prev_sibling", ctypes.c_void_p),
    ("arity", ctypes.c_uint),
    ("children", ctypes.c_void_p),
    ("first_child", ctypes.c_void_p),
    ("last_child", ctypes.c_void_p),
    ("symmetric_subtree", ctypes.c_int),
    ("memory_arity", ctypes.c_uint),
    ("memory_first_child", ctypes.c_void_p),
    ("io_arity", ctypes.c_uint),
    ("io_first_child", ctypes.c_void_p),
    ("misc_arity", ctypes.c_uint),
    ("misc_first_child", ctypes.c_void_p),
    ("cpuset", ctypes.c_void_p),
]


@cache
def _library() -> Any:
    for name in (*NAMES, ctypes.util.find_library("hwloc")):
        try:
            library = ctypes.CDLL(name) if name else None
        except OSError:
            continue
        if library is None:
            continue
        library.hwloc_get_api_version.restype = ctypes.c_uint
        if library.hwloc_get_api_version() >> 16 != 2:  # its structures have another layout
            continue
        pointer = ctypes.c_void_p
        library.hwloc_get_type_depth.argtypes = (pointer, ctypes.c_int)
        library.hwloc_get_obj_by_depth.argtypes = (pointer, ctypes.c_int, ctypes.c_uint)
        library.hwloc_get_obj_by_depth.restype = ctypes.POINTER(_Object)
        library.hwloc_bitmap_list_snprintf.argtypes = (ctypes.c_char_p, ctypes.c_size_t, pointer)
        for call in ("init", "load", "destroy"):
            getattr(library, f"hwloc_topology_{call}").argtypes = (pointer,)
        return library
    return None


def why_not() -> str | None:
    """Return the reason why hwloc cannot be used, or None."""
    if _library() is None:
        return "no library of hwloc 2 was found (Debian: apt-get install libhwloc15)"
    return None


def topology() -> Topology | None:
    """Return the topology that hwloc finds, limited to what this process may use; None if hwloc is not
    installed or fails. Distances between nodes come from the system's files."""
    library = _library()
    if library is None:
        return None
    handle = ctypes.c_void_p()
    if library.hwloc_topology_init(ctypes.byref(handle)) != 0:
        return None
    try:
        if library.hwloc_topology_load(handle) != 0:
            return None
        return _read(library, handle)
    finally:
        library.hwloc_topology_destroy(handle)


def _read(library: Any, handle: ctypes.c_void_p) -> Topology | None:
    files = KernelFiles()
    allowed = processors(files)  # hwloc knows of control groups, not of a thread's affinity
    cores = frozenset(
        cpus
        for each in _objects(library, handle, CORE)
        if (cpus := _set(library, each.cpuset) & allowed)
    )
    missed = allowed.difference(*cores)
    cores |= {frozenset([cpu]) for cpu in missed}
    found = [each for each in _objects(library, handle, NUMANODE) if each.attr]
    numbers = sorted(int(each.os_index) for each in found)
    sets = {int(each.os_index): _set(library, each.cpuset) & allowed for each in found}
    online = sorted(files.numbers(f"{NODES}/online") or numbers)
    nodes = {}
    for each in found:
        n = int(each.os_index)
        words = files.text(f"{NODES}/node{n}/distance").split()
        distances = dict(zip(online, (int(word) for word in words if word.isdigit()), strict=False))
        folder = f"{NODES}/node{n}"
        # For memory without processors, hwloc lists those nearby; the system says which node has them.
        own = files.numbers(f"{folder}/cpulist") & allowed if Path(f"/{folder}").is_dir() else sets[n]
        kind = (each.subtype or b"").decode("ascii", "replace")
        bandwidth = files.number(f"{folder}/access0/initiators/read_bandwidth")
        nodes[n] = Node(n, int(each.attr[0]), own, distances, bandwidth, kind)
    if not nodes:
        return None
    version = library.hwloc_get_api_version()
    return arranged(nodes, cores, files, f"hwloc {version >> 16}.{version >> 8 & 255}")


def _objects(library: Any, handle: ctypes.c_void_p, kind: int) -> list[Any]:
    depth = library.hwloc_get_type_depth(handle, kind)
    found: list[Any] = []
    while depth != -1 and (each := library.hwloc_get_obj_by_depth(handle, depth, len(found))):
        found.append(each.contents)
    return found


def _set(library: Any, pointer: int | None) -> frozenset[int]:
    if not pointer:
        return frozenset()
    size = library.hwloc_bitmap_list_snprintf(None, 0, pointer) + 1
    text = ctypes.create_string_buffer(size)
    library.hwloc_bitmap_list_snprintf(text, size, pointer)
    return listed_numbers(text.value.decode("ascii"))
