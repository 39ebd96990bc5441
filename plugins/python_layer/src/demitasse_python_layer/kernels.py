"""The kernels, which call a user's object on plain arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from demitasse import Candidate, Request, Work


def candidates(request: Request) -> Iterable[Candidate]:
    """Return one candidate for each of the plugin's own operations."""
    made = {"python_forward": _forward, "python_backward": _backward}.get(request.operation.name)
    return [] if made is None else [made(request)]


def _forward(request: Request) -> Candidate:
    user = request.attributes["layer"]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        given, learned = inputs[1:], len(user.parameters)
        bottoms, parameters = given[: len(given) - learned], given[len(given) - learned :]

        return _Call(lambda: user.forward(bottoms, parameters, outputs))

    return Candidate("Python", bind, in_place=False)


def _backward(request: Request) -> Candidate:
    user, wanted = request.attributes["layer"], request.attributes["wanted"]

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        tops, learned = len(user.tops), len(user.parameters)
        dtops, made, given = inputs[:tops], inputs[tops : 2 * tops], inputs[2 * tops :]
        bottoms, parameters = given[: len(given) - learned], given[len(given) - learned :]

        return _Call(lambda: user.backward(dtops, made, bottoms, parameters, outputs, wanted))

    return Candidate("Python", bind, in_place=False)


class _Call:
    """A call of a user's object, whose errors already name the layer."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __call__(self) -> None:
        self._call()

    def named(self, layer: str) -> None:
        """Do nothing: the object knows its layer."""
