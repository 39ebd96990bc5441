"""The mesh's programs: as Python, which counts, and as machine code, which computes as well.

To count takes a few thousand steps, and Python has done them before compiled code is loaded, let alone
compiled. To compute, a program is compiled with all that it calls, by numba.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from demitasse import compiled_loop, load_numba, process_lock

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Loop = TypeVar("Loop", bound=Callable[..., Any])

_LOOPS: dict[Callable[..., Any], Callable[..., Any]] = {}
"""Of what programs call: what is compiled where a compiled program calls it."""

_COMPILED: dict[Callable[..., Any], Any] = {}
_LOCK = process_lock()

_MOST = 4096
"""Counts of one program that are kept."""


def program(loop: Loop) -> Loop:
    """A function of the mesh: Python where Python calls it, machine code in ``machine_code``."""
    _LOOPS[loop] = loop
    return loop


def program_of_places(*places: str) -> Callable[[Loop], Loop]:
    """A ``program`` (count, touch, ...) that returns nothing and counts the same wherever its data lie:
    called again with nothing changed but these arguments, it adds what it has added then."""

    def decorate(loop: Loop) -> Loop:
        names = [*signature(loop).parameters][2:]
        matter = [position for position, name in enumerate(names) if name not in places]
        known: dict[tuple[Any, ...], list[float]] = {}

        @wraps(loop)
        def counted(count: Any, touch: bool, *arguments: Any) -> None:
            if touch:
                loop(count, touch, *arguments)
                return
            values = [arguments[position] for position in matter]
            key = tuple([value.shape if isinstance(value, np.ndarray) else value for value in values])
            added = known.get(key)
            if added is None:
                added = [0.0] * len(count)
                loop(added, touch, *arguments)
                if len(known) == _MOST:
                    known.clear()
                known[key] = added
            for counter, more in enumerate(added):
                count[counter] += more

        _LOOPS[counted] = loop
        return counted  # type: ignore[return-value]

    return decorate


def machine_code(called: Callable[..., Any]) -> Callable[..., Any]:
    """A program compiled when it is first called; what is no program as it is. Products and sums may
    contract to one rounding, as on a CPE. Raises ImportError where numba is not installed."""
    with _LOCK:
        for each in [*_LOOPS]:
            if each not in _COMPILED:
                _COMPILED[each] = _compiled(each)
    made: Callable[..., Any] = _COMPILED.get(called, called)
    return made


def _compiled(called: Callable[..., Any]) -> Any:
    """numba's function, which numba takes for ``called`` in all that it compiles.

    numba compiles a kept program anew when its own file changed. Programs here call others and have the
    machine's figures in them, so what is kept is made to go by all files of the package.
    """
    numba, templates = load_numba(), import_module("numba.core.typing.templates")
    made: Any = compiled_loop(_LOOPS[called], literals=False, fastmath={"contract"})
    index: Any = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        index._source_stamp = _sources()
    templates.infer_global(called, numba.types.Dispatcher(made))
    return made


@cache
def _sources() -> tuple[tuple[str, int, int], ...]:
    """What tells that some file of this package changed."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return tuple((file.name, (facts := file.stat()).st_mtime_ns, facts.st_size) for file in files)
