"""Inner products by cuBLASLt, with biases and ReLU in its epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from demitasse import PLAIN, Candidate, Layout, PlanError, Request, Work
from demitasse_gpu.kernels.launches import FOR_LIBRARIES, for_libraries
from demitasse_gpu.launch import Call, in_order
from demitasse_gpu.libraries import cublaslt
from demitasse_gpu.libraries.cublaslt import Matrix, Product
from demitasse_gpu.libraries.epilogue import Table, add_bias, column_sums

if TYPE_CHECKING:
    from demitasse_gpu.device import Device

WORKSPACE = 32 * 2**20
"""What NVIDIA recommends for Hopper; a smaller workspace excludes algorithms."""
_ROOM = WORKSPACE + FOR_LIBRARIES
HALF = Layout("bf16", stored="bfloat16")


class Sizes(NamedTuple):
    """An inner product's samples, inputs and outputs, and whether w is (inputs, outputs)."""

    samples: int
    inputs: int
    outputs: int
    transposed: bool


def candidates(request: Request) -> list[Candidate]:
    """Return a candidate for an inner product or one of its gradients (float32, float64, bfloat16)."""
    specs = [spec for spec in (*request.inputs, *request.outputs) if spec is not None]
    if {spec.dtype for spec in specs} not in ({"float32"}, {"float64"}) or not all(
        prod(spec.shape) for spec in specs
    ):
        return []
    name, dtype = request.operation.name, specs[0].dtype
    half = request.precision == "bf16" and dtype == "float32"
    stored = "bfloat16" if half else dtype
    compute = {"float64": "f64"}.get(dtype, "tf32" if request.precision == "tf32" else "f32")
    layout = HALF if half else PLAIN
    label = f"cublasLt {'bf16' if half else compute}"
    if name in ("inner_product", "inner_product_relu"):
        relu = name.endswith("relu")
        makes: Any = lambda i, o, w: _forward(_sizes(request), stored, compute, relu, i, o, w)  # noqa: E731
        return [Candidate(label, makes, (layout,) * 3, (layout,), _ROOM)]
    if name == "inner_product_backward_data":
        makes = lambda i, o, w: _data(_sizes(request), stored, compute, i, o, w)  # noqa: E731
        return [Candidate(label, makes, (layout,) * 2, (layout,), _ROOM)]
    if name == "inner_product_backward_weights":
        sizes = _sizes(request)
        room = _ROOM + Table(sizes.samples, sizes.outputs, stored).partial_bytes
        makes = lambda i, o, w: _weights(sizes, stored, compute, i, o, w)  # noqa: E731
        return [Candidate(label, makes, (layout,) * 2, (PLAIN,) * 2, room)]
    return []


def _sizes(request: Request) -> Sizes:
    axis, transposed = request.attributes["axis"], request.attributes["transpose"]
    name = request.operation.name
    first, second = (spec.shape for spec in request.inputs[:2] if spec is not None)
    if name == "inner_product_backward_data":
        shape, w = request.attributes["shape"], second
        samples = prod(shape[:axis])
    elif name == "inner_product_backward_weights":
        shape, w = second, request.attributes["shape"]
        samples = prod(shape[:axis])
    else:
        samples, w = prod(first[:axis]), second
    outputs, inputs = reversed(w) if transposed else w
    return Sizes(samples, inputs, outputs, transposed)


def forward(sizes: Sizes, stored: str, compute: str, epilogue: int) -> Product:
    """Return y = x w^T, in column-major order: y^T = w x^T."""
    n, k, m, transposed = sizes
    w = Matrix(m, k, False, stored) if transposed else Matrix(k, m, True, stored)
    return Product(w, Matrix(k, n, False, stored), Matrix(m, n, False, stored), compute, epilogue)


def backward_data(sizes: Sizes, stored: str, compute: str) -> Product:
    """Return dx = dy w, in column-major order: dx^T = w^T dy^T."""
    n, k, m, transposed = sizes
    w = Matrix(m, k, True, stored) if transposed else Matrix(k, m, False, stored)
    return Product(w, Matrix(m, n, False, stored), Matrix(k, n, False, stored), compute)


def backward_weights(sizes: Sizes, stored: str, compute: str) -> Product:
    """Return dw = dy^T x, in column-major order: dw^T = x^T dy, or dw = dy^T x if w is (inputs,
    outputs). It is a parameter's gradient, and so float32 even if activations are bfloat16."""
    n, k, m, transposed = sizes
    total = "float32" if stored == "bfloat16" else stored
    if transposed:
        dy, x = Matrix(m, n, False, stored), Matrix(k, n, True, stored)
        return Product(dy, x, Matrix(m, k, False, total), compute)
    x, dy = Matrix(k, n, False, stored), Matrix(m, n, True, stored)
    return Product(x, dy, Matrix(k, m, False, total), compute)


def _forward(
    sizes: Sizes,
    stored: str,
    compute: str,
    relu: bool,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    workspace: Any,
) -> Work:
    (x, w, b), y = inputs, outputs[0]
    epilogue = cublaslt.EPILOGUES[b is not None, relu]
    # In float64 the library has no epilogues; in other types it lacks them for some extents.
    if compute != "f64":
        with suppress(PlanError):
            return _work(forward(sizes, stored, compute, epilogue), w, x, y, b, workspace)
    work = _work(forward(sizes, stored, compute, cublaslt.NOTHING), w, x, y, None, workspace)
    if epilogue == cublaslt.NOTHING:
        return work
    table = Table(sizes.samples, sizes.outputs, stored)
    return in_order([work, add_bias(y.device, table, y, b, relu)])


def _data(
    sizes: Sizes,
    stored: str,
    compute: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    workspace: Any,
) -> Work:
    dy, w = inputs
    return _work(backward_data(sizes, stored, compute), w, dy, outputs[0], None, workspace)


def _weights(
    sizes: Sizes,
    stored: str,
    compute: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    workspace: Any,
) -> Work:
    dy, x = inputs
    dw, db = (*outputs, None)[:2]
    product = backward_weights(sizes, stored, compute)
    first, second = (dy, x) if sizes.transposed else (x, dy)
    works: list[Work] = []
    if dw is not None:
        works.append(_work(product, first, second, dw, None, workspace[:_ROOM]))
    if db is not None:
        table = Table(sizes.samples, sizes.outputs, stored)
        works += column_sums(table, dy, db, workspace[_ROOM:])
    return in_order(works)


def _work(product: Product, a: Any, b: Any, d: Any, bias: Any, workspace: Any) -> Work:
    device: Device = d.device
    at, workspace = bias.address if bias is not None else 0, for_libraries(workspace)
    addresses = a.address, b.address, d.address, at, workspace.address
    call = opened(device).product(product, *addresses, WORKSPACE)
    return Call(device, call, (a, b, d, bias, workspace))


def opened(device: Device) -> cublaslt.CublasLt:
    """Return the library for a device, opened once. Libraries use the device that the calling thread
    drives, which it does from its first call of the driver on."""
    device.synchronise()
    if "cublasLt" not in device.opened:
        device.opened["cublasLt"] = cublaslt.CublasLt(device)
    found: cublaslt.CublasLt = device.opened["cublasLt"]
    return found
