"""Linux's system calls that place pages in memory domains and report where they are; no library is
needed."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import sys
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import Any

from demitasse import DemitasseError

PAGE = mmap.PAGESIZE

BIND = 2
"""The policy MPOL_BIND (linux/mempolicy.h): take memory from the given nodes and no others."""

NUMBERS = {
    "x86_64": {"mbind": 237, "move_pages": 279},
    "aarch64": {"mbind": 235, "move_pages": 239},
    "riscv64": {"mbind": 235, "move_pages": 239},
    "ppc64le": {"mbind": 259, "move_pages": 301},
}
"""The numbers of the calls by architecture (asm/unistd.h)."""

MASK_WORDS = 16
WORD = 8 * ctypes.sizeof(ctypes.c_ulong)
AT_ONCE = 1 << 16
"""The most pages that are asked about in one call."""


def available() -> bool:
    """Return whether this system has the calls and lets this process use them (some containers do
    not)."""
    return why_not() is None


@cache
def why_not() -> str | None:
    """Return the reason why memory cannot be placed here, or None."""
    if sys.platform != "linux":
        return f"{platform.system()} has no system call to place memory"
    if platform.machine() not in NUMBERS:
        return f"the numbers of these system calls are not known for {platform.machine()}"
    block = mmap.mmap(-1, PAGE)
    block[0] = 1
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))
    try:
        where([address])
    except OSError as error:
        return f"move_pages is refused: {error.strerror} (a container's seccomp profile?)"
    return None


def bind(address: int, size: int, nodes: Iterable[int]) -> None:
    """Bind ``size`` bytes from ``address`` on, the start of a page, to ``nodes``: their pages will come
    from these nodes. Raises OSError if the system refuses."""
    mask = _mask(nodes)
    _call("mbind", _long(address), _long(size), _long(BIND), mask, _long(MASK_WORDS * WORD), _long(0))


def where(addresses: Iterable[int]) -> list[int]:
    """Return the node of the page at each address; a negative number (an errno) if there is no page yet.
    Raises OSError if the system refuses."""
    asked, found = list(addresses), list[int]()
    for first in range(0, len(asked), AT_ONCE):
        part = asked[first : first + AT_ONCE]
        pages = (ctypes.c_void_p * len(part))(*part)
        status = (ctypes.c_int * len(part))(*([-1] * len(part)))
        none = ctypes.c_void_p(None)
        _call("move_pages", _long(0), _long(len(part)), pages, none, status, _long(0))
        found += list(status)
    return found


def nodes_of(array: Any) -> Counter[int]:
    """Return the number of a NumPy array's pages in each node; pages that were never touched count under
    -1."""
    if not array.nbytes:
        return Counter()
    first = array.ctypes.data // PAGE * PAGE
    last = array.ctypes.data + array.nbytes
    return Counter(max(-1, node) for node in where(range(first, last, PAGE)))


def _long(value: int) -> ctypes.c_long:
    return ctypes.c_long(value)


def _mask(nodes: Iterable[int]) -> Any:
    words = [0] * MASK_WORDS
    for node in nodes:
        words[node // WORD] |= 1 << node % WORD
    return (ctypes.c_ulong * MASK_WORDS)(*words)


@cache
def _syscall() -> Any:
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library.syscall


def _call(name: str, *arguments: Any) -> None:
    numbers = NUMBERS.get(platform.machine())
    if sys.platform != "linux" or numbers is None:
        raise DemitasseError(f"memory cannot be placed here: {why_not()}")
    if _syscall()(ctypes.c_long(numbers[name]), *arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
