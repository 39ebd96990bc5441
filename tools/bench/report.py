"""Rows of figures from timings: ratios next to their targets, and floors; as text and for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from processor_distance import told

from bench.comparison import Agreement, Start, Task, Timing
from bench.contenders import OWN, SETTINGS
from bench.floors import Floor, Rates, floor
from bench.nets import NETS

LIGHT = dict.fromkeys(("resnet18", "mobilenet", "mobilenet_v2", "squeezenet"), 1.3)

# The best peer's time over ours in training must be at least this.
TARGETS = {
    "f32": {
        "lenet": 1.6,
        "cifar10_quick": 1.05,
        "alexnet": 1.4,
        "vgg16": 1.05,
        "resnet50": 1.2,
        "googlenet": 1.25,
        **LIGHT,
    },
    "bf16": {
        "lenet": 2.5,
        "cifar10_quick": 1.5,
        "alexnet": 2.0,
        "vgg16": 1.15,
        "resnet50": 1.6,
        "googlenet": 1.5,
        **LIGHT,
    },
}
ELSE_TARGET = 1.0  # for a net from a user's file
INFERENCE_TARGET = 1.3
MEMORY_TARGET = 0.7  # our peak over that of the leaner peer, at most, if it is measured
START_TARGET = 0.1  # the time for trying kernels, at most, as a fraction of the first hundred steps
MEMORY_NETS = ("vgg16", "googlenet")
QUIET = 0.05  # the fraction of the cores that other processes may use
PEERS = tuple(name for name in SETTINGS if name != OWN)


@dataclass(frozen=True)
class Row:
    """One task: the best setting of each contender that ran (seconds, setting), its smallest peak memory
    (bytes), the floors, the fraction of the cores that others used in the rounds (median), and how far
    apart the processors were in each."""

    task: Task
    target: float
    floor: Floor
    best: dict[str, tuple[float, str]] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    others: float = 0.0
    trips: tuple[float, ...] = ()

    @property
    def ratio(self) -> float | None:
        """The best peer's time over ours."""
        peers = [self.best[name][0] for name in PEERS if name in self.best]
        return min(peers) / self.best[OWN][0] if peers and OWN in self.best else None

    @property
    def memory_ratio(self) -> float | None:
        """Our peak memory over the leaner peer's."""
        peers = [self.peaks[name] for name in PEERS if name in self.peaks]
        return self.peaks[OWN] / min(peers) if peers and OWN in self.peaks else None

    @property
    def rate_share(self) -> float | None:
        """The rate of our convolutions and products, as a fraction of a matrix product's."""
        return self.floor.arithmetic / self.best[OWN][0] if OWN in self.best else None


def row(task: Task, timings: Iterable[Timing], rates: Rates) -> Row:
    """Return the row of a task's timings."""
    best: dict[str, tuple[float, str]] = {}
    peaks: dict[str, int] = {}
    others: list[float] = []
    trips: list[float] = []
    for timing in timings:
        others += timing.others
        trips += timing.trips
        if timing.seconds is not None:
            known = best.get(timing.contender)
            if known is None or timing.seconds < known[0]:
                best[timing.contender] = (timing.seconds, timing.setting)
        if timing.peak:
            peaks[timing.contender] = min(timing.peak, peaks.get(timing.contender, timing.peak))
    training = task.what == "train"
    net = replace(NETS[task.net](), batch=task.batch)
    limit = floor(net if training else net.deploy(), training, task.precision, rates)
    target = TARGETS[task.precision].get(task.net, ELSE_TARGET) if training else INFERENCE_TARGET
    return Row(task, target, limit, best, peaks, median(others) if others else 0.0, tuple(trips))


def speed_table(rows: Sequence[Row]) -> str:
    """Return milliseconds of ours and of the best settings, the ratio next to its target, and the
    floors."""
    wide = _widest(rows)
    lines = [
        f"{'net':{wide}} {'batch':>5} {OWN:>10}  {'pytorch':>30}  {'tensorflow':>16} {'ratio':>7} "
        f"{'target':>7} {'arithmetic':>11} {'memory':>8} {'of rate':>8}"
    ]
    for each in rows:
        cells = {name: _milliseconds(each.best.get(name), name != OWN) for name in (OWN, *PEERS)}
        verdict = "" if each.ratio is None else f"{each.ratio:.2f}"
        share = "" if each.rate_share is None else f"{each.rate_share:.0%}"
        met = "" if each.ratio is None else ("met" if each.ratio >= each.target else "below")
        lines.append(
            f"{each.task.net:{wide}} {each.task.batch:5} {cells[OWN]:>10}  {cells['pytorch']:>30}  "
            f"{cells['tensorflow']:>16} {verdict:>7} {each.target:7.2f} "
            f"{each.floor.arithmetic * 1e3:11.2f} {each.floor.memory * 1e3:8.2f} {share:>8}  {met}"
        )
    if any(each.trips for each in rows):
        lines.append(told([trip for each in rows for trip in each.trips]))
    others = max((each.others for each in rows), default=0.0)
    if others > QUIET:
        lines.append(
            f"THE MACHINE WAS NOT IDLE: others had {others:.0%} of the cores; these figures do not count"
        )
    return "\n".join(line.rstrip() for line in lines)


def _widest(rows: Sequence[Row | Start]) -> int:
    """Return the width of the column of net names."""
    return max([14, *(len(each.task.net) for each in rows)])


def _milliseconds(best: tuple[float, str] | None, names_setting: bool) -> str:
    if best is None:
        return "none"
    seconds, setting = best
    return f"{setting} {seconds * 1e3:.2f}" if names_setting else f"{seconds * 1e3:.2f}"


def memory_table(rows: Sequence[Row]) -> str:
    """Return peak memory while training, in MB, for each contender's leanest setting."""
    wide = _widest(rows)
    lines = [f"{'net':{wide}} {'batch':>5} " + " ".join(f"{name:>11}" for name in (OWN, *PEERS))]
    lines[0] += f" {'ratio':>7} {'target':>7}"
    for each in rows:
        cells = [
            f"{each.peaks[name] / 2**20:11.0f}" if name in each.peaks else f"{'none':>11}"
            for name in (OWN, *PEERS)
        ]
        ratio = "" if each.memory_ratio is None else f"{each.memory_ratio:.2f}"
        target = f"{MEMORY_TARGET:7.2f}" if each.task.net in MEMORY_NETS else f"{'':7}"
        lines.append(
            f"{each.task.net:{wide}} {each.task.batch:5} {' '.join(cells)} {ratio:>7} {target}".rstrip()
        )
    return "\n".join(lines)


def start_table(starts: Sequence[Start]) -> str:
    """Return seconds to the third step, and the time for trying kernels as a fraction of the first
    hundred steps: the median of pairs of runs, and its 95% confidence interval."""
    wide = _widest(starts)
    lines = [f"{'net':{wide}} {'batch':>5} {'cold':>8} {'remembered':>11} {'step, ms':>9} {'share':>7}"]
    lines[0] += f" {'between':>15} {'target':>7}"
    for each in starts:
        begin = f"{each.task.net:{wide}} {each.task.batch:5}"
        if each.share is None:
            lines.append(f"{begin} {each.note}")
            continue
        met = "met" if each.share <= START_TARGET else "above"
        between = " and ".join(f"{share:.1%}" for share in each.between or ())
        lines.append(
            f"{begin} {median(each.cold):8.2f} {median(each.remembered):11.2f} {each.step * 1e3:9.2f} "
            f"{each.share:7.1%} {between:>15} {START_TARGET:7.0%}  {met}"
        )
    return "\n".join(lines)


def agreement_table(agreements: Sequence[Agreement]) -> str:
    """Return who agrees with whom, and how closely."""
    lines = []
    for each in agreements:
        difference = each.note or f"{each.difference:.1e} apart"
        verdict = "agrees" if each.holds else "DISAGREES"
        lines.append(
            f"{each.task!s:34} {each.contender:10} {verdict:9} with {each.reference}: "
            f"{each.what} {difference} (at most {each.tolerance:.2g})"
        )
    return "\n".join(lines)
