"""What ``demitasse doctor`` reports about this plugin: the vectors it computes with and the compiler's
cache."""

from __future__ import annotations

from collections.abc import Iterable

from demitasse import Finding, damaged_loops


def findings() -> Iterable[Finding]:
    """Yield findings about oneDNN, its bf16 support, OpenMP, the vector width, and whether compiled
    kernels are cached."""
    from demitasse_cpu.loops import elementwise, tiles
    from demitasse_cpu.native import openmp
    from demitasse_cpu.onednn.inner_product import bfloat16_kernel
    from demitasse_cpu.onednn.library import DISTRIBUTION, library, problem

    if openmp() is None:
        slower = "OpenMP's library libgomp.so.1 is not there: Python's threads share the work instead"
        yield Finding("note", "openmp", slower, "install it (Debian: apt install libgomp1)")
    if (lib := library()) is not None:
        version = ".".join(map(str, lib.version))
        yield Finding("ok", "oneDNN", f"{version} from {lib.path}")
        if kernel := bfloat16_kernel(lib):
            yield Finding("ok", "bf16", f"products of bfloat16 numbers by oneDNN's {kernel}")
        else:
            slow = "no arithmetic in bfloat16: a bf16 plan stores 16 bits, computes in float32"
            yield Finding("note", "bf16", slow, "f32 is usually as quick here, or quicker")
    else:
        instead = "loops compiled by numba compute everything instead, a few times as slowly"
        yield Finding("note", "oneDNN", f"{problem()}: {instead}", f"pip install {DISTRIBUTION}")
    yield Finding("ok", "vectors", f"kernels compute {tiles.lanes(4)} float32 numbers at a time")
    path = elementwise.relu.stats.cache_path  # type: ignore[attr-defined]
    if path is None:
        yield Finding(
            "problem",
            "numba cache",
            "compiled kernels cannot be saved: every process compiles them again, some 10 s for a net",
            "set NUMBA_CACHE_DIR to a folder that can be written",
        )
    elif damaged := damaged_loops(path):
        found = f"{len(damaged)} damaged, such as {damaged[0].name}: compiled again on their next use"
        files = damaged[0] if len(damaged) == 1 else f"{path}/*.nb[ic]"
        yield Finding("note", "numba cache", f"files in {path}: {found}", f"or delete: rm {files}")
    else:
        yield Finding("ok", "numba cache", f"compiled kernels are saved in {path}")
