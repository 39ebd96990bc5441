"""Latency and bandwidth of a lab, of a single message and of messages from all hosts at once, fitted to
the cost model of collectives: a message of n bytes takes alpha + beta n."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from netlab.lab import Netlab
from netlab.network import LabError, Plan

TRAFFIC = Path(__file__).with_name("traffic.py")
KB, MB = 1 << 10, 1 << 20
SIZES = (8, 64 * KB, MB, 4 * MB)
ROUNDS = {8: 100, 64 * KB: 20, MB: 5, 4 * MB: 3, 8 * MB: 3}


@dataclass(frozen=True)
class Line:
    """The seconds of a message: ``alpha``, and ``beta`` per byte; ``points`` are the measurements,
    (bytes, seconds)."""

    alpha: float
    beta: float
    points: tuple[tuple[int, float], ...]

    @classmethod
    def fitted(cls, points: Sequence[tuple[int, float]]) -> Line:
        """Fit a line: ``alpha`` is the smallest message's time; ``beta`` minimises the relative errors
        of the messages of 1 MB and more. Sizes in between are useless: a tbf that has rested lets its
        burst pass at once, so that 64 KB take half of what the line through the others predicts."""
        ordered = sorted(points)
        alpha = ordered[0][1]
        large = [point for point in ordered if point[0] >= MB] or ordered[-1:]
        sizes, seconds = np.array(large, float).T
        weighted = sizes / seconds
        beta = float(weighted @ ((seconds - alpha) / seconds) / (weighted @ weighted))
        return cls(alpha, beta, tuple(ordered))

    def at(self, size: float) -> float:
        """Return the seconds of ``size`` bytes."""
        return self.alpha + self.beta * size


@dataclass(frozen=True)
class Measurement:
    """A lab's numbers. ``alone``: one message in the lab, half a round trip. ``loaded``: the slowest of
    as many messages as there are hosts, where each host sends one and receives one, all within
    supernodes (``inside``) or all between them (``across``). ``shares`` are the rates of messages
    across, at the largest size, over their mean. ``gamma`` is the seconds to add a byte while all hosts
    add."""

    plan: Plan
    alone_inside: Line | None
    alone_across: Line | None
    loaded_inside: Line | None
    loaded_across: Line | None
    shares: tuple[float, ...]
    gamma: float

    @property
    def trunk(self) -> float | None:
        """Bytes per second that a trunk carries each way when all hosts communicate across."""
        return self.plan.inside / self.loaded_across.beta if self.loaded_across else None

    @property
    def oversubscription(self) -> float:
        """How many times as long a byte takes across when all hosts communicate as when one does."""
        if self.loaded_across is None or self.alone_across is None:
            return 1.0
        return self.loaded_across.beta / self.alone_across.beta

    def description(self) -> str:
        """Return the lab as a hardware description. Its latencies are those of messages when all hosts
        communicate, as they do in a collective."""
        plan, levels = self.plan, []
        if self.loaded_across and self.alone_across:
            link = _link(self.loaded_across.alpha, self.alone_across.beta)
            more = f"{link}, oversubscription = {self.oversubscription:.4g}"
            levels.append(f'name = "supernode"\ncount = {plan.supernodes}\nlink = {{ {more} }}')
        inner = self.loaded_inside
        link = f"link = {{ {_link(inner.alpha, inner.beta)} }}\n" if inner else ""
        levels.append(
            f'name = "host"\ncount = {plan.inside}\nworkers = "mpi"\n{link}'
            'sync = { plugin = "allreduce" }'
        )
        head = (
            f"# {plan.hosts} hosts of a network lab, measured: asked for were "
            f"{plan.rate * 8e-6:g} Mbit/s a host and {plan.trunk * 8e-6:g} Mbit/s a trunk.\n\n"
            f'schema = 1\nname = "netlab-{plan.supernodes}x{plan.inside}"\n'
            'plugins = ["caffe", "training", "datasets", "cpu", "snapshots", "allreduce"]\n'
        )
        return "\n".join([head, *(f"[[level]]\n{level}\n" for level in levels)])

    def json(self) -> dict[str, Any]:
        """Return all numbers, in seconds and bytes."""
        derived = {"trunk": self.trunk, "oversubscription": self.oversubscription}
        return {**asdict(self), **derived}

    def table(self) -> str:
        """Return the same for people."""
        asked = {"inside": self.plan.rate, "across": self.plan.trunk / self.plan.inside}
        lines = [f"{'':24}{'alpha':>10}{'a host':>15}{'asked':>15}   measured / fitted, by size"]
        for load, where in (("alone", w) for w in asked):
            lines += self._row(f"{load}_{where}", f"one message, {where}", self.plan.rate)
        for where, rate in asked.items():
            bound = min(rate, self.plan.rate)
            lines += self._row(f"loaded_{where}", f"all hosts, {where}", bound)
        if self.trunk is not None:
            spread = f"{min(self.shares):.3f} to {max(self.shares):.3f}"
            lines.append(
                f"a trunk carries {self.trunk * 8e-6:.1f} Mbit/s each way "
                f"(asked {self.plan.trunk * 8e-6:.1f}): over-subscribed {self.oversubscription:.2f} "
                f"times; the flows' shares are {spread} of the mean"
            )
        lines.append(f"an addition takes {self.gamma * 1e9:.2f} ns a byte when all hosts add")
        return "\n".join(lines)

    def _row(self, name: str, title: str, rate: float) -> list[str]:
        line: Line | None = getattr(self, name)
        if line is None:
            return []
        points = (f"{_size(size)} {seconds / line.at(size):.2f}" for size, seconds in line.points)
        return [
            f"{title:24}{line.alpha * 1e6:7.0f} us{8e-6 / line.beta:8.1f} Mbit/s"
            f"{rate * 8e-6:8.1f} Mbit/s   {', '.join(points)}"
        ]


def _link(alpha: float, beta: float) -> str:
    latency, bandwidth = f"{alpha * 1e6:.4g} us", f"{8e-6 / beta:.5g} Mbit/s"
    return f'latency = "{latency}", bandwidth = "{bandwidth}", source = "measured"'


def _size(size: int) -> str:
    for unit, name in ((MB, "MB"), (KB, "KB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def measure(lab: Netlab, sizes: Sequence[int] = SIZES) -> Measurement:
    """Measure a lab that nothing else uses. Raises LabError for a lab with one host."""
    plan, hosts = lab.plan, range(lab.plan.hosts)
    if plan.hosts < 2:
        raise LabError("one host has no network to measure (valid: at least 2 hosts)")
    inside, across = plan.inside > 1, plan.supernodes > 1
    ring = [[host, host // plan.inside * plan.inside + (host + 1) % plan.inside] for host in hosts]
    away = [[host, (host + plan.inside) % plan.hosts] for host in hosts]
    orders: list[dict[str, Any]] = [{"kind": "adds", "size": 4 * MB, "rounds": 7}]
    names = [""]
    for where, there, peer, pairs in (
        ("inside", inside, 1, ring),
        ("across", across, plan.inside, away),
    ):
        for size in sizes if there else ():
            rounds = ROUNDS.get(size, 3)
            orders.append({"kind": "ping", "one": 0, "other": peer, "size": size, "rounds": rounds})
            orders.append({"kind": "flows", "pairs": pairs, "size": size, "rounds": rounds})
            names += [f"alone_{where}", f"loaded_{where}"]
    # The first messages, which set up connections and find their windows, are not measured.
    warm = [{"kind": "flows", "pairs": pairs, "size": MB, "rounds": 2} for pairs in (ring, away)]
    command = [sys.executable, str(TRAFFIC), json.dumps([*(warm if inside else warm[1:]), *orders])]
    answers = json.loads(lab.run(command).stdout)[-len(orders) :]
    points: dict[str, list[tuple[int, float]]] = {}
    shares = [1.0]
    for name, order, answer in zip(names, orders, answers, strict=True):
        if order["kind"] == "ping":
            points.setdefault(name, []).append((order["size"], statistics.median(answer)))
        elif order["kind"] == "flows":
            slowest = statistics.median(max(each) for each in answer)
            points.setdefault(name, []).append((order["size"], slowest))
            if name == "loaded_across" and order["size"] == max(sizes):
                rates = [1 / statistics.median(flow) for flow in zip(*answer, strict=True)]
                shares = [one / statistics.mean(rates) for one in rates]
    lines = {name: Line.fitted(found) for name, found in points.items()}
    return Measurement(
        plan,
        lines.get("alone_inside"),
        lines.get("alone_across"),
        lines.get("loaded_inside"),
        lines.get("loaded_across"),
        tuple(shares),
        statistics.median(answers[0]) / (4 * MB),
    )
