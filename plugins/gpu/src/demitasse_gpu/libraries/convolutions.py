"""Convolutions by the fastest of cuDNN's plans, measured when a step is bound. Other candidates are
cuBLASLt, for 1 x 1 filters, and kernels of our own (implicit_gemm.py).

What cuDNN's heuristics offer for Hopper (9.28): for TF32 and bfloat16, engines that read channels
innermost, most without scratch memory; they reorder other layouts first. For exact float32, engines for
planes, and hardly any for other layouts. Our own kernels want channels innermost too, in multiples of
four; all other images are planes in float32."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

from demitasse import PLAIN, Candidate, Layout, PlanError, Request, Work
from demitasse_gpu.kernels.launches import FOR_LIBRARIES, for_libraries
from demitasse_gpu.launch import Call, Launch, in_order
from demitasse_gpu.libraries import copies, cublaslt, cudnn, implicit_gemm, products, winograd
from demitasse_gpu.libraries.cudnn import Plan, Tensor, strides_of
from demitasse_gpu.libraries.epilogue import Table, add_bias, column_sums, widened
from demitasse_gpu.libraries.held import NEAR, HeldCall, Proof, judge
from demitasse_gpu.libraries.measuring import quickest
from demitasse_gpu.libraries.sizes import taught, teach

if TYPE_CHECKING:
    from demitasse_gpu.device import Device

Way: TypeAlias = Callable[[int], None]
"""Enqueues a convolution in a stream."""
Ways: TypeAlias = Iterator[tuple[str, Way]]
"""Ways by names that are the same in every process. If ``only`` one is wanted, no other is made."""

INNERMOST = (0, 2, 3, 1)
LEAST = 32 * 2**20
"""Plans may use scratch memory of twice what a convolution reads and writes, but at least this, and at
most the plugin's option. It lies in the arena while the convolution runs."""
TRIED = 12
"""How many of the heuristics' 8 to 40 plans are measured per convolution. On tensor cores the fastest is
rarely further down."""
KINDS = {
    "convolution": cudnn.FORWARD,
    "convolution_relu": cudnn.FORWARD,
    "convolution_backward_data": cudnn.BACKWARD_DATA,
    "convolution_backward_weights": cudnn.BACKWARD_WEIGHTS,
}

NAMES = {
    cudnn.FORWARD: "a convolution",
    cudnn.BACKWARD_DATA: "a convolution's gradient of images",
    cudnn.BACKWARD_WEIGHTS: "a convolution's gradient of filters",
}


@dataclass(frozen=True)
class Convolution:
    """A convolution or one of its gradients: the extents of x, w and y; stride, pad and dilation; the
    element type in which activations are ``stored``; whether TF32 is allowed; whether there is a bias
    (or its gradient) and a ReLU; ``most``, the most scratch memory in bytes; and whether our ``own``
    kernels are tried."""

    kind: int
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    geometry: tuple[tuple[int, ...], ...]
    stored: str
    tf32: bool
    bias: bool = False
    relu: bool = False
    most: int = 2**30
    own: bool = True

    @property
    def half(self) -> bool:
        """Whether activations are bfloat16."""
        return self.stored == "bfloat16"

    @property
    def order(self) -> tuple[int, ...]:
        """The order of the dimensions of images and filters in memory."""
        return INNERMOST if self.half or self.tf32 or implicit_gemm.serves(self) else ()

    @property
    def precision(self) -> str:
        """The precision that numbers are rounded to."""
        return "bf16" if self.half else "tf32" if self.tf32 else "f32"

    @property
    def is_product(self) -> bool:
        """Whether it is an inner product of each point's channels, which are contiguous."""
        stride, pad, _ = self.geometry
        whole = self.w[1:] == (self.x[1], 1, 1)  # and no groups
        return bool(self.order) and whole and stride == (1, 1) and pad == (0, 0)

    @property
    def terms(self) -> int:
        """The most products that are summed into one number."""
        if self.kind == cudnn.BACKWARD_WEIGHTS:
            return prod(self.y) // self.y[1]
        groups = self.x[1] // self.w[1]
        return prod(self.w) // (self.w[0] if self.kind == cudnn.FORWARD else groups * self.w[1])

    @property
    def table(self) -> Table:
        """y as a table with one column per filter."""
        inner = 1 if self.order else prod(self.y[2:])
        return Table(prod(self.y) // self.y[1], self.y[1], self.stored, inner)

    @property
    def limit(self) -> int:
        """The scratch memory, in bytes, that a plan may use."""
        moved = (prod(self.x) + prod(self.y)) * (2 if self.half else 4)
        return (
            min(self.most, max(LEAST, 2 * moved, winograd.room(self))) // FOR_LIBRARIES * FOR_LIBRARIES
        )

    @property
    def unwanted(self) -> set[int]:
        """The notes of engines that are excluded: sums whose order varies from run to run, and less
        precision than requested."""
        if self.half:
            return {cudnn.NONDETERMINISTIC, cudnn.REDUCED}
        exact = set() if self.tf32 else {cudnn.TENSOR_CORE}
        return {cudnn.NONDETERMINISTIC, cudnn.REDUCED, cudnn.DOWN_CONVERTED, *exact}

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the tensors of x, w and y."""
        x, w, y = (
            Tensor(number, extents, strides_of(extents, self.order), self.stored)
            for number, extents in enumerate((self.x, self.w, self.y), 1)
        )
        return x, w, y


def candidates(request: Request, most: int = 2**30, own: bool = True) -> list[Candidate]:
    """Return a candidate for a 2-D convolution or one of its gradients, in float32 or bfloat16, with at
    most ``most`` bytes of scratch memory. ``own``: also try our own kernels."""
    found = described(request, most, own)
    if found is None:
        return []
    if found.order:
        stored = "bfloat16" if found.half else ""
        images = Layout("NHWC bf16" if stored else "NHWC", found.order, stored=stored)
        filters = Layout("KRSC bf16" if stored else "KRSC", found.order, stored=stored)
        biases = Layout("bf16", stored=stored) if stored else PLAIN
        kept = Layout("KRSC", found.order)  # a parameter's gradient has the parameter's type
    else:
        images = filters = biases = kept = PLAIN
    layouts: dict[int, tuple[tuple[Layout, ...], tuple[Layout, ...]]] = {
        cudnn.FORWARD: ((images, filters, biases), (images,)),
        cudnn.BACKWARD_DATA: ((images, filters), (images,)),
        cudnn.BACKWARD_WEIGHTS: ((images, images), (kept, PLAIN)),
    }
    binds = {
        cudnn.FORWARD: _forward,
        cudnn.BACKWARD_DATA: _data,
        cudnn.BACKWARD_WEIGHTS: _weights,
    }

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        return binds[found.kind](found, inputs, outputs, for_libraries(workspace))

    beside = {"cuBLASLt": found.is_product, "CUDA": implicit_gemm.serves(found)}
    name = " or ".join(["cuDNN", *(name for name, there in beside.items() if there)])
    inputs, outputs = layouts[found.kind]
    return [Candidate(f"{name} {found.precision}", bind, inputs, outputs, _room(found))]


def described(request: Request, most: int = 2**30, own: bool = True) -> Convolution | None:
    """Return the convolution that a request asks for; None if cuDNN does not serve it."""
    specs = [spec for spec in (*request.inputs, *request.outputs) if spec is not None]
    kind = KINDS.get(request.operation.name)
    if kind is None or {spec.dtype for spec in specs} != {"float32"}:
        return None
    told = request.attributes
    bias = kind == cudnn.FORWARD and request.inputs[2] is not None
    if kind == cudnn.FORWARD:
        x, w, y = specs[0].shape, specs[1].shape, _shape(request.outputs[0])
    elif kind == cudnn.BACKWARD_DATA:
        x, w, y = told["shape"], specs[1].shape, specs[0].shape
    else:
        x, w, y = specs[1].shape, told["shape"], specs[0].shape
        bias = len(request.outputs) > 1 and request.outputs[1] is not None
    if len(x) != 4 or not prod(x) or not prod(y):
        return None
    geometry = tuple(tuple(told[name]) for name in ("stride", "pad", "dilation"))
    half = request.precision == "bf16"
    stored, tf32 = "bfloat16" if half else "float32", request.precision == "tf32"
    relu = request.operation.name.endswith("relu")
    shapes = tuple(x), tuple(w), tuple(y)
    return Convolution(kind, *shapes, geometry, stored, tf32, bias, relu, most, own)


def _shape(spec: Any) -> tuple[int, ...]:
    return tuple(spec.shape)


def _room(asked: Convolution) -> int:
    """Return the scratch memory: the plan's, that of ``_weights``, and copies with more channels."""
    return asked.limit + FOR_LIBRARIES + _spare(asked) + copies.room(asked)


def _spare(asked: Convolution) -> int:
    """Return the memory for partial sums over dy in filters' gradients, and, in bfloat16, for these
    gradients themselves: no engine writes float32 from bfloat16."""
    if asked.kind != cudnn.BACKWARD_WEIGHTS:
        return 0
    sums = asked.table.partial_bytes if asked.bias else 0
    most = max(sums, 2 * prod(asked.w) if asked.half else 0)
    return -(-most // FOR_LIBRARIES) * FOR_LIBRARIES


def _copies(asked: Convolution, workspace: Any) -> Iterator[tuple[str, copies.Copies]]:
    """Yield the copies with more channels of a convolution's operands, with their names."""
    for number, copied in enumerate(
        copies.tried(asked, workspace.address + asked.limit + _spare(asked))
    ):
        yield f"copy {number}: ", copied


def _below(only: str, prefix: str) -> str | None:
    """Return which of the ways with a prefix are wanted: "" for all, None for none."""
    return only.removeprefix(prefix) if only.startswith(prefix) else None if only else ""


def _forward(asked: Convolution, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
    """Return the fastest of: convolution, bias and ReLU in one plan; a plan followed by a kernel for the
    others; the same on copies with more channels."""
    (x, w, b), (y,) = inputs, outputs
    device: Device = y.device
    library = opened(device)

    def ways(only: str) -> Ways:
        yield from _forward_ways(library, asked, (x.address, w.address), b, y, workspace, only)
        for prefix, copied in _copies(asked, workspace):
            if (rest := _below(only, prefix)) is None:
                continue
            before, given = (copied.images(device, x), copied.filters(device, w)), (copied.x, copied.w)
            for name, way in _forward_ways(library, copied.wide, given, b, y, workspace, rest):
                yield prefix + name, _in_line(*before, way)

    return _quickest(library, asked, ways, y, (x, w, b, y, workspace))


def _forward_ways(
    library: cudnn.Cudnn,
    asked: Convolution,
    given: tuple[int, int],
    b: Any,
    y: Any,
    workspace: Any,
    only: str,
) -> Ways:
    yield from _own_ways(library.device, asked, given, y.address, b, workspace, only)
    tensors = asked.tensors()
    operation = library.convolution(asked.kind, *tensors, asked.geometry)
    addresses = *given, y.address
    ways = _ways(library, asked, [operation], tensors, addresses, workspace, only)
    if b is None and not asked.relu:
        yield from ways
        return
    after = add_bias(library.device, asked.table, y, b, asked.relu)
    yield from ((name, _in_line(way, after)) for name, way in ways)
    if (rest := _below(only, "fused ")) is not None:
        operations, fused = _fused(library, asked, tensors)
        places = (*given, b.address, y.address) if b is not None else addresses
        for name, way in _ways(library, asked, operations, fused, places, workspace, rest):
            yield f"fused {name}", way


def _own_ways(
    device: Device,
    asked: Convolution,
    given: Sequence[int],
    made: int,
    bias: Any,
    workspace: Any,
    only: str,
) -> Ways:
    """Yield the ways other than cuDNN's to make, at address ``made``: y of x and w, dx of w and dy, or
    dw of x and dy."""
    for kind, made_by in (("tiles ", implicit_gemm), ("winograd ", winograd)):
        if (wanted := _below(only, kind)) is None:
            continue
        places = given, made, bias, workspace.address
        for name, launches in made_by.ways(device, asked, *places, wanted):
            yield f"{kind}{name}", _in_line(*launches)
    if not asked.is_product or only not in ("", "cuBLASLt"):
        return
    compute = "tf32" if asked.tf32 else "f32"
    sizes = products.Sizes(prod(asked.x) // asked.x[1], asked.x[1], asked.w[0], transposed=False)
    limit = min(asked.limit, products.WORKSPACE)
    with suppress(PlanError):  # cuBLASLt is missing, or has no algorithm
        library = products.opened(device)

        def way(product: cublaslt.Product, first: int, second: int, level: int = 0) -> Way:
            return library.product(product, first, second, made, level, workspace.address, limit)

        if asked.kind == cudnn.BACKWARD_DATA:
            product = way(products.backward_data(sizes, asked.stored, compute), *given)
        elif asked.kind == cudnn.BACKWARD_WEIGHTS:
            product = way(products.backward_weights(sizes, asked.stored, compute), *given)
        else:
            x, w = given
            epilogue = cublaslt.EPILOGUES[bias is not None, asked.relu]
            level = 0 if bias is None else bias.address
            product = way(products.forward(sizes, asked.stored, compute, epilogue), w, x, level)
        yield "cuBLASLt", product


def _fused(
    library: cudnn.Cudnn, asked: Convolution, tensors: Sequence[Tensor]
) -> tuple[list[cudnn.Descriptor], list[Tensor]]:
    """Return a convolution's operations, with bias and ReLU, and the tensors that are not virtual."""
    x, w, y = tensors
    made, number = Tensor(10, y.extents, y.strides, "float32", virtual=True), 10
    operations = [library.convolution(asked.kind, x, w, made, asked.geometry)]
    given = [x, w]
    if asked.bias:
        channels = y.extents[1]
        b = Tensor(4, (1, channels, 1, 1), (channels, 1, channels, channels), asked.stored)
        number += 1
        added = Tensor(number, y.extents, y.strides, "float32", virtual=True) if asked.relu else y
        operations.append(library.on_each(cudnn.ADD, made, added, b))
        given.append(b)
        made = added
    if asked.relu:
        operations.append(library.on_each(cudnn.RELU, made, y))
    return operations, [*given, y]


def _data(asked: Convolution, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
    (dy, w), (dx,) = inputs, outputs
    tensors, library = asked.tensors(), opened(dx.device)
    addresses = dx.address, w.address, dy.address

    def ways(only: str) -> Ways:
        yield from _own_ways(dx.device, asked, addresses[1:], dx.address, None, workspace, only)
        operation = library.convolution(asked.kind, *tensors, asked.geometry)
        yield from _ways(library, asked, [operation], tensors, addresses, workspace, only)

    return _quickest(library, asked, ways, dx, (dy, w, dx, workspace))


def _weights(asked: Convolution, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
    (dy, x), (dw, db) = inputs, (*outputs, None)[:2]
    device: Device = dy.device
    works, rest = list[Work](), workspace[asked.limit :]
    if db is not None:  # first: it may be fused with the preceding launch, if that makes dy
        works += column_sums(asked.table, dy, db, rest)
    if dw is not None:
        library = opened(device)
        # Engines give these gradients in bfloat16; they are widened afterwards.
        made = rest.address if asked.half else dw.address
        after = [widened(device, rest, dw, prod(asked.w), asked.stored)] if asked.half else []

        def ways(only: str) -> Ways:
            yield from _own_ways(
                device, asked, (x.address, dy.address), dw.address, None, workspace, only
            )
            addresses = x.address, made, dy.address
            for name, way in _weights_ways(library, asked, addresses, workspace, only):
                yield name, _in_line(way, *after)
            for prefix, copied in _copies(asked, workspace):
                if (wanted := _below(only, prefix)) is None:
                    continue
                before, back = copied.images(device, x), copied.gradient(device, made)
                places = copied.x, copied.w, dy.address
                wide = _weights_ways(library, copied.wide, places, workspace, wanted)
                if not asked.half:  # else in float32, which no copy back reads
                    given = copied.x, dy.address
                    own = _own_ways(device, copied.wide, given, copied.w, None, workspace, wanted)
                    wide = chain(own, wide)
                for name, way in wide:
                    yield prefix + name, _in_line(before, way, back, *after)

        works.append(_quickest(library, asked, ways, dw, (dy, x, dw, workspace)))
    return in_order(works)


def _weights_ways(
    library: cudnn.Cudnn, asked: Convolution, addresses: Sequence[int], workspace: Any, only: str
) -> Ways:
    tensors = asked.tensors()
    operation = library.convolution(asked.kind, *tensors, asked.geometry)
    return _ways(library, asked, [operation], tensors, addresses, workspace, only)


def _ways(
    library: cudnn.Cudnn,
    asked: Convolution,
    operations: Sequence[cudnn.Descriptor],
    tensors: Sequence[Tensor],
    addresses: Sequence[int],
    workspace: Any,
    only: str,
) -> Ways:
    """Yield what runs each of cuDNN's plans for the operations, or ``only`` one. Plans are independent
    of addresses, and serve all equal convolutions."""
    wanted = _below(only, "cuDNN ")
    if wanted is None:
        return
    key = asked, len(operations)
    known = library.known.setdefault(key, weakref.WeakValueDictionary())
    plan = known.get(wanted)
    plans = {wanted: plan} if plan is not None else {}
    if not plans:
        plans = library.plans(operations, asked.limit, asked.unwanted, TRIED, wanted)
        known.update(plans)
    for name, plan in plans.items():
        yield f"cuDNN {name}", _running(plan, plan.bind(tensors, addresses, workspace.address))


def _running(plan: Plan, pack: cudnn.Descriptor) -> Way:
    return lambda stream: plan.run(pack)


def _in_line(*works: Way | Launch) -> Way:
    """Return works one after the other as one way."""

    def run(stream: int) -> None:
        for work in works:
            if isinstance(work, Launch):
                work()
            else:
                work(stream)

    return run


def _quickest(
    library: cudnn.Cudnn,
    asked: Convolution,
    ways: Callable[[str], Ways],
    made: Any,
    held: Sequence[Any],
) -> Call:
    """Return the fastest of the ways. If it was measured before, in this process or another, only that
    one is made, if it still exists; or the fastest for other sizes of images. ``made`` is the result;
    the first two of ``held`` are the factors."""
    kept = library.chosen.get(asked)
    measured = bool(kept)
    for name in [kept] if kept else taught(library.sizes, asked):
        if name in (found := dict(ways(name))):
            if not kept:
                library.chosen.keep(asked, name)
            break
    else:
        measured, found = True, dict(ways(""))
        if not found:
            shapes = ", ".join("x".join(map(str, extents)) for extents in (asked.x, asked.w))
            raise PlanError(
                f"{library.device.space}: cuDNN has no engine for a convolution of {shapes}; leave "
                f"cuDNN out ([options.gpu] libraries = false)"
            )
        name = [*found][quickest(library.device, [*found.values()])]
        if (other := judge(name, found)) is not None:
            library.proofs[asked] = _proof(library, asked, name, other)
        # An unproved choice is not kept for later processes: if this process breaks off, they measure
        # again.
        library.chosen.keep(asked, name, lasting=other is None)
    proof = library.proofs.get(asked)
    proved = proof is None or proof.holds is not None or name != proof.own
    if measured and proved:
        teach(library.sizes, asked, name)
    if proof is not None and not proved:
        other_way = (found if proof.other in found else dict(ways(proof.other))).get(proof.other)
        if other_way is not None:
            return HeldCall(library.device, found[name], other_way, made, proof, held)
    return Call(library.device, found[name], held)


def _proof(library: cudnn.Cudnn, asked: Convolution, own: str, other: str) -> Proof:
    """Return the proof of a way by our own kernels. Its result is kept for later processes."""
    shapes = " by ".join("x".join(map(str, extents)) for extents in (asked.x, asked.w))
    what = f"{library.device.space}: {NAMES[asked.kind]} of {shapes} in {asked.precision}"

    def settle(holds: bool) -> None:
        teach(library.sizes, asked, library.chosen.keep(asked, own if holds else other))

    return Proof(what, own, other, NEAR[asked.precision], asked.terms, settle)


def opened(device: Device) -> cudnn.Cudnn:
    """Return the library for a device, opened once. Libraries use the device that the calling thread
    drives, which it does from its first call of the driver on."""
    device.synchronise()
    if "cudnn" not in device.opened:
        device.opened["cudnn"] = cudnn.Cudnn(device)
    found: cudnn.Cudnn = device.opened["cudnn"]
    return found
