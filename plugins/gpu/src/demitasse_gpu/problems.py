"""Errors of accelerators, each in one line that says what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from demitasse import CompositionError, DemitasseError, PlanError, WorkerError

OUT_OF_MEMORY = 2
NO_DEVICE = (100, 101)
OLD_DRIVER = (35, 36, 222, 803, 804)

INSTALL = "pip install 'demitasse-gpu[cuda13]' (or [cuda12], as nvidia-smi says)"
OLDEST_CUPY = 14, 1
"""The oldest supported CuPy. Earlier versions held the GIL during calls about events. Such a call may
wait for a host call from the device, which itself waits for the GIL."""

SMALLER = "use a smaller batch, --precision bf16 or several accelerators, or end what else is using it"
REMEDIES: tuple[tuple[tuple[int, ...], type[DemitasseError], str], ...] = (
    (
        NO_DEVICE,
        CompositionError,
        "nvidia-smi lists the devices; CUDA_VISIBLE_DEVICES may hide some",
    ),
    (
        OLD_DRIVER,
        CompositionError,
        f"there is no driver, or one too old for this CuPy: update it, or {INSTALL}",
    ),
    (
        (46, 216, 805, 806, 807, 808, 809),
        WorkerError,
        "another process uses it exclusively: end that process, or choose another device",
    ),
    (
        (802,),
        WorkerError,
        "the devices are not ready yet: if a switch connects them, its service (nvidia-fabricmanager) "
        "must be running",
    ),
    (
        (53, 127, 201, 214, 220, 226, 709, 911, 919, 999),
        WorkerError,
        "the device was lost: nvidia-smi and the system's log (dmesg, Xid) say why; after a reset "
        "continue from the last snapshot (--resume)",
    ),
    (
        (700, 702, 710, 714, 715, 716, 717, 718, 719),
        WorkerError,
        "a kernel failed and this process has lost the device's memory: continue from the last snapshot "
        "(--resume); CUDA_LAUNCH_BLOCKING=1 and graphs = false show where",
    ),
    (
        (98, 200, 209, 218, 300),
        PlanError,
        "a kernel was not compiled for this device: delete the cache of kernels",
    ),
    (
        (9, 701, 720),
        PlanError,
        "a kernel needs more than this device has: do not use the plugin on it",
    ),
)
"""CUDA's errors (cudaError_t), the exception that each becomes, and what to do about it."""


def explained(code: int, text: str, doing: str, where: str) -> Exception:
    """Return the exception for a CUDA error ``code`` with message ``text``, raised while ``doing``
    something at ``where`` (``gpu:0``)."""
    told = f"{where}: {doing}: {text}"
    if code == OUT_OF_MEMORY:
        return MemoryError(f"{told}; {SMALLER}")
    for codes, kind, remedy in REMEDIES:
        if code in codes:
            return kind(f"{told}; {remedy}")
    return WorkerError(f"{told}; demitasse doctor says what is missing here")


def cause(reason: str) -> str:
    """Return CuPy's message in one line. If CuPy cannot be loaded its message has many, with the cause
    on the line behind "Original error:"."""
    lines = [line.strip(" =") for line in reason.partition("Original error:")[2].splitlines()]
    return next(filter(None, lines), " ".join(reason.split()))


def no_cupy(reason: str) -> DemitasseError:
    """Return the error for a CuPy that cannot be imported."""
    return CompositionError(f"the gpu plugin needs CuPy: {cause(reason)}; {INSTALL}")


def old_cupy(version: str) -> str:
    """Return one line on why a CuPy of that version is not used; empty if it is."""
    digits = tuple(int(digit) for digit in re.findall(r"\d+", version)[: len(OLDEST_CUPY)])
    if not digits or digits >= OLDEST_CUPY:
        return ""
    oldest = ".".join(map(str, OLDEST_CUPY))
    return f"{version} is installed, with which a step may hang (valid: {oldest} or newer)"


def unknown_device(capability: int, known: Sequence[int] = ()) -> tuple[str, str]:
    """Return what is said about a device for which CuPy's compiler makes no machine code, and the
    remedy. ``known`` are the compute capabilities that it supports (90 is 9.0)."""
    told = f"compute capability {capability // 10}.{capability % 10} is unknown to CuPy's NVRTC"
    if known and capability < min(known):
        told += f", which supports {min(known) // 10}.{min(known) % 10} and newer"
    older = "pip install 'demitasse-gpu[cuda12]' instead of [cuda13] for devices before 7.5"
    return told, f"{older}; for newer ones pip install --upgrade it"


def no_compiler(where: str, reason: str) -> DemitasseError:
    """Return the error for an NVRTC, the compiler of kernels, that cannot be loaded."""
    told = f"{where}: CuPy finds no NVRTC to compile kernels with: {cause(reason)}"
    return CompositionError(f"{told}; {INSTALL}")


def out_of_memory(where: str, asked: int, free: int, total: int, ours: int) -> MemoryError:
    """Return the error for a lack of device memory. All sizes are in bytes; ``ours`` is what this
    process's nets use."""
    return MemoryError(
        f"{where} memory: asked for {asked:,} bytes, free: {free:,} of {total:,} ({ours:,} are this "
        f"process's own); {SMALLER}"
    )


def does_not_compile(name: str, where: str, log: str, capability: int) -> PlanError:
    """Return the error for CUDA source that the compiler rejects. It has the compiler's first error, as
    the others are of no use to a user; or it names the device, if the compiler does not know that."""
    if "--gpu-architecture" in log:
        return PlanError(f"{where}: {'; '.join(unknown_device(capability))}")
    lines = (
        [line for line in log.splitlines() if "error" in line] or log.splitlines() or ["no reason given"]
    )
    return PlanError(f"{where}: kernel {name!r} does not compile here: {lines[0].strip()}")
