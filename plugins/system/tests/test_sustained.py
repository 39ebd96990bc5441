"""Rates of layers: which operations count for which rate, and by which of their times."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import Rate, RatedOperation, load_machine
from demitasse_system import measure, nets, sustained

PLUGINS = ["caffe", "training", "datasets", "reference", "system"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use nets that take no time, and as few passes as possible."""
    monkeypatch.setattr(measure, "SECONDS", 0.02)
    monkeypatch.setattr(sustained, "SECONDS", 0.0)
    sizes = {"BATCH": 2, "SIDE": 4, "CHANNELS": 8, "NARROW": (2, 4), "IMAGES": 32, "ROWS": 2, "WIDE": 16}
    for name, value in sizes.items():
        monkeypatch.setattr(nets, name, value)


class Trainer:
    """A trainer with given profiles."""

    def __init__(self, profiles: list[list[tuple[Any, float]]]) -> None:
        self.profiles = iter(profiles)

    def profile(self, iterations: int) -> list[tuple[Any, float]]:
        assert iterations == 1
        return next(self.profiles)

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *about: object) -> None:
        """Do nothing."""


def entry(operation: str, flops: float = 1e9, layer: str = "") -> Any:
    return SimpleNamespace(operation=operation, flops=flops, layer=layer)


def test_of_each_operation_the_quickest_time_counts_after_a_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [entry("convolution"), entry("relu"), entry("convolution_backward_data")]
    times = [[0.1, 0.1, 0.1], [3.0, 9.0, 1.0], [1.0, 8.0, 2.0]]
    profiles = [list(zip(entries, row, strict=True)) for row in times]
    runtime: Any = SimpleNamespace(trainer=lambda *given, **options: Trainer(profiles))
    clock = iter([0.0, 1.0, 3.0])
    monkeypatch.setattr(sustained, "SECONDS", 2.0)
    monkeypatch.setattr(sustained, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    best = sustained.quickest(runtime, nets.bottlenecks(), "f32")
    assert best == list(zip(entries, [1.0, 8.0, 1.0], strict=True))


def test_moves_count_for_the_operation_behind_them() -> None:
    net = nets.Net("varieties", 1, (3, 8, 8))
    net.convolutions["taps"] = RatedOperation("convolution", (3, 3), 1)
    profile = [
        (entry("reorder"), 1.0),
        (entry("reorder"), 2.0),
        (entry("convolution_relu", 5e9, "taps"), 4.0),
        (entry("relu"), 8.0),
        (entry("reorder"), 16.0),
        (entry("reorder"), 32.0),
        (entry("softmax_loss"), 64.0),
        (entry("batch_norm_backward_relu", 6e9), 128.0),
        (entry("batch_norm_sum_relu", 7e9), 256.0),
        (entry("convolution_backward_weights", 8e9, "taps"), 512.0),
    ]
    assert list(sustained.counted(net, profile)) == [
        ("convolution 3x3 of 1", 5e9, 7.0),
        ("batch_norm_backward", 6e9, 128.0),
        ("batch_norm", 7e9, 256.0),
        ("convolution 3x3 of 1", 8e9, 512.0),
    ]


def test_the_convolutions_of_bottlenecks_together_are_the_rate_of_all() -> None:
    net = nets.bottlenecks()
    profile = [(entry("convolution", 5e9, "convolution1"), 4.0)]
    assert list(sustained.counted(net, profile)) == [
        ("convolution 1x1", 5e9, 4.0),
        ("convolution", 5e9, 4.0),
    ]


def test_a_rate_is_of_all_operations_of_its_name_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fast and slow ones, in several nets."""

    def quickest(runtime: object, net: nets.Net, precision: str) -> list[tuple[Any, float]]:
        slower = 2.0 if precision == "bf16" else 1.0
        profile = {
            "bottlenecks": [("convolution", 9e9, 1), ("convolution_backward_weights", 1e9, 4)],
            "varieties": [("convolution", 2e9, 2)],
            "inner_products": [("inner_product", 6e9, 1), ("inner_product", 1e9, 2.5)],
        }[net.name]
        layer = next(iter(net.convolutions), "")
        return [(entry(name, flops, layer), seconds * slower) for name, flops, seconds in profile]

    monkeypatch.setattr(sustained, "quickest", quickest)
    found = sustained.sustained(SimpleNamespace())  # type: ignore[arg-type]
    assert isinstance(found, Rate) and isinstance(found.operations["inner_product"], Rate)
    assert (found.value, found.others["bf16"].value) == (2e9, 1e9)
    assert found.operations["convolution 1x1"].value == 2e9
    assert found.operations["convolution 7x7 of 4"].value == 1e9
    assert found.operations["inner_product"].value == 2e9
    assert found.operations["inner_product"].others["bf16"].value == 1e9


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The trainers that measuring creates."""
    seen: list[Any] = []
    honest = demitasse.Runtime.trainer

    def trainer(self: Any, *given: Any, **options: Any) -> Any:
        seen.append(honest(self, *given, **options))
        return seen[-1]

    monkeypatch.setattr(demitasse.Runtime, "trainer", trainer)
    yield seen


def test_its_nets_have_the_operations_that_it_says(trained: list[Any]) -> None:
    """Computed by hand for 2 images: 8 channels of 4 x 4 to 2, to 2, to 8; then of 2 x 2 to 4, to 4, to
    16. The first convolution has no gradient of its input."""
    forward = [2 * 16 * 2 * o * i * taps for o, i, taps in [(2, 8, 1), (2, 2, 9), (8, 2, 1)]]
    forward += [2 * 4 * 2 * o * i * taps for o, i, taps in [(4, 8, 1), (4, 4, 9), (16, 4, 1)]]
    with demitasse.compose(plugins=PLUGINS) as runtime:
        rates = sustained.sustained(runtime)
    assert isinstance(rates, Rate) and set(rates.others) == {"bf16"}
    assert min(rates.value, rates.others["bf16"].value) > 1e3  # even on a busy machine
    entries = [each for each in trained[0].plan.entries if each.operation.startswith("convolution")]
    assert sum(each.flops for each in entries) == pytest.approx(3 * sum(forward) - forward[0])
    windows = ["1x1", "3x3", "3x3 of 1", "3x3 of 8", "5x5", "7x7 of 4"]
    convolutions = {f"convolution {window}" for window in windows}
    assert set(rates.operations) == convolutions | set(sustained.OPERATIONS)
    assert list(rates.operations) == sorted(rates.operations)
    for name, given in rates.operations.items():
        assert isinstance(given, Rate) and set(given.others) == {"bf16"}, name
        assert given.source == given.others["bf16"].source == "measured"


def test_a_convolutions_rate_is_told_of_filters_like_its_own(trained: list[Any]) -> None:
    with demitasse.compose(plugins=PLUGINS) as runtime:
        for net in (nets.bottlenecks(), nets.varieties()):
            sustained.quickest(runtime, net, "f32")
            filters = {
                each.layer: each.inputs[1].spec.shape
                for each in trained[-1].plan.entries
                if each.operation in ("convolution", "convolution_relu")
            }
            assert net.convolutions.keys() == filters.keys()
            for layer, rated in net.convolutions.items():
                _, channels, *window = filters[layer]
                assert rated.window == tuple(window)
                assert rated.channels is None or channels <= rated.channels


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
