"""From a compiled loop and its arguments to work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from demitasse import Work
from demitasse_cpu.threads import divide, together


def ready(loop: Any, *arguments: Any) -> Callable[[], Any]:
    """A loop with its arguments, compiled for their types now and not in the first step."""
    from numba import typeof

    loop.compile(tuple(map(typeof, arguments)))
    return partial(loop, *arguments)


def spread(loop: Any, arguments: Sequence[Any], count: int, parts: int) -> Work:
    """A loop, whose last arguments are begin and end, over ``count`` things in ``parts`` ranges."""
    return together([ready(loop, *arguments, *part) for part in divide(count, parts)])
