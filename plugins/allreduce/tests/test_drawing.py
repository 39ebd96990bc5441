"""Pictures of schedules: one arrow for each message, and nothing that does not fit."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from demitasse import PlanError, rounds_of
from demitasse_allreduce.algorithms import ALGORITHMS, schedule
from demitasse_allreduce.drawing import (
    ADDS,
    BAR,
    COMPLETE,
    CROSSES,
    FAINT,
    PAPER,
    TAKES,
    _shade,
    picture,
)

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
        full = pieces(picture(schedule("binomial", 5, 60, goal=goal)))[COMPLETE]
        rightmost = max(x for x, _, _ in full)
        ends = [(y, width) for x, y, width in full if x == rightmost]
        assert len({y for y, _ in ends}) == 5 and {width for _, width in ends} == {BAR}


def pieces(text: str) -> dict[str, list[tuple[float, ...]]]:
    """Return the pieces (left, middle, width) of all vectors, by their colour."""
    paths = ElementTree.fromstring(text).iter(f"{SVG}path")
    return {
        path.get("stroke", ""): [
            tuple(map(float, piece)) for piece in re.findall(r"M(\S+) (\S+?)h([^M]+)", path.get("d", ""))
        ]
        for path in paths
        if path.get("stroke")
    }


def test_a_vector_gets_darker_with_each_contribution() -> None:
    drawn = pieces(picture(schedule("ring", 5, 60)))
    shades = [_shade(each / 15) for each in (3, 6, 9, 12)]
    assert set(drawn) == {FAINT, PAPER, COMPLETE, *shades}
    whole = 5 * BAR * 9  # all ranks, before the first round and after each of the eight
    assert sum(width for shade in (*shades, COMPLETE) for *_, width in drawn[shade]) == pytest.approx(
        whole
    )


@pytest.mark.parametrize(("ranks", "size"), [(1, 60), (3, 0), (2, 60)])
def test_a_picture_of_few_rounds_has_room_for_its_words(ranks: int, size: int) -> None:
    note = "a link of which the description says more than fits beside a single round: 1 us, 12 GB/s"
    root = ElementTree.fromstring(picture(schedule("ring", ranks, size), notes=[note, "another"]))
    wide, deep = float(root.get("width", "")), float(root.get("height", ""))
    texts = list(root.iter(f"{SVG}text"))
    for text in texts:
        ends = float(text.get("x", "")) + 0.5 * float(text.get("font-size", "")) * len(text.text or "")
        assert ends < wide and float(text.get("y", "")) < deep, text.text
    lines = [float(text.get("y", "")) for text in texts if text.text in (note, "another")]
    assert lines[1] - lines[0] > 12
    said = [text.text for text in texts]
    assert f"{ranks} rank{'s' * (ranks > 1)}, {size} elements" in said
    assert "rank" in said and ("round" in said) == (ranks > 1 and size > 0)


def test_the_largest_picture_is_one_that_a_browser_shows() -> None:
    assert len(picture(schedule("ring", 64, 1 << 20))) < 4_000_000


def test_titles_are_text() -> None:
    assert "&lt;b&gt;" in picture(schedule("ring", 2, 4), title="<b>")


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(PlanError, match="ring: 65 ranks in 128 rounds do not fit in a picture"):
        picture(schedule("ring", 65, 100))
    with pytest.raises(PlanError, match="chain: 4 ranks in 404 rounds"):
        picture(schedule("chain", 4, 100_000, chunks=200))
