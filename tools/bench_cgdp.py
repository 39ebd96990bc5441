"""Measure how much of the typical scheme's overhead CGDP hides, and how good the chunk size is that it
finds, on accelerators that threads stand in for:

    python tools/bench_cgdp.py hidden alexnet --replicas 2
    python tools/bench_cgdp.py chunks resnet152 --largest 60 --steps 1

Kernels compute nothing (plugin null) and take the time of a device whose step takes ``--step`` seconds.
Copies are made, at a bandwidth (host_streams) at which the typical scheme's overhead is ``--overhead``
of one replica's step; sums are computed. Each replica has a whole batch, as in the paper's Table 2. The
contenders take turns in one process, some steps in each round, and the medians of the rounds count.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from bench import prototxt
from bench.layers import Net
from bench.nets import NETS

from demitasse import Candidate, Level, Machine, MemorySpace, Request, SyncSpec, compose, hookimpl
from demitasse_cgdp.chunks import ChunkSearch

PLUGINS = ("caffe", "training", "datasets", "host_streams", "cgdp")


def resnet152() -> Net:
    """ResNet-152 as its authors define it for Caffe: stages of 3, 8, 36 and 3 bottlenecks."""
    net = Net("resnet152", 2, (3, 224, 224), 1000, rate=0.0002)

    def unit(blob: str, name: str, outputs: int, kernel: int, stride: int = 1, pad: int = 0) -> str:
        made = net.convolution(blob, f"res{name}", outputs, kernel, stride=stride, pad=pad, bias=False)
        return net.batch_norm(made, f"bn{name}")

    blob = net.relu(unit("data", "1", 64, 7, 2, 3), "conv1_relu")
    blob = net.pool(blob, "pool1", "max_pool", 3, 2)
    for stage, (count, width) in enumerate(((3, 64), (8, 128), (36, 256), (3, 512)), 2):
        for number in range(count):
            name, stride = f"{stage}_{number}", 2 if stage > 2 and number == 0 else 1
            direct = unit(blob, f"{name}_direct", 4 * width, 1, stride) if number == 0 else blob
            inner = net.relu(unit(blob, f"{name}_a", width, 1, stride), f"{name}_a_relu")
            inner = net.relu(unit(inner, f"{name}_b", width, 3, 1, 1), f"{name}_b_relu")
            inner = unit(inner, f"{name}_c", 4 * width, 1)
            blob = net.relu(net.add((direct, inner), f"res{name}"), f"{name}_relu")
    blob = net.pool(blob, "pool5", "average_pool", 7)
    net.loss(net.inner_product(blob, "fc1000", 1000), "loss")
    return net


MADE = {**NETS, "resnet152": resnet152}


def paced(flops: float) -> Any:
    """Return the null plugin's kernels at so many FLOP/s, as a separate plugin."""
    from demitasse_null import plugin

    options = {"peak": f"{flops:.0f} FLOP/s"}

    def kernels(request: Request) -> Iterable[Candidate]:
        return plugin.kernels(request, options)

    roles = {"kernels": {"priority": 100, "spaces": ["host"]}}
    manifest = {"name": "paced", "api": ">=0.1", "roles": roles}
    return SimpleNamespace(manifest=manifest, kernels=hookimpl(kernels))


class Contender:
    """A net's trainer on some stand-ins, with ``batch`` samples each and links of ``bandwidth`` B/s."""

    def __init__(
        self, net: Net, flops: float, replicas: int, sync: Mapping[str, Any], bandwidth: float
    ) -> None:
        memory = (MemorySpace("host", at="accelerator:*"),)
        spec = SyncSpec("cgdp", sync)
        level = Level("gpu", replicas, workers="streams", memory=memory, sync=spec)
        options = {"host_streams": {"bandwidth": f"{bandwidth:.0f} B/s"}}
        machine = Machine("stand-ins", (level,), fingerprint="any", options=options)
        count = net.batch * replicas
        arrays = {
            "data": np.zeros((count, *net.image), np.float32),
            "label": np.zeros(count, np.float32),
        }
        self.runtime = compose(machine, [paced(flops), *PLUGINS])
        with tempfile.TemporaryDirectory() as folder:
            solver = prototxt.write(net, Path(folder))
            self.trainer = self.runtime.trainer(solver, data={"train": arrays}, scaling="weak")
        self.rounds = list[float]()
        self.steps(1)

    def steps(self, count: int) -> float:
        """Return the seconds per iteration over so many iterations."""
        return float(self.trainer.step(count).seconds) / count

    def take_turn(self, steps: int) -> None:
        """Run one round."""
        self.rounds.append(self.steps(steps))

    @property
    def seconds(self) -> float:
        """The seconds of an iteration: the median of the rounds."""
        return median(self.rounds)

    def close(self) -> None:
        """Release memory and threads."""
        self.trainer.close()
        self.runtime.close()


def flops_of(net: Net) -> float:
    """Return the flops of a step of one replica, by the vocabulary's rules."""
    whole = Contender(net, 1e15, 1, {}, 1e12)
    total = sum(entry.flops for entry in whole.trainer.plan.entries)
    whole.close()
    return total


def overhead(one: Contender, other: Contender) -> float:
    """Return the overhead as a fraction of one replica's step."""
    return other.seconds / one.seconds - 1


def limited(net: Net, flops: float, args: argparse.Namespace) -> float:
    """Return the bandwidth at which the typical scheme has the requested overhead. One part of the
    overhead is the links'; the other, of sums and threads, does not depend on them. Measuring yields
    both."""
    depth = (args.replicas - 1).bit_length()
    sent = 2 * depth * net.parameters * 4
    bandwidth = sent / (args.overhead * args.step)
    for _ in range(3):
        one = Contender(net, flops, 1, {}, bandwidth)
        typical = Contender(net, flops, args.replicas, {"scheme": "typical"}, bandwidth)
        for _ in range(3):
            for each in (one, typical):
                each.take_turn(args.steps)
        taken, step = typical.seconds - one.seconds, one.seconds
        one.close()
        typical.close()
        print(f"at {bandwidth / 1e9:.3f} GB/s: typical's overhead {taken / step:.1%}", flush=True)
        if abs(taken / step - args.overhead) < 0.02:
            break
        other = max(0.0, taken - sent / bandwidth)
        if other > 0.8 * args.overhead * step:
            sys.exit("sums alone take longer: take a longer --step")
        bandwidth = sent / (args.overhead * step - other)
    return bandwidth


def hidden(args: argparse.Namespace) -> dict[str, Any]:
    """Compare one replica, the typical scheme and CGDP, by turns."""
    net = MADE[args.net]()
    net.batch = args.batch
    flops = flops_of(net) / args.step
    bandwidth = args.bandwidth or limited(net, flops, args)
    syncs: dict[str, Mapping[str, Any]] = {
        "typical": {"scheme": "typical"},
        "cgdp": {"chunk": args.chunk},
    }
    made = {"one": Contender(net, flops, 1, {}, bandwidth)}
    made |= {name: Contender(net, flops, args.replicas, s, bandwidth) for name, s in syncs.items()}
    for _ in range(args.rounds):
        for each in made.values():
            each.take_turn(args.steps)
    typical, cgdp = (overhead(made["one"], made[name]) for name in syncs)
    found = {
        "net": args.net,
        "replicas": args.replicas,
        "chunk": args.chunk,
        "bandwidth": bandwidth,
        "seconds": {name: each.seconds for name, each in made.items()},
        "rounds": {name: each.rounds for name, each in made.items()},
        "overhead of one step": {"typical": typical, "cgdp": cgdp},
        "hidden": 1 - cgdp / typical,
        "load": os.getloadavg()[0],
    }
    for name, each in made.items():
        print(f"{name:<8} {each.seconds * 1e3:9.2f} ms  {overhead(made['one'], each):+7.2%}")
        each.close()
    print(f"hidden   {found['hidden']:.1%}, at {bandwidth / 1e9:.3f} GB/s; load {found['load']:.1f}")
    return found


def chunks(args: argparse.Namespace) -> dict[str, Any]:
    """Compare all chunk sizes by turns, and then run the search, in one trainer."""
    net = MADE[args.net]()
    net.batch = args.batch
    flops = flops_of(net) / args.step
    bandwidth = args.bandwidth or limited(net, flops, args)
    made = Contender(net, flops, args.replicas, {"chunk": 1}, bandwidth)
    exchange: Any = made.trainer._workers[0].levels[0].exchange
    layers, sizes = len(made.trainer.plan.buckets), range(1, args.largest + 1)
    times: dict[int, list[float]] = {size: [] for size in sizes}
    whole = args.rounds * len(sizes) * args.steps * args.step / 60
    print(f"sizes 1 to {args.largest} take {whole:.0f} minutes or more", flush=True)
    for turn in range(1, args.rounds + 1):
        # In a different order each time: every twentieth iteration also checks the parameters.
        for size in map(int, np.random.default_rng(turn).permutation(sizes)):
            exchange.options = replace(exchange.options, chunk=size)
            times[size].append(made.steps(args.steps))
        first = min(sizes, key=lambda size: times[size][-1])
        taken = times[first][-1] * 1e3
        print(f"round {turn} of {args.rounds}: {first} was the best, {taken:.2f} ms", flush=True)
    search = ChunkSearch(args.search_step, args.range, args.interval)
    exchange.search, exchange.options = search, replace(exchange.options, chunk=None)
    while not search.done:
        made.steps(args.interval)
    if search.chunk not in times:  # possible if the search goes beyond --largest
        times[search.chunk] = [made.steps(args.steps) for _ in range(args.rounds)]
    made.close()
    seconds = {size: median(each) for size, each in times.items()}
    best = min(seconds, key=lambda size: seconds[size])
    found = seconds[search.chunk]
    table = {
        "net": args.net,
        "replicas": args.replicas,
        "layers": layers,
        "bandwidth": bandwidth,
        "seconds": seconds,
        "best": best,
        "found": search.chunk,
        "found over best": found / seconds[best],
        "tried by the search": {s: t / search.interval for s, t in search.lapses.items()},
        "iterations of the search": search.iterations,
        "load": os.getloadavg()[0],
    }
    for size, value in seconds.items():
        mark = "  <- the best" * (size == best) + "  <- Algorithm 1's" * (size == search.chunk)
        print(f"chunks of {size:3d}  {value * 1e3:9.2f} ms{mark}")
    print(
        f"Algorithm 1 found {search.chunk} of {layers} layers after {search.iterations} iterations, "
        f"{found / seconds[best]:.4f} times the best's step; load {table['load']:.1f}"
    )
    return table


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=["hidden", "chunks"])
    parser.add_argument("net", choices=list(MADE))
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2, help="samples of each replica")
    parser.add_argument("--step", type=float, default=1.0, help="seconds of one replica's step")
    parser.add_argument("--overhead", type=float, default=0.3, help="the typical scheme's, of that")
    parser.add_argument("--bandwidth", type=float, help="B/s of a link, in place of the above")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="iterations of a round")
    parser.add_argument("--chunk", type=int, default=1, help="for hidden")
    parser.add_argument("--largest", type=int, default=100, help="for chunks: sizes 1 to this")
    parser.add_argument("--interval", type=int, default=10)
    parser.add_argument("--search-step", type=int, default=10, help="Algorithm 1's step")
    parser.add_argument("--range", type=int, default=5, help="Algorithm 1's range")
    parser.add_argument("--json", type=Path, help="write what was measured there")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    args = arguments()
    found = {"hidden": hidden, "chunks": chunks}[args.what](args)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
