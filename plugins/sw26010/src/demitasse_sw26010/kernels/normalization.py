"""Batch normalisation, scales, local response normalisation, softmax, its loss, accuracy, images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from demitasse import Candidate, Request, random_key
from demitasse_sw26010.kernels.program import Place, given, is_single, program_candidate
from demitasse_sw26010.model.ldm import LdmBuffer

LINE = LdmBuffer("x", (64 * 2048,), copies=2)
PLANE = 2048 * 64
"""The numbers of a plane that LDM holds for responses within a channel."""

SUMS = LdmBuffer("sum", (64,), "float64")
Factory = Callable[[Request], Iterable[Candidate]]


def _offer(
    loop: tuple[str, str], inputs: int, outputs: int, numbers: Callable[[Request], Any]
) -> Factory:
    """Return the factory of an operation whose loop takes its inputs, its outputs, and numbers, in this
    order."""

    def offer(request: Request) -> Iterable[Candidate]:
        if not is_single(*request.inputs, *request.outputs):
            return ()
        places = (*(("in", i) for i in range(inputs)), *(("out", i) for i in range(outputs)))
        name = request.operation.name
        return (
            program_candidate(request, name, loop, (LINE,), places, numbers(request), in_place=False),
        )

    return offer


def channels_of(request: Request) -> tuple[int, int, int]:
    """Return the numbers of samples, of channels, and of a plane of the first input."""
    shape = given(request.inputs[0]).shape
    return shape[0], shape[1], prod(shape[2:])


def _along(request: Request) -> tuple[int, int, int]:
    """Return the numbers of elements before, along and after the axis of the classes."""
    shape, axis = given(request.inputs[0]).shape, request.attributes["axis"]
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def _scaled(w: int) -> Callable[[Request], tuple[int, int, int]]:
    def sizes(request: Request) -> tuple[int, int, int]:
        shape, axis = given(request.inputs[0]).shape, request.attributes["axis"]
        middle = given(request.inputs[w]).shape
        return prod(shape[:axis]), prod(middle), prod(shape[axis + len(middle) :])

    return sizes


def _response(request: Request) -> tuple[Any, ...]:
    about = request.attributes
    return (*channels_of(request), about["size"] // 2, float(about["alpha"]), float(about["beta"]))


def _within(loop: str, inputs: int, outputs: int) -> Factory:
    """Return the factory of responses within channels, whose planes must fit into LDM."""
    offer = _offer(("normalization", loop), inputs, outputs, _square)

    def small(request: Request) -> Iterable[Candidate]:
        shape = given(request.inputs[0]).shape
        return offer(request) if len(shape) == 4 and prod(shape[2:]) <= PLANE else ()

    return small


def _square(request: Request) -> tuple[Any, ...]:
    shape, about = given(request.inputs[0]).shape, request.attributes
    last = (float(about["k"]),) if "backward" not in request.operation.name else ()
    numbers = about["size"] // 2, float(about["alpha"]), float(about["beta"])
    return (shape[0] * shape[1], *shape[2:], *numbers, *last)


NORMALISERS = ("valid", "full", "batch_size", "none")


def _labelled(x: int, label: int, places: tuple[Place, ...], loop: str) -> Factory:
    """Return the factory of an operation on predictions and labels; labels may have any type."""

    def offer(request: Request) -> Iterable[Candidate]:
        spec, about = given(request.inputs[x]), request.attributes
        if not is_single(spec, *request.outputs):
            return ()
        shape, axis = spec.shape, about["axis"]
        ignored = about["ignore_label"]
        numbers = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]), int(ignored or 0))
        last = about["top_k"] if "top_k" in about else NORMALISERS.index(about["normalization"])
        return (
            program_candidate(
                request,
                request.operation.name,
                ("loss", loop),
                (LINE, SUMS) if loop == "softmax_loss" else (LINE,),
                places,
                (*numbers, ignored is not None, int(last)),
                in_place=False,
            ),
        )

    return offer


def image_transform(request: Request) -> Iterable[Candidate]:
    """Return the kernel that converts samples to a blob."""
    x, y, mean = given(request.inputs[0]), given(request.outputs[0]), request.inputs[1]
    about = request.attributes
    if not is_single(y) or len(x.shape) != 4:
        return ()
    key = random_key(about["seed"], about["stream"])
    each = mean.shape if mean is not None else (1, 1, 1)
    places: tuple[Place, ...] = (("in", 0), ("in", 1), ("in", 2), ("in", 3), ("out", 0))
    numbers = (x.shape, y.shape[2:], tuple(each), float(about["scale"]), bool(about["random"]))
    more = bool(about["mirror"]), key
    loop = ("image", "image_transform")
    return (
        program_candidate(
            request, "image_transform", loop, (LINE,), places, (*numbers, *more), in_place=False
        ),
    )


FACTORIES: Mapping[str, Factory] = MappingProxyType(
    {
        "batch_norm": _offer(
            ("normalization", "batch_norm"),
            6,
            3,
            lambda r: (
                *channels_of(r),
                float(r.attributes["keep"]),
                bool(r.attributes["averaged"]),
                float(r.attributes["epsilon"]),
                bool(r.attributes["relu"]),
            ),
        ),
        "batch_norm_backward": _offer(
            ("normalization", "batch_norm_backward"),
            6,
            3,
            lambda r: (*channels_of(r), bool(r.attributes["relu"])),
        ),
        "batch_norm_inference": _offer(
            ("normalization", "batch_norm_inference"),
            6,
            1,
            lambda r: (*channels_of(r), float(r.attributes["epsilon"]), bool(r.attributes["relu"])),
        ),
        "scale": _offer(("normalization", "scale"), 3, 1, lambda r: (*_scaled(1)(r), False)),
        "scale_backward": _offer(("normalization", "scale_backward"), 3, 3, _scaled(2)),
        "lrn_across_channels": _offer(
            ("normalization", "local_response"),
            1,
            2,
            lambda r: (*_response(r), float(r.attributes["k"])),
        ),
        "lrn_across_channels_backward": _offer(
            ("normalization", "local_response_backward"), 4, 1, _response
        ),
        "lrn_within_channel": _within("square_response", 1, 2),
        "lrn_within_channel_backward": _within("square_response_backward", 4, 1),
        "softmax": _offer(("loss", "softmax"), 1, 1, _along),
        "softmax_backward": _offer(("loss", "softmax_backward"), 2, 1, _along),
        "softmax_loss": _labelled(
            0, 1, (("in", 0), ("in", 1), ("out", 0), ("out", 1), ("wrong", 0)), "softmax_loss"
        ),
        "softmax_loss_backward": _labelled(
            1, 2, (("in", 0), ("in", 1), ("in", 2), ("out", 0)), "softmax_loss_backward"
        ),
        "accuracy": _labelled(
            0, 1, (("in", 0), ("in", 1), ("out", 0), ("out", 1), ("wrong", 0)), "accuracy"
        ),
        "image_transform": image_transform,
    }
)
