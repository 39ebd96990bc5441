"""The order in which a rank makes its moves, over a network that delivers messages in any order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import InRounds, Round, Schedule
from demitasse_allreduce import executor
from demitasse_allreduce.algorithms import ALGORITHMS, schedule
from demitasse_allreduce.executor import Collective
from demitasse_schedules import run_threads


class Network:
    """Messages under way. Nothing is copied before it is delivered, in an order drawn by ``random``."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.sends: list[Request] = []
        self.receives: list[Request] = []
        self.delivered: set[tuple[int, int, int]] = set()

    def deliver(self) -> None:
        """Deliver some of the messages that are awaited."""
        self.random.shuffle(self.sends)
        for sent in [each for each in self.sends if self.random.random() < 0.2]:
            for awaited in self.receives:
                if awaited.ends == sent.ends:
                    awaited.data[:] = sent.data
                    awaited.done = sent.done = True
                    self.delivered.add(sent.ends)
                    self.receives.remove(awaited)
                    self.sends.remove(sent)
                    break


class Request:
    """A message or its receive, with its ranks and its tag."""

    def __init__(self, network: Network, ends: tuple[int, int, int], data: Any) -> None:
        self.network, self.ends, self.data, self.done = network, ends, data, False

    @staticmethod
    def Testsome(requests: Sequence[Request]) -> list[int] | None:
        requests[0].network.deliver()
        return [i for i, each in enumerate(requests) if each.done] or None


class Comm:
    """One rank's communicator."""

    def __init__(self, network: Network, rank: int, size: int) -> None:
        self.network, self.rank, self.size = network, rank, size
        self.under_way: list[Request] = []

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Isend(self, data: Any, peer: int, tag: int) -> Request:
        request = Request(self.network, (self.rank, peer, tag), data)
        self.network.sends.append(request)
        self.under_way = [each for each in self.under_way if not each.done] + [request]
        return request

    def Irecv(self, data: Any, peer: int, tag: int) -> Request:
        request = Request(self.network, (peer, self.rank, tag), data)
        self.network.receives.append(request)
        return request


def turns(collectives: Sequence[Collective], random: Random, most: int | None = None) -> Iterator[None]:
    """Let ranks progress in a random order, until all are done or for a number of turns."""
    left, taken = list(collectives), 0
    while left and (most is None or taken < most):
        taken += 1
        each = random.choice(left)
        if each.progress():
            left.remove(each)
        yield


@pytest.fixture(autouse=True)
def small_messages() -> Iterator[None]:
    """Moves of a few elements are cut into messages, and count as stalled at once."""
    with patch.multiple(executor, SHORTEST=8, LONGEST=24, AHEAD=3, _STALLED=0.0):
        yield


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(st.integers(1, 9), st.integers(0, 130), st.integers(0, 2**32))
def test_sums_have_the_bits_of_a_run_in_the_schedules_own_order(
    algorithm: str, ranks: int, size: int, seed: int
) -> None:
    made, random = schedule(algorithm, ranks, size), Random(seed)
    given = np.random.default_rng(seed).standard_normal((ranks, size)).astype(np.float32)
    ours, theirs, network = given.copy(), given.copy(), Network(random)
    run_threads(made, list(theirs))
    collectives = [Collective(made, Comm(network, rank, ranks), ours[rank]) for rank in range(ranks)]
    for _ in range(2):  # prepared once, run again
        ours[:] = given
        for each in collectives:
            each.start()
        for _ in turns(collectives, random):
            pass
        assert ours.tobytes() == theirs.tobytes()
        assert not network.sends
        assert not network.receives


def test_what_goes_elsewhere_in_a_later_round_lets_the_earlier_pass() -> None:
    made, random = schedule("binomial", 8, 90, goal="broadcast"), Random(1)
    network = Network(random)
    comms = [Comm(network, rank, 8) for rank in range(8)]
    arrays = [np.full(90, rank == 0, np.float32) for rank in range(8)]
    runs, seen = [Collective(made, *each) for each in zip(comms, arrays, strict=True)], 0
    for each in runs:
        each.start()
    for _ in turns(runs, random):
        going = [each for each in comms[0].under_way if not each.done]
        peers = [each.ends[1] for each in going]
        assert sum(each.data.nbytes for each in going if each.ends[1] != peers[-1]) <= 24
        seen = max(seen, len(set(peers)))
    assert seen == 2  # the last message to one may still go when those to the next begin
    assert all((array == 1).all() for array in arrays)


@pytest.mark.parametrize(("behind", "early"), [(True, True), (False, False)])
def test_pieces_are_sent_on_at_once_behind_others_to_the_same_rank(behind: bool, early: bool) -> None:
    def program(schedule: Schedule, program: InRounds) -> Iterator[Round]:
        one, two, three = np.array([[0], [1], [2]])
        size = np.array([schedule.size])
        yield Round(one + 1, three if behind else one, 0 * size, 0 * size + 1, False)
        yield Round(one, two, 0 * size, size, False)
        yield Round(two, three, 0 * size, size, False)

    made = Schedule("line", 3, 30, InRounds(program), "broadcast")
    network = Network(Random(3))
    comms = [Comm(network, rank, 3) for rank in range(3)]
    runs = [Collective(made, comm, np.full(30, comm.rank < 2, np.float32)) for comm in comms]
    sent_early = False
    for each in runs:
        each.start()
    for _ in turns(runs, network.random):
        going = {each.ends[:2] for each in network.sends}
        sent_early |= {(0, 1), (1, 2)} <= going and len(comms[1].under_way) > 1
    assert sent_early == early
    assert all((run.memory.array == 1).all() for run in runs)


def test_nothing_is_sent_more_than_a_round_ahead_of_what_is_awaited() -> None:
    def program(schedule: Schedule, program: InRounds) -> Iterator[Round]:
        source, target = np.array([0, 2]), np.array([1, 0])
        for number in range(5):
            start = np.array([number, 10 + number])
            yield Round(source, target, start, start + 1, False)

    made, network = Schedule("ahead", 3, 20, InRounds(program), "broadcast"), Network(Random(4))
    runs = [Collective(made, Comm(network, rank, 3), np.zeros(20, np.float32)) for rank in range(3)]
    for each in runs[:2]:
        each.start()
    for _ in turns(runs[:2], network.random, 100):  # rank 2 has not begun
        pass
    assert [each.ends for each in network.sends if each.ends[0] == 0] == []
    assert network.delivered == {(0, 1, 0), (0, 1, 1)}
    runs[2].start()
    for _ in turns(runs, network.random):
        pass
    assert len(network.delivered) == 10
