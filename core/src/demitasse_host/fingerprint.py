"""A name for this machine, so that its measurements are not used on another."""

import math
import os
import platform
import re
import zlib
from pathlib import Path

ROOT = Path("/")
VECTORS = re.compile(r"s*sse\w*|avx\w*|fma\d*|f16c|amx\w*|a?simd\w*|neon|sve\w*|bf16|i8mm|fphp")
"""Linux's names for instructions that work on several numbers at once."""


def fingerprint() -> str:
    """Return a short name of this machine: its architecture, the number of processors, and a digest of
    their model, their vector instructions and the memory. (The model alone is not enough: a virtual
    machine that moves keeps it, but may lose AVX-512.)"""
    file = ROOT / "sys/devices/system/cpu/modalias"
    model = file.read_text(encoding="utf-8").partition(":feature")[0] if file.exists() else ""
    pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1
    digest = zlib.crc32(f"{model} {_vectors()} {2 * math.log2(pages):.0f}".encode())
    return f"{platform.machine()}-{os.cpu_count()}-{digest:08x}"


def _vectors() -> str:
    """Return the first processor's vector instructions, sorted by name; none if the system does not list
    them. The file may list hundreds of processors; only the first is read."""
    file = ROOT / "proc/cpuinfo"
    if file.exists():
        with file.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                name, _, listed = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return " ".join(sorted(filter(VECTORS.fullmatch, listed.split())))
    return ""
