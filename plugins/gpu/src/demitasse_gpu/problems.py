"""What goes wrong with accelerators, in one line each that says what to do."""

from __future__ import annotations

import re
from collections.abc import Sequence

from demitasse import CompositionError, DemitasseError, PlanError, WorkerError

OUT_OF_MEMORY = 2
NO_DEVICE = (100, 101)
OLD_DRIVER = (35, 36, 222, 803, 804)

INSTALL = "pip install 'demitasse-gpu[cuda13]' (or [cuda12], as nvidia-smi says)"
OLDEST_CUPY = 14, 1
"""Before, calls about events kept the GIL, which a call from the device waits for that they may have to
wait for."""

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
"""CUDA's errors (cudaError_t), what each is here, and what to do about it."""


def explained(code: int, text: str, doing: str, where: str) -> Exception:
    """The error to raise for a CUDA error ``code`` that came with ``text`` while ``doing`` something
    at ``where`` (``gpu:0``)."""
    told = f"{where}: {doing}: {text}"
    if code == OUT_OF_MEMORY:
        return MemoryError(f"{told}; {SMALLER}")
    for codes, kind, remedy in REMEDIES:
        if code in codes:
            return kind(f"{told}; {remedy}")
    return WorkerError(f"{told}; demitasse doctor says what is missing here")


def cause(reason: str) -> str:
    """What CuPy says, in a line: where it cannot be loaded it takes many, with the cause on the one
    behind "Original error:"."""
    lines = [line.strip(" =") for line in reason.partition("Original error:")[2].splitlines()]
    return next(filter(None, lines), " ".join(reason.split()))


def no_cupy(reason: str) -> DemitasseError:
    """CuPy cannot be imported."""
    return CompositionError(f"the gpu plugin needs CuPy: {cause(reason)}; {INSTALL}")


def old_cupy(version: str) -> str:
    """Why a CuPy of that version is not used, in a line; empty where it is."""
    digits = tuple(int(digit) for digit in re.findall(r"\d+", version)[: len(OLDEST_CUPY)])
    if not digits or digits >= OLDEST_CUPY:
        return ""
    oldest = ".".join(map(str, OLDEST_CUPY))
    return f"{version} is installed, with which a step may hang (valid: {oldest} or newer)"


def unknown_device(capability: int, known: Sequence[int] = ()) -> tuple[str, str]:
    """What is said of a device for which the compiler that CuPy has found makes no machine code, and
    what to do; ``known`` are the compute capabilities for which it does (90 is 9.0)."""
    told = f"compute capability {capability // 10}.{capability % 10} is unknown to CuPy's NVRTC"
    if known and capability < min(known):
        told += f", which supports {min(known) // 10}.{min(known) % 10} and newer"
    older = "pip install 'demitasse-gpu[cuda12]' instead of [cuda13] for devices before 7.5"
    return told, f"{older}; for newer ones pip install --upgrade it"


def no_compiler(where: str, reason: str) -> DemitasseError:
    """NVRTC, which compiles kernels, cannot be loaded."""
    told = f"{where}: CuPy finds no NVRTC to compile kernels with: {cause(reason)}"
    return CompositionError(f"{told}; {INSTALL}")


def out_of_memory(where: str, asked: int, free: int, total: int, ours: int) -> MemoryError:
    """Device memory that is not there. All in bytes; ``ours`` is what this process's nets have."""
    return MemoryError(
        f"{where} memory: asked for {asked:,} bytes, free: {free:,} of {total:,} ({ours:,} are this "
        f"process's own); {SMALLER}"
    )


def does_not_compile(name: str, where: str, log: str, capability: int) -> PlanError:
    """CUDA source that the compiler rejects: its first error, as a user can do nothing with the rest; or
    the device, if that is what it does not know."""
    if "--gpu-architecture" in log:
        return PlanError(f"{where}: {'; '.join(unknown_device(capability))}")
    lines = (
        [line for line in log.splitlines() if "error" in line] or log.splitlines() or ["no reason given"]
    )
    return PlanError(f"{where}: kernel {name!r} does not compile here: {lines[0].strip()}")
