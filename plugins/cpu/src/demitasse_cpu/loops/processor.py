"""The processor that loops are compiled for."""

from __future__ import annotations

import llvmlite.binding
from numba.core import config


def _features() -> frozenset[str]:
    chosen: str | None = config.CPU_FEATURES  # type: ignore[attr-defined]
    if chosen is None:
        host = llvmlite.binding.get_host_cpu_features()
        return frozenset(name for name, has in host.items() if has)
    return frozenset(name[1:] for name in chosen.split(",") if name.startswith("+"))


FEATURES = _features()
"""What LLVM calls the instructions that it has: this processor's, unless NUMBA_CPU_FEATURES names
others."""
