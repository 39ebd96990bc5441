"""A stand-in for cuBLASLt that records its arguments and multiplies, for tests."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import numpy as np

from demitasse import Layout
from demitasse_gpu.libraries import cublaslt

BFLOAT16 = Layout("bf16", stored="bfloat16")
SCALARS = {0: ctypes.c_float, 1: ctypes.c_double}
TYPES = {0: "float32", 1: "float64", 14: "uint16"}


def widened(values: np.ndarray) -> np.ndarray:
    """Return numbers that are bfloat16 in memory as float32; others unchanged."""
    return BFLOAT16.unpack(values, values.shape) if values.dtype == np.uint16 else values


class StandInBlas:
    """A library whose functions record their arguments and multiply as cublasLt.h says."""

    def __init__(self, failing: dict[str, int] | None = None) -> None:
        self.failing, self.made, self.products = failing or {}, dict[int, dict[str, Any]](), 0
        self._numbers = itertools.count(1)
        self.aligned: list[list[int]] = []
        self.plain = False  # whether it lacks epilogues

    def __getattr__(self, name: str) -> Any:
        if name in self.failing:
            return lambda *arguments: self.failing[name]
        return lambda *arguments: self._do(name.removeprefix("cublasLt"), *arguments) or 0

    def _new(self, place: Any, **about: Any) -> None:
        place._obj.value = next(self._numbers)
        self.made[place._obj.value] = about

    def _do(self, name: str, *a: Any) -> None:
        match name:
            case "Create" | "MatmulPreferenceCreate":
                self._new(a[0])
            case "MatmulDescCreate":
                self._new(a[0], compute=a[1], scale=a[2])
            case "MatrixLayoutCreate":
                self._new(a[0], type=a[1], rows=a[2].value, columns=a[3].value, apart=a[4].value)
            case "MatmulDescSetAttribute" | "MatmulPreferenceSetAttribute":
                assert a[3].value == ctypes.sizeof(a[2]._obj)
                self.made[a[0].value][a[1]] = a[2]._obj.value
            case "MatmulAlgoGetHeuristic":
                limit = self.made[a[6].value][cublaslt.MAX_WORKSPACE]
                self.aligned.append([self.made[a[6].value][each] for each in cublaslt.ALIGNMENTS])
                if self.plain and self.made[a[1].value][cublaslt.EPILOGUE] != cublaslt.NOTHING:
                    a[9]._obj.value = 0
                    return
                for number, each in enumerate(a[8][:3]):
                    each.state, each.workspace = (0, 0, 15)[number], (0, limit + 1, 0)[number]
                a[9]._obj.value = 3
            case "Matmul":
                self._multiply(*a)
            case "MatmulPreferenceDestroy" | "MatmulDescDestroy" | "MatrixLayoutDestroy":
                del self.made[a[0].value]
            case _:
                raise AssertionError(name)

    def _matrix(self, address: Any, layout: Any) -> np.ndarray:
        about = self.made[layout.value]
        assert about["apart"] == about["rows"]
        dtype = np.dtype(TYPES[about["type"]])
        size = about["rows"] * about["columns"]
        block = (ctypes.c_uint8 * (size * dtype.itemsize)).from_address(address.value)
        return np.frombuffer(block, dtype).reshape(about["columns"], about["rows"]).T

    def _multiply(self, handle: Any, description: Any, alpha: Any, *rest: Any) -> None:
        self.products += 1
        a, of_a, b, of_b, beta, _, _, d, of_d, *_ = rest
        told = self.made[description.value]
        assert (alpha._obj.value, beta._obj.value) == (1.0, 0.0)
        assert isinstance(alpha._obj, SCALARS[told["scale"]])
        x, y, z = (self._matrix(*pair) for pair in ((a, of_a), (b, of_b), (d, of_d)))
        x, y = (widened(m) for m in (x, y))
        x, y = (m.T if told[t] else m for m, t in ((x, cublaslt.TRANSA), (y, cublaslt.TRANSB)))
        made = x.astype(np.float64) @ y
        epilogue = told[cublaslt.EPILOGUE]
        if epilogue & 4:
            block = (ctypes.c_uint8 * (z.itemsize * len(z))).from_address(told[cublaslt.BIAS_POINTER])
            made += widened(np.frombuffer(block, z.dtype))[:, None]
        made = np.maximum(made, 0) if epilogue & 2 else made
        z[...] = BFLOAT16.pack(made.astype(np.float32)) if z.dtype == np.uint16 else made
