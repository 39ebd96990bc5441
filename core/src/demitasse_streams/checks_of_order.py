"""Checks of what an engine does when: order, waits, events; the docstring of each is what it checks."""

from __future__ import annotations

import functools
import threading
import time

import numpy as np

from demitasse_streams.bench import Bench, expect


def order_in_a_stream(bench: Bench) -> None:
    """Work in one stream is done in order."""
    # An accelerator queues a limited number of entries, after which callers wait: CUDA on an H200
    # queues 56 copies between calls.
    stream, rounds = bench.engine.stream("order"), 20
    there, device, back = bench.pinned([0.0]), bench.array(np.array([-1.0])), bench.pinned([0.0])
    seen: list[float] = []

    def write(number: int) -> None:
        there[0] = number

    def read() -> None:
        seen.append(float(back[0]))

    with bench.held(stream):
        for number in range(rounds):
            stream.call(functools.partial(write, number))
            stream.copy(device, there)
            stream.copy(back, device)
            stream.call(read)
        expect(not seen, "calls were made before the work they follow was done")
    stream.synchronise()
    expect(
        seen == list(range(rounds)), f"copies and calls came as {seen[:8]}... instead of 0, 1, 2, ..."
    )


def order_in_the_default_stream(bench: Bench) -> None:
    """Work in the default stream is done in order."""
    stream = bench.engine.default
    device, back = bench.array(np.zeros(1)), bench.pinned([0.0])
    seen: list[float] = []
    sources = [bench.pinned([float(number)]) for number in range(60)]
    for source in sources:
        stream.copy(device, source)
        stream.copy(back, device)
        stream.call(lambda: seen.append(float(back[0])))
    stream.synchronise()
    expect(seen == list(range(60)), f"copies and calls came as {seen[:8]}... instead of 0, 1, 2, ...")


def callers_go_on(bench: Bench) -> None:
    """Copies from pinned memory, calls, records and waits of a stream return at once: nothing but an
    event's wait and synchronise makes the caller wait."""
    first, second = bench.engine.stream("first"), bench.engine.stream("second")
    source, device, back = bench.pinned([7.0]), bench.array(np.zeros(1)), bench.pinned([0.0])
    called: list[int] = []
    with bench.held(first) as opened:
        first.copy(device, source)
        first.call(lambda: called.append(1))
        event = first.record()
        second.wait(event)
        second.copy(back, device)
        after = second.record()
        expect(not opened.is_set() and not called, "work that was held was done")
        expect(
            not event.done and not after.done, "an event was reached before the work it follows was done"
        )
    after.wait()
    expect(called == [1] and back[0] == 7.0, "what was enqueued was not done")


def streams_beside_each_other(bench: Bench) -> None:
    """Streams run beside each other: what one is busy with holds up neither the others nor the
    default one."""
    busy, free = bench.engine.stream("busy"), bench.engine.stream("free")
    source, device = bench.pinned(np.arange(5.0)), bench.array(np.zeros(5))
    backs = [bench.pinned(np.zeros(5)) for _ in range(2)]
    with bench.held(busy):
        for stream, back in zip((free, bench.engine.default), backs, strict=True):
            stream.copy(device, source)
            stream.copy(back, device)
            bench.soon(stream.record(), f"a copy in {stream.name!r}, while 'busy' was busy,")
            expect(
                np.array_equal(back, np.arange(5.0)), "an event was reached before its copies were done"
            )
            stream.synchronise()


def waits_across_streams(bench: Bench) -> None:
    """What is enqueued behind a wait is done when the event of the other stream was reached; what is
    before the wait is not held up."""
    first, second = bench.engine.stream("first"), bench.engine.stream("second")
    zeros = np.zeros(100_000)
    device, back, early = bench.array(zeros), bench.pinned(zeros), bench.pinned(zeros)
    three, four, five = (bench.pinned(zeros + number) for number in (3, 4, 5))
    with bench.held(first):
        first.copy(device, three)
        written = first.record()
        second.copy(early, five)
        before = second.record()
        second.wait(written)
        second.copy(back, device)
        copied = second.record()
        bench.soon(before, "a copy before the wait")
        expect(bool((early == 5).all()), "an event was reached before the copy before it was done")
        expect(not copied.done, "work behind a wait was done before the event was reached")
    copied.wait()
    expect(
        bool((back == 3).all()), "a copy behind a wait took what was there before the event was reached"
    )
    # The same for the default stream, in which kernels run, once it is sure to be reached.
    first.copy(device, four)
    bench.engine.default.wait(first.record())
    bench.engine.default.copy(back, device)
    bench.engine.default.synchronise()
    expect(bool((back == 4).all()), "a copy in the default stream did not wait")


def events_are_points(bench: Bench) -> None:
    """An event is reached when what was enqueued before it is done, whatever is enqueued after it."""
    stream, done = bench.engine.stream("points"), list[int]()
    stream.call(lambda: done.append(1))
    event = stream.record()
    with bench.held(stream):
        stream.call(lambda: done.append(2))
        bench.soon(event, "an event with held work behind it")
        event.wait()
        expect(done == [1], f"calls {done} were made instead of the first one alone")
    stream.synchronise()
    expect(done == [1, 2], f"after synchronise the calls {done} were made")


def events_of_nothing(bench: Bench) -> None:
    """An event of a stream with nothing to do is reached at once, and again after all is done."""
    for stream in (bench.engine.stream("nothing"), bench.engine.default):
        event = stream.record()
        bench.soon(event, f"an event of {stream.name!r}, which is empty,")
        event.wait()
        stream.wait(event)
        stream.synchronise()
        stream.call(lambda: None)
        stream.synchronise()
        bench.soon(stream.record(), f"an event of {stream.name!r}, where all is done,")


def times_of_events(bench: Bench) -> None:
    """Events say when they were reached, by the clock of time.perf_counter, to a millisecond."""
    stream, near, opened_at = bench.engine.stream("times"), 1e-3, 0.0
    device, source = bench.array(np.zeros(1000)), bench.pinned(np.ones(1000))
    start = time.perf_counter()
    first = stream.record()
    with bench.held(stream):
        stream.copy(device, source)
        second = stream.record()
        first.wait()
        opened_at = time.perf_counter()
    third = stream.record()
    third.wait()
    end = time.perf_counter()
    times = [first.seconds, second.seconds, third.seconds]
    said = [f"{1e3 * (moment - start):.3f}" for moment in (*times, opened_at, end)]
    told = f"events came at {', '.join(said[:3])} ms; held until {said[3]}, all was done at {said[4]} ms"
    expect(start - near <= times[0] <= opened_at + near <= times[1] + 2 * near, told)
    expect(times[1] <= times[2] + near <= end + 2 * near, told)


def waits_of_the_caller(bench: Bench) -> None:
    """An event's wait and a stream's synchronise return when all that they wait for is done, not
    before."""
    for number, kind in enumerate(("wait", "synchronise")):
        stream, done = bench.engine.stream(f"slow {number}"), list[int]()
        started, opened = threading.Event(), threading.Event()

        def slow(started: threading.Event = started, opened: threading.Event = opened) -> None:
            started.set()
            opened.wait(bench.bound)

        def opener(started: threading.Event = started, opened: threading.Event = opened) -> None:
            started.wait(bench.bound)
            # Long enough to catch an engine that does not wait; one that does never fails because of it.
            threading.Event().wait(0.05)
            opened.set()

        thread = threading.Thread(target=opener)
        thread.start()
        stream.call(slow)
        stream.call(functools.partial(done.append, 1))
        event = stream.record()
        event.wait() if kind == "wait" else stream.synchronise()
        early = not done
        opened.set()
        thread.join()
        expect(not early, f"{kind} returned before that")
        expect(event.done, f"after {kind} the event is not done")
