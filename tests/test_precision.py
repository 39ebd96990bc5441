"""bf16: half the bits of what flows, the same training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import CompositionError, DescriptionError, Runtime, compose, load_machine
from demitasse_cpu.onednn.inner_product import bfloat16_kernel
from demitasse_cpu.onednn.library import library

pytestmark = pytest.mark.all_cores

ROOT = Path(__file__).parent.parent
SOLVER = ROOT / "examples" / "digits" / "digits_solver.prototxt"
NET = """
name: "small"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 4 dim: 3 dim: 12 dim: 12 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 20 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "pool" type: "Pooling" bottom: "conv" top: "pool"
  pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "ip" type: "InnerProduct" bottom: "pool" top: "ip"
  inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with compose() as runtime:
        yield runtime


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.prototxt"
    path.write_text(NET)
    return path


def stored(plan: Any) -> set[str]:
    return {b.spec.stored for e in plan.entries for b in (*e.inputs, *e.outputs) if b is not None}


def test_bf16_trains_as_well_as_f32(runtime: Runtime) -> None:
    """Of 359 test samples one training more or less gets one or two right by the order of its sums; of
    several trainings the means agree."""
    accuracy: dict[str, list[float]] = {"f32": [], "bf16": []}
    for precision, found in accuracy.items():
        for seed in range(1, 7):
            overrides = {"random_seed": seed, "display": 0}
            trainer = runtime.trainer(SOLVER, precision=precision, overrides=overrides)
            assert ("bfloat16" in stored(trainer.plan)) == (precision == "bf16")
            trainer.step(1000)
            found.append(float(trainer.test()["accuracy"]))
    assert np.mean(accuracy["f32"]) > 0.98
    assert abs(np.mean(accuracy["bf16"]) - np.mean(accuracy["f32"])) < 0.005


def test_parameters_and_what_is_updated_stay_float32(runtime: Runtime) -> None:
    plan = runtime.trainer(SOLVER, precision="bf16").plan
    assert {slot.spec.stored for slot in plan.slots} == {"float32"}
    gradients = [b for e in plan.entries for b in e.outputs if b and b.region == "gradients"]
    assert {b.spec.stored for b in gradients} <= {"float32"}
    assert {buffer.spec.stored for buffer, _ in plan.objective} == {"float32"}


def test_a_net_that_keeps_every_blob_is_float32(runtime: Runtime, small: Path) -> None:
    net = runtime.net(small, precision="bf16", retain="all")
    assert stored(net.plan) == {"float32"}


def test_copies_of_parameters_are_made_once_and_again_when_somebody_may_have_written(
    runtime: Runtime, small: Path
) -> None:
    net = runtime.net(small, precision="bf16")
    data = np.random.default_rng(0).standard_normal((4, 3, 12, 12)).astype(np.float32)
    copies = [entry for entry in net.plan.entries if entry.once]
    if (lib := library()) is not None and bfloat16_kernel(lib):
        assert copies
    assert all(b.region == "parameters" for e in copies[:1] for b in e.inputs if b is not None)
    before = net.forward(data=data)["prob"]
    assert np.array_equal(net.forward(data=data)["prob"], before)
    for array in net.params["ip"]:
        if array.flags.writeable:
            array[...] = np.arange(array.size).reshape(array.shape)
        else:
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
    after = net.forward(data=data)["prob"]
    assert not np.allclose(after, before)
    other = net.forward(data=data[:2])["prob"]  # planned anew for another batch
    assert np.allclose(other, after[:2], atol=0.02)


def test_what_is_written_to_parameters_is_seen_where_all_blobs_are_kept(
    runtime: Runtime, small: Path
) -> None:
    net = runtime.net(small, retain="all")
    data = np.zeros((4, 3, 12, 12), np.float32)
    for array in net.params["ip"]:
        array[...] = 0
    assert np.allclose(net.forward(data=data)["prob"], 0.1)


def test_f32_and_bf16_agree_to_the_bits_that_bf16_has(runtime: Runtime, small: Path) -> None:
    data = np.random.default_rng(0).standard_normal((4, 3, 12, 12)).astype(np.float32)
    exact, rough = (runtime.net(small, precision=p).forward(data=data)["prob"] for p in ("f32", "bf16"))
    assert np.abs(exact - rough).max() < 0.02
    assert not np.array_equal(exact, rough)


def test_a_description_chooses_the_precision_of_runs_that_name_none(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.toml"
    path.write_text('schema = 1\nname = "half"\nprecision = "bf16"\n\n[[level]]\nname = "machine"\n')
    machine = load_machine(path)
    with compose(machine) as runtime:
        assert runtime.net(small).precision == "bf16"
        assert runtime.net(small, precision="f32").precision == "f32"
    assert 'precision = "bf16"' in str(machine)


def test_an_unknown_precision_is_named_with_the_valid_ones(small: Path, tmp_path: Path) -> None:
    with compose() as runtime, pytest.raises(CompositionError, match=r"'b16'.*'bf16'.*f32, f64"):
        runtime.net(small, precision="b16")
    path = tmp_path / "odd.toml"
    path.write_text('schema = 1\nname = "odd"\nprecision = "f23"\n\n[[level]]\nname = "machine"\n')
    with pytest.raises(DescriptionError, match=r"odd.toml:3: unknown precision 'f23'; .*'f32'"):
        load_machine(path)
