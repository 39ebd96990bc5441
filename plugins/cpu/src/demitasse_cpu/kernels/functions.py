"""Functions of one element, learned slopes, products and maxima of several tensors, and selections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from math import inf, nan, prod
from typing import Any

from demitasse import PLAIN, Candidate, Layout, Request, Work
from demitasse_cpu.kernels.layouts import by_channels, is_by_channels, like, unconverted
from demitasse_cpu.kernels.requests import aligned, flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import ready, spread
from demitasse_cpu.native import at_once, in_order
from demitasse_cpu.threads import divide

KERNEL = "numba loop"
_EXP = 3  # an exponential in vector code takes as long as moving this many elements


def _function(
    loop: str, attributes: Sequence[str], family: str, work: float, request: Request
) -> Iterable[Candidate]:
    """Return the kernel by a loop that takes all arrays, then the values of the ``attributes``."""
    numbers = [float(request.attributes[name]) for name in attributes]
    return _elementwise(request, loop, numbers, family=family, work=work)


def _elementwise(
    request: Request,
    loop: str,
    numbers: Sequence[float],
    reads: int = 2,
    family: str = "functions",
    work: float = 1,
) -> Iterable[Candidate]:
    """Return the kernel by a loop that takes the first ``reads`` inputs, the output and the numbers. All
    have the layout of the last input which, in a backward pass, comes from the forward pass."""
    if not is_real(*request.inputs, *request.outputs):
        return ()
    layout, size = _flat_layout(request, len(request.inputs) - 1)
    parts = parts_for(request, size, size * work)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        loops = import_module(f"demitasse_cpu.loops.{family}")
        arguments = (*map(flat, inputs[:reads]), flat(outputs[0]), *numbers)
        return spread(getattr(loops, loop), arguments, size, parts)

    return (Candidate(KERNEL, bind, (layout,) * len(request.inputs), (layout,)),)


def _flat_layout(request: Request, leader: int) -> tuple[Layout, int]:
    """Return a layout like the leader's and the number of elements in it. A layout with padding is
    avoided, because not every function of zero is zero."""
    lead = spec(request.inputs[leader])
    layout = like(request, lead)
    if prod(layout.physical(lead.shape)) != prod(lead.shape):
        layout = by_channels(request, lead)
    return layout, prod(layout.physical(lead.shape))


def power(request: Request) -> Iterable[Candidate]:
    exponent, scale, shift = (float(request.attributes[k]) for k in ("power", "scale", "shift"))
    if exponent * scale == 0:
        return _elementwise(request, "filled", [_power(shift, exponent)], reads=0, family="elementwise")
    if exponent in (1, 2):
        return _elementwise(request, "affine" if exponent == 1 else "square", [scale, shift])
    if halves := _halves(exponent):
        return _elementwise(request, "half_power", [scale, shift, *halves])
    numbers = [scale, shift, exponent, _power(-1.0, exponent)]
    return _elementwise(request, "power", numbers, work=4 * _EXP)


def power_backward(request: Request) -> Iterable[Candidate]:
    exponent, scale, shift = (float(request.attributes[k]) for k in ("power", "scale", "shift"))
    if exponent * scale == 0:
        return _elementwise(request, "filled", [0.0], reads=0, family="elementwise")
    if exponent == 1:
        return _elementwise(request, "scaled", [scale], reads=1, family="elementwise")
    if exponent == 2:
        return _elementwise(request, "square_backward", [scale, shift])
    if halves := _halves(exponent - 1):
        return _elementwise(request, "half_power_backward", [scale, shift, *halves, exponent * scale])
    numbers = [scale, shift, exponent - 1, _power(-1.0, exponent - 1), exponent * scale]
    return _elementwise(request, "power_backward", numbers, work=4 * _EXP)


def _halves(exponent: float) -> tuple[int, bool, bool] | None:
    """Return (n, whether there is a square root as a factor, whether the whole is inverted) for an
    exponent that is a multiple of 1/2, up to 3 1/2, so that its power takes at most two products, a root
    and a division."""
    count = abs(2 * exponent)
    if count not in range(1, 8):
        return None
    return int(count) // 2, count % 2 == 1, exponent < 0


def _power(base: float, exponent: float) -> float:
    """Return the power of real arithmetic: infinity or NaN where Python raises or returns a complex
    number."""
    if base < 0 and exponent % 1 != 0:
        return nan
    if base == 0 and exponent < 0:
        return inf
    try:
        return float(base**exponent)
    except OverflowError:
        return -inf if base < 0 and exponent % 2 == 1 else inf


def gelu(request: Request) -> Iterable[Candidate]:
    single = spec(request.inputs[0]).dtype == "float32"
    return _elementwise(request, "gelu_single" if single else "gelu", [], work=2 * _EXP)


def gelu_backward(request: Request) -> Iterable[Candidate]:
    single = spec(request.inputs[0]).dtype == "float32"
    loop = "gelu_single_backward" if single else "gelu_backward"
    return _elementwise(request, loop, [], work=3 * _EXP)


def parametric_relu(request: Request) -> Iterable[Candidate]:
    x, w = request.inputs
    if not is_real(x, w, *request.outputs):
        return ()
    layout, rows, inner, channels = _slopes(request, 0)
    parts = parts_for(request, rows, prod(spec(x).shape))

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        x, w = map(flat, inputs)
        return _sloped(x, x, w, flat(outputs[0]), channels, rows, inner, parts)

    return (Candidate(KERNEL, bind, (layout, PLAIN), (layout,)),)


def parametric_relu_backward(request: Request) -> Iterable[Candidate]:
    dy, x, w = request.inputs
    if not is_real(dy, x, w, *request.outputs):
        return ()
    layout, rows, inner, channels = _slopes(request, 1)
    parts = parts_for(request, rows, 2 * prod(spec(x).shape))
    slopes = prod(spec(w).shape)
    room = aligned(8 * slopes)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import slopes as loops

        dx, dw = outputs
        dy, x, w = map(flat, inputs)
        stages: list[Work] = []
        # dx may share dy's memory, so the sums come first.
        if dw is not None:
            partials = workspace.view(np.float64).reshape(parts, -1)[:, :slopes]
            shares = []
            for row, part in zip(partials, divide(rows, parts), strict=True):
                if channels:
                    shares.append(ready(loops.summed_channels, dy, x, row, *part))
                else:
                    shares.append(ready(loops.summed_planes, dy, x, row, inner, *part))
            stages += [at_once(shares), spread(loops.added_up, (partials, flat(dw)), slopes, 1)]
        if dx is not None:
            stages.append(_sloped(dy, x, w, flat(dx), channels, rows, inner, parts))
        return in_order(stages)

    layouts = (layout, layout, PLAIN), (layout, PLAIN)
    return (Candidate(KERNEL, bind, *layouts, workspace=parts * room),)


def _slopes(request: Request, leader: int) -> tuple[Layout, int, int, bool]:
    """Return the layout of the activations, the number of rows in it and of elements in a row, and
    whether each element of a row has a slope of its own rather than one for the whole row."""
    x, w = spec(request.inputs[leader]), spec(request.inputs[-1])
    layout = by_channels(request, x)
    if not w.shape:
        return layout, x.shape[0], prod(x.shape[1:]), False
    inner = prod(x.shape[2:])
    if is_by_channels(layout) or inner == 1:
        return layout, x.shape[0] * inner, x.shape[1], True
    return layout, x.shape[0] * x.shape[1], inner, False


def _sloped(dy: Any, x: Any, w: Any, dx: Any, channels: bool, rows: int, inner: int, parts: int) -> Work:
    from demitasse_cpu.loops import slopes as loops

    if channels:
        return spread(loops.sloped_channels, (dy, x, w, dx), rows, parts)
    return spread(loops.sloped_planes, (dy, x, w, dx, inner), rows, parts)


def product(request: Request) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs) or len(request.inputs) < 2:
        return ()
    layout, size, parts = _several(request, 0)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        xs, y = [flat(x) for x in inputs], flat(outputs[0])
        # The tensor whose memory the result overwrites is read first.
        xs.sort(key=lambda x: x.ctypes.data != y.ctypes.data)
        return in_order(_multiplied(xs, y, size, parts))

    return (Candidate(KERNEL, bind, (layout,) * len(request.inputs), (layout,)),)


def product_backward(request: Request) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs) or len(request.inputs) < 3:
        return ()
    layout, size, parts = _several(request, 1)
    divides = bool(request.attributes["by_division"])
    if divides:
        layout = unconverted(layout)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import combinations as loops

        dy, *xs = map(flat, inputs)
        stages: list[Work] = []
        if divides:
            whole = workspace.view(dy.dtype)[:size]
            stages += _multiplied(xs, whole, size, parts)
        for i, (x, dx) in enumerate(zip(xs, outputs, strict=True)):
            if dx is None:
                continue
            if divides:
                stages.append(spread(loops.divided, (dy, whole, x, flat(dx)), size, parts))
            else:
                stages += _multiplied([dy, *xs[:i], *xs[i + 1 :]], flat(dx), size, parts)
        return in_order(stages)

    layouts = (layout,) * len(request.inputs), (layout,) * len(request.outputs)
    room = size * (8 if spec(request.inputs[0]).dtype == "float64" else 4) if divides else 0
    return (Candidate(KERNEL, bind, *layouts, workspace=aligned(room), in_place=False),)


def _several(request: Request, leader: int) -> tuple[Layout, int, int]:
    """Return layout, elements and parts. Of three or more tensors, intermediate products are not rounded
    to bfloat16."""
    layout, size = _flat_layout(request, leader)
    if len(request.inputs) - leader > 2:
        layout = unconverted(layout)
    return layout, size, parts_for(request, size, size)


def _multiplied(xs: Sequence[Any], y: Any, size: int, parts: int) -> list[Work]:
    from demitasse_cpu.loops import combinations as loops

    first, second, *others = xs
    stages = [spread(loops.multiplied, (first, second, y), size, parts)]
    return stages + [spread(loops.multiplied, (x, y, y), size, parts) for x in others]


def maximum(request: Request) -> Iterable[Candidate]:
    y, argmax = (*request.outputs, None)[:2]
    if not is_real(*request.inputs, y) or len(request.inputs) < 2:
        return ()
    layout, size = _flat_layout(request, 0)
    parts = parts_for(request, size, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import combinations as loops

        first, second, *others = map(flat, inputs)
        best = flat(outputs[0])
        where = flat(outputs[1]) if argmax is not None else workspace.view(np.int32)[:size]
        stages = [spread(loops.larger_of_two, (first, second, best, where), size, parts)]
        for mine, x in enumerate(others, start=2):
            stages.append(spread(loops.larger, (x, best, where, mine), size, parts))
        return in_order(stages)

    return (
        Candidate(
            KERNEL,
            bind,
            (layout,) * len(request.inputs),
            (layout, unconverted(layout))[: len(request.outputs)],
            workspace=aligned(4 * size) if argmax is None else 0,
            in_place=len(request.inputs) == 2,  # else a later operand is overwritten unread
        ),
    )


def maximum_backward(request: Request) -> Iterable[Candidate]:
    dy, argmax = request.inputs
    if not is_real(dy, *request.outputs) or spec(argmax).dtype != "int32":
        return ()
    layout = like(request, spec(argmax), spec(dy).dtype)
    size = prod(layout.physical(spec(dy).shape))
    parts = parts_for(request, size, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import combinations as loops

        arrays = tuple(map(flat, inputs))
        return in_order(
            [
                spread(loops.chosen, (*arrays, flat(dx), mine), size, parts)
                for mine, dx in enumerate(outputs)
                if dx is not None
            ]
        )

    layouts = (layout, unconverted(layout)), (layout,) * len(request.outputs)
    return (Candidate(KERNEL, bind, *layouts, in_place=False),)


def select(request: Request) -> Iterable[Candidate]:
    return _elementwise(request, "selected", [], reads=3, family="combinations")


def select_backward(request: Request) -> Iterable[Candidate]:
    if not is_real(*request.inputs, *request.outputs):
        return ()
    layout, size = _flat_layout(request, 1)
    parts = parts_for(request, size, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        from demitasse_cpu.loops import combinations as loops

        arrays = tuple(map(flat, inputs))
        return in_order(
            [
                spread(loops.selected_backward, (*arrays, flat(dx), first), size, parts)
                for first, dx in zip((True, False), outputs, strict=True)
                if dx is not None
            ]
        )

    return (Candidate(KERNEL, bind, (layout,) * 2, (layout,) * len(request.outputs), in_place=False),)


_FUNCTIONS: dict[str, tuple[str, tuple[str, ...], str, float]] = {
    "leaky_relu": ("relu", ("negative_slope",), "elementwise", 1),
    "absolute": ("absolute", (), "functions", 1),
    "absolute_backward": ("absolute_backward", (), "functions", 1),
    "softplus": ("softplus", (), "functions", 2 * _EXP),
    "softplus_backward": ("softplus_backward", (), "functions", _EXP),
    "clip": ("clip", ("least", "most"), "functions", 1),
    "clip_backward": ("clip_backward", ("least", "most"), "functions", 1),
    "elu": ("elu", ("alpha",), "functions", _EXP),
    "elu_backward": ("elu_backward", ("alpha",), "functions", 1),
    "exponential": ("exponential_of", ("scale", "shift"), "functions", _EXP),
    "exponential_backward": ("exponential_backward", ("scale",), "functions", 1),
    "logarithm": ("logarithm_of", ("factor", "scale", "shift"), "functions", _EXP),
    "logarithm_backward": ("logarithm_backward", ("factor", "scale", "shift"), "functions", 1),
    "sigmoid": ("sigmoid", (), "functions", _EXP),
    "sigmoid_backward": ("sigmoid_backward", (), "functions", 1),
    "swish": ("swish", ("beta",), "functions", _EXP),
    "swish_backward": ("swish_backward", ("beta",), "functions", _EXP),
    "tanh": ("tanh", (), "functions", _EXP),
    "tanh_backward": ("tanh_backward", (), "functions", 1),
    "greater": ("greater", ("threshold",), "functions", 1),
    "hard_sigmoid": ("hard_sigmoid", ("scale", "shift"), "functions", 1),
    "hard_sigmoid_backward": ("hard_sigmoid_backward", ("scale", "shift"), "functions", 1),
    "hard_swish": ("hard_swish", ("scale", "shift"), "functions", 1),
    "hard_swish_backward": ("hard_swish_backward", ("scale", "shift"), "functions", 1),
    "error_function": ("error_function", (), "functions", 2 * _EXP),
    "error_function_backward": ("error_function_backward", (), "functions", _EXP),
    "floor": ("floor", (), "functions", 1),
    "round": ("nearest", (), "functions", 1),
    "sine": ("sine", ("scale", "shift"), "functions", 2 * _EXP),
    "sine_backward": ("sine_backward", ("scale", "shift"), "functions", 2 * _EXP),
}
"""For each operation, the loop, the attributes that it takes, its module, and its work per element."""

FACTORIES: dict[str, Callable[[Request], Iterable[Candidate]]] = {
    name: partial(_function, *row) for name, row in _FUNCTIONS.items()
} | {
    "gelu": gelu,
    "gelu_backward": gelu_backward,
    "parametric_relu": parametric_relu,
    "parametric_relu_backward": parametric_relu_backward,
    "power": power,
    "power_backward": power_backward,
    "product": product,
    "product_backward": product_backward,
    "maximum": maximum,
    "maximum_backward": maximum_backward,
    "select": select,
    "select_backward": select_backward,
}
