"""A name for this machine, so that what was measured on it is not taken for another's."""

import math
import os
import platform
import re
import zlib
from pathlib import Path

ROOT = Path("/")
VECTORS = re.compile(r"s*sse\w*|avx\w*|fma\d*|f16c|amx\w*|a?simd\w*|neon|sve\w*|bf16|i8mm|fphp")
"""How Linux calls instructions that work on several numbers at once."""


def fingerprint() -> str:
    """A short name of this machine: architecture, processors, digest of their model, of what they can do
    at once and of the memory. A virtual machine that moves keeps its model where it may lose AVX-512."""
    file = ROOT / "sys/devices/system/cpu/modalias"
    model = file.read_text(encoding="utf-8").partition(":feature")[0] if file.exists() else ""
    pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1
    digest = zlib.crc32(f"{model} {_vectors()} {2 * math.log2(pages):.0f}".encode())
    return f"{platform.machine()}-{os.cpu_count()}-{digest:08x}"


def _vectors() -> str:
    """The first processor's instructions for several numbers, in the order of their names; none where
    the system has no such list. Of the file no more is read, which lists each of hundreds."""
    file = ROOT / "proc/cpuinfo"
    if file.exists():
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, listed = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return " ".join(sorted(filter(VECTORS.fullmatch, listed.split())))
    return ""
