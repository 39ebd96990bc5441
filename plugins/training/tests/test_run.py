"""A run to the last iteration, with tests and snapshots at the solver's intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from demitasse import (
    CompositionError,
    Event,
    ModelError,
    NumericsError,
    PluginError,
    SnapshotError,
    WorkerError,
    compose,
)


@pytest.fixture
def running(
    toy: ModuleType, runtime: Callable[..., Any], tmp_path: Path
) -> Callable[..., tuple[Any, list[Event]]]:
    """``running(...)``: a trainer of eleven iterations, and a list of the events it reports."""

    def make(plugins: Any = (), **fields: Any) -> tuple[Any, list[Event]]:
        events: list[Event] = []
        listener = toy.plugin("listener", observe=lambda: events.append)
        solver = toy.solver(
            toy.classifier(),
            toy.classifier(20, "test"),
            **{"max_iterations": 11, "snapshot_prefix": str(tmp_path / "toy"), **fields},
        )
        return runtime(plugins=[listener, *plugins]).trainer(solver, precision="f64"), events

    return make


def told(events: list[Event], kind: str) -> list[int]:
    return [event.iteration for event in events if event.kind == kind]


def test_a_run_tests_and_saves_at_its_intervals_and_at_the_end(running: Any, tmp_path: Path) -> None:
    trainer, events = running(test_interval=4, snapshot_interval=5)
    result = trainer.run()
    assert result.iteration == trainer.iteration == 11
    assert told(events, "start") == [0]
    assert told(events, "iteration") == [*range(1, 12)]
    assert told(events, "test") == [0, 4, 8, 11]
    assert told(events, "snapshot") == [5, 10, 11]
    assert told(events, "end") == [11]
    assert {path.name for path in tmp_path.iterdir()} == {f"toy_iter_{i}.demitasse" for i in (5, 10, 11)}


def test_a_long_test_tells_how_far_it_is(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, events = running(max_iterations=2, test_interval=2, test_iterations=(7,), test_first=False)
    trainer.run()
    assert told(events, "testing") == []
    monkeypatch.setattr("demitasse_training.trainer.BETWEEN", 0.0)
    scores = trainer.test()
    seen = [(e.values["done"], e.values["batches"]) for e in events if e.kind == "testing"]
    assert seen == [(done, 7) for done in range(1, 8)]
    assert scores == next(e for e in events if e.kind == "test").values["scores"]


def test_parameters_that_are_partly_updated_are_not_kept(running: Any, tmp_path: Path) -> None:
    trainer, events = running(test_interval=0)
    trainer.step(1)

    def broken() -> None:
        if trainer.iteration == 4:
            raise ValueError("broken")

    trainer._workers[0].step.last.append(broken)
    with pytest.raises(ValueError, match=r"^broken$"):
        trainer.run()
    assert told(events, "iteration") == [1, 2, 3, 4]
    assert not [*tmp_path.glob("toy_iter_*")]


def test_nothing_is_tested_or_saved_twice(running: Any) -> None:
    trainer, events = running(max_iterations=8, test_interval=4, snapshot_interval=4, test_first=False)
    trainer.run()
    assert told(events, "test") == told(events, "snapshot") == [4, 8]


def test_a_run_that_is_stopped_saves_what_it_has(running: Any, tmp_path: Path) -> None:
    trainer, events = running(test_interval=3)
    result = trainer.run(stop=lambda: trainer.iteration == 6)
    assert result.iteration == 6
    assert told(events, "snapshot") == told(events, "end") == [6]
    assert (tmp_path / "toy_iter_6.demitasse").is_file()


@pytest.mark.parametrize("first", [True, False])
def test_a_run_that_is_stopped_in_a_test_drops_it(running: Any, tmp_path: Path, first: bool) -> None:
    trainer, events = running(test_interval=3, test_iterations=(5,), test_first=first)
    asked: list[int] = []

    def in_second_test() -> bool:
        asked.append(trainer.iteration)
        return asked.count(6) == 3  # called once after the iteration, then between batches

    before = [0] * 4 * first
    result = trainer.run(stop=in_second_test)
    assert result.iteration == 6
    assert asked == [*before, 1, 2, 3, 3, 3, 3, 3, 4, 5, 6, 6, 6]
    assert trainer.stopped
    assert told(events, "test") == [*[0][:first], 3]
    assert told(events, "snapshot") == told(events, "end") == [6]
    assert (tmp_path / "toy_iter_6.demitasse").is_file()
    del events[:]
    trainer.run()
    assert not trainer.stopped
    assert told(events, "test") == [*[6][:first], 9, 11]


def test_a_run_may_be_stopped_in_its_first_test_and_in_its_last(running: Any) -> None:
    trainer, events = running(
        max_iterations=4, test_interval=9, test_iterations=(2,), snapshot_last=False
    )
    asked: list[int] = []

    def always() -> bool:
        asked.append(trainer.iteration)
        return True

    assert trainer.run(stop=always).iteration == 0
    assert (asked, told(events, "test"), told(events, "snapshot")) == ([0], [], [])
    trainer.step(2)
    assert trainer.run(stop=always).iteration == 2
    assert told(events, "snapshot") == [2], "what was trained step by step"
    trainer.step(1)
    del asked[:], events[:]
    trainer.solver = dataclasses.replace(trainer.solver, test_first=False)
    assert trainer.run(stop=lambda: len(asked) == 1 or asked.append(4)).iteration == 4
    assert (told(events, "test"), told(events, "snapshot")) == ([], [4])
    trainer.run()
    assert (told(events, "test"), told(events, "snapshot")) == ([4], [4])


def test_a_trainer_that_is_closed_in_a_test_ends_it(running: Any, monkeypatch: Any) -> None:
    trainer, events = running(test_iterations=(50,))
    monkeypatch.setattr("demitasse_training.trainer.BETWEEN", 0.0)
    trainer.listeners.append(lambda event: trainer.close())
    with pytest.raises(WorkerError, match="this trainer is closed"):
        trainer.test()
    assert len(told(events, "testing")) == 1


def test_a_run_goes_on_from_where_the_trainer_is(running: Any) -> None:
    trainer, events = running(snapshot_last=False)
    trainer.step(9)
    trainer.run()
    assert told(events, "iteration") == [*range(1, 12)]
    assert told(events, "snapshot") == []


def test_a_rate_that_is_no_number_is_refused_with_its_iteration(toy: ModuleType, runtime: Any) -> None:
    def solver(rate: Any) -> Any:
        return dataclasses.replace(toy.solver(toy.classifier()), rate=rate)

    with pytest.raises(
        ModelError, match="the solver's learning rate at iteration 0 is None, which is not a number"
    ):
        runtime().trainer(solver(lambda iteration: None))
    good = [np.float32(0.5), np.array(0.5)]
    later = runtime().trainer(solver(lambda iteration: "a" if iteration == 2 else good[iteration % 2]))
    with pytest.raises(ModelError, match="the solver's learning rate at iteration 2 is 'a'"):
        later.step(3)
    assert later.iteration == 2
    with pytest.raises(PluginError, match=r"the solver's rate 0\.1: raised TypeError at iteration 0: "):
        runtime().trainer(solver(0.1))
    with pytest.raises(PluginError, match=r"lambda.*: raised TypeError at iteration 0: .* 1 was given"):
        runtime().trainer(solver(lambda: 0.1))


def test_events_tell_losses_rates_and_samples(running: Any) -> None:
    trainer, events = running(average_loss=3, snapshot_last=False)
    result = trainer.run()
    (start,) = [event.values for event in events if event.kind == "start"]
    assert (start["batch"], start["workers"], start["rate"]) == (10, 1, 0.01)
    iterations = [event.values for event in events if event.kind == "iteration"]
    losses = [values["loss"] for values in iterations]
    smoothed = [values["smoothed"] for values in iterations]
    assert smoothed[0] == losses[0]
    assert smoothed[-1] == pytest.approx(sum(losses[-3:]) / 3)
    assert result.loss == smoothed[-1]
    assert {values["samples"] for values in iterations} == {10}
    assert {values["rate"] for values in iterations} == {0.01}
    (tested,) = [event.values for event in events if event.kind == "test"]
    assert {*tested["scores"]} == {"accuracy"}


def test_scores_of_a_second_test_net_have_its_number_in_front(
    toy: ModuleType, runtime: Callable[..., Any]
) -> None:
    solver = toy.solver(
        toy.classifier(), toy.classifier(20, "test"), toy.classifier(10, "test"), test_iterations=(2, 4)
    )
    scores = runtime().trainer(solver).test()
    assert {*scores} == {"accuracy", "1.accuracy"}
    assert scores["accuracy"] == pytest.approx(scores["1.accuracy"]), "the same forty samples"


def test_a_run_ends_at_the_first_test_that_is_good_enough(running: Any) -> None:
    asked = []
    trainer, events = running(test_interval=3)

    def until(scores: Any) -> bool:
        asked.append(dict(scores))
        return len(asked) == 3  # before the first iteration, after 3, after 6

    assert trainer.run(until=until).iteration == 6
    kinds = [(event.kind, event.iteration) for event in events]
    assert [iteration for kind, iteration in kinds if kind == "test"] == [0, 3, 6]
    assert kinds[-2:] == [("snapshot", 6), ("end", 6)]
    assert all("accuracy" in scores for scores in asked)


def test_arrays_can_stand_for_the_samples_of_a_file(
    toy: ModuleType, runtime: Callable[..., Any], copied: Any, differ: Any
) -> None:
    ours = runtime(arrays=toy.images(40)).trainer(
        toy.solver(toy.classifier()), data={"train": toy.images(20)}, precision="f64"
    )
    theirs = runtime(arrays=toy.images(20)).trainer(toy.solver(toy.classifier()), precision="f64")
    assert ours.step(4).loss == theirs.step(4).loss
    assert differ(copied(ours.net), copied(theirs.net)) == 0.0


def test_a_profile_times_each_operation_and_changes_no_parameter(
    toy: ModuleType, running: Any, copied: Any, differ: Any
) -> None:
    trainer, _ = running()
    trainer.step(1)
    before = copied(trainer.net)
    times = trainer.profile(2)
    assert [entry for entry, _ in times] == [*trainer.plan.entries]
    assert all(seconds > 0 for _, seconds in times)
    assert differ(copied(trainer.net), before) == 0.0


def test_profiling_between_steps_does_not_change_training(
    running: Any, copied: Any, differ: Any
) -> None:
    """The samples that profiling reads are read again."""
    (ours, _), (theirs, _) = running(), running()
    for _ in range(2):
        ours.step(2)
        ours.profile(1)
        theirs.step(2)
    assert differ(copied(ours.net), copied(theirs.net)) == 0.0


def test_a_trainer_says_what_it_is(running: Any) -> None:
    trainer, _ = running()
    trainer.step(2)
    assert repr(trainer) == "<trainer of toy at iteration 2 of 11, 1 worker, batch 10>"


@pytest.mark.parametrize("iterations", [0, -1, 1.5, "2", None], ids=repr)
def test_iterations_are_at_least_one(running: Any, iterations: Any) -> None:
    trainer, _ = running()
    for ask in (trainer.step, trainer.profile):
        with pytest.raises(ModelError, match=f"whole number, at least 1; given {iterations!r}"):
            ask(iterations)
    assert trainer.step(np.int64(1)).iteration == 1


def test_a_loss_has_no_terms_before_the_first_pass(running: Any) -> None:
    trainer, _ = running()
    assert trainer.terms() == {}
    loss = trainer.step(1).loss
    assert sum(trainer.terms().values()) == pytest.approx(loss)


def test_what_would_be_ignored_is_refused(toy: ModuleType, runtime: Callable[..., Any]) -> None:
    made, solver = runtime(), toy.solver(toy.classifier())
    with pytest.raises(ModelError, match=r"unknown phase of data 'trian'; did you mean 'train'\?"):
        made.trainer(solver, data={"trian": toy.images(20)})
    with pytest.raises(ModelError, match="data is given for phase 'test', but there is no test net"):
        made.trainer(solver, data={"test": toy.images(20)})
    with pytest.raises(CompositionError, match=r"unknown retain True \(valid: None, 'all'\)"):
        made.trainer(solver, retain=True)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"overrides": "base_lr=1"}, "overrides must map keys to values, .*; given 'base_lr=1'"),
        ({"overrides": {1: 2}}, "overrides must map keys to values, .*; given {1: 2}"),
        ({"data": np.zeros((2, 4))}, "data must map a phase to arrays .*given ndarray"),
        ({"data": 3}, "data must map a phase to arrays .*given int"),
        ({"scaling": None}, r"unknown scaling 'None' \(valid: strong, weak\)"),
        ({"precision": ["f32"]}, r"unknown precision .*\(valid: bf16, f32, "),
    ],
)
def test_arguments_of_another_type_are_told(
    toy: ModuleType, runtime: Callable[..., Any], given: dict[str, Any], told: str
) -> None:
    with pytest.raises((ModelError, CompositionError), match=told):
        runtime().trainer(toy.solver(toy.classifier()), **{"precision": "f64", **given})


def test_what_cannot_be_asked_is_refused_before_anything_is_trained(running: Any) -> None:
    """Such as the text of the command's option with the same name, which is not a Python function."""
    trainer, events = running(test_interval=4)
    with pytest.raises(ModelError, match=r"until must be a function .*; given 'accuracy>=0.99'"):
        trainer.run(until="accuracy>=0.99")
    assert events == [] and trainer.iteration == 0


def test_a_snapshot_that_cannot_be_written_names_path_and_reason(running: Any, tmp_path: Path) -> None:
    trainer, events = running()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SnapshotError, match=r"file/x/y_iter_0\.demitasse.*Not a directory"):
        trainer.snapshot(tmp_path / "file" / "x" / "y")
    assert told(events, "snapshot") == []


def test_a_folder_that_cannot_be_made_is_found_before_the_first_step(
    running: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    trainer, events = running(snapshot_prefix=str(tmp_path / "file" / "x" / "toy"))
    for ask in (trainer.check_snapshots, trainer.run):
        with pytest.raises(SnapshotError, match=r"prefix '.*toy'.*file/x: Not a directory.*snapshot: 0"):
            ask()
    assert (trainer.iteration, events) == (0, [])
    unsaved, _ = running(snapshot_prefix=str(tmp_path / "file" / "x" / "toy"), snapshot_last=False)
    unsaved.check_snapshots()


@pytest.mark.parametrize("gradients", [False, True])
def test_snapshots_that_their_format_has_no_room_for_are_found_before_the_first_step(
    running: Any, toy: ModuleType, gradients: bool
) -> None:
    def holding(largest: int) -> tuple[Any, list[Event]]:
        facts = {"suffixes": [".small"], "largest": {".small": largest}}
        writer = toy.plugin("small", roles={"model_writer": facts}, model_writer=lambda path: None)
        fields = {"snapshot_suffixes": (".demitasse", ".small"), "snapshot_gradients": gradients}
        return running(plugins=[writer], **fields)

    trainer, _ = holding(1 << 40)
    trainer.check_snapshots()
    nbytes = sum(array.nbytes for arrays in trainer.net.params.values() for array in arrays)
    nbytes *= 1 + gradients
    holding(nbytes)[0].check_snapshots()
    trainer, events = holding(nbytes - 1)
    told = (
        rf"a \.small snapshot .* {nbytes:,} bytes, but such a file holds {nbytes - 1:,}; set snapshot_"
    )
    for ask in (trainer.check_snapshots, trainer.run):
        with pytest.raises(SnapshotError, match=told):
            ask()
    assert (trainer.iteration, events) == (0, [])


def test_state_that_a_format_has_no_place_for_is_found_before_the_first_step(
    running: Any, toy: ModuleType
) -> None:
    def holding(*states: str) -> tuple[Any, list[Event]]:
        facts = {"suffixes": [".theirs"], "states": {".theirs": [*states]}}
        writer = toy.plugin("theirs", roles={"model_writer": facts}, model_writer=lambda path: None)
        return running(plugins=[writer], snapshot_suffixes=(".demitasse", ".theirs"))

    holding("history", "second")[0].check_snapshots()
    trainer, events = holding("second")
    told = (
        r"a \.theirs snapshot has no place for the state history of momentum_update \(it holds second\)"
        r"; give the solver the snapshot_suffixes \('\.demitasse',\), or set snapshot: 0"
    )
    for ask in (trainer.check_snapshots, trainer.run):
        with pytest.raises(SnapshotError, match=told):
            ask()
    assert (trainer.iteration, events) == (0, [])


def test_checking_leaves_the_folder_empty(running: Any, tmp_path: Path) -> None:
    trainer, _ = running(snapshot_prefix=str(tmp_path / "new" / "toy"))
    trainer.check_snapshots()
    assert list((tmp_path / "new").iterdir()) == []


def failing(error: BaseException) -> Callable[[Any], None]:
    def listen(event: Any) -> None:
        if event.kind == "iteration":
            raise error

    return listen


@pytest.mark.parametrize(
    ("observe", "message"),
    [
        (lambda: 3, "plugin 'broken': observe returned 3, which is not a listener"),
        (lambda: 1 // 0, "plugin 'broken': hook observe raised ZeroDivisionError"),
        (
            lambda: failing(KeyError("loss")),
            "plugin 'broken', its listener: raised KeyError at event 'iteration': 'loss'",
        ),
        (
            lambda: failing(SystemExit(3)),
            "plugin 'broken', its listener: raised SystemExit at event 'iteration': 3",
        ),
    ],
    ids=["no listener", "raises", "listener raises", "listener exits"],
)
def test_a_plugin_whose_listener_is_broken_is_named(
    toy: ModuleType, runtime: Callable[..., Any], observe: Any, message: str
) -> None:
    made = runtime(plugins=[toy.plugin("broken", observe=observe)])
    with pytest.raises(PluginError, match=message):
        made.trainer(toy.solver(toy.classifier())).step()


def test_a_plugin_may_want_to_hear_nothing(toy: ModuleType, runtime: Callable[..., Any]) -> None:
    made = runtime(plugins=[toy.plugin("deaf", observe=lambda: None)])
    trainer = made.trainer(toy.solver(toy.classifier()))
    trainer.step()
    assert trainer.listeners == []


def test_a_listener_is_made_with_its_plugins_options(toy: ModuleType) -> None:
    told: list[Any] = []

    def observe(options: Any) -> Any:
        told.append(dict(options))
        return told.append

    plugins = [toy.plugin("watch", observe=observe), "reference", "training", toy.toy()]
    with compose(toy.machine(), plugins, {"watch": {"every": 10}}) as runtime:
        runtime.trainer(toy.solver(toy.classifier()))
    assert told == [{"every": 10}]


def test_a_listener_measures_the_layers_at_the_end_and_changes_nothing(running: Any) -> None:
    plain, _ = running()
    plain.run()
    trainer, _ = running()
    found: list[Any] = []

    def measure(event: Event) -> None:
        if event.kind == "end":
            found.extend(event.values["profile"](2))

    trainer.listeners.append(measure)
    trainer.run()
    assert [entry for entry, _ in found] == list(trainer.plan.entries)
    assert all(seconds >= 0 for _, seconds in found)
    assert {entry.layer for entry, _ in found} >= {"scores", "loss"}
    for ours, theirs in zip(trainer.net.params["scores"], plain.net.params["scores"], strict=True):
        assert (ours == theirs).all()


def test_the_end_of_a_run_that_fails_is_told_with_its_error(running: Any) -> None:
    trainer, events = running()

    def until_four(event: Event) -> None:
        if event.kind == "iteration" and event.iteration == 4:
            raise KeyError("mine")

    def broken(event: Event) -> None:
        if event.kind == "end":
            raise ValueError("mine too")

    trainer.listeners[:0] = [broken, until_four]
    with pytest.raises(KeyError) as caught:
        trainer.run()
    assert [event.kind for event in events].count("end") == 1
    last = events[-1]
    assert (last.kind, last.iteration, dict(last.values)) == ("end", 4, {"error": caught.value})
    assert any("raised ValueError('mine too')" in note for note in caught.value.__notes__)


def test_the_end_is_told_of_an_interrupt_too(running: Any) -> None:
    trainer, events = running()

    def stop() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.run(stop=stop)
    assert isinstance(events[-1].values["error"], KeyboardInterrupt)


def test_the_error_of_a_users_listener_passes_with_the_event_noted(running: Any) -> None:
    trainer, _ = running()
    trainer.listeners.append(failing(KeyError("mine")))
    with pytest.raises(KeyError) as caught:
        trainer.step()
    assert caught.value.__notes__ == ["raised by a listener on event 'iteration' at iteration 1"]


def test_a_listener_may_raise_an_error_of_the_family(toy: ModuleType, runtime: Any) -> None:
    watch = toy.plugin("watch", observe=lambda: failing(NumericsError("too large")))
    with pytest.raises(NumericsError, match="too large"):
        runtime(plugins=[watch]).trainer(toy.solver(toy.classifier())).step()
