"""How this plugin compiles loops: numba without the GIL, cached on disk if that can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import numpy as np

from demitasse import compiled_loop, load_numba

numba = load_numba()

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

Loop = TypeVar("Loop", bound=Callable[..., Any])


def compiled(
    *, reassociate: bool = False, literals: bool = True, from_python: bool = False
) -> Callable[[Loop], Loop]:
    """Compile a loop, which other loops and ``native.Call`` can call, and Python only with
    ``from_python``; otherwise a call from Python raises TypeError. The code that takes a call from
    Python would be a seventh of what there is to compile.

    A loop may not allocate memory, because counting the references to it would be a tenth.

    With ``reassociate``, a sum may run in vector lanes. This rounds differently from summing in order,
    but identically in every run. Without ``literals``, calls from other loops do not compile it anew for
    each constant that they pass.

    Inner loops run over slices, ``part = x[at : at + n]`` and then ``part[i]`` for i in range(n). As far
    as the compiler knows, an index such as ``at + i`` could be negative, and its code to count from the
    end prevents vectorisation (a loop over 1,024 numbers takes 850 ns, and 54 ns with a slice).

    Arrays are copied one number at a time. For ``a[i:j] = b[k:l]``, numba compiles code that writes the
    shapes into an error message, which takes 4 s in each process.

    numba recompiles a cached function if its own file changes, but not if a file that it imports from
    does. A loop is therefore in one file with everything that it calls, except for the parts that many
    share (``tiles``, ``bfloat16``, ``exponentials``, ``powers``, ``is_class``). If you change one of
    these, empty the cache beside it, or touch the files that import it. An upgrade replaces all files.
    """

    def decorate(loop: Loop) -> Loop:
        fastmath = {"reassoc", "contract", "nsz"} if reassociate else {"contract"}
        wrapped: dict[str, bool] = {} if from_python else {"no_cpython_wrapper": True}
        made: Any = compiled_loop(loop, literals=literals, fastmath=fastmath, _nrt=False, **wrapped)
        if not from_python:
            _refuse_python(made)
            _keep_apart(made)
        return made  # type: ignore[no-any-return]

    return decorate


def _refuse_python(made: Any) -> None:
    """Have numba not know what to call for a call from Python: there is nothing."""

    def refuse(*_arguments: object, **_named: object) -> None:
        raise TypeError(f"{made.__name__} is compiled for loops only: call it with native.Call")

    def add_overload(compiled: Any) -> None:
        made.overloads[tuple(compiled.signature.args)] = compiled

    made._compile_for_args, made.add_overload = refuse, add_overload


def _keep_apart(made: Any) -> None:
    """Have numba not take what is kept on disk for a loop that Python can call, nor the other way round:
    a release that compiles loops otherwise would call what is not there."""
    index: Any = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if hasattr(index, "_source_stamp"):
        index._source_stamp = index._source_stamp, "for loops only"


def inlined(loop: Loop) -> Loop:
    """Compile a part of other loops into each of them. This is for functions that are called so often
    that a call, which passes seven words for each array, would cost as much as the work."""
    part: Any = numba.njit(inline="always", error_model="numpy")(loop)
    return part  # type: ignore[no-any-return]
