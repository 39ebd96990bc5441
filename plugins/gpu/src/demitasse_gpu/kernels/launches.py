"""Making launches from a CUDA source and element types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from demitasse import Request, TensorSpec

if TYPE_CHECKING:
    from demitasse_gpu.array import DeviceArray
    from demitasse_gpu.device import Device
    from demitasse_gpu.launch import Launch

REALS = ("float32", "float64")
THREADS = 256
BLOCKS_EACH = 16
"""Blocks of 256 threads per multiprocessor, which runs eight at a time: enough that the last ones do not
leave it idle, and few enough that starting them costs nothing."""

CUDA = Path(str(files("demitasse_gpu"))) / "cuda"

TYPES: Mapping[str, str] = MappingProxyType(
    {
        "float32": "float",
        "float64": "double",
        "bfloat16": "bfloat16",
        "uint8": "unsigned char",
        "int8": "signed char",
        "int16": "short",
        "uint16": "unsigned short",
        "int32": "int",
        "uint32": "unsigned int",
        "int64": "long long",
        "uint64": "unsigned long long",
    }
)
"""The element types in CUDA C++, by their names in NumPy and in layouts."""


def spec(operand: TensorSpec | None) -> TensorSpec:
    """Return an operand that the operation always has."""
    assert operand is not None
    return operand


def real_type(*operands: TensorSpec | None) -> str:
    """Return the real type that all present operands have in common; "" if there is none."""
    kinds = {operand.dtype for operand in operands if operand is not None}
    return next(iter(kinds)) if len(kinds) == 1 and kinds <= set(REALS) else ""


@dataclass(frozen=True)
class Source:
    """A file of kernels, compiled for activations stored as ``stored`` and arithmetic in ``real``, with
    further types by macro."""

    file: str
    real: str
    stored: str = ""
    types: tuple[tuple[str, str], ...] = ()
    macros: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """The compiler's options."""
        kinds = (("REAL", self.real), ("STORED", self.stored or self.real), *self.types)
        defined = (f"-D{macro}={TYPES[kind]}" for macro, kind in kinds)
        return (f"-I{CUDA}", *defined, *(f"-D{macro}" for macro in self.macros))

    @property
    def pack(self) -> int:
        """The number of elements that a thread moves at once: 16 bytes of activations."""
        return 16 // {"bfloat16": 2, "float32": 4, "float64": 8}[self.stored or self.real]

    def number(self, value: float) -> Any:
        """Return a number in the type of the arithmetic."""
        import numpy as np

        return np.dtype(self.real).type(value)

    def launch(
        self,
        device: Device,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *arguments: Any,
    ) -> Launch:
        """Return a launch of a kernel of this file. Arguments are DeviceArrays, None, NumPy scalars, or
        Python integers, which are passed as ``int``."""
        import numpy as np

        from demitasse_gpu.launch import Launch

        function = device.function(text_of(self.file), name, self.options)
        given = [np.int32(each) if isinstance(each, int) else each for each in arguments]
        return Launch(device, function, grid, block, given)

    def flat(self, device: Device, name: str, count: int, *arguments: Any, pack: int = 0) -> Launch:
        """Return a launch over ``count`` elements, the kernel's last argument. Each thread takes
        ``pack`` of them at a time."""
        import numpy as np

        grid = blocks(device, -(-count // (pack or self.pack)))
        return self.launch(device, name, grid, THREADS, *arguments, np.int64(count))


@cache
def text_of(file: str) -> str:
    """Return the text of one of this plugin's CUDA sources."""
    return (CUDA / file).read_text("utf-8")


def blocks(device: Device, units: int) -> int:
    """Return the number of blocks for ``units`` of work, one per thread at a time."""
    most = BLOCKS_EACH * device.driver.properties.multiprocessors
    return max(1, min(-(-units // THREADS), most))


def device_of(*groups: Sequence[DeviceArray | None]) -> Device:
    """Return the device of buffers."""
    return next(array.device for group in groups for array in group if array is not None)


def structure(fields: Sequence[tuple[Any, ...]], *values: Any) -> Any:
    """Return a C structure to be passed by value. ``fields`` is as for NumPy's dtype."""
    import numpy as np

    made = np.zeros((), np.dtype(list(fields), align=True))
    for (name, *_), value in zip(fields, values, strict=True):
        made[name] = value
    return made[()]


DIVISOR = (("by", "u4"), ("multiplier", "u4"), ("shift", "u4"))
"""The type of a structure's field that holds what ``divisor`` returns."""


def divisor(by: int) -> tuple[int, int, int]:
    """Return the constants with which a kernel divides numbers below 2**31: (n + (n * multiplier >> 32))
    >> shift (Granlund and Montgomery 1994)."""
    shift = (by - 1).bit_length()
    return by, (2**32 * (2**shift - by)) // by + 1, shift


def rows_along(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Return the number of rows of a shape along an axis, the length of each, and the distance between
    its elements."""
    from math import prod

    inner = prod(shape[axis + 1 :])
    return prod(shape[:axis]) * inner, shape[axis], inner


def philox_key(request: Request) -> tuple[Any, Any]:
    """Return the two words of an operation's key; see demitasse's random numbers."""
    import numpy as np

    from demitasse import random_key

    first, second = random_key(request.attributes["seed"], request.attributes["stream"])
    return np.uint32(first), np.uint32(second)


FOR_LIBRARIES = 256
"""The alignment of scratch memory that cuBLAS requires, and cuDNN may. A plan's memory is aligned to 64
bytes, so this many more bytes are requested."""


def for_libraries(workspace: Any) -> Any:
    """Return scratch memory from the first address that is aligned for libraries."""
    return workspace[-workspace.address % FOR_LIBRARIES :]


def aligned(nbytes: int) -> int:
    """Round bytes up for vectors of 16 bytes and cache lines of 128."""
    return -(-nbytes // 128) * 128


def cut(workspace: Any, *pieces: tuple[str, int]) -> list[Any]:
    """Return consecutive pieces of a workspace. Each is given as (NumPy type, number of elements)."""
    import numpy as np

    made, at = [], 0
    for dtype, count in pieces:
        nbytes = np.dtype(dtype).itemsize * count
        made.append(workspace[at : at + nbytes].view(dtype))
        at += aligned(nbytes)
    return made


def room(*pieces: tuple[str, int]) -> int:
    """Return the bytes that ``cut`` needs for pieces."""
    import numpy as np

    return sum(aligned(np.dtype(dtype).itemsize * count) for dtype, count in pieces)
