"""What this plugin finds on the machine: the driver, the GPUs, CuPy, and NVIDIA's libraries."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from demitasse import Finding
from demitasse_gpu.libraries.loading import library, why_not
from demitasse_gpu.machine import Driver, cuda, listed
from demitasse_gpu.problems import INSTALL, NO_DEVICE, OLD_DRIVER, cause, old_cupy, unknown_device

NEEDED = {"12": 12000, "13": 13000}
"""The driver version that CuPy needs, by the CUDA version that it is built for."""


def findings(
    driver: Driver | None = None,
    cupy: str | None = None,
    compiler: str | None = None,
    release: str | None = None,
    known: Sequence[int] | None = None,
) -> Iterator[Finding]:
    """Yield what was found and what is missing; on a machine without GPUs, one line. Arguments that are
    not given are read from the machine: ``driver``; ``cupy``, the CUDA version that CuPy is for;
    ``compiler``, why CuPy cannot compile ("" if it can); ``release``, CuPy's own version; and ``known``,
    the compute capabilities that it compiles for."""
    found = driver or cuda()
    if not found.devices:
        yield _no_device(found, bool(listed()))
        return
    said = f"{found.version // 1000}.{found.version % 1000 // 10}"
    yield Finding("ok", "CUDA driver", f"for CUDA {said} and older")
    for number, name in enumerate(found.devices):
        yield Finding("ok", f"gpu:{number}", name)
    made_for = cupy_version() if cupy is None else cupy
    if not made_for:
        yield Finding("problem", "CuPy", "not installed: no GPU is used", INSTALL)
        return
    if found.version < NEEDED.get(made_for, 0):
        remedy = f"update the driver, or pip install 'demitasse-gpu[cuda{found.version // 1000}]'"
        old = f"it is for CUDA {made_for}, but the driver for {said}: the driver is too old for it"
        yield Finding("problem", "CuPy", old, remedy)
        return
    if reason := old_cupy(_release(made_for) if release is None else release):
        yield Finding("problem", "CuPy", reason, f"{INSTALL}, with --upgrade")
        return
    if reason := (why_no_compiler() if compiler is None else compiler):
        yield Finding("problem", "CuPy", f"it cannot compile kernels: {reason}", INSTALL)
        return
    yield Finding("ok", "CuPy", f"for CUDA {made_for}")
    known = compiled_for() if known is None else known
    usable = [n for n, each in enumerate(found.capabilities) if not known or each in known]
    for number, capability in enumerate(found.capabilities):
        if number not in usable:
            told, remedy = unknown_device(capability, known)
            if usable:  # a display's GPU, say: no problem until a description uses it
                remedy = f'at = "gpu:{usable[0]}" in a description takes another one; {remedy}'
            yield Finding("note" if usable else "problem", f"gpu:{number}", told, remedy)
    for name, distribution in (("cudnn", "cuDNN"), ("cublasLt", "cuBLASLt")):
        if library(name) is None:
            reason = (
                f"{why_not(name)}: the plugin's own kernels are used instead, which are several times "
                f"slower"
            )
            yield Finding("note", distribution, reason, INSTALL)
        else:
            yield Finding("ok", distribution, _version(name))
    yield Finding("note", "use", "GPUs are used only if a machine description says so", "--hw one-gpu")


def _no_device(found: Driver, there: bool) -> Finding:
    """Explain why no GPU can be used: there is none, or its driver does not allow it."""
    if found.error in OLD_DRIVER:
        return Finding("problem", "CUDA driver", found.reason, "update the driver")
    if found.error and found.error not in NO_DEVICE:
        remedy = "nvidia-smi and the system's log (dmesg, Xid) say why; reset the device or the machine"
        return Finding("problem", "CUDA driver", f"{found.reason} (error {found.error})", remedy)
    if there:
        remedy = "install the driver's libraries in this container or environment (libcuda.so.1)"
        hidden = found.reason or "CUDA_VISIBLE_DEVICES hides them"
        return Finding("problem", "GPU", f"the system has GPUs, but CUDA finds none: {hidden}", remedy)
    return Finding("ok", "GPU", "none here")


def why_no_compiler() -> str:
    """Return one line on why the installed CuPy cannot compile kernels; empty if it can."""
    try:
        from cupy_backends.cuda.libs import nvrtc

        nvrtc.getVersion()
    except (ImportError, RuntimeError) as error:
        return cause(str(error))
    return ""


def compiled_for() -> list[int]:
    """Return the compute capabilities (90 is 9.0) for which CuPy's compiler makes machine code. Requires
    a compiler."""
    from cupy_backends.cuda.libs import nvrtc

    return [int(each) for each in nvrtc.getSupportedArchs()]


def _release(made_for: str) -> str:
    """Return the version of the installed CuPy for a CUDA version."""
    names = [name for name in ("cupy", f"cupy-cuda{made_for}x") if _is_installed(name)]
    return version(names[-1]) if names else ""


def _is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def cupy_version() -> str:
    """Return the CUDA version that the installed CuPy is for, ``12`` or ``13``; "unknown" if it does not
    say, and empty if CuPy is not installed."""
    if importlib.util.find_spec("cupy") is None:
        return ""
    for made_for in NEEDED:
        if _is_installed(f"cupy-cuda{made_for}x"):
            return made_for
    return "unknown"


def _version(name: str) -> str:
    found = library(name)
    assert found is not None
    if name == "cudnn":
        found.cudnnGetVersion.restype = ctypes.c_size_t
        number = int(found.cudnnGetVersion())
        return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
    found.cublasLtGetVersion.restype = ctypes.c_size_t
    number = int(found.cublasLtGetVersion())
    return f"{number // 10000}.{number % 10000 // 100}.{number % 100}"
