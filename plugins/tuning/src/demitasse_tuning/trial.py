"""Timing the candidates of one request against each other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from demitasse import (
    PLAIN,
    Candidate,
    DemitasseError,
    PluginError,
    Request,
    TensorSpec,
    Work,
    prepare,
    raised,
)
from demitasse_tuning.scratch import Operands, Scratch, operand, wanted
from demitasse_tuning.waiting import Waits, disturbed, waited

log = logging.getLogger("demitasse.tuning")

EQUAL = 1.03
"""The factor below which two times count as equal. Among equal candidates, the one that takes the least
memory besides its operands wins, in units of ``ROOM``, then the preferred one, so that plans stay the
same."""

ROOM = 16 * 2**20
"""In bytes; smaller differences do not matter for a choice."""

HOPELESS = 3.0
"""A first call that takes this many times as long as the best one ends a candidate's trial."""

BEHIND = 2.0
"""A candidate that is slower than the best by this factor after one turn is not called again. A smaller
factor would trust a single call: calls of 0.07 and of 0.12 ms were seen for the same kernel."""

CLOSE = 1.25
"""A candidate that is slower than the best by this factor after two turns gets no third one; nor a
second one if its two calls agree within this factor. By accident a call may be too slow, though hardly
twice by the same amount, but it is never too fast."""

FIRST_CALL = 0.5e-3
"""In seconds. A shorter first call may be the cost of any first call (reading code, providing memory)
rather than of the kernel, and does not end a trial."""

START = 50e-3
"""In seconds. A kernel's very first call in a process, if shorter than this, may have started threads or
loaded code (6 ms were seen for a call of 0.1 ms), and a call that is the first to write to memory may
have waited for it (10 ms instead of 1). Such a call is repeated before it can end the kernel's trial."""

RUNS = 10
"""Once all calls together took this many times the fastest one, no further calls begin (except the first
of each candidate and one more of the two fastest)."""

COPY = 12e9
"""The bytes per second that a thread reads or writes in a reorder. Assumed, not measured: two copies
that compete for memory vary by tens of percent, and plans would vary with them."""

SMALL = 64 * 1024
"""In bytes; reordering less than this is not counted."""

PARAMETERS = ("w", "b")
"""Operands that are a plan's parameters. They take the layout that their first reader requests."""


@dataclass(frozen=True)
class Outcome:
    """The seconds of each candidate, including the reorders that it makes necessary (None if it failed);
    the position of the chosen one; and whether other programs were using the cores meanwhile."""

    seconds: tuple[float | None, ...]
    best: int
    disturbed: bool = False


def compare(
    plugin: str,
    request: Request,
    candidates: Sequence[Candidate],
    scratch: Scratch,
    clock: Callable[[], float],
    met: set[str],
    waits: Waits = waited,
) -> Outcome | None:
    """Try a plugin's candidates on made-up values and return the outcome, or None if none of them ran.
    ``met`` has the kernels that were called in this process; new ones are added to it. Raises
    MemoryError if there is no room for the operands, PluginError for a fault in a kernel.

    Each candidate is called once, to warm up. Those that are not hopeless then take turns, the fastest
    first: three turns if a call takes under 20 ms (two for candidates that are not close by then), two
    under 60 ms, otherwise one. The best call counts.
    """
    operands = Operands(request, candidates, scratch)
    extra = [reorder_seconds(request, candidate) for candidate in candidates]
    works, first, delayed = dict[int, Work](), dict[int, float](), set[int]()
    for i, candidate in enumerate(candidates):
        with _trying(plugin, request, candidate):
            works[i] = _bound(candidate, *operands.of(candidate))
    prepare([*works.values()])
    before, begun = waits(), clock()
    for i, work in list(works.items()):
        candidate = candidates[i]
        if operands.meets_new(candidate) or candidate.kernel not in met:
            delayed.add(i)
        with _trying(plugin, request, candidate):
            first[i] = _timed(work, clock)
        if i not in first:
            del works[i]
    for i in list(works):
        if _hopeless(first[i], first) and i in delayed and first[i] < START:
            first[i] = _timed(works[i], clock)
        if _hopeless(first[i], first):
            del works[i]
    met.update(candidates[i].kernel for i in first)
    if not first:
        return None
    best = _take_turns(works, first, extra, clock)
    busy = disturbed(before, waits(), clock() - begun)
    seconds = {i: best.get(i, first[i]) + extra[i] for i in first}
    chosen = choose(request, candidates, {i: seconds[i] for i in best})
    return Outcome(tuple(seconds.get(i) for i in range(len(candidates))), chosen, busy)


def choose(request: Request, candidates: Sequence[Candidate], seconds: Mapping[int, float]) -> int:
    """Return the position of the fastest candidate or, among equally fast ones, of the one that takes
    the least memory."""
    limit = EQUAL * min(seconds.values())
    equal = [i for i, taken in seconds.items() if taken <= limit]
    if len(equal) == 1:
        return equal[0]
    return min(equal, key=lambda i: (_room(request, candidates[i]) // ROOM, i))


@contextmanager
def _trying(plugin: str, request: Request, candidate: Candidate) -> Iterator[None]:
    """End the block with a warning if the kernel fails; raise PluginError for a fault in it."""
    try:
        yield
    except (DemitasseError, MemoryError) as error:
        log.warning("kernel %r failed when it was tried: %s", candidate.kernel, error)
    except Exception as error:
        shapes = ", ".join(str(spec) for spec in request.inputs if spec is not None)
        what = f"kernel {candidate.kernel!r} of {request.operation.name} of {shapes}"
        told = raised(error, "when it was tried")
        raise PluginError(f"plugin {plugin!r}, {what}: raised {told}") from error


def _bound(candidate: Candidate, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
    """Return a candidate's work, in parts if it offers that, because a plan for one worker uses it that
    way: what stays in the caches is not written to memory."""
    if candidate.parts == 1 or candidate.bind_part is None:
        return candidate.bind(inputs, outputs, workspace)
    whole, *rest = outputs
    stretch = whole.reshape(-1)[: whole.size // candidate.parts]
    bind = candidate.bind_part
    parts = [bind(i, inputs, [stretch, *rest], workspace) for i in range(candidate.parts)]

    def work() -> None:
        for part in parts:
            part()

    vars(work)["prepare"] = lambda: prepare(parts)
    return work


def _hopeless(first: float, others: Mapping[int, float]) -> bool:
    """Return whether a candidate's first call took so much longer than one of ``others`` that it ends
    the trial."""
    return first > max(FIRST_CALL, HOPELESS * min(others.values()))


def _take_turns(
    works: Mapping[int, Work],
    first: Mapping[int, float],
    extra: Sequence[float],
    clock: Callable[[], float],
) -> dict[int, float]:
    """Return the best seconds of each candidate that had a turn."""
    if len(works) == 1:
        return {i: first[i] for i in works}
    spent, fastest = sum(first.values()), min(first.values())
    alive = sorted(works, key=lambda i: first[i] + extra[i])
    best = dict[int, float]()
    for i in alive:
        if best and _hopeless(first[i], best):
            continue
        if len(best) < 2 or spent + first[i] <= RUNS * fastest:
            best[i] = _timed(works[i], clock)
            spent += best[i]
            fastest = min(fastest, best[i])
    for turn in range(1, _calls(fastest)):
        least = min(seconds + extra[i] for i, seconds in best.items())
        sure = {i for i in best if turn > 1 or first[i] <= CLOSE * best[i]}
        alive = [
            i
            for i in alive
            if i in best and best[i] + extra[i] <= (CLOSE if i in sure else BEHIND) * least
        ]
        if len(alive) < 2 or spent + sum(best[i] for i in alive) > RUNS * fastest:
            break
        for i in alive:
            seconds = _timed(works[i], clock)
            spent += seconds
            best[i] = min(best[i], seconds)
    return best


def reorder_seconds(request: Request, candidate: Candidate) -> float:
    """Return the seconds that it takes to reorder the operands into the layouts that a candidate
    requests and to reorder gradients of parameters back: the bytes read and written, at ``COPY`` per
    thread. Other results stay in their kernel's layout. Fixed parameters are reordered once, which is
    not counted."""
    moved = sum(lies.nbytes + wish.nbytes for lies, wish in _reorders(request, candidate))
    return moved / (COPY * request.place.threads)


def _room(request: Request, candidate: Candidate) -> int:
    """Return the bytes of a candidate's workspace and of reordered copies of its operands."""
    return candidate.workspace + sum(wish.nbytes for _, wish in _reorders(request, candidate))


def _reorders(request: Request, candidate: Candidate) -> Iterator[tuple[TensorSpec, TensorSpec]]:
    """Yield the present and the requested layout of each operand that has to be reordered."""
    count, pairs = len(request.inputs), list[tuple[TensorSpec, TensorSpec]]()
    wants = wanted(request, candidate)
    for i, (lies, wish) in enumerate(zip(request.inputs, wants, strict=False)):
        once = request.fixed and operand(request, i).name in PARAMETERS
        if lies is not None and wish is not None and not once:
            pairs.append((_settled(request, i, lies, wish), wish))
    results = zip(request.operation.outputs, request.outputs, wants[count:], strict=False)
    for result, lies, wish in results:
        if lies is not None and wish is not None and result.name[1:] in PARAMETERS:
            pairs.append((lies, wish))
    for lies, wish in pairs:
        if lies.layout == wish.layout or lies.nbytes <= SMALL:
            continue
        if lies.layout.places(lies.shape) != wish.layout.places(wish.shape):
            yield lies, wish


def _settled(request: Request, i: int, lies: TensorSpec, wish: TensorSpec) -> TensorSpec:
    """Return how input ``i`` lies when it is read. A parameter whose layout is still open takes the
    requested one, in its own element type. Backward passes find all layouts settled; a backward
    operation that has gradients of its own is assumed to as well."""
    name = request.operation.name
    forward = bool(request.operation.gradients) and "_backward" not in name
    if forward and operand(request, i).name in PARAMETERS and lies.layout == PLAIN:
        return replace(wish, layout=replace(wish.layout, stored=""))
    return lies


def _calls(seconds: float) -> int:
    return 3 if seconds < 20e-3 else 2 if seconds < 60e-3 else 1


def _timed(work: Work, clock: Callable[[], float]) -> float:
    start = clock()
    work()
    return clock() - start
