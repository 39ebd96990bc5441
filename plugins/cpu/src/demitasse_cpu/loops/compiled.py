"""How this plugin compiles: numba without the GIL, kept on disk where that can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np

from demitasse import compiled_loop, load_numba

numba = load_numba()

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(*, reassociate: bool = False, literals: bool = True) -> Callable[[Loop], Loop]:
    """Compile a loop. ``reassociate`` lets a sum run in vector lanes: another rounding than in order,
    though the same in every run. Without ``literals`` calls by other loops do not have it compiled for
    each number that stands in them.

    Inner loops run over slices, ``part = x[at : at + n]`` and then ``part[i]`` for i in range(n): an
    index such as ``at + i`` could be negative for all that the compiler knows, and what it does then
    to count from the end keeps it from vectors (a loop over 1,024 numbers: 850 ns, and 54 ns so).

    Arrays are copied a number at a time: ``a[i:j] = b[k:l]`` has numba compile, for 4 s in a process,
    how to write the shapes into the text of an error.

    numba recompiles a cached function when its own file changes, not when a file that it imports
    from does: so a loop stands in one file with all that it calls, but for the parts that many share
    (``tiles``, ``bfloat16``, ``exponentials``, ``powers``, ``is_class``). Whoever changes one of these
    empties the cache beside it, or touches the files that import it; an upgrade replaces all of them.
    """

    def decorate(loop: Loop) -> Loop:
        fastmath = {"reassoc", "contract", "nsz"} if reassociate else {"contract"}
        return compiled_loop(loop, literals=literals, fastmath=fastmath)

    return decorate


def inlined(loop: Loop) -> Loop:
    """A part of other loops that is compiled into each of them: for what is called so often that a
    call, which passes seven words for each array, would cost as much as the work."""
    part: Any = numba.njit(inline="always", error_model="numpy")(loop)
    return part  # type: ignore[no-any-return]
