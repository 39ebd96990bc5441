"""Checks of an engine's names, memory and copies; the docstring of each is what it checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from demitasse_streams.bench import Bench, expect


def names_and_places(bench: Bench) -> None:
    """A stream has the name that it was asked for by, and is the same when it is asked for again."""
    engine = bench.engine
    expect(isinstance(engine.place, str) and engine.place != "", f"place is {engine.place!r}")
    stream = engine.stream("d2h")
    expect(stream.name == "d2h", f"stream('d2h') has the name {stream.name!r}")
    expect(engine.stream("d2h") is stream, "stream('d2h') is a different object the second time")
    expect(engine.stream("h2d") is not stream, "stream('h2d') is the same as stream('d2h')")
    expect(isinstance(engine.default.name, str), f"the default stream's name is {engine.default.name!r}")


def pinned_memory(bench: Bench) -> None:
    """Pinned memory is a contiguous NumPy array of the host, zero at first, and nobody else's."""
    one, other = (bench.engine.pinned((3, 5), "float32") for _ in range(2))
    expect(isinstance(one, np.ndarray), f"pinned gave a {type(one).__name__}")
    expect(one.shape == (3, 5) and one.dtype == np.float32, f"it is {one.shape} of {one.dtype}")
    expect(one.flags.c_contiguous and one.flags.writeable, "it is not contiguous and writable")
    expect(not one.any(), "it is not zero")
    one[...] = 1
    expect(not other.any(), "two of them share memory")


def copies(bench: Bench) -> None:
    """A copy gives the target the source's bits: of the host, of the accelerator, and from one to the
    other."""
    random_bytes = np.random.default_rng(8).bytes
    for stream in (bench.engine.default, bench.engine.stream("copies")):
        for dtype, size in (
            ("float32", 1),
            ("float64", 3),
            ("uint8", 1021),
            ("uint16", 65537),
            ("int32", 2**21),
        ):
            values = np.frombuffer(random_bytes(size * np.dtype(dtype).itemsize), np.uint8).view(dtype)
            zeros = np.zeros_like(values)
            places: dict[str, Callable[[np.ndarray], Any]] = {
                "pinned": bench.pinned,
                "plain": np.array,
                "device": bench.array,
            }
            for of, there in places.items():
                for to, here in places.items():
                    source, target = there(values), here(zeros)
                    stream.copy(target, source)
                    stream.synchronise()
                    same = np.asarray(target).tobytes() == values.tobytes()
                    expect(
                        same,
                        f"{size} {dtype} from {of} to {to} memory arrived changed in {stream.name!r}",
                    )
        # Parts, and arrays of other shapes with as many elements.
        device, host = (
            bench.array(np.zeros((4, 6), np.float32)),
            bench.pinned(np.arange(24, dtype=np.float32)),
        )
        stream.copy(device, host)
        stream.copy(host[:6].reshape(2, 3), device[1:2])
        stream.synchronise()
        expect(np.array_equal(host[:8], [6, 7, 8, 9, 10, 11, 6, 7]), f"a part came as {host[:8]}")


def copies_between(bench: Bench, elsewhere: Callable[[np.ndarray], Any]) -> None:
    """A copy goes between two accelerators' memories too, in both directions."""
    stream = bench.engine.stream("between")
    values = np.random.default_rng(9).normal(size=1000)
    for there, here in ((bench.array, elsewhere), (elsewhere, bench.array)):
        source, target = there(values), here(np.zeros(1000))
        stream.copy(target, source)
        stream.synchronise()
        expect(np.array_equal(np.asarray(target), values), "other values arrived")


def refusals(bench: Bench) -> None:
    """A copy of arrays that disagree in size or type, or are not contiguous, raises ValueError at
    once that says so, and leaves the target as it is."""
    plain = np.arange(12, dtype=np.float32)
    pairs: list[tuple[str, Any, Any, tuple[str, ...]]] = [
        ("size", bench.array(np.zeros(5, np.float32)), bench.pinned(plain), ("(5,)", "(12,)")),
        ("size", bench.pinned(np.zeros(13, np.float32)), bench.array(plain), ("(13,)", "(12,)")),
        ("type", bench.array(np.zeros(12, np.int32)), bench.pinned(plain), ("float32", "int32")),
        ("type", np.zeros(6, np.float64), bench.array(plain), ("float32", "float64")),
        ("layout", np.zeros((12, 2), np.float32)[:, 0], bench.array(plain), ()),
    ]
    for stream in (bench.engine.default, bench.engine.stream("refusals")):
        for kind, target, source, words in pairs:
            try:
                stream.copy(target, source)
            except ValueError as error:
                missing = [word for word in words if word not in str(error)]
                expect(not missing, f"the error does not name {', '.join(missing)}: {error}")
            else:
                raise AssertionError(f"a copy with a different {kind} was accepted in {stream.name!r}")
        stream.synchronise()
        changed = any(np.asarray(target).any() for _, target, _, _ in pairs)
        expect(not changed, f"a target was changed in {stream.name!r}")
