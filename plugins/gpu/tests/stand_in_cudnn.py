"""A stand-in for cuDNN's library. It records descriptors as cudnn_graph.h numbers them, and executes
what plans describe, in float64 with NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from demitasse_gpu.libraries import cudnn

DTYPES = {0: np.float32, 1: np.float64, 9: np.uint16}
ENUMS = {
    1: ctypes.c_int,
    7: ctypes.c_int,
    8: ctypes.c_int,
    10: ctypes.c_int,
    11: ctypes.c_int,
    14: ctypes.c_int,
}
KINDS = dict(cudnn.KINDS.values()) | ENUMS
ALIGNMENTS = {1001: cudnn.ALIGNMENT, 1003: 256}
"""The declared alignment of tensors' addresses, and the alignment that scratch memory ought to have."""


class StandIn:
    """``notes``: what its engines say about their numerics, one list for each that it proposes.
    ``fuses``: whether it computes several operations at once. ``executed``: the kinds of the operations
    that were executed. ``ran``: the plans that were. ``ended``: the descriptors that were destroyed."""

    def __init__(
        self, notes: Sequence[Sequence[int]] = ((),), fuses: bool = True, version: int = 92801
    ) -> None:
        self.notes, self.fuses, self.version = notes, fuses, version
        self.ran = set[int]()
        self.descriptors: dict[int, dict[Any, Any]] = {}
        self.executed: list[list[int]] = []
        self.ended: list[int] = []

    def cudnnGetErrorString(self, status: int) -> bytes:
        return f"CUDNN_STATUS_{status}".encode()

    def cudnnGetVersion(self) -> int:
        return self.version

    def cudnnCreate(self, place: Any) -> int:
        place._obj.value = 77
        return 0

    def cudnnSetStream(self, handle: Any, stream: Any) -> int:
        return 0 if handle.value == 77 else 2000

    def cudnnBackendCreateDescriptor(self, kind: int, place: Any) -> int:
        number = len(self.descriptors) + 1
        self.descriptors[number] = {"kind": kind}
        place._obj.value = number
        return 0

    def cudnnBackendDestroyDescriptor(self, descriptor: Any) -> int:
        self.ended.append(descriptor.value)
        return 0

    def cudnnBackendSetAttribute(
        self, descriptor: Any, attribute: int, kind: int, count: Any, values: Any
    ) -> int:
        assert len(values) == count.value
        assert values._type_ is KINDS[kind]
        if attribute in ALIGNMENTS:
            assert not any((value or 0) % ALIGNMENTS[attribute] for value in values)
        self.descriptors[descriptor.value][attribute] = list(values)
        return 0

    def cudnnBackendFinalize(self, descriptor: Any) -> int:
        about = self.descriptors[descriptor.value]
        if about["kind"] == cudnn.GRAPH and len(about[801]) > 1 and not self.fuses:
            return 3001
        if about["kind"] == cudnn.TENSOR and len(about[902]) != len(about[903]):
            return 2000
        about["finalised"] = True
        return 0

    def cudnnBackendGetAttribute(
        self, descriptor: Any, attribute: int, kind: int, most: Any, count: Any, values: Any
    ) -> int:
        about = self.descriptors[descriptor.value]
        found: list[Any] = []
        if attribute == 202:
            engines = self.notes if about[200] == [3] else ()
            for each, notes in zip(values, engines, strict=False):
                self.descriptors[each] |= {"graph": about[201][0], "notes": list(notes)}
            count._obj.value = len(engines)
            return 0
        if attribute == 300:
            self.descriptors[values[0]]["notes"] = about["notes"]
            count._obj.value = 1
            return 0
        found = about["notes"] if attribute == 1303 else [64]
        values[: len(found)] = found
        count._obj.value = len(found)
        return 0

    def cudnnBackendExecute(self, handle: Any, plan: Any, pack: Any) -> int:
        given = self.descriptors[pack.value]
        places = dict(zip(given[1000], given[1001], strict=True))
        config = self.descriptors[self.descriptors[plan.value][401][0]]
        graph = self.descriptors[config["graph"]]
        self.ran.add(plan.value)
        self.executed.append([self.descriptors[each]["kind"] for each in graph[801]])
        between: dict[int, np.ndarray] = {}
        for each in graph[801]:
            self._operate(self.descriptors[each], places, between)
        return 0

    def _operate(self, told: dict[Any, Any], places: Any, between: dict[int, np.ndarray]) -> None:
        def read(attribute: int) -> np.ndarray:
            about = self.descriptors[told[attribute][0]]
            number = about[906][0]
            return between[number] if number in between else self._values(about, places[number])

        def write(attribute: int, made: np.ndarray) -> None:
            about = self.descriptors[told[attribute][0]]
            if about[907] == [True]:
                between[about[906][0]] = made
            else:
                self._write(about, places[about[906][0]], made)

        match told["kind"]:
            case cudnn.FORWARD:
                assert (told[700], told[701]) == ([1.0], [0.0])
                write(705, convolved(read(704), read(703), *self._geometry(told[702])))
            case cudnn.BACKWARD_DATA:
                shape = self.descriptors[told[710][0]][902]
                write(710, back_to_data(read(711), read(709), shape, *self._geometry(told[708])))
            case cudnn.BACKWARD_WEIGHTS:
                shape = self.descriptors[told[715][0]][902]
                write(715, back_to_weights(read(717), read(716), shape, *self._geometry(told[714])))
            case cudnn.ON_EACH:
                mode = self.descriptors[told[750][0]][0]
                x = read(751)
                write(753, np.maximum(x, 0) if mode == [cudnn.RELU] else x + read(752))

    def _geometry(self, descriptor: Sequence[int]) -> tuple[Any, Any, Any]:
        told = self.descriptors[descriptor[0]]
        assert told[101] == [cudnn.CROSS_CORRELATION]
        assert told[104] == told[105]
        return told[103], told[105], told[102]

    def _array(self, about: dict[Any, Any], address: int) -> np.ndarray:
        dtype = np.dtype(DTYPES[about[901][0]])
        extents, strides = about[902], [dtype.itemsize * stride for stride in about[903]]
        size = int(np.prod(extents)) * dtype.itemsize
        block = (ctypes.c_uint8 * size).from_address(address)
        return np.lib.stride_tricks.as_strided(np.frombuffer(block, dtype), extents, strides)

    def _values(self, about: dict[Any, Any], address: int) -> np.ndarray:
        array = self._array(about, address)
        if array.dtype == np.uint16:
            array = (array.astype(np.uint32) << 16).view(np.float32)
        return array.astype(np.float64)

    def _write(self, about: dict[Any, Any], address: int, made: np.ndarray) -> None:
        array = self._array(about, address)
        if array.dtype == np.uint16:
            bits = made.astype(np.float32).view(np.uint32).astype(np.uint64)
            made = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
        array[...] = made


def windows(x: np.ndarray, taps: Sequence[int], y: Sequence[int], geometry: Any) -> np.ndarray:
    """Return x as (samples, channels, rows and columns of y, rows and columns of the filter): a view of
    the padded x, so that what is added to the view is added to x."""
    (stride, _, dilation) = geometry
    n, c, h, w = x.strides
    strides = (n, c, h * stride[0], w * stride[1], h * dilation[0], w * dilation[1])
    return np.lib.stride_tricks.as_strided(x, (*x.shape[:2], *y, *taps), strides)


def padded(x: np.ndarray, pad: Sequence[int]) -> np.ndarray:
    return np.pad(x, [(0, 0), (0, 0), *((p, p) for p in pad)])


def extents(x: Sequence[int], w: Sequence[int], geometry: Any) -> list[int]:
    rows = zip(x[2:], w[2:], *geometry, strict=True)
    return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in rows]


def convolved(x: np.ndarray, w: np.ndarray, *geometry: Any) -> np.ndarray:
    groups = x.shape[1] // w.shape[1]
    seen = windows(padded(x, geometry[1]), w.shape[2:], extents(x.shape, w.shape, geometry), geometry)
    parts = zip(np.split(seen, groups, 1), np.split(w, groups), strict=True)
    return np.concatenate([np.einsum("ncyxhw,kchw->nkyx", a, b) for a, b in parts], 1)


def back_to_data(dy: np.ndarray, w: np.ndarray, shape: Sequence[int], *geometry: Any) -> np.ndarray:
    whole = padded(np.zeros(shape), geometry[1])
    groups, channels = shape[1] // w.shape[1], w.shape[1]
    for g, (slope, taps) in enumerate(zip(np.split(dy, groups, 1), np.split(w, groups), strict=True)):
        part = np.ascontiguousarray(whole[:, g * channels : (g + 1) * channels])
        moved = np.einsum("nkyx,kchw->ncyxhw", slope, taps)
        seen = windows(part, w.shape[2:], dy.shape[2:], geometry)
        for place in np.ndindex(*w.shape[2:], *dy.shape[2:]):
            h, v, y, x = place
            seen[:, :, y, x, h, v] += moved[:, :, y, x, h, v]
        whole[:, g * channels : (g + 1) * channels] = part
    (top, left), (rows, columns) = geometry[1], shape[2:]
    return whole[:, :, top : top + rows, left : left + columns]


def back_to_weights(dy: np.ndarray, x: np.ndarray, shape: Sequence[int], *geometry: Any) -> np.ndarray:
    groups = x.shape[1] // shape[1]
    seen = windows(padded(x, geometry[1]), shape[2:], dy.shape[2:], geometry)
    parts = zip(np.split(dy, groups, 1), np.split(seen, groups, 1), strict=True)
    return np.concatenate([np.einsum("nkyx,ncyxhw->kchw", a, b) for a, b in parts])
