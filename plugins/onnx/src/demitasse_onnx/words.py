"""The vocabulary's operations in terms of ONNX's operators, each an exact equivalent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse import Node, Tensor
from demitasse_onnx.pooling import pooling_average, pooling_max

if TYPE_CHECKING:
    from demitasse_onnx.export import Exporter

Word = Callable[["Exporter", Node], None]


def _inputs(node: Node) -> list[Tensor]:
    return [tensor for tensor in node.inputs if tensor is not None]


def _x(out: Exporter, node: Node) -> str:
    return out.name(_inputs(node)[0])


def _shape(node: Node) -> tuple[int, ...]:
    """Return the shape of the first result."""
    result = node.outputs[0]
    assert result is not None
    return result.shape


def _simple(operator: str, **renamed: str) -> Word:
    """Return the writer of an operation that is a single operator of all inputs; ``renamed`` maps ONNX's
    attributes to the operation's."""

    def word(out: Exporter, node: Node) -> None:
        attributes = {theirs: node.attributes[ours] for theirs, ours in renamed.items()}
        out.emit(node, operator, [out.name(tensor) for tensor in _inputs(node)], last=True, **attributes)

    return word


def _convolution(out: Exporter, node: Node) -> None:
    out.emit(
        node,
        "Conv",
        [out.name(tensor) for tensor in _inputs(node)],
        last=True,
        kernel_shape=list(_inputs(node)[1].shape[2:]),
        strides=list(node.attributes["stride"]),
        pads=list(node.attributes["pad"]) * 2,
        dilations=list(node.attributes["dilation"]),
        group=node.attributes["groups"],
    )


def _transposed(out: Exporter, node: Node) -> None:
    dy, w = _inputs(node)
    stride, pad, dilation = (node.attributes[name] for name in ("stride", "pad", "dilation"))
    axes = zip(dy.shape[2:], w.shape[2:], _shape(node)[2:], stride, pad, dilation, strict=True)
    more = [size - (s * (n - 1) + d * (k - 1) + 1 - 2 * p) for n, k, size, s, p, d in axes]
    out.emit(
        node,
        "ConvTranspose",
        [out.name(dy), out.name(w)],
        last=True,
        kernel_shape=list(w.shape[2:]),
        strides=list(stride),
        pads=list(pad) * 2,
        dilations=list(dilation),
        group=node.attributes["groups"],
        **({"output_padding": more} if any(more) else {}),
    )


def _inner_product(out: Exporter, node: Node) -> None:
    x, *learned = _inputs(node)
    axis = node.attributes["axis"]
    plain = len(_shape(node)) == 2
    rows = out.name(x)
    if axis != 1 or len(x.shape) != 2:
        rows = out.emit(node, "Flatten", [rows], axis=axis)
    names = [rows, *(out.name(tensor) for tensor in learned)]
    made = out.emit(node, "Gemm", names, last=plain, transB=int(not node.attributes["transpose"]))
    if not plain:
        _reshaped(out, node, made)


def _reshaped(out: Exporter, node: Node, x: str) -> None:
    """Write x, reshaped to the shape of the node's result."""
    result = node.outputs[0]
    assert result is not None
    shape = out.constant(f"{node.layer}.shape", _any_batch(out, result, result.shape))
    out.emit(node, "Reshape", [x, shape], last=True)


def _any_batch(out: Exporter, tensor: Tensor, shape: tuple[int, ...]) -> np.ndarray:
    """Return a shape for a tensor, with its first extent left open if the samples lie along it."""
    return np.array((-1, *shape[1:]) if out.batch_axis(tensor) == 0 and shape else shape, np.int64)


def _reshape(out: Exporter, node: Node) -> None:
    result = node.outputs[0]
    assert result is not None
    if len(result.shape) == 2 and out.batch_axis(result) == 0:
        out.emit(node, "Flatten", [_x(out, node)], last=True, axis=1)
    else:
        _reshaped(out, node, _x(out, node))


def _relu(out: Exporter, node: Node) -> None:
    slope = node.attributes["negative_slope"]
    if slope:
        out.emit(node, "LeakyRelu", [_x(out, node)], last=True, alpha=slope)
    else:
        out.emit(node, "Relu", [_x(out, node)], last=True)


def _parametric_relu(out: Exporter, node: Node) -> None:
    x, w = _inputs(node)
    slopes = _behind(out, node, w, x, 1) if w.shape else out.name(w)
    out.emit(node, "PRelu", [out.name(x), slopes], last=True)


def _behind(out: Exporter, node: Node, w: Tensor, x: Tensor, axis: int) -> str:
    """Write w in a shape that ONNX broadcasts along the axes of x from ``axis`` on."""
    shape = (*w.shape, *(1,) * (len(x.shape) - axis - len(w.shape)))
    value = out.value(w)
    if value is not None:
        return out.constant(f"{w.name}.along", value.reshape(shape))
    target = out.constant(f"{node.layer}.shape", _any_batch(out, w, shape))
    return out.emit(node, "Reshape", [out.name(w), target])


def _scale(out: Exporter, node: Node) -> None:
    x, w, *b = _inputs(node)
    axis, value = node.attributes["axis"], out.value(w)
    made = out.name(x)
    if not b or value is None or (value != 1).any():
        made = out.emit(node, "Mul", [made, _behind(out, node, w, x, axis)], last=not b)
    if b:
        out.emit(node, "Add", [made, _behind(out, node, b[0], x, axis)], last=True)


def _batch_norm(out: Exporter, node: Node) -> None:
    """Normalise by the stored statistics, which are sums divided by ``factor``; 0 if
    nothing was ever stored."""
    x, mean, variance, factor, w, b = (*node.inputs, None, None)[:6]
    assert x is not None
    learned = {}
    for name, tensor, default in (
        ("mean", mean, 0.0),
        ("variance", variance, 0.0),
        ("factor", factor, 1.0),
        ("scale", w, 1.0),
        ("bias", b, 0.0),
    ):
        value = np.full(x.shape[1:2], default, np.float32) if tensor is None else out.value(tensor)
        if value is None:
            raise ValueError(f"its {name} is computed by the net; only a learned one is supported")
        learned[name] = value
    count = float(learned.pop("factor").reshape(-1)[0])
    share = np.float32(1 / count if count else 0.0)
    learned["mean"], learned["variance"] = learned["mean"] * share, learned["variance"] * share
    names = [
        out.constant(f"{node.layer}.{name}", learned[name])
        for name in ("scale", "bias", "mean", "variance")
    ]
    rectified = node.attributes["relu"]
    epsilon = node.attributes["epsilon"]
    made = out.emit(
        node, "BatchNormalization", [out.name(x), *names], last=not rectified, epsilon=epsilon
    )
    if rectified:
        out.emit(node, "Relu", [made], last=True)


def _lrn_within(out: Exporter, node: Node) -> None:
    """The mean of squares over the square counts zeros beyond the edge, so it is the average
    of a padded input."""
    attributes, x = node.attributes, _x(out, node)
    size, reach = attributes["size"], attributes["size"] // 2
    squares = out.emit(node, "Mul", [x, x])
    pads = out.constant(f"{node.layer}.pads", np.array([0, 0, reach, reach] * 2, np.int64))
    padded = out.emit(node, "Pad", [squares, pads])
    mean = out.emit(node, "AveragePool", [padded], kernel_shape=[size, size], strides=[1, 1])
    scaled = out.emit(node, "Mul", [mean, out.number(node, "alpha", attributes["alpha"])])
    shifted = out.emit(node, "Add", [scaled, out.number(node, "k", attributes["k"])])
    raised = out.emit(node, "Pow", [shifted, out.number(node, "beta", attributes["beta"])])
    out.emit(node, "Div", [x, raised], last=True)


def _sum(out: Exporter, node: Node) -> None:
    terms = [out.name(tensor) for tensor in _inputs(node)]
    for place, factor in enumerate(node.attributes["coefficients"]):
        if factor != 1:
            terms[place] = out.emit(node, "Mul", [terms[place], out.number(node, "coefficient", factor)])
    _chained("Add")(out, node, terms)


def _chained(operator: str) -> Callable[[Exporter, Node, Sequence[str]], None]:
    """Return the writer of a binary operator applied to several terms, from first to last."""

    def word(out: Exporter, node: Node, terms: Sequence[str]) -> None:
        made = terms[0]
        for place, term in enumerate(terms[1:], 2):
            made = out.emit(node, operator, [made, term], last=place == len(terms))
        if len(terms) == 1:
            out.emit(node, "Identity", [made], last=True)

    return word


def _several(operator: str) -> Word:
    def word(out: Exporter, node: Node) -> None:
        _chained(operator)(out, node, [out.name(tensor) for tensor in _inputs(node)])

    return word


def _affine(out: Exporter, node: Node, x: str) -> str:
    """Write scale * x + shift."""
    scale, shift = node.attributes["scale"], node.attributes["shift"]
    if scale != 1:
        x = out.emit(node, "Mul", [x, out.number(node, "scale", scale)])
    return out.emit(node, "Add", [x, out.number(node, "shift", shift)]) if shift else x


def _exponential(out: Exporter, node: Node) -> None:
    out.emit(node, "Exp", [_affine(out, node, _x(out, node))], last=True)


def _logarithm(out: Exporter, node: Node) -> None:
    factor, argument = node.attributes["factor"], _affine(out, node, _x(out, node))
    made = out.emit(node, "Log", [argument], last=factor == 1)
    if factor != 1:
        out.emit(node, "Mul", [made, out.number(node, "factor", factor)], last=True)


def _gathered(out: Exporter, node: Node) -> None:
    rows, index = _inputs(node)
    numbers = out.emit(node, "Cast", [out.name(index)], to=7)  # int64
    out.emit(node, "Gather", [out.name(rows), numbers], last=True, axis=0)


def _sine(out: Exporter, node: Node) -> None:
    out.emit(node, "Sin", [_affine(out, node, _x(out, node))], last=True)


def _power(out: Exporter, node: Node) -> None:
    power, scale, shift = (node.attributes[name] for name in ("power", "scale", "shift"))
    if power == 1 and not shift:
        out.emit(node, "Mul", [_x(out, node), out.number(node, "scale", scale)], last=True)
    elif power == 1:
        x = _x(out, node)
        if scale != 1:
            x = out.emit(node, "Mul", [x, out.number(node, "scale", scale)])
        out.emit(node, "Add", [x, out.number(node, "shift", shift)], last=True)
    else:
        argument = _affine(out, node, _x(out, node))
        out.emit(node, "Pow", [argument, out.number(node, "power", power)], last=True)


def _clip(out: Exporter, node: Node) -> None:
    limits = [out.number(node, name, node.attributes[name]) for name in ("least", "most")]
    out.emit(node, "Clip", [_x(out, node), *limits], last=True)


def _swish(out: Exporter, node: Node) -> None:
    x, beta = _x(out, node), node.attributes["beta"]
    argument = x if beta == 1 else out.emit(node, "Mul", [x, out.number(node, "beta", beta)])
    out.emit(node, "Mul", [x, out.emit(node, "Sigmoid", [argument])], last=True)


def _greater(out: Exporter, node: Node) -> None:
    limit = out.number(node, "threshold", node.attributes["threshold"])
    out.emit(node, "Cast", [out.emit(node, "Greater", [_x(out, node), limit])], last=True, to=1)


def _select(out: Exporter, node: Node) -> None:
    c, a, b = _inputs(node)
    value = out.value(c)
    if value is not None:
        condition = out.constant(f"{node.layer}.condition", value != 0)
    else:
        size = out.emit(node, "Abs", [out.name(c)])
        condition = out.emit(node, "Greater", [size, out.number(node, "zero", 0.0)])
    out.emit(node, "Where", [condition, out.name(a), out.name(b)], last=True)


def _crop(out: Exporter, node: Node) -> None:
    offset, extent = node.attributes["offset"], node.attributes["extent"]
    whole = _inputs(node)[0].shape
    cut = [axis for axis, size in enumerate(extent) if size != whole[axis]]
    starts = np.array([offset[axis] for axis in cut], np.int64)
    ends = starts + np.array([extent[axis] for axis in cut], np.int64)
    lists = {"starts": starts, "ends": ends, "axes": np.array(cut, np.int64)}
    names = [out.constant(f"{node.layer}.{name}", array) for name, array in lists.items()]
    out.emit(node, "Slice", [_x(out, node), *names], last=True)


def _sliced(out: Exporter, node: Node) -> None:
    """Write each piece as a slice, because Split takes its sizes in different places in
    different versions."""
    axis, start = node.attributes["axis"], 0
    axes = out.constant(f"{node.layer}.axes", np.array([axis], np.int64))
    for piece, shape in zip(node.outputs, node.attributes["shapes"], strict=True):
        bounds = {"starts": start, "ends": start + shape[axis]}
        names = [out.constant(f"{node.layer}.{n}", np.array([at], np.int64)) for n, at in bounds.items()]
        if piece is not None:
            out.emit(node, "Slice", [_x(out, node), *names, axes], last=piece)
        start += shape[axis]


def _tile(out: Exporter, node: Node) -> None:
    repeats = np.ones(len(_shape(node)), np.int64)
    repeats[node.attributes["axis"]] = node.attributes["tiles"]
    out.emit(node, "Tile", [_x(out, node), out.constant(f"{node.layer}.repeats", repeats)], last=True)


def _total(before: str | None) -> Word:
    """Write a sum over trailing axes as a product of rows and a column of ones, which is the
    same in all versions."""

    def word(out: Exporter, node: Node) -> None:
        x, axis = _inputs(node)[0], node.attributes["axis"]
        name = out.name(x)
        if before == "Mul":
            name = out.emit(node, "Mul", [name, name])
        elif before is not None:
            name = out.emit(node, before, [name])
        rows = (math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
        whole = np.array(rows, np.int64)
        target = out.constant(f"{node.layer}.rows", _any_batch(out, x, rows) if axis else whole)
        flat = out.emit(node, "Reshape", [name, target])
        ones = np.full((rows[1], 1), node.attributes["coefficient"], np.float32)
        _reshaped(out, node, out.emit(node, "MatMul", [flat, out.constant(f"{node.layer}.ones", ones)]))

    return word


def _largest(out: Exporter, node: Node) -> None:
    if node.attributes["count"] != 1 or node.attributes["give"] != "places":
        raise ValueError("only the place of the single largest has a form in ONNX here")
    places: dict[str, Any] = {"axis": node.attributes["axis"], "keepdims": 1, "select_last_index": 1}
    out.emit(node, "Cast", [out.emit(node, "ArgMax", [_x(out, node)], **places)], last=True, to=1)


def _permuted(out: Exporter, node: Node) -> None:
    order = list(node.attributes["order"])
    out.emit(node, "Transpose", [_x(out, node)], last=True, perm=order)


def _resampled(out: Exporter, node: Node) -> None:
    """Write a Gather for each of the terms in a result's sum, times its weights."""
    x, places, weights = _inputs(node)
    axis, rank = node.attributes["axis"], len(x.shape)
    where, factors = out.value(places), out.value(weights)
    if where is None or factors is None:
        raise ValueError("its places and weights are computed by the net; only constants are supported")
    taps, made = where.shape[1], ""
    for k in range(taps):
        index = out.constant(f"{node.layer}.places{k}", where[:, k].astype(np.int64))
        plain = bool((factors[:, k] == 1).all())
        part = out.emit(node, "Gather", [out.name(x), index], last=plain and taps == 1, axis=axis)
        if not plain:
            along = factors[:, k].reshape(-1, *(1,) * (rank - axis - 1))
            weighted = out.constant(f"{node.layer}.weights{k}", along.astype(np.float32))
            names = [part, weighted]
            part = out.emit(node, "Mul", names, last=taps == 1)
        made = part if not made else out.emit(node, "Add", [made, part], last=k == taps - 1)


def _surrounded(out: Exporter, node: Node) -> None:
    """Write the gradient of a crop, as an operation in its own right: padding with zeros."""
    x, before = _inputs(node)[0], np.array(node.attributes["offset"], np.int64)
    behind = np.array(_shape(node), np.int64) - before - np.array(x.shape, np.int64)
    pads = out.constant(f"{node.layer}.pads", np.concatenate([before, behind]))
    out.emit(node, "Pad", [out.name(x), pads], last=True)


def _hard_sigmoid(out: Exporter, node: Node) -> None:
    out.emit(node, "HardSigmoid", [_x(out, node)], last=True, **_ramp(node))


def _hard_swish(out: Exporter, node: Node) -> None:
    x = _x(out, node)
    out.emit(node, "Mul", [x, out.emit(node, "HardSigmoid", [x], **_ramp(node))], last=True)


def _ramp(node: Node) -> dict[str, Any]:
    return {"alpha": node.attributes["scale"], "beta": node.attributes["shift"]}


def _gelu(out: Exporter, node: Node) -> None:
    """Write GELU in the form used before version 20 of the operators."""
    x = _x(out, node)
    root = out.emit(node, "Mul", [x, out.number(node, "root", math.sqrt(0.5))])
    total = out.emit(node, "Add", [out.emit(node, "Erf", [root]), out.number(node, "one", 1.0)])
    half = out.emit(node, "Mul", [x, out.number(node, "half", 0.5)])
    out.emit(node, "Mul", [half, total], last=True)


def _mean(out: Exporter, node: Node, x: str) -> str:
    """Write the mean of x, which has the node's shape, over the axes from its ``axis`` on. Without such
    axes the mean is x itself; ONNX would take all axes."""
    axes = list(range(node.attributes["axis"], len(_shape(node))))
    if not axes:
        return x
    if out.opset < 18:
        return out.emit(node, "ReduceMean", [x], axes=axes)
    return out.emit(
        node, "ReduceMean", [x, out.constant(f"{node.layer}.axes", np.array(axes, np.int64))]
    )


def _centred(out: Exporter, node: Node) -> None:
    x = _x(out, node)
    out.emit(node, "Sub", [x, _mean(out, node, x)], last=True)


def _standardized(out: Exporter, node: Node) -> None:
    x = _x(out, node)
    apart = out.emit(node, "Sub", [x, _mean(out, node, x)])
    square = _mean(out, node, out.emit(node, "Mul", [apart, apart]))
    deviation = out.emit(node, "Sqrt", [square])
    epsilon = out.number(node, "epsilon", node.attributes["epsilon"])
    out.emit(node, "Div", [apart, out.emit(node, "Add", [deviation, epsilon])], last=True)


WORDS: dict[str, Word] = {
    "absolute": _simple("Abs"),
    "absolute_total": _total("Abs"),
    "batch_norm_inference": _batch_norm,
    "centre": _centred,
    "clip": _clip,
    "concat": _simple("Concat", axis="axis"),
    "convolution": _convolution,
    "convolution_backward_data": _transposed,
    "crop": _crop,
    "crop_backward": _surrounded,
    "elu": _simple("Elu", alpha="alpha"),
    "error_function": _simple("Erf"),
    "exponential": _exponential,
    "floor": _simple("Floor"),
    "gather": _gathered,
    "gelu": _gelu,
    "greater": _greater,
    "hard_sigmoid": _hard_sigmoid,
    "hard_swish": _hard_swish,
    "inner_product": _inner_product,
    "largest": _largest,
    "leaky_relu": _relu,
    "logarithm": _logarithm,
    "lrn_across_channels": _simple("LRN", size="size", alpha="alpha", beta="beta", bias="k"),
    "lrn_within_channel": _lrn_within,
    "maximum": _several("Max"),
    "parametric_relu": _parametric_relu,
    "permute": _permuted,
    "pooling_average": pooling_average,
    "pooling_max": pooling_max,
    "power": _power,
    "product": _several("Mul"),
    "relu": _relu,
    "resample": _resampled,
    "reshape": _reshape,
    "round": _simple("Round"),
    "scale": _scale,
    "select": _select,
    "sigmoid": _simple("Sigmoid"),
    "sine": _sine,
    "slice": _sliced,
    "softmax": _simple("Softmax", axis="axis"),
    "softplus": _simple("Softplus"),
    "square_total": _total("Mul"),
    "standardize": _standardized,
    "stop_gradient": _simple("Identity"),
    "sum": _sum,
    "swish": _swish,
    "tanh": _simple("Tanh"),
    "tile": _tile,
    "total": _total(None),
}
"""How each operation is written in ONNX, by its name."""

SEVERAL = ("slice",)
"""The operations of which every result can be written."""
