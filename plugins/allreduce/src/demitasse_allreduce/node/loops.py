"""The compiled work of a node's rank: it waits for the others, stages, adds, and takes the sums.

The work of a call consists of steps with a wait between them. It can be left in any wait and resumed
later: its position is in its record. All state is in rows of int64, named below; loops get the address
of a row.

- STATE, one per node and process: where the segments are, and what has been done so far.
- CALL, one per prepared call: what to add.
- CONTROL, in shared memory, with each word in a cache line of its own. It is followed by lines for each
  rank: two lines, one for each parity of the call, with what the rank asked for; a line that counts the
  pieces taken of its share (TICKET of STATE is the value of these counters before the call); and a line
  with its processor.
- PROCESSORS, one per node and process: the processors that the ranks have, if these are no more than the
  ranks."""

from __future__ import annotations

from typing import Any

from numba import types

from demitasse import compiled_callback, compiled_loop
from demitasse_allreduce.node.words import (
    LINE,
    add_element,
    add_lines,
    call,
    call_seven,
    copy,
    exchange_lines,
    fetch_add,
    futex,
    get,
    look,
    pause,
    publish,
    put,
)

RANK, SIZE, CONTROL, ROUND, TURN, TICKET, CALLS, SPINS, YIELDS, SYSCALL, FUTEX, YIELD, SECONDS = range(
    13
)
NANOSECONDS, STAGES, CHUNK, SMALL, PIECE, ARRIVED, ADD, PROCESSORS, STATE_WORDS = range(13, 22)
"""Words of STATE. ADD is the address of ``add``; STAGES the address of a table of all ranks' stages,
each of PARTS chunks; PROCESSORS the address of that row, or 0."""

MASK_WORDS = 16
"""Words of a set of processors, as the system calls use it: a bit for each of 1,024."""

GETCPU, GET_AFFINITY, SET_AFFINITY, COUNT, CPU, OLD = range(6)
NEW, DOMAINS = OLD + MASK_WORDS, OLD + 2 * MASK_WORDS
LISTED = DOMAINS + 64 * MASK_WORDS
"""Words of PROCESSORS: addresses of functions of the C library, the number of processors, the place
where a call puts a processor's number, two sets of processors, the memory domain of each of 1,024
processors, and the list of processors."""

PARTS = 2
"""Parts of a stage. While a chunk is added in one part, the sums of the previous chunk are copied out
of the other part and the next chunk is copied in, line by line, so that a cache line goes to another
rank and comes back once. With three parts, where all lines were copied out and then all in, 2 ranks
took 1.0 to 1.3 ms for 16 MB; now they take 0.81 to 0.94.

A sum replaces the summand in every sibling's stage. If ranks add slices, each therefore overwrites only
lines that another rank wrote last. A line that another rank has only read is expensive to overwrite,
because its owner has to ask all caches: 7 ns per line for processors that share a last-level cache and
28 ns for others (chiplets, sockets), compared with 1 and 3 ns if the reader wrote the line back. When
the sums were in one stage for all ranks, 4 ranks on two processors took 9.4 ms for 16 MB if each
processor has a last-level cache of its own, and now 3.2 ms; if they share one, 0.15 and now 0.11 ms for
1 MB."""

STATE, KIND, STEP, ADDRESS, NBYTES, PLACE, ELEMENT, OWNED, SIBLINGS, NUMBER, ITEMSIZE, SCRATCH = range(
    12
)
CALL_WORDS = 12
"""Words of CALL. PLACE is the array's place in shared memory (-1: it is in the rank's own memory).
SIBLINGS is the address of a table of the siblings' arrays there, OWNED that of a table of the ranks'
(start, stop) in bytes. ELEMENT tells the other ranks the element type; elements are added as
``ADDED[NUMBER]``, of ITEMSIZE bytes. SCRATCH is the address of a table with the address of each rank's
summands of a chunk, followed by a table with the offset of each rank's array from the start of a cache
line, in bytes."""

ARRIVALS, GENERATION, SLEEPERS, ABORT, POSTS = (8 * i for i in range(5))
"""Words of CONTROL."""

ALLREDUCE, REDUCE_SCATTER, ALLGATHER, BARRIER = range(4)
"""Kinds of call."""

DONE, WAITING, ABORTED, DIFFERENT, OTHER = range(5)
"""Results of loops."""

_STAGED, _MIXED = 1000, 999
"""Steps of a call whose arrays are staged: the step of the first chunk, and the step before it, if only
some of the arrays lie at the same place in shared memory."""


@compiled_loop
def _arrive(state: int) -> None:
    """Tell the others that this rank is here. The last rank to arrive lets all continue."""
    control = get(state, CONTROL)
    put(state, ROUND, get(state, ROUND) + 1)
    put(state, ARRIVED, 1)
    target = get(state, ROUND)
    if fetch_add(control, ARRIVALS, 1) + 1 == get(state, SIZE) * target:
        publish(control, GENERATION, target)
        if look(control, SLEEPERS) > 0:
            futex(state + 8 * SYSCALL, control + 8 * GENERATION, -1, 0)


@compiled_loop
def _wait(state: int) -> int:
    """Wait until all ranks have arrived, for at most the timeout of one futex wait. Returns DONE,
    WAITING or ABORTED."""
    control, target = get(state, CONTROL), get(state, ROUND)
    for _ in range(get(state, SPINS)):
        if look(control, GENERATION) >= target:
            put(state, ARRIVED, 0)
            return DONE
        pause(0)
    for _ in range(get(state, YIELDS)):
        if look(control, GENERATION) >= target:
            put(state, ARRIVED, 0)
            return DONE
        call(get(state, YIELD))
    fetch_add(control, SLEEPERS, 1)
    seen = look(control, GENERATION)
    if seen < target and look(control, ABORT) == 0:
        # A futex compares only 32 bits.
        futex(state + 8 * SYSCALL, control + 8 * GENERATION, seen & 0xFFFFFFFF, state + 8 * SECONDS)
    fetch_add(control, SLEEPERS, -1)
    if look(control, GENERATION) >= target:
        put(state, ARRIVED, 0)
        return DONE
    return ABORTED if look(control, ABORT) != 0 else WAITING


@compiled_loop
def _processor(processors: int) -> int:
    """Return the processor that this thread runs on."""
    put(processors, CPU, 0)
    call_seven(get(processors, GETCPU), processors + 8 * CPU, 0, 0, 0, 0, 0, 0)
    cpu: int = get(processors, CPU)
    return cpu


@compiled_loop
def _move(processors: int, cpu: int) -> None:
    """Move this thread to a processor, if it is allowed there. Afterwards the thread may run on the same
    set of processors as before."""
    old, new, nbytes = processors + 8 * OLD, processors + 8 * NEW, 8 * MASK_WORDS
    for word in range(MASK_WORDS):
        put(old, word, 0)
        put(new, word, 0)
    call_seven(get(processors, GET_AFFINITY), 0, nbytes, old, 0, 0, 0, 0)
    if get(old, cpu // 64) >> cpu % 64 & 1:
        put(new, cpu // 64, 1 << cpu % 64)
        call_seven(get(processors, SET_AFFINITY), 0, nbytes, new, 0, 0, 0, 0)
        call_seven(get(processors, SET_AFFINITY), 0, nbytes, old, 0, 0, 0, 0)


@compiled_loop
def spread(state: int) -> None:
    """Publish the processor that this rank runs on, and leave it if it has at least two ranks more than
    another processor of the same memory domain. The system leaves ranks that sleep briefly where they
    are: with 3 ranks on one of two processors and the fourth on the other, adding 16 MB took 5.2 ms;
    with 2 and 2 it takes 3.3."""
    processors = get(state, PROCESSORS)
    if processors == 0:
        return
    rank, size, count = get(state, RANK), get(state, SIZE), get(processors, COUNT)
    lines = get(state, CONTROL) + 8 * POSTS + 3 * LINE * size
    cpu, here = _processor(processors), 0
    if look(lines + LINE * rank, 0) != cpu + 1:
        publish(lines + LINE * rank, 0, cpu + 1)
    for other in range(size):
        if look(lines + LINE * other, 0) == cpu + 1:
            here += 1
            if other > rank:
                return  # only the last rank on a processor moves
    if here * count <= size or cpu >= 64 * MASK_WORDS:
        return
    target, least = -1, here - 1
    for k in range(count):
        free = get(processors, LISTED + k)
        if get(processors, DOMAINS + free) == get(processors, DOMAINS + cpu):
            there = 0
            for other in range(size):
                there += look(lines + LINE * other, 0) == free + 1
            if there < least:
                target, least = free, there
    if target >= 0:
        _move(processors, target)
        publish(lines + LINE * rank, 0, _processor(processors) + 1)


@compiled_loop
def _post(state: int, record: int) -> None:
    """Publish what this rank asks for, for the others to compare."""
    calls = get(state, CALLS)
    line = get(state, CONTROL) + 8 * POSTS + LINE * (2 * get(state, RANK) + calls % 2)
    put(line, 0, get(record, KIND))
    put(line, 1, get(record, NBYTES))
    put(line, 2, get(record, ELEMENT))
    put(line, 3, get(record, PLACE))
    put(line, 4, get(record, ADDRESS) % LINE)


@compiled_loop
def _compare(state: int, record: int) -> int:
    """Return DONE if all ranks ask for the same, OTHER if they do but their arrays lie at different
    places, else DIFFERENT."""
    outcome, calls = DONE, get(state, CALLS)
    for rank in range(get(state, SIZE)):
        line = get(state, CONTROL) + 8 * POSTS + LINE * (2 * rank + calls % 2)
        if (
            get(line, 0) != get(record, KIND)
            or get(line, 1) != get(record, NBYTES)
            or get(line, 2) != get(record, ELEMENT)
        ):
            return DIFFERENT
        if get(line, 3) != get(record, PLACE):
            outcome = OTHER
        put(get(record, SCRATCH), get(state, SIZE) + rank, get(line, 4))
    return outcome


# ``add`` is called as a C function, by its address, so that its callers are compiled without it: all
# loops then compile in 3 s instead of 12.
@compiled_callback(types.void(*[types.int64] * 7), error_model="numpy")
def add(record: int, sources: int, count: int, targets: int, stores: int, start: int, stop: int) -> None:
    """Add bytes ``start`` to ``stop`` of the sources and write the sums to the targets: as far as
    possible in whole cache lines of the first target (rank 0's, if there are several)."""
    number, width = get(record, NUMBER), get(record, ITEMSIZE)
    first = min(stop, start - (get(targets, 0) + start) % -LINE)
    lines = (stop - first) // LINE
    for at in range(start, first, width):
        add_element(sources, count, targets, stores, at, number)
    add_lines(sources, count, targets, stores, first, lines, number)
    for at in range(first + LINE * lines, stop, width):
        add_element(sources, count, targets, stores, at, number)


@compiled_loop
def _slice(nbytes: int, rank: int, size: int) -> int:
    """Return the byte at which a rank's slice of ``nbytes`` begins; slices are cut at multiples of a
    line."""
    return min(nbytes, (nbytes + LINE - 1) // LINE * rank // size * LINE)


@compiled_loop
def _stage(state: int, record: int, rank: int, chunk: int) -> int:
    """Return the address of a chunk in a rank's stage. Its offset from the start of a cache line is
    that of the rank's array, so that a vector that is a whole line of one is a whole line of the
    other."""
    part, shift = (get(state, TURN) + chunk) % PARTS, get(record, ADDRESS) % LINE
    if rank != get(state, RANK):
        shift = get(get(record, SCRATCH), get(state, SIZE) + rank)
    address: int = get(get(state, STAGES), rank) + part * (get(state, CHUNK) + LINE) + shift
    return address


@compiled_loop
def _stage_in(state: int, record: int, chunk: int) -> None:
    """Copy the part of a chunk that other ranks will add into the stage; all of a small array, which
    every rank adds whole."""
    rank, size, nbytes = get(state, RANK), get(state, SIZE), get(record, NBYTES)
    begin = chunk * get(state, CHUNK)
    length = min(get(state, CHUNK), nbytes - begin)
    to, source = _stage(state, record, rank, chunk), get(record, ADDRESS) + begin
    if nbytes <= get(state, SMALL):
        copy(to, source, length)
        return
    start, stop = _slice(length, rank, size), _slice(length, rank + 1, size)
    copy(to, source, start)
    copy(to + stop, source + stop, length - stop)


@compiled_loop
def _add_staged(state: int, record: int, chunk: int) -> None:
    """Add this rank's slice of a chunk into its array and all other ranks' stages."""
    rank, size, nbytes = get(state, RANK), get(state, SIZE), get(record, NBYTES)
    begin = chunk * get(state, CHUNK)
    length = min(get(state, CHUNK), nbytes - begin)
    table, mine = get(record, SCRATCH), get(record, ADDRESS) + begin
    for other in range(size):
        put(table, other, _stage(state, record, other, chunk))
    put(table, rank, mine)
    targets = table + 8 * rank
    if nbytes <= get(state, SMALL):
        call_seven(get(state, ADD), record, table, size, targets, 1, 0, length)
        return
    start, stop = _slice(length, rank, size), _slice(length, rank + 1, size)
    call_seven(get(state, ADD), record, table, size, table, size, start, stop)


@compiled_loop
def _stage_out(state: int, record: int, chunk: int) -> None:
    """Copy the other ranks' sums of a chunk out of the stage."""
    rank, size, nbytes = get(state, RANK), get(state, SIZE), get(record, NBYTES)
    begin = chunk * get(state, CHUNK)
    length = min(get(state, CHUNK), nbytes - begin)
    source, to = _stage(state, record, rank, chunk), get(record, ADDRESS) + begin
    start, stop = _slice(length, rank, size), _slice(length, rank + 1, size)
    copy(to, source, start)
    copy(to + stop, source + stop, length - stop)


@compiled_loop
def _add_shared(state: int, record: int) -> None:
    """Add arrays in shared memory piece by piece: first the pieces of this rank's share, which its
    caches may still have from the last sum, then what is left of the other ranks' shares."""
    rank, size, nbytes, piece = (
        get(state, RANK),
        get(state, SIZE),
        get(record, NBYTES),
        get(state, PIECE),
    )
    siblings, first = get(record, SIBLINGS), get(state, TICKET)
    share = ((nbytes + piece - 1) // piece + size - 1) // size
    for turn in range(size):
        owner = (rank + turn) % size
        taken = get(state, CONTROL) + 8 * POSTS + LINE * (2 * size + owner)
        while True:
            number = fetch_add(taken, 0, 1) - first
            begin = (owner * share + number) * piece
            if number >= share:
                break
            if begin < nbytes:
                stop = min(begin + piece, nbytes)
                call_seven(get(state, ADD), record, siblings, size, siblings, size, begin, stop)
    put(state, TICKET, first + share + size)


@compiled_loop
def _exchange(to: int, stage: int, source: int, nbytes: int) -> None:
    """Copy the bytes of a stage to ``to``, and those of ``source`` to the stage. All three have the same
    offset from the start of a cache line."""
    first = min(nbytes, -stage % LINE)
    lines = (nbytes - first) // LINE
    rest = first + LINE * lines
    copy(to, stage, first)
    copy(stage, source, first)
    exchange_lines(to + first, stage + first, source + first, lines)
    copy(to + rest, stage + rest, nbytes - rest)
    copy(stage + rest, source + rest, nbytes - rest)


@compiled_loop
def _stage_on(state: int, record: int, chunk: int) -> None:
    """Copy the other ranks' sums of a chunk out of the stage, and in their place what they will add of
    the next chunk that uses the same part of the stage. Both chunks have the full size."""
    rank, size, length = get(state, RANK), get(state, SIZE), get(state, CHUNK)
    start, stop = _slice(length, rank, size), _slice(length, rank + 1, size)
    stage, to = _stage(state, record, rank, chunk), get(record, ADDRESS) + chunk * length
    source = to + PARTS * length
    _exchange(to, stage, source, start)
    _exchange(to + stop, stage + stop, source + stop, length - stop)


@compiled_loop
def _work(state: int, record: int, step: int) -> int:
    """Do a step. Returns 1 if a wait follows, 0 if the call is done, and -1 if it cannot be done."""
    kind, nbytes = get(record, KIND), get(record, NBYTES)
    chunks = (nbytes + get(state, CHUNK) - 1) // get(state, CHUNK)
    if step == 0:
        _post(state, record)
        if kind == ALLREDUCE and get(record, PLACE) < 0:
            _stage_in(state, record, 0)
        return 1
    if step == 1:
        outcome = _compare(state, record)
        put(state, CALLS, get(state, CALLS) + 1)
        if outcome == DIFFERENT or (outcome == OTHER and kind != ALLREDUCE):
            return -1  # a rank whose array lies elsewhere would read and write slices of another array
        if kind == BARRIER:
            return 0
        if nbytes > get(state, SMALL):
            spread(state)
        if kind != ALLREDUCE:
            _own_or_take(state, record)
            return 1
        if outcome == OTHER:
            _stage_in(state, record, 0)
            put(record, STEP, _MIXED)
            return 1
        if get(record, PLACE) >= 0:
            _add_shared(state, record)
            return 1
        put(record, STEP, _STAGED)
        step = _STAGED
    if step < _MIXED:
        return 0
    chunk = step - _STAGED
    if chunk > 0 and nbytes > get(state, SMALL):
        spread(state)
    if chunk < chunks:
        _add_staged(state, record, chunk)
    if chunk >= 1 and (chunk + 2) * get(state, CHUNK) <= nbytes:
        _stage_on(state, record, chunk - 1)
    else:
        if chunk >= 1:
            _stage_out(state, record, chunk - 1)
        if chunk + 1 < chunks:
            _stage_in(state, record, chunk + 1)
    if chunk >= chunks or nbytes <= get(state, SMALL):
        put(state, TURN, get(state, TURN) + chunks)
        return 0
    return 1


@compiled_loop
def _own_or_take(state: int, record: int) -> None:
    """Add the slice that this rank owns into its own array, or copy the slices of the other ranks."""
    rank, size = get(state, RANK), get(state, SIZE)
    siblings, owned = get(record, SIBLINGS), get(record, OWNED)
    if get(record, KIND) == REDUCE_SCATTER:
        start, stop = get(owned, 2 * rank), get(owned, 2 * rank + 1)
        call_seven(get(state, ADD), record, siblings, size, siblings + 8 * rank, 1, start, stop)
        return
    for turn in range(1, size):
        other = (rank + turn) % size
        start, stop = get(owned, 2 * other), get(owned, 2 * other + 1)
        copy(get(siblings, rank) + start, get(siblings, other) + start, stop - start)


@compiled_loop
def advance(record: int, blocks: bool) -> Any:
    """Continue a call. Returns DONE, WAITING (call again), ABORTED, or DIFFERENT if the ranks ask for
    different things. If it ``blocks`` it waits a while before it returns WAITING; otherwise it returns
    at once."""
    state = get(record, STATE)
    while True:
        if get(state, ARRIVED) == 0:
            more = _work(state, record, get(record, STEP))
            if more <= 0:
                put(record, STEP, 0)
                return DONE if more == 0 else DIFFERENT
            _arrive(state)
        if blocks:
            status = _wait(state)
        elif look(get(state, CONTROL), GENERATION) >= get(state, ROUND):
            put(state, ARRIVED, 0)
            status = DONE
        else:
            status = ABORTED if look(get(state, CONTROL), ABORT) != 0 else WAITING
        if status != DONE:
            return status
        put(record, STEP, get(record, STEP) + 1)


@compiled_loop
def advance_on(record: int, array: int, data: int) -> Any:
    """Call a blocking ``advance`` on a NumPy array in a rank's own memory: ``array`` is the address of
    the array object, and its word number ``data`` is the address of the elements."""
    put(record, ADDRESS, get(array, data))
    put(record, PLACE, -1)
    return advance(record, True)


@compiled_loop
def abort(state: int, value: int) -> None:
    """End every rank's wait."""
    control = get(state, CONTROL)
    publish(control, ABORT, value)
    futex(state + 8 * SYSCALL, control + 8 * GENERATION, -1, 0)
