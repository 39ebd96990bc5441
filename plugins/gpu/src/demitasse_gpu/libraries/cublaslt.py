"""Matrix products by cuBLASLt, through its C interface (cublasLt.h of CUDA 12 and 13).

Matrices are described as cuBLAS does, in column-major order: a row-major matrix is its own transpose
there.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from demitasse import PlanError
from demitasse_gpu.libraries.loading import library
from demitasse_gpu.libraries.measuring import quickest
from demitasse_gpu.libraries.remembered import Choices
from demitasse_gpu.problems import explained

if TYPE_CHECKING:
    from demitasse_gpu.device import Device

TYPES = {"float32": 0, "float64": 1, "bfloat16": 14}
"""cudaDataType_t of the elements."""
COMPUTE = {"f32": 68, "tf32": 77, "f64": 70}
"""cublasComputeType_t: products of float32 in float32, of float32 in TF32, and of float64."""
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER = 3, 4, 7, 8
"""cublasLtMatmulDescAttributes_t."""
MAX_WORKSPACE, ALIGNMENTS = 1, (5, 6, 7, 8)
"""cublasLtMatmulPreferenceAttributes_t: workspace in bytes, and alignments in bytes of a, b, c and d."""
NOTHING, RELU, BIAS, RELU_BIAS = 1, 2, 4, 6
"""cublasLtEpilogue_t."""
EPILOGUES = {
    (False, False): NOTHING,
    (False, True): RELU,
    (True, False): BIAS,
    (True, True): RELU_BIAS,
}
"""By whether there is a bias, and whether a ReLU follows."""
ASKED = 8
"""How many algorithms the heuristics are asked for; the one that is fastest here is used."""
STATUS = {
    1: "it is not initialised",
    3: "it has no memory left",
    7: "a value is not valid",
    8: "this device is too old for it",
    11: "memory cannot be mapped",
    13: "it failed to execute",
    14: "an internal error",
    15: "this is not supported",
    16: "a licence is missing",
}


class Algorithm(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True)
class Matrix:
    """A matrix: rows and columns in memory, column-major; whether the product takes its transpose; and
    the element type in memory."""

    rows: int
    columns: int
    transposed: bool
    dtype: str


@dataclass(frozen=True)
class Product:
    """d = a b, all column-major, in a precision (``COMPUTE``), with an epilogue."""

    a: Matrix
    b: Matrix
    d: Matrix
    compute: str
    epilogue: int = NOTHING


class CublasLt:
    """The library, opened for one device."""

    def __init__(self, device: Device, loaded: Any = None) -> None:
        found = loaded or library("cublasLt")
        if found is None:
            raise PlanError("cuBLASLt was not found")
        self.device, self._library = device, found
        handle = ctypes.c_void_p()
        self.call("cublasLtCreate", ctypes.byref(handle))
        self._handle = handle
        self.chosen = Choices(device, f"cublasLt-{self.version}" if loaded is None else "")

    @property
    def version(self) -> int:
        """Its version; 130100 is 13.1."""
        self._library.cublasLtGetVersion.restype = ctypes.c_size_t
        return int(self._library.cublasLtGetVersion())

    def call(self, name: str, *arguments: Any) -> None:
        """Call one of its functions. Raises the error that its status means."""
        with self.device.turn:
            status = getattr(self._library, name)(*arguments)
        if status == 3:
            raise explained(2, STATUS[3], name, self.device.space)
        if status:
            told = STATUS.get(status, f"status {status}")
            raise PlanError(f"{self.device.space}: {name}: {told}")

    def product(
        self, product: Product, a: int, b: int, d: int, bias: int, workspace: int, limit: int
    ) -> Callable[[int], None]:
        """Return what computes ``product`` of the matrices at these addresses in a stream, by the
        fastest of the library's algorithms that need at most ``limit`` bytes at ``workspace``. Raises
        PlanError if there is none."""
        description = self._describe(product, bias)
        layouts = [self._layout(matrix) for matrix in (product.a, product.b, product.d)]
        kind = ctypes.c_double if product.compute == "f64" else ctypes.c_float
        one, zero = kind(1.0), kind(0.0)
        # The library's default assumption, 256 bytes, is more than a plan's memory guarantees.
        alignments = tuple(min(256, address & -address) for address in (a, b, d, d))

        def run(algorithm: Algorithm, stream: int) -> None:
            # Library and descriptors live as long as this function does.
            of_a, of_b, of_d = layouts
            self.call(
                "cublasLtMatmul",
                *(self._handle, description, ctypes.byref(one)),
                *(ctypes.c_void_p(a), of_a, ctypes.c_void_p(b), of_b, ctypes.byref(zero)),
                *(ctypes.c_void_p(d), of_d, ctypes.c_void_p(d), of_d),
                *(ctypes.byref(algorithm), ctypes.c_void_p(workspace)),
                *(ctypes.c_size_t(algorithm.workspace), ctypes.c_void_p(stream)),
            )

        weakref.finalize(run, self._forget, description, layouts).atexit = False
        found = self._algorithms(description, layouts, limit, alignments)
        ways = {
            f"{number} of {len(found)}": lambda stream, way=way: run(way, stream)
            for number, way in enumerate(found, 1)
        }
        # The heuristics also depend on the bias's alignment.
        key = product, limit, alignments, min(256, bias & -bias)
        name = self.chosen.get(key)
        if name not in ways:
            name = self.chosen.keep(key, [*ways][quickest(self.device, [*ways.values()])])
        return ways[name]

    def _forget(self, description: ctypes.c_void_p, layouts: list[ctypes.c_void_p]) -> None:
        """Destroy the descriptors of a product, because nets with many sizes are bound again and again.
        Any thread may do so, as nothing on the device refers to them."""
        self._library.cublasLtMatmulDescDestroy(description)
        for layout in layouts:
            self._library.cublasLtMatrixLayoutDestroy(layout)

    def _describe(self, product: Product, bias: int) -> ctypes.c_void_p:
        description = ctypes.c_void_p()
        scale = TYPES["float64" if product.compute == "f64" else "float32"]
        self.call("cublasLtMatmulDescCreate", ctypes.byref(description), COMPUTE[product.compute], scale)
        given: dict[int, Any] = {
            TRANSA: ctypes.c_int32(product.a.transposed),
            TRANSB: ctypes.c_int32(product.b.transposed),
            EPILOGUE: ctypes.c_int32(product.epilogue),
        }
        if product.epilogue in (BIAS, RELU_BIAS):
            given[BIAS_POINTER] = ctypes.c_void_p(bias)
        for attribute, value in given.items():
            self._set("cublasLtMatmulDescSetAttribute", description, attribute, value)
        return description

    def _layout(self, matrix: Matrix) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        extents = ctypes.c_uint64(matrix.rows), ctypes.c_uint64(matrix.columns)
        apart = ctypes.c_int64(matrix.rows)
        create = "cublasLtMatrixLayoutCreate"
        self.call(create, ctypes.byref(layout), TYPES[matrix.dtype], *extents, apart)
        return layout

    def _algorithms(
        self,
        description: ctypes.c_void_p,
        layouts: list[ctypes.c_void_p],
        limit: int,
        alignments: tuple[int, ...],
    ) -> list[Algorithm]:
        preference = ctypes.c_void_p()
        self.call("cublasLtMatmulPreferenceCreate", ctypes.byref(preference))
        setting = "cublasLtMatmulPreferenceSetAttribute"
        self._set(setting, preference, MAX_WORKSPACE, ctypes.c_uint64(limit))
        for attribute, nbytes in zip(ALIGNMENTS, alignments, strict=True):
            self._set(setting, preference, attribute, ctypes.c_uint32(nbytes))
        found, count = (Algorithm * ASKED)(), ctypes.c_int(0)
        a, b, d = layouts
        try:
            self.call(
                "cublasLtMatmulAlgoGetHeuristic",
                *(self._handle, description, a, b, d, d, preference),
                *(ASKED, found, ctypes.byref(count)),
            )
        finally:
            self.call("cublasLtMatmulPreferenceDestroy", preference)
        usable = [each for each in found[: count.value] if each.state == 0 and each.workspace <= limit]
        if not usable:
            raise PlanError(
                f"{self.device.space}: cuBLASLt has no algorithm for this product; leave it out "
                f"([options.gpu] libraries = false)"
            )
        return usable

    def _set(self, function: str, owner: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self.call(function, owner, attribute, ctypes.byref(value), size)
