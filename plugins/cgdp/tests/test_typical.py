"""The tree of the typical scheme."""

from __future__ import annotations

import pytest

from demitasse_cgdp.typical import pairs


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, []),
        (2, [(0, 1)]),
        (3, [(0, 1), (0, 2)]),
        (4, [(0, 1), (2, 3), (0, 2)]),
        (8, [(0, 1), (2, 3), (4, 5), (6, 7), (0, 2), (4, 6), (0, 4)]),
    ],
)
def test_neighbours_are_paired_until_one_is_left(count: int, expected: list[tuple[int, int]]) -> None:
    assert pairs(count) == expected


@pytest.mark.parametrize("count", range(1, 20))
def test_all_give_once_and_none_before_all_of_its_own_have_given(count: int) -> None:
    given = [child for _, child in pairs(count)]
    assert sorted(given) == [*range(1, count)]
    for position, (parent, child) in enumerate(pairs(count)):
        assert parent not in given[:position]
        assert child not in given[:position]
