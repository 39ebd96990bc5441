"""Requests for statistics of a batch that several workers share, as in a plan of one of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from demitasse import Place, Request, TensorSpec
from demitasse.operations import REQUIRED, Operation
from demitasse_conformance.nets import SEED

WORDS = (
    *("channel_moments", "settle_moments", "batch_norm_whole_backward"),
    *("count_labels", "over_divisor"),
)
"""The operations; what workers exchange between them, the trainer computes."""

SHAPES = ((6, 16, 5, 3), (4, 5, 3, 2), (7, 9))
"""Images with an even and an odd number of channels, and vectors."""


def shared_batch_requests(
    vocabulary: Mapping[str, Operation], place: Place, precision: str
) -> Iterator[tuple[Request, list[Any]]]:
    """Yield requests for the operations of this kind in a vocabulary, with values of their inputs."""
    real = "float64" if precision == "f64" else "float32"
    for name, values, given in _cases(real):
        if (word := vocabulary.get(name)) is None:
            continue
        attributes = {**word.attributes, **given}
        assert REQUIRED not in attributes.values()
        shapes = {o.name: v if v is None else v.shape for o, v in zip(word.inputs, values, strict=True)}
        kinds = {None: values[0].dtype.name, "real": real}
        made = zip(word.outputs, word.shapes(shapes, attributes), strict=True)
        outputs = [TensorSpec(tuple(s), kinds.get(o.dtype, o.dtype or real)) for o, s in made]
        specs = tuple(v if v is None else TensorSpec(v.shape, v.dtype.name) for v in values)
        yield Request(word, specs, tuple(outputs), attributes, place, precision), values


def _cases(real: str) -> Iterator[tuple[str, list[Any], dict[str, Any]]]:
    """Yield operations with values of their inputs, and attributes. Another worker has as many samples
    as this one, with other statistics."""
    random = np.random.default_rng(SEED)
    for shape in SHAPES:
        channels, axes = shape[1], (0, *range(2, len(shape)))
        x, dy = (random.standard_normal(shape).astype(real) for _ in range(2))
        yield "channel_moments", [x], {}
        wide = x.astype(np.float64)
        n = 2.0 * x.size / channels
        moments = np.concatenate([2.2 * wide.sum(axes), 2.5 * (wide**2).sum(axes), [n]])
        kept = [random.uniform(0.5, 2, size).astype(real) for size in (channels, channels, 1)]
        for averaged in (False, True):
            about = {"keep": 0.9, "epsilon": 0.01, "averaged": averaged}
            yield "settle_moments", [moments, *kept], about
        average, inverse, w, b = random.uniform(0.5, 1.5, (4, channels)).astype(real)
        sums = random.standard_normal(2 * channels)
        for relu, learned in itertools.product((False, True), repeat=2):
            scales: Sequence[Any] = [w, b] if learned else [None, None]
            calm = _away_from_kink(dy, x, average, inverse, *scales) if relu else dy
            operands = [calm, x, *scales, average, inverse, sums, moments]
            yield "batch_norm_whole_backward", operands, {"relu": relu}
    for kind in ("int64", real):
        label = random.integers(0, 4, (6, 5, 3)).astype(kind)
        yield "count_labels", [label], {"ignore_label": 2}
    for divisor in (0.0, 12.0):
        yield "over_divisor", [np.array(1.5, real), np.array([divisor])], {"share": 0.25}


def _away_from_kink(dy: Any, x: Any, average: Any, inverse: Any, w: Any, b: Any) -> Any:
    """Return dy, but 0 where rounding to 16 bits could put a result on the other side of the ReLU's
    kink."""
    along = (-1, *[1] * (x.ndim - 2))
    z = (x - average.reshape(along)) * inverse.reshape(along)
    z = z if w is None else z * w.reshape(along) + b.reshape(along)
    return np.where(np.abs(z) < 0.1, 0, dy).astype(dy.dtype)
