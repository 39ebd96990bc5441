"""The GPUs of this machine, as the system's files list them and as the driver counts them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from demitasse import Level

FILES = Path("/proc/driver/nvidia")
LIBRARY = "libcuda.so.1"
CAPABILITY = 75, 76
"""The CUdevice_attributes of the compute capability's two digits."""


@dataclass(frozen=True)
class Driver:
    """What the CUDA driver reports: its version (13000 is 13.0), the devices' names, the error number
    and CUDA's message if it does not work here, and the devices' compute capabilities (90 is 9.0)."""

    version: int = 0
    devices: tuple[str, ...] = ()
    error: int = 0
    reason: str = ""
    capabilities: tuple[int, ...] = ()


def with_devices(levels: Iterable[Level], files: Path = FILES) -> tuple[Level, ...]:
    """Return the levels, with the GPUs that the system's files list added to the outermost. This loads
    no library, because a process in which CUDA has been initialised must not fork."""
    found = tuple(levels)
    names = listed(files)
    if not found or not names:
        return found
    told = tuple(f"gpu:{number} {name}" for number, name in enumerate(names))
    return (replace(found[0], devices=(*found[0].devices, *told)), *found[1:])


def listed(files: Path = FILES) -> list[str]:
    """Return the names of the GPUs, as the kernel's driver has them, in the order of bus addresses."""
    names = []
    for information in sorted(files.glob("gpus/*/information")):
        lines = information.read_text("utf-8", "replace").splitlines()
        model = (line.partition(":")[2].strip() for line in lines if line.startswith("Model:"))
        names.append(next(model, "NVIDIA GPU"))
    return names


def device_count() -> int:
    """Return the number of devices that this process may use."""
    return len(cuda().devices)


@cache
def cuda() -> Driver:
    """Return what the driver reports. It is asked once."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return Driver(reason=str(error))
    return ask(library)


def ask(library: ctypes.CDLL) -> Driver:
    """Return what the driver's library reports about itself and the devices."""
    version, count = ctypes.c_int(0), ctypes.c_int(0)
    if code := library.cuInit(0):
        library.cuDriverGetVersion(ctypes.byref(version))
        return Driver(version.value, (), code, _words(library, code))
    library.cuDriverGetVersion(ctypes.byref(version))
    library.cuDeviceGetCount(ctypes.byref(count))
    numbers = range(count.value)
    names = tuple(_name(library, number) for number in numbers)
    capabilities = tuple(_capability(library, number) for number in numbers)
    return Driver(version.value, names, capabilities=capabilities)


def _name(library: ctypes.CDLL, number: int) -> str:
    device, name, memory = ctypes.c_int(0), ctypes.create_string_buffer(128), ctypes.c_size_t(0)
    library.cuDeviceGet(ctypes.byref(device), number)
    library.cuDeviceGetName(name, 128, device)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    return f"{name.value.decode('utf-8', 'replace')}, {memory.value / 2**30:.0f} GiB"


def _capability(library: ctypes.CDLL, number: int) -> int:
    device, digits = ctypes.c_int(0), (ctypes.c_int(0), ctypes.c_int(0))
    library.cuDeviceGet(ctypes.byref(device), number)
    for digit, attribute in zip(digits, CAPABILITY, strict=True):
        library.cuDeviceGetAttribute(ctypes.byref(digit), attribute, device)
    return 10 * digits[0].value + digits[1].value


def _words(library: ctypes.CDLL, code: int) -> str:
    text = ctypes.c_char_p()
    library.cuGetErrorString(code, ctypes.byref(text))
    return (text.value or b"unknown error").decode("utf-8", "replace")
