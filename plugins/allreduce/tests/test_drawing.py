"""Pictures of schedules: one arrow for each message, and nothing that does not fit."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from demitasse import PlanError, rounds_of
from demitasse_allreduce.algorithms import ALGORITHMS, schedule
from demitasse_allreduce.drawing import ADDS, CROSSES, TAKES, picture

SVG = "{http://www.w3.org/2000/svg}"


def arrows(text: str) -> list[ElementTree.Element]:
    lines = ElementTree.fromstring(text).iter(f"{SVG}line")
    return [line for line in lines if line.get("marker-end")]


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_every_message_is_an_arrow_that_says_what_it_carries(name: str, ranks: int) -> None:
    made = schedule(name, ranks, 60, chunks=2)
    told = [line.findtext(f"{SVG}title") for line in arrows(picture(made))]
    expected = [
        f"{s} to {t}: {a}:{b}"
        for each in rounds_of(made)
        for s, t, a, b in zip(*(column.tolist() for column in each[:4]), strict=True)
    ]
    assert [words and words.partition(",")[0] for words in told] == expected


def test_messages_between_groups_stand_out() -> None:
    made = schedule("recursive-halving-doubling", 4, 60)
    colours = [line.get("stroke") for line in arrows(picture(made, [[0, 1], [2, 3]]))]
    assert colours == [CROSSES] * 4 + [ADDS] * 4 + [TAKES] * 4 + [CROSSES] * 4


def test_at_the_end_every_vector_is_complete() -> None:
    for goal in ("allreduce", "broadcast"):
        root = ElementTree.fromstring(picture(schedule("binomial", 5, 60, goal=goal)))
        full = [each for each in root.iter(f"{SVG}rect") if each.get("fill") == "#12507f"]
        rightmost = max(float(each.get("x", "0")) for each in full[:-1])  # the last is the legend's
        assert sum(float(each.get("x", "0")) == rightmost for each in full) == 5


def test_titles_are_text() -> None:
    assert "&lt;b&gt;" in picture(schedule("ring", 2, 4), title="<b>")


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(PlanError, match="ring: 65 ranks in 128 rounds do not fit in a picture"):
        picture(schedule("ring", 65, 100))
    with pytest.raises(PlanError, match="chain: 4 ranks in 404 rounds"):
        picture(schedule("chain", 4, 100_000, chunks=200))
