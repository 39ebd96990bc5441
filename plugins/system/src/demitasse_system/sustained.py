"""What layers reach of this machine's peak: convolutions of a training, by the composed kernels."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from demitasse import CompositionError, ModelError, Quantity, Rate, Runtime

SECONDS = 2.0
"""How long steps are repeated, in each precision; of each convolution the quickest counts."""

PRECISIONS = ("f32", "bf16")
BATCH = 8
SIDE = 56
CHANNELS = 256
NARROW = (64, 128, 256, 512)
"""Of each stage; at each of its ends are four times as many."""

SOLVER = 'net: "net.prototxt"\nbase_lr: 0.0001\nlr_policy: "fixed"\nmax_iter: 1\n'
HEAD = f"""
name: "bottlenecks"
layer {{ name: "data" type: "Data" top: "data" top: "label"
        data_param {{ source: "arrays" batch_size: {BATCH} }} }}
"""
CONVOLUTION = """
layer {{ name: "{top}" type: "Convolution" bottom: "{bottom}" top: "{top}" convolution_param {{
        num_output: {outputs} kernel_size: {side} pad: {pad} stride: {stride}
        weight_filler {{ type: "msra" }} }} }}
layer {{ name: "{top}_relu" type: "ReLU" bottom: "{top}" top: "{top}" }}
"""
TAIL = """
layer {{ name: "pool" type: "Pooling" bottom: "{bottom}" top: "pool"
        pooling_param {{ pool: AVE global_pooling: true }} }}
layer {{ name: "classes" type: "InnerProduct" bottom: "pool" top: "classes"
        inner_product_param {{ num_output: 10 weight_filler {{ type: "xavier" }} }} }}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "classes" bottom: "label" top: "loss" }}
"""


def bottlenecks() -> str:
    """A net of the convolutions that ResNet-50 has most of: at four sizes of images, points that narrow
    the channels to a quarter, 3 x 3 taps, and points that widen them again."""
    text, bottom = HEAD, "data"
    for stage, narrow in enumerate(NARROW, 1):
        for name, outputs, side, stride in (
            ("narrowed", narrow, 1, 1 if stage == 1 else 2),
            ("taps", narrow, 3, 1),
            ("widened", 4 * narrow, 1, 1),
        ):
            top = f"{name}{stage}"
            text += CONVOLUTION.format(
                top=top, bottom=bottom, outputs=outputs, side=side, pad=side // 2, stride=stride
            )
            bottom = top
    return text + TAIL.format(bottom=bottom)


def sustained(runtime: Runtime) -> Rate | None:
    """FLOP/s that convolutions reach in a training step, forward and backward together, in float32 and
    bfloat16. None where the composed plugins train no such net."""
    rates = dict[str, Quantity]()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "net.prototxt").write_text(bottlenecks(), encoding="utf-8")
        solver = Path(folder) / "solver.prototxt"
        solver.write_text(SOLVER, encoding="utf-8")
        for precision in PRECISIONS:
            try:
                rate = reached(runtime, solver, precision)
            except (CompositionError, ModelError):  # no trainer, or nobody reads such files
                return None
            # Three digits are what so short a measurement can tell.
            rates[precision] = Quantity(float(f"{rate:.3g}"), "FLOP/s", "measured")
    plain = rates.pop("f32")
    return Rate(plain.value, plain.unit, plain.source, rates)


def reached(runtime: Runtime, solver: Path, precision: str) -> float:
    """FLOP/s of a net's convolutions in one precision."""
    with runtime.trainer(solver, precision=precision, data={"train": samples()}) as trainer:
        trainer.profile(1)
        best: Mapping[int, float] = {}
        end = time.perf_counter() + SECONDS
        while not best or time.perf_counter() < end:
            rows = trainer.profile(1)
            best = {i: min(best.get(i, seconds), seconds) for i, (_, seconds) in enumerate(rows)}
    counted = [i for i, (entry, _) in enumerate(rows) if entry.operation.startswith("convolution")]
    return sum(rows[i][0].flops for i in counted) / sum(best[i] for i in counted)


def samples() -> dict[str, object]:
    """A batch for that net: any numbers do."""
    import numpy as np

    random = np.random.default_rng(0)
    images = random.random((BATCH, CHANNELS, SIDE, SIDE), dtype=np.float32)
    return {"data": images, "label": np.arange(BATCH)}
