"""What convolutions reach: which operations count, and by which of their times."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import Rate, load_machine
from demitasse_system import measure, sustained

PLUGINS = ["caffe", "training", "datasets", "reference", "system"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A net that takes no time, walked as seldom as can be."""
    monkeypatch.setattr(measure, "SECONDS", 0.02)
    for name, value in {"SECONDS": 0.0, "BATCH": 2, "SIDE": 4, "CHANNELS": 8, "NARROW": (2, 4)}.items():
        monkeypatch.setattr(sustained, name, value)
    monkeypatch.setattr(sustained, "HEAD", sustained.HEAD.replace("batch_size: 8", "batch_size: 2"))


class Trainer:
    """One whose profiles are given."""

    def __init__(self, profiles: list[list[tuple[Any, float]]]) -> None:
        self.profiles = iter(profiles)

    def profile(self, iterations: int) -> list[tuple[Any, float]]:
        assert iterations == 1
        return next(self.profiles)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *about: object) -> None:
        """Nothing is held."""


def test_of_each_convolution_the_quickest_time_counts_after_a_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [
        SimpleNamespace(operation=name, flops=flops)
        for name, flops in [("convolution", 6e9), ("relu", 1e9), ("convolution_backward_data", 2e9)]
    ]
    times = [[0.1, 0.1, 0.1], [3.0, 9.0, 1.0], [1.0, 9.0, 2.0]]
    profiles = [list(zip(entries, row, strict=True)) for row in times]
    runtime: Any = SimpleNamespace(trainer=lambda *given, **options: Trainer(profiles))
    clock = iter([0.0, 1.0, 3.0])
    monkeypatch.setattr(sustained, "SECONDS", 2.0)
    monkeypatch.setattr(sustained, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert sustained.reached(runtime, Path("solver"), "f32") == 8e9 / 2


def test_its_net_has_the_convolutions_that_it_says() -> None:
    """By hand, 2 images: 8 channels of 4 x 4 to 2, to 2, to 8; then of 2 x 2 to 4, to 4, to 16. The
    first one has no gradient of what it reads."""
    forward = [2 * 16 * 2 * o * i * taps for o, i, taps in [(2, 8, 1), (2, 2, 9), (8, 2, 1)]]
    forward += [2 * 4 * 2 * o * i * taps for o, i, taps in [(4, 8, 1), (4, 4, 9), (16, 4, 1)]]
    with demitasse.compose(plugins=PLUGINS) as runtime:
        seen: list[Any] = []
        honest = runtime.trainer

        def trainer(*given: Any, **options: Any) -> Any:
            seen.append(honest(*given, **options))
            return seen[-1]

        runtime.trainer = trainer  # type: ignore[method-assign]
        rates = sustained.sustained(runtime)
    assert isinstance(rates, Rate) and set(rates.others) == {"bf16"}
    assert min(rates.value, rates.others["bf16"].value) > 1e5
    entries = [each for each in seen[0].plan.entries if each.operation.startswith("convolution")]
    assert sum(each.flops for each in entries) == pytest.approx(3 * sum(forward) - forward[0])


def test_a_description_that_was_measured_can_be_read_again(tmp_path: Path) -> None:
    with demitasse.compose(plugins=PLUGINS) as runtime:
        machine = runtime.program("measure")
    node = machine.levels[0]
    assert isinstance(node.sustained, Rate) and node.sustained.value <= node.peak.value
    (tmp_path / "mine.toml").write_text(str(machine))
    assert load_machine(tmp_path / "mine.toml").levels == machine.levels


def test_without_plugins_that_train_it_is_left_out() -> None:
    for plugins in (["system"], ["system", "reference", "training"]):
        with demitasse.compose(plugins=plugins) as runtime:
            assert sustained.sustained(runtime) is None


def test_filters_that_take_fewer_products_may_exceed_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "product", lambda: 3e9)
    (node,) = measure.measure([demitasse.Level("node")], Rate(4e9, "FLOP/s", "measured"))
    assert node.peak is not None and node.peak.value == 4e9
    assert np.isclose(measure.measure([demitasse.Level("node")])[0].peak.value, 3e9)  # type: ignore[union-attr]
