"""Where samples are from that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from demitasse import DataSource, SampleError, raised, whose


def origins(asked: Iterable[tuple[DataSource, int]]) -> list[str]:
    """Where the sample of a number in the global order of each source is from, by those sources that
    have ``origin``, each once."""
    tell = [(source, number) for source, number in asked if hasattr(source, "origin")]
    return list(dict.fromkeys(_origin(*each) for each in tell))


def _origin(source: DataSource, number: int) -> str:
    """What a source says. Where it fails, that: the error which is being told of matters more."""
    try:
        return f"{source.origin(number)}"  # type: ignore[attr-defined]
    except Exception as error:  # noqa: BLE001  it is told
        return f"number {number:,} of {whose(source)}, which raised {raised(error, 'in origin')}"


@contextmanager
def traced(where: Callable[[int], list[str]]) -> Iterator[None]:
    """An error about a sample of a batch says ``where`` that is from."""
    try:
        yield
    except SampleError as error:
        if found := where(error.sample):
            error.args = (f"{error}; the sample is {' and '.join(found)}",)
        raise
