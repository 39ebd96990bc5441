"""How the mesh's programs are compiled: numba without the GIL, kept on disk where that can be done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from demitasse import compiled_loop

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
    made: Any = compiled_loop(loop, literals=False, fastmath={"contract"})
    index: Any = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        index._source_stamp = _SOURCES
    return made  # type: ignore[no-any-return]
