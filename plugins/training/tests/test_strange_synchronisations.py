"""Synchronisations that break their contract: errors name the plugin, the class and the method."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import Event, GradientSync, PlanError, PluginError, Span, compose


class Strange(GradientSync):
    """One of two siblings, whose implementation of one method is its own."""

    def __init__(self, group: Any) -> None:
        self.index, self.size = group.index, group.team.size


def serving(toy: ModuleType, kind: Callable[[Any], GradientSync]) -> Any:
    """A third-party plugin with such a synchronisation."""

    def gradient_sync(group: Any) -> GradientSync:
        return kind(group)

    return toy.plugin("stranger", gradient_sync=gradient_sync)


def fail(*given: Any) -> Any:
    return {}["tile"]


@pytest.mark.parametrize(
    ("method", "made", "told"),
    [
        ("bind", fail, "raised KeyError in bind: 'tile'"),
        ("owned", fail, "raised KeyError in owned: 'tile'"),
        ("owned", lambda self, span: None, "owned returned None (valid: a part of Span(start=0, stop="),
        ("owned", lambda self, span: Span(0, span.stop + 1), "owned returned Span(start=0, stop="),
        ("reduce", fail, "raised KeyError in reduce: 'tile'"),
        ("reduce", lambda self, bucket: None, "raised TypeError in reduce: "),
        ("reduce", lambda *given: 3, "reduce returned 3 (valid: None, or a function without arguments)"),
        ("reduce", lambda *given: fail, "raised KeyError at work for reduce: 'tile'"),
        ("distribute", lambda *given: fail, "raised KeyError at work for distribute: 'tile'"),
        ("begin", lambda self: 3, "begin returned 3 (valid: None, or a function without arguments)"),
        ("before_forward", lambda *given: fail, "raised KeyError at work for before_forward: 'tile'"),
        ("end", lambda self: fail, "raised KeyError at work for end: 'tile'"),
        (
            "schedule",
            lambda *given: None,
            "schedule returned None (valid: a function without arguments)",
        ),
        ("update_memory", fail, "raised KeyError in update_memory: 'tile'"),
    ],
)
@pytest.mark.timeout(60, method="thread")
def test_the_plugin_and_the_method_are_named(
    toy: ModuleType, method: str, made: Callable[..., Any], told: str
) -> None:
    kind = type("Strange", (Strange,), {"end": lambda self: None, method: made})
    strange = serving(toy, kind)
    plugins = [strange, "reference", "training", "snapshots", toy.toy()]
    with compose(toy.machine(2, sync=("stranger",)), plugins) as runtime:
        with pytest.raises(PluginError) as caught:
            runtime.trainer(toy.solver(toy.classifier()), precision="f64").step(1)
        words = str(caught.value).replace("'stranger', Strange: ", "'stranger': ")
    assert words.startswith(f"plugin 'stranger': {told}")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"bucket_bytes": "1 MB"}, "Strange has bucket_bytes '1 MB' (valid: a whole number)"),
        ({"notes": "near"}, "Strange has notes 'near' (valid: a list of strings)"),
        ({"notes": 5}, "Strange has notes 5 (valid: a list of strings)"),
        ({"notes": None}, "Strange has notes None (valid: a list of strings)"),
        ({"notes": ["near", 5]}, "Strange has notes ['near', 5] (valid: a list of strings)"),
    ],
)
def test_attributes_of_a_wrong_type_are_told(toy: ModuleType, given: dict[str, Any], told: str) -> None:
    kind = type("Strange", (Strange,), given)
    strange = serving(toy, kind)
    plugins = [strange, "reference", "training", "snapshots", toy.toy()]
    machine = toy.machine(2, sync=("stranger",))
    with compose(machine, plugins) as runtime, pytest.raises(PluginError) as caught:
        runtime.trainer(toy.solver(toy.classifier()), precision="f64")
    assert str(caught.value) == f"plugin 'stranger': {told}"


def test_notes_that_are_computed_are_read_where_they_are_shown(toy: ModuleType) -> None:
    read = list[object]()

    def notes(self: object) -> object:
        read.append(self)
        return ["near"] if len(read) == 1 else "near"

    kind = type("Strange", (Strange,), {"notes": property(notes), "end": lambda self: None})
    plugins = [serving(toy, kind), "reference", "training", "snapshots", toy.toy()]
    with compose(toy.machine(2, sync=("stranger",)), plugins) as runtime:
        trainer = runtime.trainer(toy.solver(toy.classifier()), precision="f64")
        assert not read
        assert trainer.notes == ["Strange: near"]
        with pytest.raises(
            PluginError, match=r"Strange of .*strange.* has notes 'near' \(valid: a list"
        ):
            _ = trainer.notes


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "apart (valid: some of reduce, distribute, begin, "),
        ({"bind": lambda self, memory: None, "helper": 3}, "apart (valid: some of reduce, distribute, "),
        (
            {"reduse": fail},
            "apart; it defines 'reduse' (reduce?) (valid: some of reduce, distribute, begin,",
        ),
        (
            {"_reduce": fail, "Distribute": fail},
            "apart; it defines 'Distribute' (distribute?) (valid: some",
        ),
    ],
)
def test_siblings_for_whom_nothing_is_done_are_no_siblings(
    toy: ModuleType, given: dict[str, Any], told: str
) -> None:
    """Each would train by itself, and no loss would show it."""
    kind = type("Strange", (Strange,), given)
    strange = serving(toy, kind)
    plugins = [strange, "reference", "training", "snapshots", toy.toy()]
    machine = toy.machine(2, sync=("stranger",))
    with compose(machine, plugins) as runtime, pytest.raises(PluginError) as caught:
        runtime.trainer(toy.solver(toy.classifier()), precision="f64")
    words = "Strange has size 2 but nothing to do, so siblings would train "
    assert str(caught.value).startswith(f"plugin 'stranger': {words}{told}")


@pytest.mark.timeout(60, method="thread")
def test_errors_of_ours_pass_and_siblings_who_waited_are_not_blamed(toy: ModuleType) -> None:
    def reduce(self: Strange, bucket: Any, span: Any) -> Callable[[], None]:
        def work() -> None:
            if self.index:
                raise PlanError("the link is down")
            self.team.barrier.wait()

        return work

    def make(self: Strange, group: Any) -> None:
        Strange.__init__(self, group)
        self.team = group.team

    kind = type("Waiting", (Strange,), {"reduce": reduce, "__init__": make, "team": threading})
    strange = serving(toy, kind)
    plugins = [strange, "reference", "training", "snapshots", toy.toy()]
    with compose(toy.machine(2, sync=("stranger",)), plugins) as runtime:
        trainer = runtime.trainer(toy.solver(toy.classifier()), precision="f64")
        with pytest.raises(PlanError, match=r"^the link is down$"):
            trainer.step(1)


class Parts(GradientSync):
    """Each sibling sums the siblings' gradients, except for the last ``left`` elements of a bucket."""

    left = 0

    def __init__(self, group: Any) -> None:
        self.team, self.index, self.size = group.team, group.index, group.team.size

    def reduce(self, bucket: Any, span: Span) -> Callable[[], None]:
        part, wait = slice(span.start, span.stop - self.left), self.team.barrier.wait

        def add() -> None:
            wait()
            total = sum(memory.gradients[part] for memory in self.team.memory)
            wait()
            self.team.memory[self.index].gradients[part] = total

        return add


@pytest.mark.parametrize("left", [0, 20])
def test_threads_that_train_apart_are_told_of_once(
    toy: ModuleType, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    strange = serving(toy, type("Parts", (Parts,), {"left": left}))
    plugins = [strange, "reference", "training", "snapshots", toy.toy()]
    with compose(toy.machine(2, sync=("stranger",)), plugins) as runtime:
        runtime.trainer(toy.solver(toy.classifier()), precision="f64").step(3)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (left > 0)
    for message in told:
        assert message.startswith("workers 0 and 1 train apart: after an iteration parameter ")
        assert message.endswith(" (synchronised by stranger; see demitasse check stranger)")


@pytest.mark.timeout(60, method="thread")
def test_who_waits_for_siblings_in_quiesce_is_told_that_they_come_one_by_one(
    toy: ModuleType, tmp_path: Path
) -> None:
    """Otherwise it would wait forever. Threads may meet during work, and what was trained remains
    available."""

    def reduce(self: Any, bucket: Any, span: Any) -> Callable[[], None]:
        team, part = self.group.team, slice(span.start, span.stop)

        def work() -> None:
            team.barrier.wait()
            total = np.sum([memory.gradients[part] for memory in team.memory], 0)
            team.barrier.wait()
            team.memory[self.index].gradients[part] = total

        return work

    def quiesce(self: Any) -> None:
        if self.waits:
            self.group.team.barrier.wait()

    class Meets(Strange):
        waits = False

        def __init__(self, group: Any) -> None:
            super().__init__(group)
            self.group = group

    made = list[Any]()

    def make(group: Any) -> GradientSync:
        made.append(type("Meets", (Meets,), {"reduce": reduce, "quiesce": quiesce})(group))
        return made[-1]

    plugins = [serving(toy, make), "reference", "training", "snapshots", toy.toy()]
    with compose(toy.machine(2, sync=("stranger",)), plugins) as runtime:
        trainer = runtime.trainer(toy.solver(toy.classifier()), precision="f64")
        trainer.step(2)
        made[0].waits = True
        with pytest.raises(PluginError) as caught:
            trainer.snapshot(tmp_path / "toy")
        made[0].waits = False
        assert trainer.step(1).iteration == 3 and trainer.snapshot(tmp_path / "toy").is_file()
    told = "plugin 'stranger', Meets: raised RuntimeError in quiesce: siblings are called one after"
    assert str(caught.value).startswith(told)


@pytest.mark.timeout(60, method="thread")
@pytest.mark.parametrize("method", ["bind", "begin", "reduce", "restore"])
def test_siblings_that_wait_for_each_other_where_they_are_called_in_turn_are_told(
    toy: ModuleType, tmp_path: Path, method: str
) -> None:
    """They should wait in the work that a method returns; here they would wait forever."""

    class Waits(Strange):
        def __init__(self, group: Any) -> None:
            super().__init__(group)
            self.group = group

        def saved(self) -> Any:
            return 1

        def end(self) -> Any:
            return lambda: None

    def wait(self: Any, *given: Any) -> None:
        self.group.team.barrier.wait()

    kind = type("Waits", (Waits,), {method: wait})
    plugins = [serving(toy, kind), "reference", "training", "snapshots", toy.toy()]
    told = f"plugin 'stranger', Waits: raised RuntimeError in {method}: siblings are called one after"
    with (
        compose(toy.machine(2, sync=("stranger",)), plugins) as runtime,
        pytest.raises(PluginError, match=told),
    ):
        trainer = runtime.trainer(toy.solver(toy.classifier()), precision="f64")
        trainer.step(1)
        saved = trainer.snapshot(tmp_path / "toy")
        runtime.trainer(toy.solver(toy.classifier()), precision="f64", resume=saved).step(1)


def test_what_cannot_be_trained_is_told_before_a_test(toy: ModuleType, tmp_path: Path) -> None:
    """The first test of a large net takes long, and would be in vain."""
    kind = type("Strange", (Strange,), {"end": lambda self: 3})
    events: list[Event] = []
    listener = toy.plugin("listener", observe=lambda: events.append)
    plugins = [serving(toy, kind), listener, "reference", "training", "snapshots", toy.toy()]
    nets = toy.classifier(), toy.classifier(20, "test")
    solver = toy.solver(*nets, test_interval=5, snapshot_prefix=str(tmp_path / "toy"))
    with compose(toy.machine(2, sync=("stranger",)), plugins) as runtime:
        trainer = runtime.trainer(solver, precision="f64")
        with pytest.raises(PluginError, match=r"end returned 3"):
            trainer.run()
    assert [event.kind for event in events] == ["start", "end"]
    assert not list(tmp_path.iterdir())
