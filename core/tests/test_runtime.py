"""What a runtime makes once, at first use, and how it is closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from demitasse import Level, Machine, Processes, Runtime, arrange, compose

SEVERAL = Machine("desk", (Level("process", workers="mpi"), Level("core")), fingerprint="any")


class Company(Processes):
    """One of two processes; it notes what it is told."""

    rank, size = 0, 2

    def __init__(self, told: list[Any]) -> None:
        self.told = told

    def fail(self, error: BaseException) -> None:
        self.told.append(error)

    def close(self) -> None:
        self.told.append("parted")


def composed(toy: ModuleType, told: list[Any], machine: Machine = SEVERAL) -> Runtime:
    """Return a runtime whose processes are found by a plugin."""

    def processes(machine: Machine) -> Processes:
        told.append("found")
        return Company(told)

    return compose(machine, [toy.plugin("company", processes=processes), "null"])


def test_an_error_is_told_to_the_other_processes_and_then_they_are_parted_from(toy: ModuleType) -> None:
    told, error = list[Any](), ValueError("the loss is a fish")
    with pytest.raises(ValueError, match="fish"), composed(toy, told) as runtime:
        assert runtime.processes is runtime.processes
        raise error
    assert told == ["found", error, "parted"]


def test_a_runtime_that_ends_well_tells_of_no_failure(toy: ModuleType) -> None:
    told = list[Any]()
    with composed(toy, told) as runtime:
        assert runtime.processes.size == 2
    assert told == ["found", "parted"]


def test_processes_that_nobody_asked_for_are_not_looked_for_when_all_fails(toy: ModuleType) -> None:
    told = list[Any]()
    with pytest.raises(ZeroDivisionError), composed(toy, told):
        raise ZeroDivisionError
    assert told == []


@pytest.mark.parametrize(
    "machine",
    [
        Machine("desk", (Level("machine"),), fingerprint="any"),
        Machine("cluster", SEVERAL.levels, fingerprint="another machine's"),
    ],
    ids=["no level of processes", "simulated"],
)
def test_processes_are_looked_for_where_a_real_machine_has_a_level_of_them(
    toy: ModuleType, machine: Machine
) -> None:
    told = list[Any]()
    with composed(toy, told, machine) as runtime:
        assert (runtime.processes.rank, runtime.processes.size) == (0, 1)
    assert told == []


def test_threads_that_ask_at_once_are_given_the_same(toy: ModuleType) -> None:
    """A second tuner would keep other kernels; nothing would close second streams and processes."""
    made = list[str]()

    def slowly(what: str, given: Callable[[], Any]) -> Callable[..., Any]:
        def make(**asked: Any) -> Any:
            made.append(what)
            time.sleep(0.02)
            return given()

        return make

    class Tuner:
        choices = prefer = pick = staticmethod(lambda *given: None)

    class Engine:
        place = default = stream = None

    tuner, engine = slowly("tuner", Tuner), slowly("streams", Engine)
    found = slowly("processes", lambda: Company([]))
    hooks = {
        "tuner": lambda allocator, versions: tuner(),
        "stream_engine": lambda space, machine: engine(),
        "processes": lambda machine: found(),
    }
    levels = Level("process", workers="mpi"), Level("stream", workers="streams")
    machine = Machine("desk", levels, fingerprint="any")
    with compose(machine, [toy.plugin("all", **hooks), "null"]) as runtime:
        (worker,) = arrange(machine, "float32")
        asked = [
            lambda: runtime.processes,
            lambda: runtime.engine(worker),
            lambda: runtime.kernels(worker).tuner,
        ]
        answers = [list[Any]() for _ in asked]

        def ask() -> None:
            for number, call in enumerate(asked):
                answers[number].append(call())

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(made) == ["processes", "streams", "tuner"]
    for given in answers:
        assert len(given) == len(threads)
        assert given[0] is not None
        assert all(each is given[0] for each in given)
