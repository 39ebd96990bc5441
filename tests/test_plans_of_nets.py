"""Plans of the field's nets, by the kernels that users have, read what they should: on one worker and on
two, in f32 and in bf16, on this machine and on described ones, trained and run forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sweep_prototxts
from bench import nets, prototxt
from detection_texts import LEARNT
from plan_reads import WrongReadError, checked
from real_files import DATA
from small_nets import WORKERS

import demitasse
import demitasse_training.planner
import demitasse_training.worker
from demitasse import Plan

ROOT = Path(__file__).parents[1]
FILES = DATA / "prototxt"
PLANNERS = demitasse_training.worker, demitasse_training.planner

INPUTS = """
layer { name: "data" type: "DummyData" top: "data" top: "label" dummy_data_param {
  shape { dim: 4 dim: 3 dim: 32 dim: 32 } shape { dim: 4 } } }
"""
SINGLE_SHOT = f"""
{INPUTS.replace("shape { dim: 4 }", "shape { dim: 1 dim: 1 dim: 4 dim: 8 }")}
{LEARNT}
layer {{ name: "loss" type: "MultiBoxLoss" bottom: "loc_f" bottom: "conf_f" bottom: "prior"
  bottom: "label" top: "loss" multibox_loss_param {{ num_classes: 3 code_type: CENTER_SIZE }} }}
"""
RECURRENT = """
layer { name: "data" type: "DummyData" top: "data" top: "cont" top: "label" dummy_data_param {
  shape { dim: 6 dim: 4 dim: 10 } shape { dim: 6 dim: 4 } shape { dim: 6 dim: 4 } } }
layer { name: "lstm" type: "LSTM" bottom: "data" bottom: "cont" top: "lstm"
  recurrent_param { num_output: 16 weight_filler { type: "xavier" } } }
layer { name: "rnn" type: "RNN" bottom: "lstm" bottom: "cont" top: "rnn"
  recurrent_param { num_output: 16 weight_filler { type: "xavier" } } }
layer { name: "scores" type: "InnerProduct" bottom: "rnn" top: "scores"
  inner_product_param { num_output: 5 axis: 2 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "scores" bottom: "label" top: "loss"
  softmax_param { axis: 2 } }
"""
SIAMESE = f"""
{INPUTS}
layer {{ name: "slice" type: "Slice" bottom: "data" top: "one" top: "two" slice_param {{ axis: 0 }} }}
layer {{ name: "split" type: "Split" bottom: "one" top: "left" top: "right" }}
layer {{ name: "c" type: "Convolution" bottom: "left" top: "c" param {{ name: "w" }}
  param {{ name: "b" }} convolution_param {{ num_output: 8 kernel_size: 3 pad: 1 }} }}
layer {{ name: "d" type: "Convolution" bottom: "two" top: "d" param {{ name: "w" }}
  param {{ name: "b" }} convolution_param {{ num_output: 8 kernel_size: 3 pad: 1 }} }}
layer {{ name: "e" type: "Convolution" bottom: "right" top: "e" param {{ lr_mult: 0 }}
  convolution_param {{ num_output: 8 kernel_size: 3 pad: 1 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "re" type: "ReLU" bottom: "e" top: "e" }}
layer {{ name: "times" type: "Eltwise" bottom: "c" bottom: "e" top: "times"
  eltwise_param {{ operation: PROD }} }}
layer {{ name: "drop" type: "Dropout" bottom: "times" top: "times" }}
layer {{ name: "both" type: "Concat" bottom: "times" bottom: "d" bottom: "c" top: "both" }}
layer {{ name: "flat" type: "Flatten" bottom: "both" top: "flat" }}
layer {{ name: "norm" type: "BatchNorm" bottom: "both" top: "both" }}
layer {{ name: "x" type: "InnerProduct" bottom: "flat" top: "x"
  inner_product_param {{ num_output: 16 }} }}
layer {{ name: "y" type: "InnerProduct" bottom: "both" top: "y"
  inner_product_param {{ num_output: 16 }} }}
layer {{ name: "apart" type: "EuclideanLoss" bottom: "x" bottom: "y" top: "apart" loss_weight: 0.1 }}
layer {{ name: "sum" type: "Eltwise" bottom: "x" bottom: "y" top: "sum" }}
layer {{ name: "tanh" type: "TanH" bottom: "sum" top: "sum" }}
layer {{ name: "more" type: "Power" bottom: "sum" top: "more" power_param {{ power: 2 shift: 1 }} }}
layer {{ name: "loss" type: "EuclideanLoss" bottom: "more" bottom: "y" top: "loss" }}
"""


class PlannedError(Exception):
    """There is a plan, and it was checked; nothing is to run."""


class Checks:
    """What plans, with checks; ``seen`` are the plans, ``wrong`` what was found."""

    def __init__(self) -> None:
        self.seen, self.wrong, self.stop = list[Plan](), list[str](), False
        self._make = checked(demitasse.make_plan)

    def __call__(self, *arguments: Any, **options: Any) -> Plan:
        try:
            self.seen.append(self._make(*arguments, **options))
        except WrongReadError as error:
            self.wrong.append(str(error))
        if self.stop or self.wrong:
            raise PlannedError
        return self.seen[-1]


@contextmanager
def checks() -> Iterator[Checks]:
    """Every plan that is made meanwhile is checked."""
    made = Checks()
    with pytest.MonkeyPatch.context() as patch:
        for module in PLANNERS:
            patch.setattr(module, "make_plan", made)
        yield made
    assert not made.wrong, "\n".join(made.wrong)


@contextmanager
def planned_only() -> Iterator[Checks]:
    """The first plan that is made is checked, and ends it."""
    with checks() as made:
        made.stop = True
        with pytest.raises(PlannedError):
            yield made
    assert made.seen


def solver_of(folder: Path, text: str, more: str = "") -> Path:
    (folder / "net.prototxt").write_text(text)
    path = folder / "solver.prototxt"
    path.write_text(f'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 4 {more}')
    return path


# The field's nets.

LARGE = (nets.alexnet, nets.googlenet, nets.resnet18, nets.mobilenet_v2)


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("make", LARGE, ids=lambda make: make.__name__)
def test_a_known_net_reads_what_it_should(make: Any, precision: str, tmp_path: Path) -> None:
    """At its own size: some things are done to what is large only."""
    net = make()
    net.batch = 2
    solver = prototxt.write(net, tmp_path)
    samples = {
        "data": np.zeros((4, *net.image), np.float32),
        "label": np.zeros(4, np.float32),
    }
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        with planned_only() as plans:
            runtime.trainer(solver, data={"train": samples}, precision=precision)
        (plan,) = plans.seen
        if make is nets.alexnet and precision == "f32":
            cut = {entry.layer for entry in plan.entries if entry.stretches}
            back = [entry for entry in plan.entries if entry.phase == "backward"]
            # Where gradients lie otherwise than the weights, they are whole.
            moved = {entry.layer for entry in back if entry.operation == "reorder"}
            assert {"fc6", "fc7"} <= cut | moved
        with planned_only():
            runtime.net(tmp_path / "deploy.prototxt", precision=precision)


@pytest.mark.parametrize("where", ["h200-box", "sw26010-node", "power8-4xp100"])
@pytest.mark.parametrize("make", [nets.cifar10_quick, nets.resnet18], ids=lambda make: make.__name__)
def test_what_is_planned_for_a_described_machine_reads_what_it_should(
    make: Any, where: str, tmp_path: Path
) -> None:
    net = make()
    net.batch = 16
    solver = prototxt.write(net, tmp_path)
    samples = {"data": np.zeros((16, *net.image), np.float32), "label": np.zeros(16, np.float32)}
    with demitasse.compose(ROOT / f"hwdesc/{where}.toml", ["+simulator"]) as runtime:
        planner = runtime.program("planned")
        for precision in ("f32", "bf16") if "sw" not in where else ("f32",):
            with planned_only():
                planner.program("trainer", solver, data={"train": samples}, precision=precision)


# Small ones, which are trained too: of each of their plans.


@pytest.mark.parametrize("precision", ["f32", "bf16"])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("text", "more"),
    [
        (SINGLE_SHOT, ""),
        (RECURRENT, ""),
        (SIAMESE, ""),
        (SIAMESE, "iter_size: 2"),
        (SIAMESE, "clip_gradients: 1"),
    ],
    ids=["single shot", "recurrent", "siamese", "siamese of two passes", "siamese, clipped"],
)
def test_a_small_net_reads_what_it_should(
    text: str, more: str, workers: int, precision: str, tmp_path: Path
) -> None:
    if workers > 1 and text is RECURRENT:
        pytest.skip("its batch is not along the first axis, which workers divide")
    solver = solver_of(tmp_path, text, more)
    machine = tmp_path / "workers.toml"
    machine.write_text(WORKERS.format(count=workers))
    hw: Sequence[Any] = (machine if workers > 1 else "auto",)
    with demitasse.compose(*hw, plugins=["-tuning"]) as runtime:
        for retain in (None, "all"):
            with planned_only():
                runtime.trainer(solver, precision=precision, retain=retain)
        with planned_only():
            runtime.net(tmp_path / "net.prototxt", phase="train", precision=precision)


# Files of others.


@pytest.mark.skipif(not FILES.is_dir(), reason=f"no prototxts under {FILES}")
@pytest.mark.parametrize("part", range(4))
def test_nets_of_other_repositories_read_what_they_should(part: int) -> None:
    """Some of each, the smaller ones: all of them take minutes."""
    found = sorted(FILES.rglob("*.prototxt"), key=lambda path: (path.stat().st_size, path))
    plans = 0
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        for path in found[part : len(found) * 2 // 3 : 12]:
            with checks() as made:
                made.stop = True
                for _ in sweep_prototxts.sweep(runtime, path):
                    assert not made.wrong
            plans += len(made.seen)
    assert plans > 3
