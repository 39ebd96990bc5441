"""What goes wrong with accelerators, in one line each that says what to do."""

from __future__ import annotations

from demitasse import CompositionError, DemitasseError, PlanError, WorkerError

OUT_OF_MEMORY = 2
NO_DEVICE = (100, 101)
OLD_DRIVER = (35, 36, 222, 803, 804)

INSTALL = "pip install 'demitasse-gpu[cuda13]' (or [cuda12], as nvidia-smi says)"
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
        "another process has it to itself: end it, or choose another device",
    ),
    (
        (802,),
        WorkerError,
        "the devices are not ready yet: where a switch joins them, its service (nvidia-fabricmanager) "
        "has to run",
    ),
    (
        (53, 127, 201, 214, 220, 226, 709, 911, 919, 999),
        WorkerError,
        "the device was lost: nvidia-smi and the system's log (dmesg, Xid) say why; after a reset go on "
        "from the last snapshot (--resume)",
    ),
    (
        (700, 702, 710, 714, 715, 716, 717, 718, 719),
        WorkerError,
        "a kernel failed and the device's memory is lost to this process: go on from the last snapshot "
        "(--resume); CUDA_LAUNCH_BLOCKING=1 and graphs = false show where",
    ),
    (
        (98, 200, 209, 218, 300),
        PlanError,
        "a kernel was not compiled for this device: remove the cache of kernels",
    ),
    (
        (9, 701, 720),
        PlanError,
        "a kernel asks for more than this device has: leave the plugin out there",
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


def no_compiler(where: str, reason: str) -> DemitasseError:
    """NVRTC, which compiles kernels, cannot be loaded."""
    told = f"{where}: CuPy finds no NVRTC to compile kernels with: {cause(reason)}"
    return CompositionError(f"{told}; {INSTALL}")


def out_of_memory(where: str, asked: int, free: int, total: int, ours: int) -> MemoryError:
    """Device memory that is not there. All in bytes; ``ours`` is what this process's nets have."""
    return MemoryError(
        f"{where} memory: asked for {asked:,} bytes, free are {free:,} of {total:,} ({ours:,} are this "
        f"process's own); {SMALLER}"
    )


def does_not_compile(name: str, where: str, log: str) -> PlanError:
    """CUDA source that the compiler rejects: its first error, as a user can do nothing with the rest."""
    lines = (
        [line for line in log.splitlines() if "error" in line] or log.splitlines() or ["no reason given"]
    )
    return PlanError(f"{where}: kernel {name!r} does not compile here: {lines[0].strip()}")
