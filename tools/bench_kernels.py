"""Time a plugin's kernels on the layers of well-known nets, next to the machine's limits.

    python tools/bench_kernels.py lenet cifar10_quick --threads 2 --json kernels.json

Each operation of a training step is timed alone, on random values: the median of several calls, after
two that are not counted. Compare GFLOP/s with the matrix product, and GB/s (each operand counted once)
with the triad.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from demitasse import Candidate, Place, Request, TensorSpec, shapes_by_operand
from demitasse.operations import VOCABULARY

Shape = tuple[int, ...]

# (layer type, numbers): convolution outputs, kernel, stride, pad, groups; pooling kernel, stride;
# lrn size; inner product outputs.
NETS: dict[str, tuple[Shape, list[tuple[Any, ...]]]] = {
    "lenet": (
        (64, 1, 28, 28),
        [
            ("convolution", 20, 5, 1, 0, 1),
            ("pooling_max", 2, 2),
            ("convolution", 50, 5, 1, 0, 1),
            ("pooling_max", 2, 2),
            ("inner_product", 500),
            ("relu",),
            ("inner_product", 10),
        ],
    ),
    "cifar10_quick": (
        (100, 3, 32, 32),
        [
            ("convolution", 32, 5, 1, 2, 1),
            ("pooling_max", 3, 2),
            ("relu",),
            ("convolution", 32, 5, 1, 2, 1),
            ("relu",),
            ("pooling_average", 3, 2),
            ("convolution", 64, 5, 1, 2, 1),
            ("relu",),
            ("pooling_average", 3, 2),
            ("inner_product", 64),
            ("inner_product", 10),
        ],
    ),
    "cifar10_full": (
        (100, 3, 32, 32),
        [
            ("convolution", 32, 5, 1, 2, 1),
            ("pooling_max", 3, 2),
            ("relu",),
            ("lrn_within_channel", 3),
            ("convolution", 32, 5, 1, 2, 1),
            ("relu",),
            ("pooling_average", 3, 2),
            ("lrn_within_channel", 3),
            ("convolution", 64, 5, 1, 2, 1),
            ("relu",),
            ("pooling_average", 3, 2),
            ("inner_product", 10),
        ],
    ),
    "alexnet": (
        (256, 3, 227, 227),
        [
            ("convolution", 96, 11, 4, 0, 1),
            ("relu",),
            ("lrn_across_channels", 5),
            ("pooling_max", 3, 2),
            ("convolution", 256, 5, 1, 2, 2),
            ("relu",),
            ("lrn_across_channels", 5),
            ("pooling_max", 3, 2),
            ("convolution", 384, 3, 1, 1, 1),
            ("relu",),
            ("convolution", 384, 3, 1, 1, 2),
            ("relu",),
            ("convolution", 256, 3, 1, 1, 2),
            ("relu",),
            ("pooling_max", 3, 2),
            ("inner_product", 4096),
            ("relu",),
            ("dropout",),
            ("inner_product", 4096),
            ("relu",),
            ("dropout",),
            ("inner_product", 1000),
        ],
    ),
}


@dataclass(frozen=True)
class Timing:
    """One operation of one layer, with its time."""

    net: str
    layer: str
    operation: str
    kernel: str
    shape: str
    milliseconds: float
    gflops: float
    gbytes: float


class Step:
    """The operations of a training step, as requests with buffers, in layer order."""

    def __init__(self, dtype: str, threads: int) -> None:
        self.dtype, self.place = dtype, Place("machine", threads=threads)
        self.random = np.random.default_rng(1)
        self.parameters = 0

    def real(self, *shape: int) -> Any:
        return self.random.standard_normal(shape, np.float32).astype(self.dtype)

    def of(self, name: str, inputs: list[Any], **given: Any) -> tuple[Request, list[Any], list[Any]]:
        """Return a request with all outputs, and its buffers."""
        operation = VOCABULARY[name]
        attributes = {**operation.attributes, **given}
        names = [operand.name for operand in operation.inputs]
        shapes = dict(zip(names, [None if x is None else x.shape for x in inputs], strict=True))
        made = operation.shapes(shapes, attributes)
        kinds = [
            self.dtype if operand.dtype in (None, "real") else str(operand.dtype)
            for operand in operation.outputs
        ]
        outputs = [np.zeros(shape, kind) for shape, kind in zip(made, kinds, strict=True)]
        specs = [
            tuple(None if a is None else TensorSpec(a.shape, a.dtype.name) for a in group)
            for group in (inputs, outputs)
        ]
        return Request(operation, specs[0], specs[1], attributes, self.place), inputs, outputs

    def layers(
        self, image: Shape, layers: Sequence[tuple[Any, ...]]
    ) -> Iterator[tuple[str, tuple[Request, list[Any], list[Any]]]]:
        """Yield (layer name, request and buffers) for all operations, forward and backward."""
        counters = [np.zeros(1, np.uint64), np.zeros(1, np.uint64)]
        raw = self.random.integers(0, 256, image).astype(np.uint8)
        common = {"seed": 1, "stream": 0}
        first = self.of("image_transform", [raw, None, *counters], scale=1 / 256, **common)
        yield "data", first
        x = first[2][0]
        for number, (kind, *numbers) in enumerate(layers, 1):
            name = f"{kind.partition('_')[0][:4]}{number}"
            for made in self.layer(kind, numbers, x, counters, is_first=number == 1):
                yield name, made
                if made[0].operation.name == kind:
                    x = made[2][0]
        label = self.random.integers(0, x.shape[1], x.shape[0]).astype(self.dtype)
        loss = self.of("softmax_loss", [x, label])
        yield "loss", loss
        dloss = np.ones((), self.dtype)
        yield "loss", self.of("softmax_loss_backward", [dloss, loss[2][1], label])
        flat = [self.real(self.parameters) for _ in range(3)]
        segments = ((0, self.parameters, 1.0, 1.0),)
        update: dict[str, Any] = {"momentum": 0.9, "decay": 0.0005, "segments": segments}
        yield "update", self.of("momentum_update", [*flat, np.array([0.001])], **update)

    def layer(
        self, kind: str, numbers: list[int], x: Any, counters: list[Any], is_first: bool
    ) -> Iterator[tuple[Request, list[Any], list[Any]]]:
        if kind in ("convolution", "inner_product"):
            yield from self.affine(kind, numbers, x, is_first)
        elif kind.startswith("pooling"):
            windows = {"kernel": (numbers[0],) * 2, "stride": (numbers[1],) * 2}
            forward = self.of(kind, [x], **windows)
            yield forward
            dy = self.real(*forward[2][0].shape)
            index = forward[2][1:]
            if index:
                index[0][...] = np.arange(dy.size).reshape(dy.shape) % (x.shape[2] * x.shape[3])
            yield self.of(f"{kind}_backward", [dy, *index], shape=x.shape, **windows)
        elif kind.startswith("lrn"):
            size = {"size": numbers[0], "alpha": 1e-4}
            forward = self.of(kind, [x], **size)
            yield forward
            scale = np.ones_like(x)
            yield self.of(
                f"{kind}_backward", [self.real(*x.shape), x, self.real(*x.shape), scale], **size
            )
        elif kind == "dropout":
            forward = self.of(kind, [x, *counters], seed=1, stream=1)
            yield forward
            yield self.of("dropout_backward", [self.real(*x.shape), forward[2][1]])
        else:
            yield self.of(kind, [x])
            yield self.of(f"{kind}_backward", [self.real(*x.shape), self.real(*x.shape)])

    def affine(
        self, kind: str, numbers: list[int], x: Any, is_first: bool
    ) -> Iterator[tuple[Request, list[Any], list[Any]]]:
        given: dict[str, Any] = {}
        if kind == "convolution":
            outputs, kernel, stride, pad, groups = numbers
            given = {"stride": (stride,) * 2, "pad": (pad,) * 2, "groups": groups}
            w = self.real(outputs, x.shape[1] // groups, kernel, kernel)
        else:
            w = self.real(numbers[0], int(np.prod(x.shape[1:])))
        self.parameters += w.size + w.shape[0]
        forward = self.of(kind, [x, w, self.real(w.shape[0])], **given)
        yield forward
        dy = self.real(*forward[2][0].shape)
        if not is_first:
            yield self.of(f"{kind}_backward_data", [dy, w], shape=x.shape, **given)
        yield self.of(f"{kind}_backward_weights", [dy, x], shape=w.shape, **given)


def kernels(plugin: str) -> Callable[[Request], Iterable[Candidate]]:
    """Return the kernels hook of an installed plugin."""
    (entry,) = entry_points(group="demitasse.plugins", name=plugin)
    hook: Callable[[Request], Iterable[Candidate]] = entry.load().kernels
    return hook


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of a call, after two that are not counted."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return median(times[2:])


def flops(request: Request) -> float:
    """Return the operation's flops; without a rule for them, one per output element."""
    operation = request.operation
    if operation.flops is None:
        return float(sum(math.prod(spec.shape) for spec in request.outputs if spec is not None))
    return operation.flops(shapes_by_operand(request), request.attributes)


def measure(net: str, plugin: str, step: Step, batch: int | None, repeats: int) -> Iterator[Timing]:
    """Yield timings of all operations of a training step of a net."""
    image, layers = NETS[net]
    image = (batch or image[0], *image[1:])
    hook = kernels(plugin)
    for layer, (request, inputs, outputs) in step.layers(image, layers):
        candidate = next(iter(hook(request)), None)
        if candidate is None:
            raise SystemExit(f"plugin {plugin} has no kernel for {request.operation.name}")
        workspace = np.zeros(candidate.workspace, np.uint8) if candidate.workspace else None
        spent = seconds(candidate.bind(inputs, outputs, workspace), repeats)
        moved = sum(array.nbytes for array in (*inputs, *outputs) if array is not None)
        work = flops(request)
        yield Timing(
            net=net,
            layer=layer,
            operation=request.operation.name,
            kernel=candidate.kernel,
            shape="x".join(map(str, (outputs or inputs)[0].shape)),
            milliseconds=spent * 1e3,
            gflops=work / spent / 1e9,
            gbytes=moved / spent / 1e9,
        )


def machine_limits(dtype: str) -> dict[str, float]:
    """Return the rates of a large matrix product and of a triad over 96 MB, both by NumPy."""
    a, b, c = (np.ones((1536, 1536), dtype) for _ in range(3))
    product = 2 * 1536**3 / seconds(lambda: np.matmul(a, b, out=c), 9) / 1e9
    size = 32 * 2**20 // a.itemsize
    x, y, z = (np.ones(size, dtype) for _ in range(3))
    scaled = 2 * size * x.itemsize / seconds(lambda: np.multiply(x, 3, out=z), 9) / 1e9
    added = 3 * size * x.itemsize / seconds(lambda: np.add(x, y, out=z), 9) / 1e9
    return {"matrix_product_gflops": product, "scale_gbytes": scaled, "add_gbytes": added}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("nets", nargs="*", help=f"of {', '.join(NETS)} (all but alexnet)")
    parser.add_argument("--plugin", default="cpu", help="whose kernels to time (cpu)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--batch", type=int, help="samples, instead of the net's own batch")
    parser.add_argument("--dtype", default="float32", choices=("float32", "float64"))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the timings there too")
    options = parser.parse_args()
    wrong = [net for net in options.nets if net not in NETS]
    if wrong:
        parser.error(f"unknown net {wrong[0]!r} (valid: {', '.join(NETS)})")
    limits = machine_limits(options.dtype)
    print(
        f"{options.dtype}, {options.threads} threads; NumPy here: matrix product "
        f"{limits['matrix_product_gflops']:.0f} GFLOP/s, scale {limits['scale_gbytes']:.0f} GB/s, "
        f"add {limits['add_gbytes']:.0f} GB/s"
    )
    timings = []
    for net in options.nets or [net for net in NETS if net != "alexnet"]:
        step = Step(options.dtype, options.threads)
        total = 0.0
        print(
            f"\n{net}\n{'layer':8} {'operation':29} {'output':16} {'ms':>8} {'GFLOP/s':>8} {'GB/s':>6}"
        )
        for timing in measure(net, options.plugin, step, options.batch, options.repeats):
            timings.append(asdict(timing))
            total += timing.milliseconds
            print(
                f"{timing.layer:8} {timing.operation:29} {timing.shape:16} "
                f"{timing.milliseconds:8.3f} {timing.gflops:8.1f} {timing.gbytes:6.1f}  "
                f"{timing.kernel}"
            )
        print(f"{'total':55} {total:8.3f}")
    if options.json:
        options.json.write_text(
            json.dumps({"limits": limits, "threads": options.threads, "timings": timings}, indent=2)
        )


if __name__ == "__main__":
    main()
