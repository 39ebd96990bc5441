"""Processes of a run that are threads of one process, and synchronisations over them, for tests."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from demitasse import Bucket, GradientSync, Group, Processes, Span, Work, WorkerError


class Room:
    """What the processes of one run have in common."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, threading.Barrier(size)
        self.given: list[Any] = [None] * size
        self.failures: list[str] = []


class Member(Processes):
    """One of them; who fails wakes all that wait."""

    def __init__(self, room: Room, rank: int) -> None:
        self.room, self.rank, self.size = room, rank, room.size
        self.reports: list[tuple[int, str]] = []

    def gather(self, value: Any) -> list[Any]:
        self.room.given[self.rank] = value
        self.wait()
        all_of_them = [*self.room.given]
        self.wait()
        return all_of_them

    def total(self, values: Any) -> Any:
        return np.sum(self.gather(values), axis=0)

    def report(self, iteration: int, layer: str = "") -> None:
        self.reports.append((iteration, layer))

    def wait(self) -> None:
        try:
            self.room.barrier.wait(30)
        except threading.BrokenBarrierError:
            raise WorkerError(self.room.failures[0]) from None

    def fail(self, error: BaseException) -> None:
        self.room.failures.append(f"rank {self.rank}: {error}")
        self.room.barrier.abort()


class Sum(GradientSync):
    """Every process has the sum of all gradients, and updates by itself."""

    def __init__(self, group: Group) -> None:
        assert group.remote and isinstance(group.processes, Member)
        self.processes = group.processes
        self.index, self.size = self.processes.rank, self.processes.size
        self.quiet = 0

    def bind(self, memory: Any) -> None:
        self.memory = memory

    def reduce(self, bucket: Bucket, span: Span) -> Work:
        gradients = self.memory.gradients[span.start : span.stop]

        def add() -> None:
            gradients[...] = self.processes.total(gradients.copy())

        return add

    def total(self, mine: Any, total: Any) -> Work | None:
        return None

    def quiesce(self) -> None:
        self.quiet += 1


class HalfSum(Sum):
    """Adds up the first half of each bucket."""

    def reduce(self, bucket: Bucket, span: Span) -> Work:
        return super().reduce(bucket, Span(span.start, span.start + len(span) // 2))


class Rounded(Sum):
    """Sums that are not the same bits everywhere."""

    def reduce(self, bucket: Bucket, span: Span) -> Work:
        work = super().reduce(bucket, span)
        gradients = self.memory.gradients[span.start : span.stop]

        def add() -> None:
            work()
            gradients[...] *= 1 + self.index * 1e-9

        return add


class Free(Sum):
    """Nobody waits for anybody."""

    asynchronous = True

    def reduce(self, bucket: Bucket, span: Span) -> Work:
        return lambda: None
