"""A net as a list of layers: built with shapes checked, counted in flops, parameters and values.

One description serves all contenders: the prototxt that Demitasse reads and the layers that the
peers run are made of it. Shapes are of one sample: channels x rows x columns, or features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """One layer: its blobs by name, its numbers, the shapes of its output and its parameters.

    Parameters are laid out as in Caffe: outputs first, then inputs of a group, rows, columns.
    A batch_norm is Caffe's BatchNorm and the Scale after it: its parameters are gamma and beta.
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
        """Multiply-and-adds of one sample, forward; only of convolutions and inner products."""
        if self.kind == "convolution":
            return prod(self.shape) * prod(self.parameters[0][1:])
        return prod(self.parameters[0]) if self.kind == "inner_product" else 0


@dataclass
class Net:
    """Layers in order. The methods add one and return its top, a new blob or the bottom in place."""

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
        kernel: int,
        *,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        bias: bool = True,
    ) -> str:
        channels, *extents = self.shape(bottom)
        out = [(n + 2 * pad - kernel) // stride + 1 for n in extents]
        weights = (outputs, channels // groups, kernel, kernel)
        numbers = {"kernel": kernel, "stride": stride, "pad": pad, "groups": groups, "bias": bias}
        parameters = (weights, (outputs,)) if bias else (weights,)
        return self._add(name, "convolution", bottom, (outputs, *out), parameters, numbers)

    def inner_product(self, bottom: str, name: str, outputs: int) -> str:
        parameters = ((outputs, prod(self.shape(bottom))), (outputs,))
        return self._add(name, "inner_product", bottom, (outputs,), parameters)

    def pool(self, bottom: str, name: str, kind: str, kernel: int, stride: int = 1, pad: int = 0) -> str:
        """A max_pool or average_pool; as in Caffe, the last window may overhang (Pooling, CEIL)."""
        channels, *extents = self.shape(bottom)
        out = [-(-(n + 2 * pad - kernel) // stride) + 1 for n in extents]
        numbers = {"kernel": kernel, "stride": stride, "pad": pad}
        return self._add(name, kind, bottom, (channels, *out), (), numbers)

    def relu(self, blob: str, name: str) -> str:
        return self._add(name, "relu", blob, self.shape(blob), top=blob)

    def relu6(self, blob: str, name: str) -> str:
        """ReLU, and at most 6."""
        return self._add(name, "relu6", blob, self.shape(blob), top=blob)

    def lrn(self, bottom: str, name: str) -> str:
        """Across five channels, with the numbers of Krizhevsky et al. 2012, section 3.3, in Caffe."""
        numbers = {"size": 5, "alpha": 1e-4, "beta": 0.75}
        return self._add(name, "lrn", bottom, self.shape(bottom), (), numbers)

    def dropout(self, blob: str, name: str, ratio: float) -> str:
        return self._add(name, "dropout", blob, self.shape(blob), (), {"ratio": ratio}, top=blob)

    def batch_norm(self, blob: str, name: str) -> str:
        shape = self.shape(blob)
        return self._add(name, "batch_norm", blob, shape, ((shape[0],), (shape[0],)), top=blob)

    def add(self, bottoms: tuple[str, str], name: str) -> str:
        return self._add(name, "add", bottoms, self.shape(bottoms[0]))

    def concat(self, bottoms: tuple[str, ...], name: str) -> str:
        channels = sum(self.shape(bottom)[0] for bottom in bottoms)
        return self._add(name, "concat", bottoms, (channels, *self.shape(bottoms[0])[1:]))

    def loss(self, bottom: str, name: str, weight: float = 1.0) -> str:
        return self._add(name, "softmax_loss", bottom, (), (), {"weight": weight})

    def shape(self, blob: str) -> Shape:
        """The shape of a blob of one sample."""
        for layer in reversed(self.layers):
            if layer.top == blob:
                return layer.shape
        if blob != "data":
            raise KeyError(f"net {self.name} has no blob {blob!r} yet")
        return self.image

    def without(self, *kinds: str) -> Net:
        """The net without layers of some kinds that work in place."""
        return replace(self, layers=[layer for layer in self.layers if layer.kind not in kinds])

    def deploy(self) -> Net:
        """What inference needs: the layers before the last loss, and in its place ``prob``."""
        losses = [layer for layer in self.layers if layer.kind == "softmax_loss"]
        wanted, kept = {losses[-1].bottoms[0]}, []
        for layer in reversed(self.layers):
            if layer.top in wanted and layer.kind != "dropout":
                kept.append(layer)
                wanted |= set(layer.bottoms)
        last = Layer("prob", "softmax", losses[-1].bottoms, "prob", (self.classes,))
        return replace(self, layers=[*reversed(kept), last])

    @property
    def parameters(self) -> int:
        """The number of trained values."""
        return sum(prod(shape) for layer in self.layers for shape in layer.parameters)

    @property
    def macs(self) -> int:
        """Multiply-and-adds of one sample, forward."""
        return sum(layer.macs for layer in self.layers)

    def blobs(self) -> Iterator[Shape]:
        """The shapes of the input and of every blob that is not overwritten in place."""
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
