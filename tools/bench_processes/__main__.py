"""Compare training in several processes of one host with PyTorch's DistributedDataParallel over gloo.

    python tools/bench_processes --peers-python .venv-bench/bin/python --nets lenet,alexnet

For each net, each contender and setting trains the same batch in 1 process with all cores and in
``--ranks`` processes that share the cores, all with the same weights. The losses of the first steps must
agree with one process's. Then all groups take turns in rounds; a step lasts from the first rank's begin
to the last rank's end, and the median of the rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

if not __package__:  # run as a folder: modules are then looked for in it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.comparison import TOLERANCE, busy, turn
from bench.nets import NETS
from processor_distance import Distance, told

TOOLS = Path(__file__).resolve().parents[1]
OWN = "demitasse"
SETTINGS = {
    OWN: ("default",),
    "pytorch": ("eager-nchw", "eager-channels_last", "compiled-channels_last"),
}
LIMIT = 900.0


class Failure(Exception):  # noqa: N818 - it is a result like others, not an error of the bench
    """What a group could not do, in its own words."""


@dataclass
class Result:
    """A group's seconds per step of each round and at a first look, the losses of its first steps and,
    if something failed, what."""

    net: str
    contender: str
    setting: str
    ranks: int
    losses: list[float] = field(default_factory=list)
    look: float = 0.0
    rounds: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def seconds(self) -> float:
        """The median of the rounds, of which there is at least one."""
        return statistics.median(self.rounds)

    def __str__(self) -> str:
        name = self.contender if self.contender == OWN else f"{self.contender} {self.setting}"
        return f"{name} x {self.ranks}"


class Group:
    """The ranks of one contender, which sleep unless they are asked something."""

    def __init__(self, contender: str, python: Path, ranks: int, cores: int) -> None:
        self.name, self._log = contender, tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._links: list[TextIO] = []
        self._processes: list[int] = []
        threads = max(1, cores // ranks)
        with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
            port = server.getsockname()[1]
            words = ["-P", "-m", "bench_processes.rank", contender, str(port)]
            self._launched = list(self._launch(contender, python, words, ranks, threads))
            self._meet(server, ranks)

    def _launch(
        self, contender: str, python: Path, words: Sequence[str], ranks: int, threads: int
    ) -> Iterator[subprocess.Popen[bytes]]:
        environment = {**os.environ, "PYTHONPATH": str(TOOLS)}
        if contender == OWN:  # finds its threads itself, and binds them
            launcher = [str(python.with_name("mpiexec")), "-n", str(ranks)] if ranks > 1 else []
            command = [*launcher, str(python), *words, "0", str(ranks), str(threads)]
            yield self._started(command, environment)
            return
        environment["OMP_NUM_THREADS"] = str(threads)
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        for rank in range(ranks):
            yield self._started([str(python), *words, str(rank), str(ranks), str(threads)], environment)

    def _started(self, command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def _meet(self, server: socket.socket, ranks: int) -> None:
        server.settimeout(1.0)
        until = time.monotonic() + 60
        while len(self._links) < ranks:
            try:
                lines = server.accept()[0].makefile("rw")
            except TimeoutError:
                if time.monotonic() > until or any(each.poll() is not None for each in self._launched):
                    raise Failure(f"did not start: {self.last_words()}") from None
                continue
            self._processes.append(json.loads(lines.readline())["process"])
            self._links.append(lines)

    def ask(self, do: str, **command: Any) -> list[dict[str, Any]]:
        """Return all ranks' answers. Raises Failure with the first rank's error, or a group's last
        words."""
        for lines in self._links:
            print(json.dumps({"do": do, **command}), file=lines, flush=True)
        said = [lines.readline() for lines in self._links]
        if not all(said):
            raise Failure(f"ended: {self.last_words()}")
        answers = [json.loads(line) for line in said]
        for answer in answers:
            if "error" in answer:
                raise Failure(answer["error"])
        return answers

    def run(self, steps: int) -> float:
        """Return the seconds of a step."""
        answers = self.ask("run", steps=steps)
        begin, end = min(a["begin"] for a in answers), max(a["end"] for a in answers)
        return float(end - begin) / steps

    def last_words(self) -> str:
        """Return the last line that a rank or its launcher printed."""
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return lines[-1] if lines else "it said nothing"

    def close(self) -> None:
        """End all ranks."""
        for process in self._processes:
            os.kill(process, signal.SIGKILL)
        for launched in self._launched:
            launched.terminate()
            launched.wait(10)
        self._log.close()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def compare(net: str, chosen: argparse.Namespace, distance: Distance) -> list[Result]:
    """Prepare all groups, and time them in rounds."""
    results: list[Result] = []
    with ExitStack() as stack:
        standing: list[tuple[Result, Group]] = []
        for result in entrants(net, chosen):
            results.append(result)
            python = Path(sys.executable) if result.contender == OWN else chosen.peers_python
            try:
                group = Group(result.contender, python, result.ranks, chosen.cores)
                stack.callback(group.close)
                prepare(result, group, chosen.precision)
                standing.append((result, group))
            except Failure as failure:
                result.note = f"failed: {failure}"
            say(f"{net}: {result} {result.note or f'{result.look * 1e3:.2f} ms'}")
        for number in range(chosen.rounds):
            first = number % max(1, len(standing))
            before, start = busy(), time.monotonic()
            for result, group in standing[first:] + standing[:first]:
                take_turn(result, group)
            cores = (busy() - before) / (time.monotonic() - start)
            trip = distance.round_trip()
            where = told([trip] if trip is not None else [])
            ran = [result for result, _ in standing if not result.note]
            times = ", ".join(f"{result} {result.rounds[-1] * 1e3:.2f}" for result in ran)
            say(f"{net}: round {number + 1} of {chosen.rounds}, {cores:.1f} cores, {where}, ms: {times}")
    return results


def entrants(net: str, chosen: argparse.Namespace) -> Iterator[Result]:
    """Yield an empty result for each contender, setting and number of processes."""
    for contender, settings in SETTINGS.items():
        for setting in settings:
            for ranks in sorted({1, chosen.ranks}):
                if contender == OWN or setting in chosen.settings:
                    yield Result(net, contender, setting, ranks)


def take_turn(result: Result, group: Group) -> None:
    """Time the steps of one turn."""
    if result.note:
        return
    try:
        group.run(1)  # filling caches and waking threads is not counted
        result.rounds.append(group.run(turn(result.look)))
    except Failure as failure:
        result.note = f"failed: {failure}"


def prepare(result: Result, group: Group, precision: str) -> None:
    """Record the losses of the net without dropout, then prepare the net itself and take a first look at
    its speed."""
    about = {"net": NETS[result.net]().message(), "precision": precision, "setting": result.setting}
    answers = group.ask("prepare", dropout=False, **about)
    # Demitasse's ranks all return the loss of the whole batch, PyTorch's each that of their part.
    result.losses = [
        statistics.fmean(each) for each in zip(*(a["losses"] for a in answers), strict=True)
    ]
    group.ask("prepare", dropout=True, **about)
    group.run(2)
    result.look = min(group.run(2) for _ in range(2))


def disagreements(results: Sequence[Result], precision: str) -> Iterator[str]:
    """Yield a line for each group whose losses differ from the first peer's in one process (ours,
    without a peer). ``results`` are one net's."""
    made = sorted((r for r in results if r.losses), key=lambda r: (r.contender == OWN, r.ranks))
    for each in made[1:]:
        reference = made[0]
        pairs = zip(each.losses, reference.losses, strict=True)
        apart = max(abs(a - b) / abs(b) for a, b in pairs)
        if not apart <= TOLERANCE[precision]:
            yield f"{each.net}: the losses of {each} differ from {reference}'s by {apart:.1e}"


def table(results: Sequence[Result]) -> str:
    """Return the medians as a Markdown table: the best peer, the ratio, and how much faster several
    processes are than one with all cores."""
    lines = [
        "| net | processes | demitasse, ms | over one | best peer, ms | over one | setting | ratio |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for net, count in dict.fromkeys((each.net, each.ranks) for each in results):
        ours, our_one = (fastest(results, net, True, ranks) for ranks in (count, 1))
        peer, its_one = (fastest(results, net, False, ranks) for ranks in (count, 1))
        cells = [net, str(count)]
        for found, one in ((ours, our_one), (peer, its_one)):
            cells.append(f"{found.seconds * 1e3:.2f}" if found else "")
            cells.append(f"{one.seconds / found.seconds:.2f}" if found and one else "")
        cells.append(peer.setting if peer else "")
        cells.append(f"{peer.seconds / ours.seconds:.2f}" if peer and ours else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def fastest(results: Sequence[Result], net: str, own: bool, ranks: int) -> Result | None:
    """Return our result, or that of the fastest peer, for so many processes; None if it has no
    rounds."""
    found = [
        r for r in results if (r.net, r.contender == OWN, r.ranks) == (net, own, ranks) and r.rounds
    ]
    return min(found, key=lambda result: result.seconds, default=None)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench_processes", description=(__doc__ or "").split("\n")[0])
    add, cores = parser.add_argument, len(os.sched_getaffinity(0))
    add("--nets", type=lambda text: text.split(","), default=["lenet", "cifar10_quick"])
    add("--ranks", type=int, default=cores, help="processes (as many as cores)")
    add("--cores", type=int, default=cores, help="that the processes share (all)")
    add("--precision", choices=("f32", "bf16"), default="f32")
    peers = ",".join(SETTINGS["pytorch"])
    add(
        "--settings",
        type=lambda text: [s for s in text.split(",") if s],
        default=peers,
        help=f"of {peers} (all), or '' for no peer",
    )
    add("--rounds", type=int, default=7, help="turns of each group; the median counts (7)")
    add("--peers-python", type=Path, default=Path(sys.executable), help="that has PyTorch")
    add("--json", type=Path, metavar="FILE", help="write all figures there")
    chosen = parser.parse_args()
    for name, valid in (("nets", tuple(NETS)), ("settings", SETTINGS["pytorch"])):
        for each in getattr(chosen, name):
            if each not in valid:
                parser.error(f"--{name}: unknown {each!r} (valid: {', '.join(valid)})")
    for name in ("ranks", "cores", "rounds"):
        if getattr(chosen, name) < 1:
            parser.error(f"--{name} must be at least 1; given {getattr(chosen, name)}")
    return chosen


def main() -> int:
    chosen, distance = options(), Distance()
    results: list[Result] = []
    for net in chosen.nets:
        results += compare(net, chosen, distance)
        if chosen.json:
            write(results, chosen)
    print(table(results))
    wrong = [f"{each.net}: {each}: {each.note}" for each in results if each.note]
    for net in chosen.nets:
        wrong += disagreements([each for each in results if each.net == net], chosen.precision)
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


def write(results: Sequence[Result], chosen: argparse.Namespace) -> None:
    """Write the JSON; called after each net, so that an interrupted run leaves the figures it has."""
    figures = [{**asdict(each), "seconds": each.seconds if each.rounds else None} for each in results]
    chosen.json.parent.mkdir(parents=True, exist_ok=True)
    chosen.json.write_text(json.dumps({"cores": chosen.cores, "results": figures}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
