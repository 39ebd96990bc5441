"""Where samples are from that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from demitasse import DataSource, Feed, SampleError, raised, whose


def origins(error: SampleError, read: Iterable[tuple[Feed, int]]) -> list[str]:
    """Where the sample of an error is from, by the sources of feeds that have ``origin``, each once.
    With each feed comes the number in the global order of the first sample of the batch. Who has read
    another number of samples than the error counts is not asked: they were cut or joined since."""
    asked = [
        (feed.source, first + error.sample)
        for feed, first in read
        if error.sample < feed.count and error.samples in (0, feed.count)
    ]
    tell = [(source, number) for source, number in asked if hasattr(source, "origin")]
    return list(dict.fromkeys(_origin(*each) for each in tell))


def _origin(source: DataSource, number: int) -> str:
    """What a source says. Where it fails, that: the error which is being told of matters more."""
    try:
        return f"{source.origin(number)}"  # type: ignore[attr-defined]
    except Exception as error:  # noqa: BLE001  it is told
        return f"number {number:,} of {whose(source)}, which raised {raised(error, 'in origin')}"


@contextmanager
def traced(where: Callable[[SampleError], list[str]]) -> Iterator[None]:
    """An error about a sample of a batch says ``where`` that is from."""
    try:
        yield
    except SampleError as error:
        if found := where(error):
            error.args = (f"{error}; the sample is {' and '.join(found)}",)
        raise
