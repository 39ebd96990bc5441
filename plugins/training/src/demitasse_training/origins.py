"""Where invalid samples come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from demitasse import DataSource, Feed, SampleError, raised, whose


def origins(error: SampleError, read: Iterable[tuple[Feed, int]]) -> list[str]:
    """Return where the sample of an error comes from, once for each different answer of the sources that
    have ``origin``. ``read`` pairs each feed with the global number of its batch's first sample. A
    source whose batch size differs from the error's count is not asked, because samples were cut or
    joined since they were read."""
    asked = [
        (feed.source, first + error.sample)
        for feed, first in read
        if error.sample < feed.count and error.samples in (0, feed.count)
    ]
    tell = [(source, number) for source, number in asked if hasattr(source, "origin")]
    return list(dict.fromkeys(_origin(*each) for each in tell))


def _origin(source: DataSource, number: int) -> str:
    """Return a source's answer. If it fails, say so instead: the error being reported matters more."""
    try:
        return f"{source.origin(number)}"  # type: ignore[attr-defined]
    except Exception as error:  # noqa: BLE001  it becomes part of the answer
        return f"number {number:,} of {whose(source)}, which raised {raised(error, 'in origin')}"


@contextmanager
def traced(where: Callable[[SampleError], list[str]]) -> Iterator[None]:
    """Within this, an error about a sample of a batch says where the sample comes from (``where``)."""
    try:
        yield
    except SampleError as error:
        if found := where(error):
            error.args = (f"{error}; the sample is {' and '.join(found)}",)
        raise
