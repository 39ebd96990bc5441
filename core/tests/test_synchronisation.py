"""A bucket's way through several levels: outwards, the update, and inwards again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from demitasse import Bucket, GradientSync, Span, chain

BUCKET = Bucket(0, Span(0, 8), ("conv1",))


class Told(GradientSync):
    """A level that notes what it does over which span, and owns a part of the span."""

    def __init__(
        self, name: str, told: list[str], part: Callable[[Span], Span], silent: str = ""
    ) -> None:
        self.name, self.told, self.part, self.silent = name, told, part, silent

    def _work(self, what: str, span: Span) -> Callable[[], None] | None:
        words = f"{self.name} {what} {span.start}-{span.stop}"
        return None if what == self.silent else lambda: self.told.append(words)

    def owned(self, span: Span) -> Span:
        return self.part(span)

    def reduce(self, bucket: Bucket, span: Span) -> Callable[[], None] | None:
        return self._work("reduces", span)

    def distribute(self, bucket: Bucket, span: Span) -> Callable[[], None] | None:
        return self._work("distributes", span)


def half(span: Span) -> Span:
    return Span(span.start, (span.start + span.stop) // 2)


def none(span: Span) -> Span:
    return Span(span.start, span.start)


@pytest.mark.parametrize(
    ("inner", "silent", "expected"),
    [
        (
            half,
            "",
            [
                "socket reduces 0-8",
                "node reduces 0-4",
                "update 0-2",
                "node distributes 0-4",
                "socket distributes 0-8",
            ],
        ),
        (half, "distributes", ["socket reduces 0-8", "node reduces 0-4", "update 0-2"]),
        (none, "", ["socket reduces 0-8", "socket distributes 0-8"]),
    ],
    ids=["all own a part", "nothing to distribute", "another owns it"],
)
def test_levels_reduce_outwards_what_they_own_and_distribute_inwards(
    inner: Callable[[Span], Span], silent: str, expected: list[str]
) -> None:
    told = list[str]()
    levels = [Told("socket", told, inner, silent), Told("node", told, half, silent)]

    def update(span: Span) -> Callable[[], None]:
        return lambda: told.append(f"update {span.start}-{span.stop}")

    work = chain(levels, BUCKET, update)
    assert work is not None and told == []
    work()
    assert told == expected


def test_a_span_tells_how_long_it_is() -> None:
    assert len(Span(3, 8)) == 5
    assert not Span(4, 4)
