"""The price of a training step on one node: every operation of a net by its kernels' counts on one core
group, with a quarter of the mini-batch, then the sum of four core groups' gradients and the update."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from demitasse import PLAIN, Candidate, Layout, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_sw26010.gradient_sync import sum_seconds
from demitasse_sw26010.kernels import candidates

PLACE = Place("core_group", "ddr3", 1, simulated=True)
CORE_GROUPS = 4
Shape = tuple[int, ...]


def spec(shape: Sequence[int], dtype: str = "float32", layout: Layout = PLAIN) -> TensorSpec:
    """Return a tensor as kernels see it."""
    return TensorSpec(tuple(shape), dtype, layout)


def offers(
    word: str,
    inputs: Sequence[TensorSpec | None],
    outputs: Sequence[TensorSpec | None],
    attributes: Mapping[str, Any],
) -> list[Candidate]:
    """Return the kernels for an operation on a core group."""
    operation = VOCABULARY[word]
    complete = {**operation.attributes, **attributes}
    return list(candidates(Request(operation, tuple(inputs), tuple(outputs), complete, PLACE)))


def price(
    word: str,
    inputs: Sequence[TensorSpec | None],
    outputs: Sequence[TensorSpec | None],
    attributes: Mapping[str, Any],
) -> float:
    """Return the seconds of the cheapest kernel, including the transformations to the layouts that it
    needs: what trying both for two iterations finds (Section VI.A)."""
    best = float("inf")
    for candidate in offers(word, inputs, outputs, attributes):
        seconds = candidate.seconds or 0.0
        for specs, layouts in ((inputs, candidate.input_layouts), (outputs, candidate.output_layouts)):
            for tensor, layout in zip(specs, layouts, strict=False):
                if tensor is not None and layout != PLAIN:
                    there = spec(tensor.shape, tensor.dtype, layout)
                    (turn,) = offers("reorder", (tensor,), (there,), {})
                    seconds += turn.seconds or 0.0
        best = min(best, seconds)
    return best


class PricedNet:
    """A net written layer by layer, which prices forward and backward as layers are added.

    ``batch`` is that of one core group; blobs are their shapes. ``seconds`` are those of a step, by
    operation. ``statistics`` counts the numbers that normalisations keep besides the ``parameters``
    (means, variances, a factor). ``weights`` has the number of weights of each convolution and inner
    product, without biases.
    """

    def __init__(self, batch: int) -> None:
        self.batch, self.parameters, self.statistics = batch, 0, 0
        self.weights: list[int] = []
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.first = True

    def add(self, word: str, inputs: Sequence[Any], outputs: Sequence[Any], **attributes: Any) -> None:
        """Add an operation, whose operands are shapes, specs or None."""
        specs = [
            [spec(one) if isinstance(one, tuple) else one for one in side] for side in (inputs, outputs)
        ]
        self.seconds[word] += price(word, specs[0], specs[1], attributes)

    def convolution(
        self,
        x: Shape,
        outputs: int,
        kernel: int,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        bias: bool = True,
    ) -> Shape:
        """Add a convolution with its gradients, without the one to the data for the first layer."""
        w, b = (outputs, x[1] // groups, kernel, kernel), ((outputs,) if bias else None)
        about: dict[str, Any] = {"stride": (stride,) * 2, "pad": (pad,) * 2, "groups": groups}
        place = [(extent + 2 * pad - kernel) // stride + 1 for extent in x[2:]]
        y = (x[0], outputs, *place)
        self.add("convolution", (x, w, b), (y,), **about)
        self.add("convolution_backward_weights", (y, x), (w, b), **about, shape=w)
        if not self.first:
            self.add("convolution_backward_data", (y, w), (x,), **about, shape=x)
        self.first = False
        self.weights.append(prod(w))
        self.parameters += prod(w) + outputs * bias
        return y

    def inner_product(self, x: Shape, outputs: int) -> Shape:
        """Add an inner product with its gradients."""
        w, b, y = (outputs, prod(x[1:])), (outputs,), (x[0], outputs)
        self.add("inner_product", (x, w, b), (y,))
        self.add("inner_product_backward_weights", (y, x), (w, b), shape=w)
        self.add("inner_product_backward_data", (y, w), (x,), shape=x)
        self.weights.append(prod(w))
        self.parameters += prod(w) + outputs
        return y

    def relu(self, x: Shape) -> Shape:
        """Add a ReLU in place, with its gradient."""
        self.add("relu", (x,), (x,))
        self.add("relu_backward", (x, x), (x,))
        return x

    def dropout(self, x: Shape) -> Shape:
        """Add dropout with its gradient."""
        mask, number = spec(x, "uint8"), spec((1,), "uint64")
        self.add("dropout", (x, number, number), (x, mask), seed=1, stream=1)
        self.add("dropout_backward", (x, mask), (x,))
        return x

    def pool(self, x: Shape, kind: str, kernel: int, stride: int, pad: int = 0) -> Shape:
        """Add pooling (``max`` or ``average``) with its gradient."""
        about: dict[str, Any] = {"kernel": (kernel,) * 2, "stride": (stride,) * 2, "pad": (pad,) * 2}
        word = VOCABULARY[f"pooling_{kind}"]
        y = tuple(word.shapes({"x": x}, {**word.attributes, **about})[0])
        where = [spec(y, "int32")] if kind == "max" else []
        self.add(f"pooling_{kind}", (x,), (y, *where), **about)
        self.add(f"pooling_{kind}_backward", (y, *where), (x,), **about, shape=x)
        return y

    def batch_norm(self, x: Shape) -> Shape:
        """Add batch normalisation as Caffe's two layers compose it, which the paper does not say it
        changed. Statistics are spread over the planes by five products with k = 1, and everything else
        is an operation on whole tensors. (The fused kernel of this plugin takes a third of the time.)"""
        rows, plane, label = x[0] * x[1], prod(x[2:]), "batch_norm and scale"
        spread = price(
            "inner_product", (spec((rows, 1)), spec((plane, 1)), None), (spec((rows, plane)),), {}
        )
        # Forward has 9 passes: the mean; squares; their mean; the division by what was spread; a copy.
        # Backward has 14: two products with the normalised input, two means, one sum, one division. 2
        # more copy the input into the output or, in place, the gradient before it is overwritten. The
        # scale's 4 and 7 are a copy and the product, and their gradients' sums and products.
        passes = price("accumulate", (spec(x), spec(x)), (), {}) / 3.0 * (9 + 14 + 2 + 4 + 7)
        # Three of the five are added to what is there, which is read for that.
        self.seconds[label] += 5 * spread + passes + price("fill", (spec(x),), (), {}) * 3
        self.parameters += 2 * x[1]
        self.statistics += 2 * x[1] + 1
        return x

    def join(self, xs: Sequence[Shape]) -> Shape:
        """Add a join along channels, with its gradient."""
        whole = (xs[0][0], sum(x[1] for x in xs), *xs[0][2:])
        self.add("concat", tuple(xs), (whole,))
        self.add("concat_backward", (whole,), tuple(xs), shapes=tuple(xs))
        return whole

    def plus(self, a: Shape, b: Shape) -> Shape:
        """Add the sum of two blobs, whose gradients are copies, and the sum of gradients where a blob
        forks."""
        self.add("sum", (a, b), (a,))
        self.add("sum_backward", (a,), (a, b), shapes=(a, b))
        return a

    def fork(self, x: Shape, readers: int) -> None:
        """Add the sum of the gradients from several readers of a blob."""
        if readers > 1:
            self.add("sum", (x,) * readers, (x,))

    def loss(self, x: Shape) -> None:
        """Add softmax with its loss."""
        labels = spec((x[0],))
        self.add("softmax_loss", (x, labels), ((), x))
        self.add("softmax_loss_backward", ((), x, labels), (x,))

    def step(self) -> float:
        """Return the seconds of an iteration: a core group's operations, the sum of gradients, the
        update."""
        flat = spec((self.parameters,))
        about = {"momentum": 0.9, "decay": 0.0005, "segments": ((0, self.parameters, 1.0, 1.0),)}
        update = price("momentum_update", (flat, flat, flat, spec((1,), "float64"), None), (), about)
        self.seconds["sum of gradients"] = sum_seconds(self.parameters, CORE_GROUPS)
        self.seconds["update"] = update
        return sum(self.seconds.values())
