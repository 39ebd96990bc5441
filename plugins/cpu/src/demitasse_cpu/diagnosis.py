"""What this plugin finds here: the vectors that it computes with, and the compiler's cache."""

from __future__ import annotations

from collections.abc import Iterable

from demitasse import Finding


def findings() -> Iterable[Finding]:
    """The width of vectors, and whether compiled kernels are kept."""
    from demitasse_cpu.loops import elementwise, products

    yield Finding("ok", "vectors", f"kernels compute {products.lanes(4)} float32 numbers at a time")
    path = elementwise.relu.stats.cache_path  # type: ignore[attr-defined]
    if path is None:
        yield Finding(
            "problem",
            "numba cache",
            "compiled kernels cannot be kept: every process compiles them anew, some 10 s for a net",
            "set NUMBA_CACHE_DIR to a folder that can be written",
        )
    else:
        yield Finding("ok", "numba cache", f"compiled kernels are kept in {path}")
