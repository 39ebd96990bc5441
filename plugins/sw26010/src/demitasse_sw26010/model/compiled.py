"""How the mesh's programs are compiled: numba without the GIL, kept on disk where that can be done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from demitasse import load_numba

numba = load_numba()

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Loop = TypeVar("Loop", bound=Callable[..., Any])


def _sources() -> tuple[tuple[str, int, int], ...]:
    """What tells that some file of this package changed."""
    files = sorted(Path(__file__).parents[1].rglob("*.py"))
    return tuple((file.name, (facts := file.stat()).st_mtime_ns, facts.st_size) for file in files)


_SOURCES = _sources()


def compiled(loop: Loop) -> Loop:
    """Compile a program of the mesh. Products and sums may contract to one rounding, as on a CPE.

    numba compiles a kept program anew when its own file changed. Programs here call others and have the
    machine's figures in them, so what is kept is made to go by all files of the package: a count must
    not rest on yesterday's figure.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
    try:
        made: Any = numba.njit(cache=True, **options)(loop)
    except RuntimeError:  # no folder for the cache can be written
        return numba.njit(**options)(loop)  # type: ignore[no-any-return]
    _of_types_alone(made)
    index: Any = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        index._source_stamp = _SOURCES
    return made  # type: ignore[no-any-return]


def _of_types_alone(made: Any) -> None:
    """Have calls by other programs compile it once for the types of what they pass. numba's own way is
    once for each number that stands in a call, too."""
    compile_for = made.get_call_template

    def template(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        types = {name: numba.types.unliteral(type_) for name, type_ in named.items()}
        return compile_for(tuple(map(numba.types.unliteral, args)), types)

    made.get_call_template = template
