"""Arrays in device memory, with the part of NumPy's interface that training needs. They are read and
written in the stream of the kernels, so in order with them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from math import prod
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from demitasse_gpu.device import Device
    from demitasse_gpu.driver import Address, Function

BLOCK = 256
Key = int | slice | EllipsisType | tuple[Any, ...]


class DeviceArray:
    """A contiguous array at ``address`` of a device. It has no memory of its own: ``owner`` keeps it
    alive.

    Reading it (``np.asarray``) waits for everything in the device's default stream, then copies.
    Assigning to it copies or fills in that stream; the assigned array may be changed at once. Slices
    take leading parts and share memory. bfloat16 is stored as uint16.
    """

    def __init__(
        self, device: Device, address: Address, shape: Sequence[int], dtype: Any, owner: object = None
    ) -> None:
        self.device, self.address, self.owner = device, address, owner
        self.shape, self.dtype = tuple(map(int, shape)), np.dtype(dtype)

    @property
    def size(self) -> int:
        return int(prod(self.shape))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return int(self.dtype.itemsize)

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The interface by which other libraries read it (version 3). They must wait for what is
        enqueued before they use it, unless they know of streams."""
        about = {"shape": self.shape, "typestr": self.dtype.str, "strides": None}
        return {**about, "data": (self.address, False), "version": 3, "stream": self.device.stream}

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<{'x'.join(map(str, self.shape)) or 'scalar'} {self.dtype} in {self.device.space}>"

    def reshape(self, *shape: Any) -> Self:
        """Return the same memory in another shape. Raises ValueError if the sizes differ."""
        sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        sizes = np.broadcast_to(np.int8(0), self.shape).reshape(sizes).shape
        return self._part(0, sizes, self.dtype)

    def view(self, dtype: Any) -> Self:
        """Return the same memory as elements of another type; the last dimension shrinks or grows.
        Raises ValueError if it cannot."""
        dtype = np.dtype(dtype)
        if dtype.itemsize == self.itemsize:
            return self._part(0, self.shape, dtype)
        last = self.shape[-1] * self.itemsize if self.shape else 0
        if not self.shape or last % dtype.itemsize:
            raise ValueError(
                f"{self!r} cannot be viewed as {dtype}: its last dimension is not divisible"
            )
        return self._part(0, (*self.shape[:-1], last // dtype.itemsize), dtype)

    def __getitem__(self, key: Key) -> Any:
        """Return a leading part: ``[i]``, ``[i:j]`` or ``[...]``. A single element is read and returned
        as a NumPy scalar."""
        if isinstance(key, tuple):
            part: Any = self
            for number, each in enumerate(key):
                if isinstance(each, slice | EllipsisType):
                    if any(after not in (Ellipsis, slice(None)) for after in key[number + 1 :]):
                        raise _not_contiguous(key)
                    return part[each]
                part = part[each]
            return part
        if key is Ellipsis:
            return self
        if not self.shape:
            raise IndexError(f"{self!r} has no dimension to index")
        row = self.size // self.shape[0] * self.itemsize if self.shape[0] else 0
        if isinstance(key, slice):
            start, stop, step = key.indices(self.shape[0])
            if step != 1:
                raise _not_contiguous(key)
            return self._part(start * row, (max(0, stop - start), *self.shape[1:]), self.dtype)
        index = self._index(key)
        part = self._part(index * row, self.shape[1:], self.dtype)
        return part if part.shape else np.asarray(part)[()]

    def __setitem__(self, key: Key, value: Any) -> None:
        """Copy an array of the part's shape into the part, or fill the part with a number."""
        if isinstance(key, int | np.integer) and self.ndim == 1:
            offset = self._index(key) * self.itemsize
            self._part(offset, (), self.dtype)._fill(value)
            return
        if isinstance(key, tuple) and key:
            self[key[:-1]][key[-1]] = value
            return
        part = self[key]
        if isinstance(value, DeviceArray):
            part._copy_from(value)
        elif np.ndim(value) == 0:
            part._fill(value)
        else:
            source = np.broadcast_to(np.asarray(value), part.shape)
            source = np.ascontiguousarray(source, part.dtype)
            if source.size:
                self._copy(part.address, source.ctypes.data, part.nbytes, "h2d")
                # A copy from pinned memory is still under way when the call returns; one from other
                # memory may be.
                self.device.synchronise()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return a copy on the host, once everything before it in the default stream is done."""
        if copy is False:
            raise ValueError(f"{self!r} cannot become a host array without a copy")
        host = np.empty(self.shape, self.dtype)
        if host.size:
            self._copy(host.ctypes.data, self.address, self.nbytes, "d2h")
        self.device.synchronise()
        return host if dtype is None else host.astype(dtype, copy=False)

    def sum(self) -> float:
        """Return the sum of all elements, computed on the host in float64."""
        return float(np.asarray(self).sum(dtype=np.float64))

    def tobytes(self) -> bytes:
        """Return its bytes, on the host."""
        return np.asarray(self).tobytes()

    def copy(self) -> DeviceArray:
        """Return a copy in memory of its own on the same device."""
        made = empty(self.device, self.shape, self.dtype)
        made._copy_from(self)
        return made

    def __iadd__(self, other: Any) -> Self:
        """Add an array of the same shape, on the device. Raises TypeError for anything but floats."""
        if self.dtype not in (np.float32, np.float64):
            raise TypeError(f"{self!r} cannot be added to; only float32 and float64 arrays can")
        if not isinstance(other, DeviceArray):
            given, other = other, empty(self.device, self.shape, self.dtype)
            other[...] = given
        if other.shape != self.shape or other.dtype != self.dtype:
            raise ValueError(f"{other!r} cannot be added to {self!r}")
        arguments = (self.address, other.address, np.int64(self.size))
        self._run(f"add_{self.dtype}", arguments)
        return self

    def _fill(self, value: Any) -> None:
        bits = int.from_bytes(np.asarray(value).astype(self.dtype).tobytes(), sys.byteorder)
        if self.itemsize not in (1, 2, 4, 8):
            raise TypeError(f"{self!r} cannot be filled: elements are of 1, 2, 4 or 8 bytes")
        arguments = (self.address, np.uint64(bits), np.int32(self.itemsize), np.int64(self.size))
        self._run("fill", arguments)

    def _run(self, name: str, arguments: Sequence[Any]) -> None:
        if self.size:
            driver = self.device.driver
            blocks = min(-(-self.size // BLOCK), 32 * driver.properties.multiprocessors)
            function = array_function(self.device, name)
            driver.launch(function, (blocks, 1, 1), (BLOCK, 1, 1), arguments, 0, self.device.stream)

    def _copy_from(self, source: DeviceArray) -> None:
        if source.shape != self.shape:
            raise ValueError(f"{source!r} does not fit {self!r}")
        if source.dtype != self.dtype:
            self[...] = np.asarray(source).astype(self.dtype)
            return
        if source.device is not self.device:
            source.device.synchronise()
        if self.size and source.address != self.address:  # as after ``part += other``
            self._copy(self.address, source.address, self.nbytes, "d2d")
        if source.device is not self.device:
            self.device.synchronise()

    def _copy(self, target: Address, source: Address, nbytes: int, kind: str) -> None:
        self.device.driver.copy(target, source, nbytes, kind, self.device.stream)

    def _index(self, key: Any) -> int:
        if not isinstance(key, int | np.integer):
            raise _not_contiguous(key)
        if not -self.shape[0] <= key < self.shape[0]:
            raise IndexError(f"index {key} is out of bounds for {self!r}")
        return int(key) % self.shape[0]

    def _part(self, offset: int, shape: Sequence[int], dtype: Any) -> Self:
        return type(self)(self.device, self.address + offset, shape, dtype, self.owner)


def empty(device: Device, shape: Sequence[int], dtype: Any) -> DeviceArray:
    """Return a zeroed array in a block of its own."""
    block = device.pool.take(prod(shape) * np.dtype(dtype).itemsize)
    return DeviceArray(device, block.address, shape, dtype, block)


def array_function(device: Device, name: str) -> Function:
    """Return a kernel of ``array.cu``. It is looked up once per device."""
    if name not in device.functions:
        device.functions[name] = device.function(_source(), name)
    return device.functions[name]


def host_array(address: Address, shape: Sequence[int], dtype: Any, owner: object = None) -> np.ndarray:
    """Return a NumPy array over host memory at ``address``, which ``owner`` keeps alive."""
    dtype = np.dtype(dtype)
    size = prod(shape) * dtype.itemsize
    block = (ctypes.c_uint8 * size).from_address(address)
    block.owner = owner
    found: np.ndarray = np.frombuffer(block, np.uint8).view(dtype).reshape(tuple(shape))
    return found


def _not_contiguous(key: object) -> TypeError:
    return TypeError(
        f"[{key}] of an array in device memory (valid: leading parts, as [i], [i:j], [...])"
    )


@cache
def _source() -> str:
    return files(__package__).joinpath("array.cu").read_text("utf-8")
