"""A net as a list of layers: built with shape checks, and counted in flops, parameters and values.

All contenders share one description: both the prototxt that Demitasse reads and the layers that the
peers run are made from it. Shapes are for one sample: channels x rows x columns, or features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import Any

Shape = tuple[int, ...]
Pair = int | tuple[int, int]
"""For rows and columns; a single number means both."""


@dataclass(frozen=True)
class Layer:
    """One layer: its blobs by name, its numbers, the shapes of its output and its parameters.

    Parameters are laid out as in Caffe: outputs first, then inputs of a group, rows, columns. A
    batch_norm is Caffe's BatchNorm and, if there is one, the Scale after it, whose name is the number
    ``scale``; its parameters are gamma and beta. Windows are pairs, for rows and columns.
    """

    name: str
    kind: str
    bottoms: tuple[str, ...]
    top: str
    shape: Shape
    parameters: tuple[Shape, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def macs(self) -> int:
        """Multiply-adds of one sample, forward; only for convolutions and inner products."""
        if self.kind == "convolution":
            return prod(self.shape) * prod(self.parameters[0][1:])
        return prod(self.parameters[0]) if self.kind == "inner_product" else 0


@dataclass
class Net:
    """Layers in order. The methods add one and return its top: a new blob, or the bottom if in place."""

    name: str
    batch: int
    image: Shape
    classes: int
    rate: float
    decay: float = 0.0005
    layers: list[Layer] = field(default_factory=list)

    def convolution(
        self,
        bottom: str,
        name: str,
        outputs: int,
        kernel: Pair,
        *,
        stride: Pair = 1,
        pad: Pair = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        top: str | None = None,
    ) -> str:
        channels, *extents = self.shape(bottom)
        window = {"kernel": pair(kernel), "stride": pair(stride), "pad": pair(pad)}
        reach = [d * (k - 1) + 1 for d, k in zip(pair(dilation), window["kernel"], strict=True)]
        steps = zip(extents, reach, window["stride"], window["pad"], strict=True)
        out = [(n + 2 * pad - k) // stride + 1 for n, k, stride, pad in steps]
        weights = (outputs, channels // groups, *window["kernel"])
        numbers = {**window, "dilation": pair(dilation), "groups": groups, "bias": bias}
        parameters = (weights, (outputs,)) if bias else (weights,)
        return self._add(name, "convolution", bottom, (outputs, *out), parameters, numbers, top)

    def inner_product(
        self, bottom: str, name: str, outputs: int, *, bias: bool = True, top: str | None = None
    ) -> str:
        parameters = ((outputs, prod(self.shape(bottom))), *([(outputs,)] if bias else []))
        return self._add(name, "inner_product", bottom, (outputs,), parameters, {"bias": bias}, top)

    def pool(
        self,
        bottom: str,
        name: str,
        kind: str,
        kernel: Pair,
        stride: Pair = 1,
        pad: Pair = 0,
        *,
        up: bool = True,
        top: str | None = None,
    ) -> str:
        """A max_pool or average_pool; as in Caffe, the last window may overhang (Pooling, CEIL)."""
        channels, *extents = self.shape(bottom)
        window = {"kernel": pair(kernel), "stride": pair(stride), "pad": pair(pad)}
        out = []
        for n, k, step, edge in zip(extents, *window.values(), strict=True):
            over = n + 2 * edge - k
            count = (-(-over // step) if up else over // step) + 1
            # The last window must begin within the image or the padding before it.
            out.append(count - 1 if up and edge and (count - 1) * step >= n + edge else count)
        return self._add(name, kind, bottom, (channels, *out), (), {**window, "up": up}, top)

    def relu(self, blob: str, name: str) -> str:
        return self.element(blob, name, "relu", top=blob)

    def relu6(self, blob: str, name: str) -> str:
        """ReLU, limited to 6."""
        return self.element(blob, name, "relu6", top=blob)

    def element(
        self, bottom: str, name: str, kind: str, *, top: str | None = None, **numbers: float
    ) -> str:
        """A function of each element: relu, relu6, leaky_relu (``slope``), elu (``alpha``), sigmoid,
        tanh, dropout (``ratio``); flat, which changes nothing; prelu, with a learned slope for each
        channel."""
        shape = self.shape(bottom)
        if kind == "flat":
            shape = (prod(shape),)
        parameters = ((shape[0],),) if kind == "prelu" else ()
        return self._add(name, kind, bottom, shape, parameters, numbers, top)

    def lrn(
        self,
        bottom: str,
        name: str,
        size: int = 5,
        alpha: float = 1e-4,
        beta: float = 0.75,
        *,
        top: str | None = None,
    ) -> str:
        """Normalisation across channels; the numbers are those of Krizhevsky et al. 2012, section 3.3,
        in Caffe."""
        numbers = {"size": size, "alpha": alpha, "beta": beta}
        return self._add(name, "lrn", bottom, self.shape(bottom), (), numbers, top)

    def dropout(self, blob: str, name: str, ratio: float) -> str:
        return self.element(blob, name, "dropout", top=blob, ratio=ratio)

    def batch_norm(
        self,
        bottom: str,
        name: str,
        *,
        scale: str | None = None,
        epsilon: float = 1e-5,
        keep: float = 0.999,
        top: str | None = None,
    ) -> str:
        """Batch normalisation in place. ``scale`` is the Scale layer's name ("" for none; by default
        made from ``name``); ``keep`` is the fraction of the running statistics that a batch keeps."""
        shape = self.shape(bottom)
        scale = name.replace("bn", "scale", 1) if scale is None else scale
        parameters = ((shape[0],), (shape[0],)) if scale else ()
        numbers = {"scale": scale, "epsilon": epsilon, "keep": keep}
        return self._add(name, "batch_norm", bottom, shape, parameters, numbers, top or bottom)

    def add(
        self, bottoms: tuple[str, ...], name: str, kind: str = "add", *, top: str | None = None
    ) -> str:
        """The sum (add), product or maximum of blobs, element by element."""
        return self._add(name, kind, bottoms, self.shape(bottoms[0]), (), {}, top)

    def concat(self, bottoms: tuple[str, ...], name: str, *, top: str | None = None) -> str:
        channels = sum(self.shape(bottom)[0] for bottom in bottoms)
        shape = (channels, *self.shape(bottoms[0])[1:])
        return self._add(name, "concat", bottoms, shape, (), {}, top)

    def loss(self, bottom: str, name: str, weight: float = 1.0) -> str:
        return self._add(name, "softmax_loss", bottom, (), (), {"weight": weight})

    def shape(self, blob: str) -> Shape:
        """Return the shape of a blob, for one sample."""
        for layer in reversed(self.layers):
            if layer.top == blob:
                return layer.shape
        if blob != "data":
            raise KeyError(f"net {self.name} has no blob {blob!r} yet")
        return self.image

    def without(self, *kinds: str) -> Net:
        """Return the net without in-place layers of some kinds."""
        return replace(self, layers=[layer for layer in self.layers if layer.kind not in kinds])

    def deploy(self) -> Net:
        """Return the part for inference: the layers before the last loss, which ``prob`` replaces."""
        losses = [layer for layer in self.layers if layer.kind == "softmax_loss"]
        wanted, kept = {losses[-1].bottoms[0]}, []
        for layer in reversed(self.layers):
            if layer.top in wanted and layer.kind != "dropout":
                kept.append(layer)
                wanted |= set(layer.bottoms)
        last = Layer("prob", "softmax", losses[-1].bottoms, "prob", (self.classes,))
        return replace(self, layers=[*reversed(kept), last])

    def message(self) -> dict[str, Any]:
        """Return the net in a form for JSON."""
        return asdict(self)

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> Net:
        """Return the net of a ``message`` that passed through JSON, with lists for tuples."""
        made = {key: _tuples(value) for key, value in message.items() if key != "layers"}
        layers = [Layer(**{k: _tuples(v) for k, v in each.items()}) for each in message["layers"]]
        return cls(**made, layers=layers)

    @property
    def parameters(self) -> int:
        """The number of trained values."""
        return sum(prod(shape) for layer in self.layers for shape in layer.parameters)

    @property
    def macs(self) -> int:
        """Multiply-adds of one sample, forward."""
        return sum(layer.macs for layer in self.layers)

    def blobs(self) -> Iterator[Shape]:
        """Yield the shapes of the input and of every blob that is not overwritten in place."""
        yield self.image
        for layer in self.layers:
            if layer.top not in layer.bottoms:
                yield layer.shape

    def _add(
        self,
        name: str,
        kind: str,
        bottoms: str | tuple[str, ...],
        shape: Shape,
        parameters: tuple[Shape, ...] = (),
        numbers: Mapping[str, Any] | None = None,
        top: str | None = None,
    ) -> str:
        inputs = (bottoms,) if isinstance(bottoms, str) else bottoms
        self.layers.append(Layer(name, kind, inputs, top or name, shape, parameters, numbers or {}))
        return top or name


def pair(extent: Pair) -> tuple[int, int]:
    """Return a pair, for rows and columns."""
    return (extent, extent) if isinstance(extent, int) else extent


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
