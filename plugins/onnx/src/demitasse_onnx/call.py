"""A node of a model as an operator's call, and what the layer type makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, RandomStream, Tensor, shortened, unknown

Shape = tuple[int, ...]
Made = Tensor | np.ndarray
Value = Tensor | np.ndarray | None
"""What a node reads: a tensor that the net computes, a constant, or None for an omitted input."""

_OF_MEMORY = "consumed_inputs"
"""An attribute from before version 6: it allows a node to reuse memory, and does not
affect its result."""

LARGEST, MOST_AXES = 2**31, 32
"""The maximum number of elements and of axes of a blob; a file with more is damaged, not a net."""


@dataclass(frozen=True)
class Call:
    """A node of a model. ``operands`` has, for each input, the number of a bottom, the array of a
    constant, or None if it is omitted. ``zeros`` are what a preceding Pad put around the input, in the
    order of ``pads`` (all beginnings, then all ends). Calls with the same name in ``shared`` share their
    learned arrays. ``hint`` is a possible reason for an error about shapes. ``kinds`` has the kind of
    numbers of each input. The arrays of a call ``inside`` a branch are constants."""

    operator: str
    opset: int
    attributes: Mapping[str, Any]
    operands: tuple[int | np.ndarray | None, ...] = ()
    zeros: Shape = ()
    shared: str = ""
    hint: str = ""
    kinds: Sequence[str] = ()
    inside: bool = False


@dataclass(frozen=True)
class Branch:
    """The layers of one of an If's two graphs, the blobs that it returns, the kinds of their numbers,
    and the blobs of other layers that it ``reads``."""

    layers: tuple[Layer, ...]
    outputs: tuple[str, ...]
    reads: tuple[str, ...]
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Operands:
    """A call with its tensors, which the function of an operator works on."""

    call: Call
    attributes: Mapping[str, Any]
    values: Sequence[Value]
    graph: GraphBuilder
    layer: Layer
    learned: Sequence[Tensor] = ()
    fixed_names: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> Any:
        return self.attributes[name]

    def tensor(self, position: int = 0) -> Tensor:
        """Return an input as a tensor, even if it is constant. Raise ValueError if it is
        missing or not numeric."""
        value = self.values[position] if position < len(self.values) else None
        if value is None:
            raise ValueError(f"input {position} is left out, but it is needed")
        if isinstance(value, Tensor):
            return value
        if value.dtype.kind not in "bfiu" or not value.size:
            told = f"{value.dtype.name} of shape {value.shape}"
            raise ValueError(f"input {position} is a constant of {told}; only numbers are supported")
        return self.fixed(f"input{position}", value.astype(np.float64))

    def kind(self, position: int = 0) -> str:
        """Return the kind of an input's numbers; real if it is unknown."""
        kinds = self.call.kinds
        return kinds[position] if position < len(kinds) else "real"

    def constant(self, position: int) -> np.ndarray | None:
        """Return a constant input, or None if it is omitted. Raise ValueError if it is computed."""
        value = self.values[position] if position < len(self.values) else None
        if isinstance(value, Tensor):
            raise ValueError(f"input {position} is computed by the net; only a constant is supported")
        return value

    def has(self, position: int) -> bool:
        """Return whether the call has an input."""
        return position < len(self.values) and self.values[position] is not None

    def apply(self, word: str, *inputs: Tensor | None, **attributes: Any) -> Any:
        """Emit an operation. Raise ValueError if no composed plugin defines it, or if its result would
        be larger than any machine's memory."""
        known = getattr(self.graph, "vocabulary", None)
        if known is not None and word not in known:
            raise ValueError(
                f"needs the operation {word!r}, which no composed plugin defines; 'caffe' brings it"
            )
        made = self.graph.apply(word, *inputs, **attributes)
        for tensor in made if isinstance(made, tuple) else (made,):
            if math.prod(tensor.shape) > LARGEST:
                raise ValueError(f"makes a blob of shape {tensor.shape}, more than {LARGEST} elements")
            if len(tensor.shape) > MOST_AXES:
                raise ValueError(f"makes a blob of {len(tensor.shape)} axes, more than {MOST_AXES}")
        return made

    def fixed(self, name: str, value: Any) -> Tensor:
        """Return a tensor with constants of the layer itself."""
        while name in self.fixed_names:
            name += "'"
        self.fixed_names.add(name)
        return self.graph.constant(f"{self.layer.name}.{name}", np.asarray(value))


@dataclass(frozen=True)
class Given:
    """A filler that returns the array of the file."""

    array: np.ndarray

    def __call__(self, shape: Shape, stream: RandomStream) -> np.ndarray:
        """Return the array; the stream has no effect."""
        return self.array


Expand = Callable[[Operands], Sequence[Made]]
Learned = Callable[[Call, Mapping[str, Any]], Sequence[np.ndarray]]


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator of ONNX.

    ``defaults`` are the attributes that it supports; those that are REQUIRED are None. ``arrays``
    returns the learned parameters among a call's constants; the first ``kept`` of them are not trained.
    """

    name: str
    expand: Expand
    defaults: Mapping[str, Any] = field(default_factory=dict)
    arrays: Learned | None = None
    kept: int = 0

    def learned(self, call: Call) -> list[np.ndarray]:
        """Return the learned parameters of a call. Raise ValueError."""
        return list(self.arrays(call, self.complete(call))) if self.arrays is not None else []

    def complete(self, call: Call) -> dict[str, Any]:
        """Return a call's attributes, completed by the defaults. Raise ValueError for an
        unsupported attribute."""
        given = dict(self.defaults)
        for name, value in call.attributes.items():
            if name == _OF_MEMORY and call.opset < 6:
                continue
            if name not in self.defaults:
                raise ValueError(unknown("attribute", name, self.defaults))
            default = self.defaults[name]
            if default is not None and _kind(value) != _kind(default):
                told = shortened(value, quoted=True)
                raise ValueError(f"attribute {name} is {told}; it must be of the kind of {default!r}")
            given[name] = value
        return given

    def build(self, layer: Layer, values: Sequence[Value], graph: GraphBuilder) -> Sequence[Made]:
        """Emit the operations of a layer whose operands are ``values``. What is made of constants alone
        is constant."""
        call: Call = layer.parameters
        learned = [
            graph.constant(f"{layer.name}[{number}]", array)
            if call.inside
            else graph.parameter(
                tuple(array.shape),
                Given(array),
                rate=0.0 if number < self.kept else 1.0,
                trainable=number >= self.kept,
                shared=f"{call.shared}[{number}]" if call.shared else None,
            )
            for number, array in enumerate(self.learned(call))
        ]
        made = self.expand(Operands(call, self.complete(call), values, graph, layer, learned))
        if len(made) < len(layer.tops):
            raise ValueError(
                f"has {len(layer.tops)} outputs that are used ({', '.join(layer.tops)}); only the "
                f"first {len(made)} can be computed"
            )
        return made


def _kind(value: Any) -> str:
    if isinstance(value, tuple):
        return "list"
    return "number" if isinstance(value, int | float) else type(value).__name__


def constant_of(call: Call, position: int, what: str) -> np.ndarray:
    """Return input ``position`` of a call as numbers. Raise ValueError unless it is a
    constant of the file."""
    value = call.operands[position] if position < len(call.operands) else None
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{what} (input {position}) must be constants in the file")
    if value.dtype.kind != "f":
        raise ValueError(f"{what} (input {position}) are {value.dtype.name}, not real numbers")
    return value.astype(np.float32) if value.dtype.itemsize < 4 else value


def has(call: Call, position: int) -> bool:
    """Return whether a call has an input."""
    return position < len(call.operands) and call.operands[position] is not None
