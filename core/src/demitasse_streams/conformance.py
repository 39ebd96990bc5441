"""A test kit for authors of stream engines: does an engine do what ``demitasse_streams`` says?

No check relies on how long something took. What must not be done yet is held back by a gate (an event of
the host that a call in the stream waits for). What must happen has to happen within a time limit, or the
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
"""The checks of one engine; their docstrings are the sentences that must hold."""


def check_engine(
    make: Callable[[], StreamEngine],
    array: Callable[[np.ndarray], Any] = np.array,
    *,
    elsewhere: Callable[[np.ndarray], Any] | None = None,
    bound: float = 20.0,
) -> None:
    """Check that an engine follows the protocol ``demitasse.StreamEngine``.

    - ``make`` returns a new engine for each check;
    - ``array`` returns an array in that engine's memory with the values of a NumPy array (it is read by
      ``numpy.asarray`` and sliced by ``[:n]``);
    - ``elsewhere`` does the same in another accelerator's memory, if there is one;
    - ``bound`` is the time limit, in seconds, for everything that must happen.

    Each check runs in a thread of its own, in which the engine is made, used and closed, so that an
    engine that hangs fails the check. Raises AssertionError that quotes the sentence that does not hold
    and says what happened."""
    for check in CHECKS:
        within(3 * bound, check, functools.partial(on_bench, make, array, bound, check))
    if elsewhere is not None:
        between = functools.partial(memory.copies_between, elsewhere=elsewhere)
        run = functools.partial(on_bench, make, array, bound, between)
        within(3 * bound, memory.copies_between, run)
    within(3 * bound, use.threads_end, functools.partial(use.threads_end, make))
    several = functools.partial(use.engines_beside_each_other, make, array, bound)
    within(6 * bound, use.engines_beside_each_other, several)
