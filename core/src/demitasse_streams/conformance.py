"""Whether an engine does what ``demitasse_streams`` says of one: a kit for the tests of those who
write engines.

Nothing is proven by a time that something took. What must not be done yet is held back by a gate, an
event of the host that a call in the stream waits for; what must come, comes within a bound, or the
check fails.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse_streams import checks_of_memory as memory
from demitasse_streams import checks_of_order as order
from demitasse_streams import checks_of_use as use
from demitasse_streams.bench import Bench, on_bench, within

if TYPE_CHECKING:
    from demitasse_streams import StreamEngine

CHECKS: tuple[Callable[[Bench], None], ...] = (
    memory.names_and_places,
    memory.pinned_memory,
    memory.copies,
    memory.refusals,
    order.order_in_a_stream,
    order.order_in_the_default_stream,
    order.callers_go_on,
    order.streams_beside_each_other,
    order.waits_across_streams,
    order.events_are_points,
    order.events_of_nothing,
    order.times_of_events,
    order.waits_of_the_caller,
    use.errors_of_calls,
    use.any_thread_enqueues,
    use.as_if_one_after_the_other,
    use.close_does_what_was_enqueued,
    use.use_after_close,
)
"""What one engine is held to; its docstrings are the sentences."""


def check_engine(
    make: Callable[[], StreamEngine],
    array: Callable[[np.ndarray], Any] = np.array,
    *,
    elsewhere: Callable[[np.ndarray], Any] | None = None,
    bound: float = 20.0,
) -> None:
    """Hold an engine to its protocol. ``make`` makes one, anew for each check, and ``array`` an array
    with the values of a NumPy array in that engine's memory (what it returns is read by
    ``numpy.asarray`` and cut by ``[:n]``); ``elsewhere`` the same in another accelerator's memory,
    where there is one. Each check runs in a thread of its own, in which the engine is made, used and
    closed, so that one that hangs fails: what must come must do so within ``bound`` seconds. Raises
    AssertionError that quotes the sentence that does not hold and says what happened."""
    for check in CHECKS:
        within(3 * bound, check, functools.partial(on_bench, make, array, bound, check))
    if elsewhere is not None:
        between = functools.partial(memory.copies_between, elsewhere=elsewhere)
        run = functools.partial(on_bench, make, array, bound, between)
        within(3 * bound, memory.copies_between, run)
    within(3 * bound, use.threads_end, functools.partial(use.threads_end, make))
    several = functools.partial(use.engines_beside_each_other, make, array, bound)
    within(6 * bound, use.engines_beside_each_other, several)
