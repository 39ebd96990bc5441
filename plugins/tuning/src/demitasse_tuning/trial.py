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
"""Times that differ by less are one time: of those candidates the one wins that takes least memory
besides its operands, in units of ``ROOM``, then the preferred one, and plans stay the same."""

ROOM = 16 * 2**20
"""Bytes of which fewer are not worth a choice."""

HOPELESS = 3.0
"""A first call that takes so many times the best one ends a candidate's trial."""

BEHIND = 2.0
"""What is so much slower than the best after a turn is not called again. Less would trust one call: of
one kernel, calls of 0.07 and of 0.12 ms were seen."""

CLOSE = 1.25
"""What is so much slower than the best after two turns has no third, and none after one turn if its two
calls were that much alike: by accident a call is too slow, and not twice alike, but never too quick."""

FIRST_CALL = 0.5e-3
"""Seconds; a first call below may be what first calls cost (code that is read, memory that is found)
rather than what the kernel does, and is no reason to end a trial."""

START = 50e-3
"""Seconds; a kernel's first call of all in a process that takes less may have started threads or loaded
code (6 ms were seen for a call of 0.1 ms), and one that writes memory first may have waited for it (10
ms for 1): it is made again before it ends the kernel's trial."""

RUNS = 10
"""After calls that took so many times the fastest one no further ones begin (the first of each
candidate and one more of the two quickest excepted)."""

COPY = 12e9
"""Bytes a second that a thread reads or writes in a reorder. Assumed, not measured: two copies that
compete for the memory vary by tens of percent, and a plan would vary with them."""

SMALL = 64 * 1024
"""Bytes; to reorder less is not counted."""

PARAMETERS = ("w", "b")
"""Operands in which a plan's parameters come. They lie as the first who reads them wants."""


@dataclass(frozen=True)
class Outcome:
    """Seconds of each candidate with the reorders that it makes necessary, None where it failed, the
    position of the chosen one, and whether others had the cores meanwhile."""

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
    """Try a plugin's candidates on made-up values; None when none of them ran. ``met`` are the kernels
    that were called in this process, and is added to. Raises MemoryError when there is no room for the
    operands, PluginError for a fault in a kernel.

    Each is called once, to warm up. Those that are not hopeless then take turns, the quickest first:
    three times where a call takes under 20 ms (twice what is not close then), twice under 60 ms, else
    once. The best call counts.
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
    """The position of the quickest candidate, or, of those that are as quick, of the one that takes
    least memory."""
    limit = EQUAL * min(seconds.values())
    equal = [i for i, taken in seconds.items() if taken <= limit]
    if len(equal) == 1:
        return equal[0]
    return min(equal, key=lambda i: (_room(request, candidates[i]) // ROOM, i))


@contextmanager
def _trying(plugin: str, request: Request, candidate: Candidate) -> Iterator[None]:
    """Ends where the kernel fails, which is told; raises PluginError for a fault in it."""
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
    """A candidate's work: in parts where it offers that, for a plan of one worker takes it so, and what
    stays in the caches is not written to memory."""
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
    """Whether a candidate's first call took so much longer than one of ``others`` that it ends its
    trial."""
    return first > max(FIRST_CALL, HOPELESS * min(others.values()))


def _take_turns(
    works: Mapping[int, Work],
    first: Mapping[int, float],
    extra: Sequence[float],
    clock: Callable[[], float],
) -> dict[int, float]:
    """The best seconds of those that had a turn."""
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
    """What it takes to bring the operands into the layouts that a candidate wants and, of parameters'
    gradients, to bring them back: the bytes read and those written at ``COPY`` a thread. Other results
    lie as their kernel leaves them. Parameters that are fixed are brought once, which is not counted."""
    moved = sum(lies.nbytes + wish.nbytes for lies, wish in _reorders(request, candidate))
    return moved / (COPY * request.place.threads)


def _room(request: Request, candidate: Candidate) -> int:
    """Bytes of its workspace and of copies of its operands."""
    return candidate.workspace + sum(wish.nbytes for _, wish in _reorders(request, candidate))


def _reorders(request: Request, candidate: Candidate) -> Iterator[tuple[TensorSpec, TensorSpec]]:
    """How what has to be reordered lies, and how the candidate wants it."""
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
    """How input ``i`` lies when it is read. A parameter whose layout nobody settled takes the one that
    is wished, in its own element type; backward passes find all of them settled (and so, it is taken,
    does a word that is one although it has gradients of its own)."""
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
