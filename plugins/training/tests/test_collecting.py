"""The first of several processes collects what each provides, however large."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import Processes
from demitasse_training import collecting


class Member(Processes):
    """A thread in place of a process. ``largest`` is the most that all have sent at once."""

    def __init__(self, rank: int, size: int, given: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size, self._given, self._barrier = rank, size, given, barrier
        self.largest = 0

    def gather(self, value: Any) -> list[Any]:
        self._given[self.rank] = value
        self._barrier.wait(30)
        all_of_them = [*self._given]
        self._barrier.wait(30)
        sent = [len(each) for each in all_of_them if isinstance(each, bytes)]
        self.largest = max(self.largest, sum(sent))
        return all_of_them


def together(values: list[Any]) -> tuple[list[Any], int]:
    """Return what each process gets when all collect, and the most bytes that were sent at once."""
    given, barrier = [None] * len(values), threading.Barrier(len(values))
    members = [Member(rank, len(values), given, barrier) for rank in range(len(values))]
    with ThreadPoolExecutor(len(values)) as pool:
        found = [*pool.map(collecting.collected, values, members)]
    return found, max(member.largest for member in members)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=40),
    lambda parts: (
        st.lists(parts, max_size=4)
        | st.dictionaries(st.text(max_size=2) | st.integers(), parts, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=40)
@given(values=st.lists(PLAIN, min_size=1, max_size=3), large=st.integers(1, 20), room=st.integers(1, 50))
def test_any_plain_data_come_as_they_are(values: list[Any], large: int, room: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collecting, "LARGE", large)
        patch.setattr(collecting, "ROOM", room)
        found, most = together(values)
    assert found == [values, *[None] * (len(values) - 1)]
    assert most <= max(room, len(values))


@pytest.mark.parametrize("told", [None, [[9000], 9000]], ids=["before", "meanwhile"])
def test_one_that_is_lost_gives_nothing(told: Any) -> None:
    class Left(Processes):
        size = 2

        def gather(self, value: Any) -> list[Any]:
            return [value, None if type(value) is bytes else told]

    assert collecting.collected([bytes(9000), 1], Left()) == [[bytes(9000), 1], None]
