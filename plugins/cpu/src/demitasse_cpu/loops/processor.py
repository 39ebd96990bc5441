"""The processor for which loops are compiled."""

from __future__ import annotations

import llvmlite.binding
from numba.core import config

_ROUNDS_FROM = (16,)
"""The version of LLVM from which on it can round vectors to bfloat16. An older one, as in llvmlite
before 0.45, would end the process."""


def _features() -> frozenset[str]:
    chosen: str | None = config.CPU_FEATURES  # type: ignore[attr-defined]
    if chosen is None:
        host = llvmlite.binding.get_host_cpu_features()
        found = {name for name, has in host.items() if has}
    else:
        found = {name[1:] for name in chosen.split(",") if name.startswith("+")}
    if llvmlite.binding.llvm_version_info < _ROUNDS_FROM:
        found.discard("avx512bf16")
    return frozenset(found)


FEATURES = _features()
"""LLVM's names of the instruction sets to compile for: this processor's, unless NUMBA_CPU_FEATURES names
others."""
