"""Losses of pairs of tensors, and hinge losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from demitasse import Candidate, Request
from demitasse_sw26010.kernels.normalization import LINE, NORMALISERS, SUMS
from demitasse_sw26010.kernels.program import Place, given, is_single, program_candidate

Factory = Callable[[Request], Iterable[Candidate]]


def _offer(
    loop: str,
    places: tuple[Place, ...],
    x: int,
    numbers: Callable[[tuple[int, ...], Any], tuple[Any, ...]],
) -> Factory:
    """Return the factory of a loss, or of its gradient, whose predictions are input ``x``."""

    def offer(request: Request) -> Iterable[Candidate]:
        floats = [spec for i, spec in enumerate(request.inputs) if i <= x + 1]
        name, about = request.operation.name, request.attributes
        if not is_single(*(floats if "hinge" not in loop else floats[: x + 1])):
            return ()
        sizes = numbers(given(request.inputs[x]).shape, about)
        return (
            program_candidate(
                request, name, ("distance", loop), (LINE, SUMS), places, sizes, in_place=False
            ),
        )

    return offer


def _size(shape: tuple[int, ...], about: Any) -> tuple[Any, ...]:
    return prod(shape), shape[0]


def _normalised(shape: tuple[int, ...], about: Any) -> tuple[Any, ...]:
    ignored = about["ignore_label"]
    kind = NORMALISERS.index(about["normalization"])
    return prod(shape), shape[0], int(ignored or 0), ignored is not None, kind


def _margin(shape: tuple[int, ...], about: Any) -> tuple[Any, ...]:
    return shape[0], prod(shape[1:]), float(about["margin"]), bool(about["legacy"])


def _hinge(shape: tuple[int, ...], about: Any) -> tuple[Any, ...]:
    return shape[0], prod(shape[1:]), about["norm"] == "L2"


_IN = tuple(("in", i) for i in range(4))
_LOSS, _SECOND, _WRONG = ("out", 0), ("out", 1), ("wrong", 0)
FACTORIES: Mapping[str, Factory] = MappingProxyType(
    {
        "half_squared_distance": _offer("half_squared_distance", (*_IN[:2], _LOSS), 0, _size),
        "half_squared_distance_backward": _offer(
            "half_squared_distance_backward", (*_IN[:3], _LOSS, _SECOND), 1, _size
        ),
        "sigmoid_cross_entropy_loss": _offer("sigmoid_cross_entropy", (*_IN[:2], _LOSS), 0, _normalised),
        "sigmoid_cross_entropy_loss_backward": _offer(
            "sigmoid_cross_entropy_backward", (*_IN[:3], _LOSS), 1, _normalised
        ),
        "contrastive_loss": _offer("contrastive", (*_IN[:3], _LOSS), 0, _margin),
        "contrastive_loss_backward": _offer("contrastive_backward", (*_IN, _LOSS, _SECOND), 1, _margin),
        "hinge_loss": _offer("hinge", (*_IN[:2], _LOSS, _WRONG), 0, _hinge),
        "hinge_loss_backward": _offer("hinge_backward", (*_IN[:3], _LOSS), 1, _hinge),
    }
)
