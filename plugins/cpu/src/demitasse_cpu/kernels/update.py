"""Solver updates of a slice of flat memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from demitasse import Candidate, Request, Work
from demitasse_cpu.kernels.requests import flat, is_real, parts_for, spec
from demitasse_cpu.kernels.work import spread


def momentum_update(request: Request) -> Iterable[Candidate]:
    parameter, gradient, history, rate = request.inputs
    given = request.attributes
    if not is_real(parameter, gradient, history) or spec(rate).dtype != "float64":
        return ()
    if given["regularization"] not in ("L1", "L2"):
        return ()
    size = prod(spec(parameter).shape)
    parts = parts_for(request, size, size)

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_cpu.loops import elementwise as loops

        segments = given["segments"]
        arguments = (
            *map(flat, inputs),
            np.array([segment[:2] for segment in segments], np.int64).reshape(-1, 2),
            np.array([segment[2:] for segment in segments], np.float64).reshape(-1, 2),
            float(given["momentum"]),
            float(given["decay"]),
            given["regularization"] == "L1",
        )
        return spread(loops.momentum_update, arguments, size, parts)

    return (Candidate("numba loop, one pass", bind),)


FACTORIES = {"momentum_update": momentum_update}
