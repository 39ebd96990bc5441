"""From a CUDA source and element types to launches."""

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
"""Blocks of 256 threads for each multiprocessor, which runs eight at a time: enough that the last
ones do not leave it idle, few enough that starting them costs nothing."""

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
"""Element types, by the names of NumPy and of layouts, in CUDA C++."""


def spec(operand: TensorSpec | None) -> TensorSpec:
    """An operand that the operation always has."""
    assert operand is not None
    return operand


def real_type(*operands: TensorSpec | None) -> str:
    """The one type of real numbers of all of the operands that are there; "" where there is none."""
    kinds = {operand.dtype for operand in operands if operand is not None}
    return next(iter(kinds)) if len(kinds) == 1 and kinds <= set(REALS) else ""


@dataclass(frozen=True)
class Source:
    """A file of kernels, compiled for activations that are ``stored`` so and arithmetic in ``real``, and
    for more types by macro."""

    file: str
    real: str
    stored: str = ""
    types: tuple[tuple[str, str], ...] = ()
    macros: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """What the compiler is told."""
        kinds = (("REAL", self.real), ("STORED", self.stored or self.real), *self.types)
        defined = (f"-D{macro}={TYPES[kind]}" for macro, kind in kinds)
        return (f"-I{CUDA}", *defined, *(f"-D{macro}" for macro in self.macros))

    @property
    def pack(self) -> int:
        """Elements that a thread moves at once: what 16 bytes of activations hold."""
        return 16 // {"bfloat16": 2, "float32": 4, "float64": 8}[self.stored or self.real]

    def number(self, value: float) -> Any:
        """A number of the type of arithmetic."""
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
        """One launch of a kernel of this file. Arguments are DeviceArrays, None, NumPy scalars, and
        Python's integers, which are passed as ``int``."""
        import numpy as np

        from demitasse_gpu.launch import Launch

        function = device.function(text_of(self.file), name, self.options)
        given = [np.int32(each) if isinstance(each, int) else each for each in arguments]
        return Launch(device, function, grid, block, given)

    def flat(self, device: Device, name: str, count: int, *arguments: Any, pack: int = 0) -> Launch:
        """A launch over ``count`` elements, which is the kernel's last argument, a thread taking
        ``pack`` of them at a time."""
        import numpy as np

        grid = blocks(device, -(-count // (pack or self.pack)))
        return self.launch(device, name, grid, THREADS, *arguments, np.int64(count))


@cache
def text_of(file: str) -> str:
    """The text of a CUDA source of this plugin."""
    return (CUDA / file).read_text("utf-8")


def blocks(device: Device, units: int) -> int:
    """How many blocks share ``units`` of work of a thread each."""
    most = BLOCKS_EACH * device.driver.properties.multiprocessors
    return max(1, min(-(-units // THREADS), most))


def device_of(*groups: Sequence[DeviceArray | None]) -> Device:
    """The device of buffers."""
    return next(array.device for group in groups for array in group if array is not None)


def structure(fields: Sequence[tuple[Any, ...]], *values: Any) -> Any:
    """A structure of C by value: ``fields`` as NumPy's dtype takes them."""
    import numpy as np

    made = np.zeros((), np.dtype(list(fields), align=True))
    for (name, *_), value in zip(fields, values, strict=True):
        made[name] = value
    return made[()]


DIVISOR = (("by", "u4"), ("multiplier", "u4"), ("shift", "u4"))
"""A field's type in a structure: what ``divisor`` gives."""


def divisor(by: int) -> tuple[int, int, int]:
    """How a kernel divides numbers below 2**31 by one: (n + (n * multiplier >> 32)) >> shift. (Granlund
    and Montgomery 1994.)"""
    shift = (by - 1).bit_length()
    return by, (2**32 * (2**shift - by)) // by + 1, shift


def rows_along(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """How many rows a shape makes along an axis, how long each is, how far apart its elements are."""
    from math import prod

    inner = prod(shape[axis + 1 :])
    return prod(shape[:axis]) * inner, shape[axis], inner


def philox_key(request: Request) -> tuple[Any, Any]:
    """The two words of an operation's key; see demitasse's random numbers."""
    import numpy as np

    from demitasse import random_key

    first, second = random_key(request.attributes["seed"], request.attributes["stream"])
    return np.uint32(first), np.uint32(second)


FOR_LIBRARIES = 256
"""What cuBLAS asks of an address of scratch memory, and as much as cuDNN may; a plan's are multiples of
64. So many bytes more are asked for."""


def for_libraries(workspace: Any) -> Any:
    """Scratch memory from the first address on that libraries take."""
    return workspace[-workspace.address % FOR_LIBRARIES :]


def aligned(nbytes: int) -> int:
    """Bytes rounded up to what vectors of 16 bytes and lines of 128 want."""
    return -(-nbytes // 128) * 128


def cut(workspace: Any, *pieces: tuple[str, int]) -> list[Any]:
    """Consecutive pieces of a workspace: (NumPy's type, elements) of each."""
    import numpy as np

    made, at = [], 0
    for dtype, count in pieces:
        nbytes = np.dtype(dtype).itemsize * count
        made.append(workspace[at : at + nbytes].view(dtype))
        at += aligned(nbytes)
    return made


def room(*pieces: tuple[str, int]) -> int:
    """The bytes that ``cut`` needs for pieces."""
    import numpy as np

    return sum(aligned(np.dtype(dtype).itemsize * count) for dtype, count in pieces)
