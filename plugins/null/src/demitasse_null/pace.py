"""Kernels that compute nothing but take the time of a described device, without using a processor."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from demitasse import DescriptionError, Quantity, option_place, shapes_by_operand, unknown

if TYPE_CHECKING:
    from demitasse import Request, Work

SHORTEST = 60e-6
"""The shortest wait, in seconds, that is worth a sleep: Linux ends a sleep about 50 us late."""

LATE = 1e-3
"""The most seconds of oversleeping that later waits make up for. If the machine stood still for longer,
a device would have had nothing to do, so there is nothing to make up for."""

OPTIONS = ("peak",)


class Clock(threading.local):
    """The seconds that the calling thread still has to wait; negative after too long a sleep."""

    owed = 0.0


CLOCK = Clock()
"""Per thread, because a thread belongs to one worker and computes one thing after the other."""


def peak_of(options: Mapping[str, Any]) -> float | None:
    """Return the FLOP/s of the option ``peak``, or None without it. Raises DescriptionError."""
    for name in options:
        if name not in OPTIONS:
            where = option_place(options, "null", name)
            raise DescriptionError(unknown("option", name, OPTIONS, where))
    if "peak" not in options:
        return None
    where = f"{option_place(options, 'null', 'peak')}: peak = "
    if not isinstance(given := options["peak"], str):
        raise DescriptionError(f"{where}{given!r} (valid: a string like '4 TFLOP/s')")
    return Quantity.parse(given, unit="FLOP/s", where=where).value


def flops(request: Request) -> float:
    """Return the number of floating-point operations of a request, by the vocabulary's rule for its
    operation; one for each element of its outputs if there is no rule."""
    operation = request.operation
    if operation.flops is None:
        return float(sum(math.prod(spec.shape) for spec in request.outputs if spec is not None))
    return operation.flops(shapes_by_operand(request), request.attributes)


def waiting(seconds: float) -> Work:
    """Return work that takes this long."""
    clock = CLOCK

    def wait() -> None:
        """Add up short waits until they are worth a sleep, and subtract what a sleep took too long from
        the next."""
        clock.owed += seconds
        if clock.owed >= SHORTEST:
            start = time.perf_counter()
            time.sleep(clock.owed)
            clock.owed = max(-LATE, clock.owed - (time.perf_counter() - start))

    return wait
