"""A oneDNN primitive, from its description to work that can be run."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import c_void_p
from typing import Any

from demitasse_cpu.native import Foreign, Team, openmp
from demitasse_cpu.onednn.functions import Function
from demitasse_cpu.onednn.library import (
    QUERY_ARGUMENT,
    SCRATCHPAD,
    Argument,
    Library,
    UnimplementedError,
    attributes_with,
    name_of,
)
from demitasse_cpu.onednn.memory import size_of


def _team() -> Team:
    """Return OpenMP's threads, without which oneDNN is never loaded."""
    team = openmp()
    assert team is not None
    return team


class Primitive:
    """A primitive as oneDNN would create it for ``threads`` of OpenMP's threads: its name, the
    descriptor of each argument, and the scratch memory that it needs. Optionally, the addition of a
    tensor with the descriptor ``addend`` and a ``function`` of each element follow it. Raises
    UnimplementedError if oneDNN has only its reference implementation, which is slow."""

    def __init__(
        self,
        lib: Library,
        threads: int,
        name: str,
        *arguments: Any,
        addend: Any = None,
        function: Function | None = None,
    ) -> None:
        self.lib = lib
        attributes = attributes_with(lib, addend, function)
        try:
            with _team().using(threads) as self.threads:
                self._description = lib.made(f"{name}_primitive_desc_create", *arguments, attributes)
        finally:
            lib.call("primitive_attr_destroy", attributes)
        self.name = name_of(self._description, lib)
        if self.name.startswith(("ref", "simple")):
            raise UnimplementedError(f"oneDNN {name}: reference only")
        self.workspace = size_of(lib, self.descriptor(SCRATCHPAD))

    @property
    def hint(self) -> c_void_p:
        """The primitive's description, which backward primitives need as a hint."""
        return self._description

    def descriptor(self, argument: int) -> c_void_p:
        """Return the descriptor of an argument."""
        query = self.lib.functions.dnnl_primitive_desc_query_md
        return c_void_p(query(self._description, QUERY_ARGUMENT, argument))

    def size(self, argument: int) -> int:
        """Return the size of an argument's memory in bytes."""
        return size_of(self.lib, self.descriptor(argument))

    def bind(self, arrays: Mapping[int, Any], scratch: Any = None) -> Foreign:
        """Return work on the arrays by argument, of which absent ones are None. ``scratch`` has
        ``workspace`` bytes."""
        lib = self.lib
        given = {argument: array for argument, array in arrays.items() if array is not None}
        if scratch is not None and self.workspace:
            given[SCRATCHPAD] = scratch
        memory = [
            lib.made("memory_create", self.descriptor(n), lib.engine, c_void_p(array.ctypes.data))
            for n, array in given.items()
        ]
        table = (Argument * len(given))(*map(Argument, given, memory))
        with _team().using(self.threads):
            primitive = lib.made("primitive_create", self._description)
        held = _Held(lib, primitive, memory, table, list(given.values()), self)
        words = [primitive.value or 0, lib.stream.value or 0, len(given), ctypes.addressof(table)]
        return Foreign(f"oneDNN {self.name}", lib.execute, words, self.threads, held)

    def __del__(self) -> None:
        if hasattr(self, "_description"):
            self.lib.functions.dnnl_primitive_desc_destroy(self._description)


class _Held:
    """What a bound primitive needs as long as it may run."""

    def __init__(
        self, lib: Library, primitive: c_void_p, memory: Sequence[c_void_p], *alive: object
    ) -> None:
        self._lib, self._primitive, self._memory, self._alive = lib, primitive, memory, alive

    def __del__(self) -> None:
        self._lib.functions.dnnl_primitive_destroy(self._primitive)
        for each in self._memory:
            self._lib.functions.dnnl_memory_destroy(each)
