"""The mesh's programs: as Python, which counts, and as machine code, which also computes.

Counting takes a few thousand steps, which Python has done before compiled code is loaded, let alone
compiled. To compute, numba compiles a program together with everything that it calls.
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
"""For each program, the function that is compiled where a compiled program calls it."""

_COMPILED: dict[Callable[..., Any], Any] = {}
_LOCK = process_lock()

_MOST = 4096
"""The maximum number of counts of one program that are kept."""


def program(loop: Loop) -> Loop:
    """Declare a program of the mesh, which is Python if Python calls it, and machine code in
    ``machine_code``."""
    _LOOPS[loop] = loop
    return loop


def program_of_places(*places: str) -> Callable[[Loop], Loop]:
    """Declare a ``program`` (count, touch, ...) that returns nothing and whose count does not depend on
    where its data is. If it is called again with only the arguments ``places`` changed, it adds what it
    added before."""

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
    """Return a program in machine code, compiled when it is first called; return anything else
    unchanged. Products and sums may contract to one rounding, as on a CPE. Raises ImportError if numba
    is not installed."""
    with _LOCK:
        for each in [*_LOOPS]:
            if each not in _COMPILED:
                _COMPILED[each] = _compiled(each)
    made: Callable[..., Any] = _COMPILED.get(called, called)
    return made


def _compiled(called: Callable[..., Any]) -> Any:
    """Return numba's function for ``called``, which numba also uses wherever compiled code calls it.

    numba recompiles a cached program if its own file changed. Programs here call others and contain the
    machine's figures, so the cache is made to depend on all files of the package.
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
    """Return what changes if any file of this package changes."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return tuple((file.name, (facts := file.stat()).st_mtime_ns, facts.st_size) for file in files)
