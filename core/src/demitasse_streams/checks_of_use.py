"""Checks of an engine in use: errors, much at once, its end; the docstring of each is what it checks."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse_streams.bench import Bench, expect, on_bench

if TYPE_CHECKING:
    from demitasse_streams import EngineEvent, StreamEngine


class CallError(Exception):
    """Raised by a call, to see where the error comes out."""


def errors_of_calls(bench: Bench) -> None:
    """An error that a call raises is raised by its stream's synchronise and by the wait of later
    events, not of earlier ones; calls that follow are not made, nor those behind a wait for such an
    event in another stream, and what is enqueued once it was raised is not done; other streams go on."""
    for stream in (bench.engine.stream("failing"), bench.engine.default):
        error, done = CallError(f"in {stream.name}"), list[int]()
        device, behind = bench.array(np.ones(3)), bench.engine.stream(f"behind {stream.name}")

        def fail(error: CallError = error) -> None:
            raise error

        stream.call(functools.partial(done.append, 1))
        before = stream.record()
        stream.call(fail)
        stream.call(functools.partial(done.append, 2))
        after = stream.record()
        behind.wait(after)
        behind.call(functools.partial(done.append, 3))
        before.wait()
        waits = {
            "wait": after.wait,
            "synchronise": stream.synchronise,
            "synchronise of a stream that waited for it": behind.synchronise,
        }
        for kind, wait in waits.items():
            try:
                wait()
            except CallError as raised:
                expect(raised.args == error.args, f"{kind} raised another error: {raised}")
            else:
                raise AssertionError(f"{kind} raised nothing in {stream.name!r}")
        expect(done == [1], f"{done} of the calls 1, (one that fails), 2, (behind a wait) 3 were made")
        stream.copy(device, bench.pinned(np.zeros(3)))
        with suppress(CallError):
            stream.synchronise()
        expect(bool(np.asarray(device).all()), f"a copy after a failure in {stream.name!r} was done")
    other, back = bench.engine.stream("other"), bench.pinned(np.zeros(3))
    other.copy(back, bench.pinned(np.ones(3)))
    other.synchronise()
    expect(bool(back.all()), "another stream stopped working")


def as_if_one_after_the_other(bench: Bench) -> None:
    """Work in several streams that waits for what it reads and overwrites gives what the same work
    gives one after the other, whatever the order."""
    entangled(bench, 81, streams=6, buffers=9, steps=300)


def entangled(bench: Bench, seed: int, streams: int, buffers: int, steps: int) -> None:
    """Random copies and calls among buffers of host and device, each in a random stream, behind waits
    for those that wrote what it reads and that read or wrote what it writes."""
    pick = random.Random(seed)
    size = 257
    start = [np.full(size, float(number)) for number in range(buffers)]
    arrays = [bench.pinned(x) if i % 2 else bench.array(x) for i, x in enumerate(start)]
    expected = [x.copy() for x in start]
    names = [bench.engine.stream(f"s{number}") for number in range(streams)] + [bench.engine.default]
    wrote: dict[int, EngineEvent] = {}
    read: dict[int, list[EngineEvent]] = {}

    def scale(array: np.ndarray, by: int) -> None:
        array *= 0.5
        array += by

    for step in range(steps):
        stream, of, to = pick.choice(names), pick.randrange(buffers), pick.randrange(buffers)
        for event in (wrote.get(of), wrote.get(to), *read.get(to, ())):
            if event is not None:
                stream.wait(event)
        if of == to and to % 2:
            stream.call(functools.partial(scale, arrays[to], step))
            scale(expected[to], step)
        elif of != to:
            stream.copy(arrays[to], arrays[of])
            expected[to][...] = expected[of]
            read.setdefault(of, []).append(stream.record())
        wrote[to], read[to] = stream.record(), []
    for stream in names:
        stream.synchronise()
    for number, (array, values) in enumerate(zip(arrays, expected, strict=True)):
        same = np.array_equal(np.asarray(array), values)
        expect(same, f"buffer {number} of {buffers} is wrong after {steps} steps (seed {seed})")


def any_thread_enqueues(bench: Bench) -> None:
    """Any thread may enqueue in a stream and wait for its events, several at a time: what each
    enqueues comes in its order."""
    threads, rounds, shared = 4, 40, bench.engine.stream("shared")
    seen: list[tuple[int, int]] = []
    raised: list[BaseException] = []
    sources = [bench.pinned(np.full(8, float(number))) for number in range(threads)]
    devices = [bench.array(np.full(8, -1.0)) for _ in range(threads)]
    backs = [bench.pinned(np.full(8, -1.0)) for _ in range(threads)]

    def use(number: int) -> None:
        own = bench.engine.stream(f"of {number}")
        for turn in range(rounds):
            own.copy(devices[number], sources[number])
            shared.wait(own.record())
            shared.copy(backs[number], devices[number])
            shared.call(functools.partial(seen.append, (number, turn)))
            event = shared.record()
            own.wait(event)
            if turn % 8 == 0:
                event.wait()
                expect((number, turn) in seen, "an event was reached before what it follows was done")

    def caught(number: int) -> None:
        try:
            use(number)
        except BaseException as error:  # noqa: BLE001  it is raised below
            raised.append(error)

    users = [threading.Thread(target=caught, args=(n,), daemon=True) for n in range(threads)]
    for user in users:
        user.start()
    for user in users:
        user.join(bench.bound)
    expect(not any(user.is_alive() for user in users), f"one did not end within {bench.bound:g} s")
    if raised:
        raise raised[0]
    shared.synchronise()
    for number, back in enumerate(backs):
        turns = [turn for who, turn in seen if who == number]
        expect(turns == list(range(rounds)), f"one thread's calls came as {turns[:8]}...")
        expect(bool((back == number).all()), f"a thread's copy came as {back}")


def engines_beside_each_other(
    make: Callable[[], StreamEngine], array: Callable[[np.ndarray], Any], bound: float
) -> None:
    """Several engines, each used by a thread of its own, do not disturb each other."""
    raised: list[BaseException] = []

    def use(number: int) -> None:
        try:
            on_bench(make, array, bound, lambda bench: entangled(bench, number, 3, 5, 150))
        except BaseException as error:  # noqa: BLE001  it is raised below
            raised.append(error)

    threads = [threading.Thread(target=use, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(bound)
    expect(not any(thread.is_alive() for thread in threads), f"one did not end within {bound:g} s")
    if raised:
        raise raised[0]


def close_does_what_was_enqueued(bench: Bench) -> None:
    """Close ends the streams once what is enqueued is done."""
    done: list[int] = []
    streams = [bench.engine.stream(name) for name in "abc"]
    back = bench.pinned(np.zeros(3))

    def pause() -> None:
        # Long enough to catch an engine that drops the rest; another never fails because of it.
        threading.Event().wait(0.03)

    for stream in streams:
        stream.call(pause)
    for number in range(30):
        streams[number % 3].call(functools.partial(done.append, number))
    streams[0].copy(back, bench.pinned(np.ones(3)))
    bench.engine.close()
    expect(sorted(done) == list(range(30)), f"{len(done)} of 30 calls were made")
    expect(bool(back.all()), "a copy was not done")


def use_after_close(bench: Bench) -> None:
    """After close all use raises RuntimeError."""
    engine, stream, done = bench.engine, bench.engine.stream("closed"), list[int]()
    event, one = stream.record(), bench.pinned([1.0])
    other = bench.pinned([2.0])
    engine.close()
    uses: dict[str, Callable[[], Any]] = {
        "stream": lambda: engine.stream("closed"),
        "a new stream": lambda: engine.stream("never asked for before"),
        "pinned": lambda: engine.pinned((1,), "float32"),
    }
    for each in (stream, engine.default):
        uses |= {
            f"{each.name}'s copy": functools.partial(each.copy, one, other),
            f"{each.name}'s call": functools.partial(each.call, lambda: done.append(1)),
            f"{each.name}'s record": each.record,
            f"{each.name}'s wait": functools.partial(each.wait, event),
            f"{each.name}'s synchronise": each.synchronise,
        }
    for name, use in uses.items():
        try:
            use()
        except RuntimeError:
            continue
        raise AssertionError(f"{name} was accepted")
    expect(not done, "a call was made")


def threads_end(make: Callable[[], StreamEngine]) -> None:
    """Close leaves no thread behind."""
    # Python forever lists a system's own thread that called back, as a dummy thread.
    kinds = (threading._DummyThread,)
    before = set(threading.enumerate())
    engine = make()
    for name in ("a", "b"):
        engine.stream(name).call(lambda: None)
    engine.close()
    left = [t.name for t in threading.enumerate() if t not in before and not isinstance(t, kinds)]
    expect(not left, f"threads are left: {', '.join(left)}")
