"""What trials of prepared sums count, on a clock that only the sums advance."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from demitasse_allreduce import trials


class Alone:
    """As much of a communicator as trials use; its requests are done immediately."""

    def Ibarrier(self) -> Alone:
        return self

    def Test(self) -> bool:
        return True


class Clock:
    """A clock that runs advance by their seconds."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, list[str]()

    def perf_counter(self) -> float:
        return self.now

    def run(self, name: str, seconds: float, first: float = 0.0) -> Callable[[], None]:
        """Return a run that takes ``seconds``, and ``first`` more in each of the first three runs."""

        def work() -> None:
            self.now += seconds + first * (self.calls.count(name) < 3)
            self.calls.append(name)

        return work


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of trials."""
    made = Clock()
    monkeypatch.setattr(trials, "time", made)
    monkeypatch.setattr(trials, "slowest", lambda comm, mine, check: mine.copy())
    return made


def test_memory_that_is_used_for_the_first_time_does_not_count(clock: Clock) -> None:
    """Each part of a stage is slow once, each in a different run."""
    runs = [clock.run("shared", 1.0, first=100.0), clock.run("library", 2.0)]
    assert trials.measured(Alone(), runs, 3, repeats=4) == [1.0, 2.0]
    assert clock.calls.count("shared") == trials.WARM + 3 * 4


def test_who_is_far_behind_is_not_run_again(clock: Clock) -> None:
    runs = [clock.run("quick", 1.0), clock.run("near", 1.2), clock.run("far", 9.0)]
    assert trials.measured(Alone(), runs, 3) == pytest.approx([1.0, 1.2, 9.0])
    assert [clock.calls.count(name) for name in ("quick", "near", "far")] == [4, 4, 2]


@pytest.mark.parametrize("pause", [1e-3, 2e-2, 1.0])
@pytest.mark.parametrize("repeats", [4, 64])
def test_a_rank_that_lost_its_processor_once_does_not_decide(
    clock: Clock, pause: float, repeats: int
) -> None:
    """The fastest is behind in its first round that counts, because of a pause that it did not
    cause."""
    quick = clock.run("quick", 4e-5)

    def interrupted() -> None:
        clock.now += pause * (clock.calls.count("quick") == trials.WARM)
        quick()

    runs = [interrupted, clock.run("slow", 1.4e-4)]
    assert trials.measured(Alone(), runs, 7, repeats) == pytest.approx([4e-5, 1.4e-4])
    assert clock.calls.count("quick") == trials.WARM + 7 * repeats
    assert clock.calls.count("slow") == trials.WARM + trials.FIRST * repeats


def test_who_was_dropped_is_not_the_quickest_because_the_rest_was_held_up(clock: Clock) -> None:
    def later() -> None:
        clock.now += 1e-4 + 4e-4 * (clock.calls.count("quick") >= 1 + trials.FIRST)
        clock.calls.append("quick")

    quick, slow = trials.measured(Alone(), [later, clock.run("slow", 2e-4)], 7)
    assert quick == pytest.approx(5e-4)
    assert slow > quick
