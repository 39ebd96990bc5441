"""Toys that tests compose runtimes from: layer types, samples in arrays, plugins, machines, nets."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from demitasse import (
    DataSource,
    DataSpec,
    Field,
    GraphBuilder,
    Layer,
    Level,
    Location,
    Machine,
    NetDefinition,
    Solver,
    Stream,
    SyncSpec,
    Tensor,
    hookimpl,
)

Arrays = Mapping[str, np.ndarray]


# Layer types.


@dataclass
class Kind:
    """A layer type from a function of the layer, its bottoms and the graph."""

    name: str
    make: Callable[[Layer, Sequence[Tensor], GraphBuilder], Sequence[Tensor]]
    loss_weight: float = 0.0
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        return self.make(layer, bottoms, graph)


def _samples(layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
    fields = {"data": "real", "label": "real"}
    return graph.source(DataSpec("toy"), layer.parameters["batch"], fields)


def _input(layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
    return [graph.input(layer.tops[0], layer.parameters["shape"])]


def _affine(layer: Layer, graph: GraphBuilder, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    given = layer.parameters
    share, rate = given.get("share"), given.get("rate", 1.0)
    deviation = given.get("deviation", 0.1)
    weights = graph.parameter(
        shape, lambda s, random: random.normal(s, 0, deviation), rate=rate, shared=share
    )
    biases = graph.parameter(
        shape[:1],
        lambda s, random: random.uniform(s, -0.1, 0.1),
        rate=2 * rate,
        decay=0.0,
        shared=f"{share}, biases" if share else None,
    )
    return weights, biases


def _convolution(layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
    (x,) = bottoms
    w, b = _affine(layer, graph, (layer.parameters["outputs"], x.shape[1], 3, 3))
    return [graph.apply("convolution", x, w, b, pad=(1, 1))]


def _inner_product(layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
    (x,) = bottoms
    inputs = layer.parameters.get("inputs", int(np.prod(x.shape[1:])))
    w, b = _affine(layer, graph, (layer.parameters["outputs"], inputs))
    return [graph.apply("inner_product", x, w, b)]


def _dropout(layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
    operands = bottoms[0], graph.scalar("iteration"), graph.scalar("sample")
    return [graph.apply("dropout", *operands, seed=graph.seed, stream=graph.stream)[0]]


def _reshape(layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
    return [graph.apply("reshape", bottoms[0], shape=layer.parameters["shape"])]


def _plain(operation: str) -> Callable[[Layer, Sequence[Tensor], GraphBuilder], Sequence[Tensor]]:
    """An operation of the same operands, and its first output."""

    def build(layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
        made = graph.apply(operation, *bottoms)
        return [made[0] if isinstance(made, tuple) else made]

    return build


def _batch_norm(layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
    channels = bottoms[0].shape[1:2]
    kept = [
        graph.parameter(shape, lambda s, random: np.zeros(s), rate=0.0, trainable=False)
        for shape in (channels, channels, (1,))
    ]
    w, b = (graph.parameter(channels, lambda s, random: random.uniform(s, 0.5, 2)) for _ in range(2))
    y, *_ = graph.apply("batch_norm", *bottoms, *kept, w, b, keep=0.9, **layer.parameters)
    return [y]


def _loss_of_some(layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Sequence[Tensor]:
    return [graph.apply("softmax_loss", *bottoms, ignore_label=layer.parameters["ignored"])[0]]


KINDS = (
    Kind("Samples", _samples),
    Kind("Input", _input),
    Kind("Convolution", _convolution),
    Kind("InnerProduct", _inner_product),
    Kind("Dropout", _dropout),
    Kind("Reshape", _reshape),
    Kind("ReLU", _plain("relu")),
    Kind("Sum", _plain("sum")),
    Kind("Concat", _plain("concat")),
    Kind("Softmax", _plain("softmax")),
    Kind("SoftmaxLoss", _plain("softmax_loss"), loss_weight=1.0),
    Kind("Accuracy", _plain("accuracy")),
    Kind("Normalised", _batch_norm),
    Kind("LossOfSome", _loss_of_some, loss_weight=1.0),
)


# Samples.


class ArraySource:
    """Samples of some arrays, in order, over and over."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.fields: Mapping[str, Field] = {
            name: Field(a.shape[1:], str(a.dtype)) for name, a in arrays.items()
        }
        self.size = len(next(iter(arrays.values())))

    def stream(self, first: int, count: int, step: int) -> Stream:
        return ArrayStream(self, first, count, step)

    def close(self) -> None:
        """Nothing is open."""


class ArrayStream:
    """Every ``step``-th run of ``count`` samples."""

    def __init__(self, source: ArraySource, first: int, count: int, step: int) -> None:
        self.source, self.cursor, self.count, self.step = source, first, count, step

    def read(self, out: Mapping[str, np.ndarray]) -> None:
        chosen = np.arange(self.cursor, self.cursor + self.count) % self.source.size
        for name, array in out.items():
            array[...] = self.source.arrays[name][chosen]
        self.cursor += self.step

    def close(self) -> None:
        """Nothing is open."""


class SpoiltSource(ArraySource):
    """The stream of one ``worker`` raises ``error`` at a read; where that is None, its samples are no
    numbers from then on."""

    def __init__(self, arrays: Arrays, worker: int, at: int, error: BaseException | None) -> None:
        super().__init__(arrays)
        self.worker, self.at, self.error, self.streams = worker, at, error, 0

    def stream(self, first: int, count: int, step: int) -> Stream:
        stream = super().stream(first, count, step)
        number, reads, original = self.streams, 0, stream.read
        self.streams += 1

        def read(out: Mapping[str, np.ndarray]) -> None:
            nonlocal reads
            reads += 1
            if number == self.worker and self.error is not None and reads == self.at:
                raise self.error
            original(out)
            if number == self.worker and self.error is None and reads >= self.at:
                out["data"][...] = np.nan

        stream.read = read  # type: ignore[method-assign]
        return stream


def spoilt(worker: int, at: int, error: BaseException | None) -> Callable[[Any], SpoiltSource]:
    """What opens a SpoiltSource of images for whatever is asked."""
    return lambda spec: SpoiltSource(images(), worker, at, error)


def images(count: int = 40, channels: int = 1, size: int = 6, classes: int = 3) -> dict[str, Any]:
    """Random images whose labels can be learned from them."""
    random = np.random.default_rng(count)
    data = random.normal(size=(count, channels, size, size))
    scores = data.reshape(count, -1) @ random.normal(size=(channels * size * size, classes))
    return {"data": data, "label": scores.argmax(1).astype(np.float64)}


# Plugins and machines.


def plugin(
    name: str, *, roles: Mapping[str, Any] | None = None, manifest: Any = None, **hooks: Any
) -> Any:
    """A plugin object of some hooks; ``roles`` gives facts of those that need some."""
    declared = {hook: dict((roles or {}).get(hook, {})) for hook in hooks}
    table = {"name": name, "api": ">=0.1", "roles": declared, **(manifest or {})}
    return SimpleNamespace(manifest=table, **{key: hookimpl(hook) for key, hook in hooks.items()})


def toy(arrays: Arrays | None = None, source: Callable[[DataSpec], DataSource] | None = None) -> Any:
    """The plugin ``toy``: all layer types here, and samples of ``arrays`` or from ``source``."""
    given = images() if arrays is None else arrays

    def data_source(spec: DataSpec) -> DataSource:
        if source is not None:
            return source(spec)
        return ArraySource(spec.source if isinstance(spec.source, Mapping) else given)

    return plugin("toy", layer_types=lambda: KINDS, data_source=data_source)


@functools.cache  # to look for entry points takes 10 ms
def installed(name: str) -> Any:
    """An installed plugin's module, by its entry point."""
    (point,) = importlib.metadata.entry_points(group="demitasse.plugins", name=name)
    return point.load()


def machine(*counts: int, sync: Sequence[str] = ("reference", "reference")) -> Machine:
    """One worker; or levels ``node`` and ``thread`` of so many threads, innermost last, each
    synchronised by the plugin at its place in ``sync``."""
    names = ("node", "thread")[-len(counts) :] if counts else ()
    levels = [
        Level(name, count, workers="threads", sync=SyncSpec(plugin))
        for name, count, plugin in zip(names, counts, sync, strict=False)
    ]
    return Machine("toys", tuple(levels) or (Level("machine"),), fingerprint="any")


# Nets.


def layer(name: str, kind: str, bottoms: str, tops: str, **parameters: Any) -> Layer:
    """A layer; bottoms and tops are separated by blanks."""
    weights = parameters.pop("loss_weights", ())
    where = Location("toy.net")
    blobs = tuple(bottoms.split()), tuple(tops.split())
    return Layer(name, kind, *blobs, parameters, where, loss_weights=weights)


def net(*layers: Layer, phase: str = "train") -> NetDefinition:
    """A net of some layers."""
    return NetDefinition("toy", phase, layers, Location("toy.net"))


def classifier(batch: int = 10, phase: str = "train") -> NetDefinition:
    """Convolutions that share their weights, dropout, memory in place, and a loss."""
    last = (
        layer("loss", "SoftmaxLoss", "scores label", "loss")
        if phase == "train"
        else layer("accuracy", "Accuracy", "scores label", "accuracy")
    )
    dropout = (layer("drop", "Dropout", "third", "third"),) if phase == "train" else ()
    return net(
        layer("samples", "Samples", "", "data label", batch=batch),
        layer("first", "Convolution", "data", "first", outputs=4),
        layer("rectified", "ReLU", "first", "first"),
        layer("second", "Convolution", "first", "second", outputs=4, share="both"),
        layer("third", "Convolution", "second", "third", outputs=4, share="both"),
        *dropout,
        layer("scores", "InnerProduct", "third", "scores", outputs=3),
        last,
        phase=phase,
    )


def normalised(batch: int = 7) -> NetDefinition:
    """Three normalisations, with a ReLU, a shortcut, and vectors; a loss that ignores a class."""
    return net(
        layer("samples", "Samples", "", "data label", batch=batch),
        layer("first", "Convolution", "data", "first", outputs=4, deviation=0.5),
        layer("norm", "Normalised", "first", "norm"),
        layer("rectified", "ReLU", "norm", "norm"),
        layer("second", "Convolution", "norm", "second", outputs=4, deviation=0.5),
        layer("again", "Normalised", "second", "again", averaged=True),
        layer("both", "Sum", "again norm", "both"),
        layer("rectified too", "ReLU", "both", "both"),
        layer("scores", "InnerProduct", "both", "scores", outputs=3),
        layer("last", "Normalised", "scores", "last", epsilon=0.01),
        layer("loss", "LossOfSome", "last label", "loss", ignored=2),
    )


def solver(
    train: NetDefinition,
    *tests: NetDefinition,
    rate: float = 0.01,
    momentum: float = 0.9,
    decay: float = 0.0005,
    **fields: Any,
) -> Solver:
    """A solver with momentum and a constant rate."""
    attributes = {"momentum": momentum, "decay": decay}
    fields = {"max_iterations": 100, "seed": 3, "test_iterations": (1,) * len(tests), **fields}
    return Solver(train, tests, "momentum_update", attributes, lambda iteration: rate, **fields)
