"""What a synchronisation keeps from one iteration to the next is saved in snapshots."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from demitasse import GradientSync, PluginError, SnapshotError, Span, compose, hookimpl

LARGE = 0.05


class Rounds(GradientSync):
    """Siblings sum their gradients in multiples of ``LARGE``; each keeps the remainder."""

    keeps = True

    def __init__(self, group: Any) -> None:
        self.team, self.index, self.size = group.team, group.index, group.team.size
        self.left: dict[int, np.ndarray] = {}

    def reduce(self, bucket: Any, span: Span) -> Callable[[], None]:
        part, wait = slice(span.start, span.stop), self.team.barrier.wait
        mine = self.team.memory[self.index].gradients[part]

        def add() -> None:
            whole = mine + self.left.get(bucket.index, 0)
            mine[...] = np.round(whole / LARGE) * LARGE
            self.left[bucket.index] = whole - mine
            wait()
            total = sum(memory.gradients[part] for memory in self.team.memory)
            wait()
            mine[...] = total

        return add

    def saved(self) -> Any:
        if not self.keeps:
            return None
        return {bucket: left.tobytes() for bucket, left in self.left.items()}

    def restore(self, saved: Mapping[int, bytes]) -> None:
        self.left = {bucket: np.frombuffer(left) for bucket, left in saved.items()}


class Empties(Rounds):
    """Takes apart the state that it is given."""

    def restore(self, saved: Mapping[int, bytes]) -> None:
        super().restore(saved)
        saved.clear()  # type: ignore[attr-defined]


def serving(kind: Callable[[Any], GradientSync]) -> Any:
    def gradient_sync(group: Any) -> GradientSync:
        return kind(group)

    manifest = {"name": "rounding", "api": ">=0.1", "roles": {"gradient_sync": {}}}
    return SimpleNamespace(manifest=manifest, gradient_sync=hookimpl(gradient_sync))


def trained(toy: ModuleType, kind: Any, steps: int, workers: int = 2, **given: Any) -> Any:
    """Return the parameters after so many steps."""
    plugins = [serving(kind), "reference", "training", "snapshots", toy.toy()]
    with compose(toy.machine(workers, sync=("rounding",)), plugins) as runtime:
        trainer = runtime.trainer(toy.solver(toy.classifier()), precision="f64", **given)
        trainer.step(steps)
        arrays = [array.copy() for layer in trainer.net.params.values() for array in layer]
        return np.concatenate([array.ravel() for array in arrays])


def snapshot(toy: ModuleType, kind: Any, folder: Path | None = None, steps: int = 4) -> Any:
    """Return a snapshot, in a folder or in memory."""
    plugins = [serving(kind), "reference", "training", "snapshots", toy.toy()]
    with compose(toy.machine(2, sync=("rounding",)), plugins) as runtime:
        trainer = runtime.trainer(toy.solver(toy.classifier()), precision="f64")
        trainer.step(steps)
        return trainer.weights() if folder is None else trainer.snapshot(folder / "toy")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_resumed_run_goes_on_with_it(
    toy: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = trained(toy, Rounds, 8)
    kinds = snapshot(toy, Rounds, tmp_path), snapshot(toy, Rounds)  # the latter one by two runs
    for resume in (*kinds, kinds[1]):
        assert np.array_equal(trained(toy, Empties, 4, resume=resume), whole)
    assert warnings(caplog) == []

    without = type("Rounds", (Rounds,), {"keeps": False})  # otherwise the test would prove nothing
    other = trained(toy, without, 4, resume=snapshot(toy, without, tmp_path / "without"))
    assert not np.array_equal(other, whole)


@pytest.mark.parametrize(
    ("kind", "workers", "there"),
    [(Rounds, 3, "2 workers' in 1 processes"), (GradientSync, 2, "none")],
    ids=["other workers", "never kept"],
)
def test_who_cannot_go_on_with_it_is_told(
    toy: ModuleType,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    kind: Any,
    workers: int,
    there: str,
) -> None:
    ours = Rounds if kind is Rounds else type("Forgets", (Rounds,), {"saved": GradientSync.saved})
    path = snapshot(toy, ours, tmp_path)
    trained(toy, Rounds, 1, workers, resume=path)
    assert warnings(caplog) == [
        f"{path}: the state that synchronisation by rounding keeps starts afresh: this run has "
        f"{workers} workers in 1 processes, the file has {there}"
    ]


@pytest.mark.parametrize(
    ("saved", "kind"),
    [
        (np.zeros(2), "ndarray"),
        ([1, {"a": (2,)}], "tuple"),
        ({1.5: 2}, "float"),
        ({None: 2}, "NoneType"),
    ],
    ids=["array", "within", "key", "no key"],
)
def test_what_no_snapshot_holds_is_told_with_the_plugin(
    toy: ModuleType, tmp_path: Path, saved: Any, kind: str
) -> None:
    strange = type("Strange", (Rounds,), {"saved": lambda self: saved})
    with pytest.raises(PluginError) as caught:
        snapshot(toy, strange, tmp_path, steps=1)
    assert str(caught.value) == (
        f"plugin 'rounding', Strange: saved returned a {kind} (valid: None, numbers, text, bytes, lists "
        f"of these, and mappings by text or number)"
    )
    assert not list(tmp_path.iterdir())


def test_a_plugin_that_cannot_take_it_back_is_named(toy: ModuleType, tmp_path: Path) -> None:
    path = snapshot(toy, type("Rounds", (Rounds,), {"saved": lambda self: 3}), tmp_path)
    with pytest.raises(PluginError, match=r"^plugin 'rounding', Rounds: raised \w+ in restore: "):
        trained(toy, Rounds, 1, resume=path)


@pytest.mark.parametrize("table", [3, [3], [[3]], [[[3]]], [[[[3, 4]]]], [[[["rounding"]]]]], ids=str)
def test_a_record_that_no_run_has_written_is_refused(
    toy: ModuleType, tmp_path: Path, table: Any
) -> None:
    path = snapshot(toy, Rounds, tmp_path, steps=1)
    plugins = [serving(Rounds), "reference", "training", "snapshots", toy.toy()]
    with compose(toy.machine(2, sync=("rounding",)), plugins) as runtime:
        weights = runtime.read(path).weights()
        weights.record["synchronisation"] = table
        runtime.write(path, weights)
        with pytest.raises(SnapshotError, match="no table of processes and workers under"):
            runtime.trainer(toy.solver(toy.classifier()), precision="f64", resume=path)


def test_siblings_that_are_to_differ_are_not_told_of(
    toy: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """As in local SGD, where siblings agree only every few iterations."""

    class Nothing(Rounds):
        def reduce(self, bucket: Any, span: Span) -> Callable[[], None]:
            return lambda: None

    trained(toy, Nothing, 2)
    assert len(warnings(caplog)) == 1
    assert "workers 0 and 1 train apart" in warnings(caplog)[0]
    caplog.clear()
    trained(toy, type("Local", (Nothing,), {"apart": True}), 2)
    assert warnings(caplog) == []
