"""What this plugin finds here: the compiler's cache, and the BLAS library that NumPy brings."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from demitasse import Finding


def findings() -> Iterable[Finding]:
    """The cache of compiled kernels, the vectors they use, and BLAS with its threads."""
    yield _cache()
    yield _vectors()
    yield from _blas()


def _cache() -> Finding:
    from demitasse_cpu.loops import elementwise

    path = elementwise.relu.stats.cache_path  # type: ignore[attr-defined]
    if path is None:
        return Finding(
            "problem",
            "numba cache",
            "compiled kernels cannot be kept, so that every process compiles them anew (some 10 s)",
            "set NUMBA_CACHE_DIR to a folder that can be written",
        )
    return Finding("ok", "numba cache", f"compiled kernels are kept in {path}")


def _vectors() -> Finding:
    from demitasse_cpu.loops import products

    return Finding(
        "ok", "vectors", f"convolutions compute {products.lanes(4)} float32 numbers at a time"
    )


def _blas() -> Iterable[Finding]:
    import numpy as np

    built: Any = np.show_config(mode="dicts")
    blas = built["Build Dependencies"]["blas"]
    name = f"{blas.get('name', 'unknown')} {blas.get('version', '')}".strip()
    loaded = _openblas()
    if loaded is None:
        yield Finding("ok", "BLAS", f"NumPy multiplies matrices with {name}")
        return
    kernels, threads = loaded
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    text = f"NumPy multiplies matrices with {name}: {kernels} kernels, {threads} threads"
    if threads > (processors or threads):
        remedy = f"set OPENBLAS_NUM_THREADS={processors}"
        yield Finding("note", "BLAS", f"{text} on {processors} processors", remedy)
    else:
        yield Finding("ok", "BLAS", text)
    from demitasse_cpu.loops import products

    if products.lanes(4) == 16 and kernels.lower() in ("haswell", "zen", "sandybridge"):
        yield Finding(
            "note",
            "BLAS kernels",
            f"this processor has AVX-512, OpenBLAS chose its {kernels} kernels, at half the speed",
            "set OPENBLAS_CORETYPE=SkylakeX",
        )


def _openblas() -> tuple[str, int] | None:
    """The kernels and the number of threads of the OpenBLAS that this process has loaded; None
    where there is none or it cannot be found."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return None
    paths = {line.split(maxsplit=5)[-1] for line in maps.splitlines() if "openblas" in line}
    for path in sorted(paths, key=lambda path: "numpy" not in path):
        library = ctypes.CDLL(path)
        for prefix, suffix in (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", "")):
            core = getattr(library, f"{prefix}openblas_get_corename{suffix}", None)
            threads = getattr(library, f"{prefix}openblas_get_num_threads{suffix}", None)
            if core is not None and threads is not None:
                core.restype = ctypes.c_char_p
                return core().decode("ascii"), int(threads())
    return None
