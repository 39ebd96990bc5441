"""Caffe's fillers, which make the initial values of parameters.

Each filler is a callable that takes a shape and a RandomStream and returns an array; random numbers have
the stream's element type. Fans are Caffe's: fan-in is the number of elements of one output (a row of the
weights), fan-out that of one input channel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import RandomStream, file_text, shortened, unknown
from demitasse_caffe.paths import find_file
from demitasse_caffe.schema import is_repeated, number

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Constant:
    """Every element is ``value``."""

    value: float = 0.0

    def __call__(self, shape: Shape, stream: RandomStream) -> np.ndarray:
        return np.full(shape, self.value)


@dataclass(frozen=True)
class Uniform:
    """Uniform in [min, max)."""

    min: float = 0.0
    max: float = 1.0

    def __call__(self, shape: Shape, stream: RandomStream) -> np.ndarray:
        return _array(stream.uniform(shape, self.min, self.max))


@dataclass(frozen=True)
class Gaussian:
    """Normal; with ``sparse`` >= 0, each element is kept with probability sparse / outputs."""

    mean: float = 0.0
    std: float = 1.0
    sparse: int = -1

    def __call__(self, shape: Shape, stream: RandomStream) -> np.ndarray:
        values = _array(stream.normal(shape, self.mean, self.std))
        if self.sparse >= 0:
            values *= _array(stream.uniform(shape)) < self.sparse / outputs(shape)
        return values


@dataclass(frozen=True)
class PositiveUnitball:
    """Uniform in [0, 1), after which each output's elements are divided by their sum."""

    def __call__(self, shape: Shape, stream: RandomStream) -> np.ndarray:
        rows = _array(stream.uniform((outputs(shape), math.prod(shape[1:]))))
        return _array(rows / rows.sum(axis=1, keepdims=True)).reshape(shape)


@dataclass(frozen=True)
class Xavier:
    """Uniform in +-sqrt(3 / n), where ``variance_norm`` selects the fan n (Glorot and Bengio 2010)."""

    variance_norm: str = "FAN_IN"

    def __call__(self, shape: Shape, stream: RandomStream) -> np.ndarray:
        scale = math.sqrt(3.0 / fan(shape, self.variance_norm))
        return _array(stream.uniform(shape, -scale, scale))


@dataclass(frozen=True)
class Msra:
    """Normal with variance 2 / n, where ``variance_norm`` selects the fan n (He et al. 2015)."""

    variance_norm: str = "FAN_IN"

    def __call__(self, shape: Shape, stream: RandomStream) -> np.ndarray:
        return _array(stream.normal(shape, 0.0, math.sqrt(2.0 / fan(shape, self.variance_norm))))


@dataclass(frozen=True)
class Bilinear:
    """Bilinear interpolation in each square kernel, for a deconvolution that upsamples."""

    @staticmethod
    def check(shape: Shape) -> None:
        """Raise ValueError unless the shape has square kernels."""
        if len(shape) != 4 or shape[2] != shape[3]:
            raise ValueError(f"filler bilinear is for square kernels in 4 dimensions, not for {shape}")

    def __call__(self, shape: Shape, stream: RandomStream) -> np.ndarray:
        self.check(shape)
        factor = math.ceil(shape[3] / 2)
        centre = (shape[3] - 1) / (2 * factor)
        line = 1 - np.abs(np.arange(shape[3]) / factor - centre)
        return np.broadcast_to(np.outer(line, line), shape).copy()


@dataclass(frozen=True)
class Diagonal:
    """Makes output n from input n alone: the mean over the kernel times ``values[n]`` (1 beyond the last
    value). From FlowNet's fork."""

    values: tuple[float, ...] = ()

    def __call__(self, shape: Shape, stream: RandomStream) -> np.ndarray:
        filled = np.zeros(shape)
        area = math.prod(shape[2:])
        for n in range(min(shape[:2]) if len(shape) > 1 else 0):
            filled[n, n] = (self.values[n] if n < len(self.values) else 1.0) / area
        return filled


@dataclass(frozen=True)
class Listed:
    """The ``values``, row by row, as many as there are elements. From the forks with spatial
    transformers, which use it for the initial transformation."""

    values: tuple[float, ...]
    source: str

    def check(self, shape: Shape) -> None:
        """Raise ValueError unless there are as many values as elements."""
        if len(self.values) != math.prod(shape):
            raise ValueError(
                f"{self.source} has {len(self.values):,} numbers for the {math.prod(shape):,} elements "
                f"of {shape}"
            )

    def __call__(self, shape: Shape, stream: RandomStream) -> np.ndarray:
        self.check(shape)
        return np.array(self.values).reshape(shape)


def outputs(shape: Shape) -> int:
    """Return the extent of the first axis; 1 for a single number, which has no axes."""
    return shape[0] if shape else 1


def fan(shape: Shape, variance_norm: str) -> float:
    """Return the number of elements n that xavier and msra scale by."""
    count = math.prod(shape)
    fan_in = count / outputs(shape)
    fan_out = count / shape[1] if len(shape) > 1 else count
    return {"FAN_IN": fan_in, "FAN_OUT": fan_out, "AVERAGE": (fan_in + fan_out) / 2}[variance_norm]


def filler(message: Any, shape: Shape) -> Callable[[Shape, RandomStream], np.ndarray]:
    """Return the filler of a FillerParameter for an array of a shape. Raise ValueError for an unknown
    type (with the nearest one), for parameters that nothing can be drawn from, and for a shape that the
    filler cannot fill."""
    if message.type not in _MAKERS:
        raise ValueError(unknown("filler", message.type, _MAKERS))
    made = _MAKERS[message.type](message)
    if isinstance(made, Uniform) and made.min > made.max:
        raise ValueError(f"filler uniform has a min of {made.min} above its max of {made.max}")
    if isinstance(made, Gaussian) and made.std < 0:
        raise ValueError(f"filler gaussian has a std of {made.std}; 0 or more is needed")
    if isinstance(made, Bilinear | Listed):
        made.check(shape)
    return made


def fillers_beside(message: Any, beside: str) -> Any:
    """Return the message of a layer with its fillers' files located relative to the net's file. Raise
    ModelError if a file does not exist."""
    if not any(each.file for each in _fillers_of(message)):
        return message
    made = type(message)()
    made.CopyFrom(message)
    for each in _fillers_of(made):
        if each.file:
            each.file = str(find_file(each.file, beside, "the filler's file"))
    return made


def _fillers_of(message: Any) -> Iterator[Any]:
    for field, value in message.ListFields():
        if field.message_type is not None and not is_repeated(field):
            if field.message_type.name == "FillerParameter":
                yield value
            else:
                yield from _fillers_of(value)


def _from_file(message: Any) -> Listed:
    if not message.file:
        raise ValueError("filler file needs a file")
    text = file_text(Path(message.file)).split()
    try:
        values = tuple(map(float, text))
    except ValueError as error:
        raise ValueError(f"{message.file}: {shortened(error)}") from error
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{message.file}: contains numbers that are not finite")
    return Listed(values, message.file)


def _norm(message: Any) -> str:
    return str(message.VarianceNorm.Name(message.variance_norm))


def _array(values: Any) -> np.ndarray:
    return np.asarray(values)


_MAKERS: dict[str, Callable[[Any], Callable[[Shape, RandomStream], np.ndarray]]] = {
    "bilinear": lambda message: Bilinear(),
    "constant": lambda message: Constant(number(message.value)),
    "diagonal": lambda message: Diagonal(tuple(map(number, message.diag_val))),
    "file": _from_file,
    "gaussian": lambda message: Gaussian(number(message.mean), number(message.std), message.sparse),
    "msra": lambda message: Msra(_norm(message)),
    "positive_unitball": lambda message: PositiveUnitball(),
    "uniform": lambda message: Uniform(number(message.min), number(message.max)),
    "value": lambda message: Listed(tuple(map(number, message.values)), "filler value"),
    "xavier": lambda message: Xavier(_norm(message)),
}
