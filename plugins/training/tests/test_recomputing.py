"""Large activations that are cheap to compute are recomputed for the backward pass, to the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import demitasse
from demitasse import Level, Machine, MemorySpace, fingerprint
from demitasse_training import recomputing

PLUGINS = ["caffe", "training", "datasets", "reference"]
HEAD = """
name: "again"
layer { name: "data" type: "Data" top: "data" top: "label"
        data_param { source: "given" batch_size: 2 } }
"""
TAIL = """
layer { name: "scores" type: "InnerProduct" bottom: "TOP" top: "scores"
        inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss" }
"""


def convolution(name: str, bottom: str, outputs: int, stride: int = 1) -> str:
    return (
        f'layer {{ name: "{name}" type: "Convolution" bottom: "{bottom}" top: "{name}" '
        f"convolution_param {{ num_output: {outputs} kernel_size: 3 pad: 1 stride: {stride} "
        f'weight_filler {{ type: "xavier" }} }} }}\n'
    )


def layer(kind: str, bottom: str, top: str, rest: str = "") -> str:
    return f'layer {{ name: "{top}_{kind}" type: "{kind}" bottom: "{bottom}" top: "{top}" {rest} }}\n'


LARGE_FIRST = (
    convolution("first", "data", 16)
    + layer("ReLU", "first", "first")
    + convolution("second", "first", 16)
    + layer("Pooling", "second", "deep0", "pooling_param { pool: MAX kernel_size: 2 stride: 2 }")
    + "".join(convolution(f"deep{i + 1}", f"deep{i}", 64) for i in range(4))
)
"""As in VGG, the first convolution's result is the largest that is kept, and costs almost nothing."""


def trained(
    folder: Path, body: str, top: str, **options: Any
) -> tuple[Any, list[np.ndarray], list[float]]:
    """Return the plan, the parameters after three steps, and the losses."""
    (folder / "net.prototxt").write_text(HEAD + body + TAIL.replace("TOP", top))
    (folder / "solver.prototxt").write_text(
        'net: "net.prototxt" base_lr: 0.02 momentum: 0.9 lr_policy: "fixed" max_iter: 3 random_seed: 2'
    )
    random = np.random.default_rng(4)
    data = {"train": {"data": random.normal(size=(2, 3, 16, 16)), "label": np.arange(2)}}
    hw, plugins = options.pop("hw", "auto"), options.pop("plugins", PLUGINS)
    with demitasse.compose(hw=hw, plugins=plugins) as runtime:
        options = {"precision": "f64", **options}
        trainer = runtime.trainer(folder / "solver.prototxt", data=data, **options)
        losses = [trainer.step(1).loss for _ in range(3)]
        found = [a.copy() for each in trainer.net.params.values() for a in each]
        return trainer.plan, found, losses


def again(plan: Any) -> list[str]:
    """Return the layers of which a forward operation runs in the backward pass."""
    words = ("convolution", "convolution_relu", "relu", "batch_norm")
    found = [e for e in plan.entries if e.phase == "backward" and e.operation in words]
    return [entry.layer for entry in found]


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function after whose call nothing is recomputed any more."""
    return lambda: monkeypatch.setattr(recomputing, "LARGE", 2.0)


def test_the_numbers_are_the_same_and_the_memory_less(tmp_path: Path, never: Any) -> None:
    plan, parameters, losses = trained(tmp_path, LARGE_FIRST, "deep4")
    never()
    kept, expected, usual = trained(tmp_path, LARGE_FIRST, "deep4")
    assert again(plan) == ["first", "first_ReLU"]
    assert again(kept) == []
    assert plan.arena_bytes < 0.95 * kept.arena_bytes
    assert losses == usual
    assert all(np.array_equal(a, b) for a, b in zip(parameters, expected, strict=True))


def test_it_is_fused_as_the_first_time(tmp_path: Path) -> None:
    plan, _, _ = trained(tmp_path, LARGE_FIRST, "deep4", plugins=["cpu", *PLUGINS], precision="f32")
    first, twice = (
        [
            e
            for e in plan.entries
            if e.layer == "first" and e.operation.startswith("convolution") and e.phase == phase
        ]
        for phase in ("forward", "backward")
    )
    assert first[0].operation == twice[0].operation
    assert first[0].kernel == twice[0].kernel


def test_what_is_a_large_part_of_the_arithmetic_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = LARGE_FIRST.replace("num_output: 64", "num_output: 32")
    plan, _, _ = trained(tmp_path, small, "deep4")
    assert again(plan) == []
    monkeypatch.setattr(recomputing, "CHEAP", 1.0)
    plan, _, _ = trained(tmp_path, small, "deep4")
    assert "first" in again(plan)


def test_what_updates_statistics_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recomputing, "CHEAP", 1.0)
    relu = layer("ReLU", "first", "first")
    for kind, expected in (("BatchNorm", {"first"}), ("ReLU", {"first", "first_ReLU"})):
        body = LARGE_FIRST.replace(relu, layer(kind, "first", "first"))
        plan, _, _ = trained(tmp_path, body, "deep4")
        assert {name for name in again(plan) if name.startswith("first")} == expected


def test_where_blobs_are_retained_nothing_is_made_twice(tmp_path: Path) -> None:
    plan, _, _ = trained(tmp_path, LARGE_FIRST, "deep4", retain="all")
    assert again(plan) == []


def test_kernels_that_know_their_time_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def seconds(node: Any, kernels: Any, place: Any) -> float:
        asked.append(node.operation.name)
        return 1.0 if node.layer == "first" else 1e-3

    monkeypatch.setattr(recomputing, "_seconds", seconds)
    plan, _, _ = trained(tmp_path, LARGE_FIRST, "deep4")
    assert asked
    assert again(plan) == []


def test_at_an_accelerator_the_bytes_that_are_moved_count_as_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = (MemorySpace("host", at="accelerator:0"),)
    accelerator = Level("accelerator", workers="streams", memory=memory)
    machine = Machine("one", (Level("node"), accelerator), fingerprint=fingerprint())
    options = {"hw": machine, "plugins": [*PLUGINS, "host_streams"]}
    # The first convolution's result is the largest of all: little arithmetic, a third of the bytes.
    for cheap, twice in ((1 / 200, False), (1 / 10, True)):
        monkeypatch.setattr(recomputing, "CHEAP", cheap)
        plan, _, _ = trained(tmp_path, LARGE_FIRST, "deep4", **options)
        assert plan.place.level == "accelerator"
        assert ("first" in again(plan)) == twice


def test_a_long_frozen_part_with_many_joins_is_looked_at_once(tmp_path: Path) -> None:
    text, top = "", "data"
    for i in range(40):
        text += layer("Power", top, f"p{i}", "power_param { scale: 0.5 }")
        text += layer("Eltwise", top, f"s{i}", f'bottom: "p{i}"')
        top = f"s{i}"
    plan, _, _ = trained(tmp_path, text + convolution("last", top, 4), "last")
    assert plan.entries


LAYERS = {
    "conv": lambda bottom, top: convolution(top, bottom, 4),
    "relu": lambda bottom, top: layer("ReLU", bottom, top),
    "relu in place": lambda bottom, top: layer("ReLU", bottom, bottom),
    "pool": lambda bottom, top: layer(
        "Pooling", bottom, top, "pooling_param { pool: MAX kernel_size: 3 stride: 1 pad: 1 }"
    ),
    "average": lambda bottom, top: layer(
        "Pooling", bottom, top, "pooling_param { pool: AVE kernel_size: 3 stride: 1 pad: 1 }"
    ),
    "dropout": lambda bottom, top: layer("Dropout", bottom, top),
    "lrn": lambda bottom, top: layer("LRN", bottom, top, "lrn_param { local_size: 3 }"),
    "normalised": lambda bottom, top: layer("BatchNorm", bottom, top),
    "sigmoid": lambda bottom, top: layer("Sigmoid", bottom, top),
}


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, str]:
    """A net's layers in a row, with branches that join again."""
    text, top, before = convolution("start", "data", 4), "start", "start"
    for number, kind in enumerate(draw(st.lists(st.sampled_from([*LAYERS, "join"]), max_size=7))):
        if kind == "join":
            name = f"join{number}"
            text += layer("Eltwise", top, name, f'bottom: "{before}"')
        else:
            name = top if kind == "relu in place" else f"{kind}{number}"
            text += LAYERS[kind](top, name)
        if draw(st.booleans()):
            before = name
        top = name
    return text, top


@settings(max_examples=examples(25), suppress_health_check=list(HealthCheck))
@given(body=bodies())
def test_whatever_is_made_again_nothing_else_changes(
    body: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("net")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recomputing, "LARGE", -1e9)
        patch.setattr(recomputing, "CHEAP", 1e9)
        _, parameters, losses = trained(folder, *body)
        patch.setattr(recomputing, "LARGE", 2.0)
        _, expected, usual = trained(folder, *body)
    assert losses == usual
    assert all(np.array_equal(a, b) for a, b in zip(parameters, expected, strict=True))
