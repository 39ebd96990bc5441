"""``python tools/bench`` (``make bench``): compare Demitasse with PyTorch and TensorFlow in one run."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

if not __package__:  # run as a folder: modules are then looked for in it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench import prototxt, report
from bench.comparison import Agreement, Comparison, Start, Timing, tasks
from bench.contenders import OWN, SETTINGS
from bench.nets import NETS
from bench.reading import UnreadError, read

WHAT = ("train", "inference", "memory", "start")


def listed(valid: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Return a parser for a comma-separated choice, which follows the order of the valid names."""

    def parse(text: str) -> tuple[str, ...]:
        chosen = text.split(",")
        for name in chosen:
            if name not in valid:
                raise argparse.ArgumentTypeError(f"unknown {name!r} (valid: {', '.join(valid)})")
        return tuple(name for name in valid if name in chosen)

    return parse


def nets(text: str) -> tuple[str, ...]:
    """Parse names of nets, and other nets' files, in the given order."""
    chosen = text.split(",")
    for name in chosen:
        path = Path(name)
        if name not in NETS and not path.is_file():
            beside = [str(each) for each in path.parent.glob("*.prototxt")]
            near = get_close_matches(name, [*NETS, *beside], 1)
            raise argparse.ArgumentTypeError(
                f"{name!r} is no file and no net{f'; did you mean {near[0]!r}?' if near else ''} "
                f"(valid: {', '.join(NETS)}, or a prototxt's path)"
            )
    return tuple(chosen)


def shape(text: str) -> tuple[int, ...]:
    """Parse channels, rows and columns: 3x224x224."""
    extents = text.split("x")
    if len(extents) != 3 or not all(each.isdecimal() and int(each) for each in extents):
        raise argparse.ArgumentTypeError(f"{text!r} is not channels x rows x columns, such as 3x224x224")
    return tuple(map(int, extents))


def options() -> argparse.Namespace:
    every = tuple(setting for settings in SETTINGS.values() for setting in settings)
    contenders = tuple(SETTINGS)
    parser = argparse.ArgumentParser(prog="bench", description=(__doc__ or "").partition(": ")[2])
    add = parser.add_argument
    add("--nets", type=nets, default=tuple(NETS), help=f"of {', '.join(NETS)} (all), or prototxt files")
    add("--batch", type=int, help="samples of a training step of nets from files (theirs, at most 16)")
    add("--image", type=shape, help="channels x rows x columns of their samples (what the file says)")
    add(
        "--precision", type=listed(("f32", "bf16")), default=("f32",), help="f32, bf16 or f32,bf16 (f32)"
    )
    add("--what", type=listed(WHAT), default=WHAT, help=f"of {', '.join(WHAT)} (all)")
    add("--contenders", type=listed(contenders), default=contenders, help="(all)")
    add("--settings", type=listed(every), default=every, help=f"of {', '.join(every)} (all)")
    add("--skip-xla", action="store_true", help="TensorFlow without XLA only")
    add("--skip-check", action="store_true", help="do not check first that all compute the same")
    add("--rounds", type=int, default=7, help="turns of each setting; the median counts (7)")
    add("--threads", type=int, default=os.cpu_count() or 1, help="of each contender (all cores)")
    add("--peers-python", type=Path, default=Path(sys.executable), help="that has the peers")
    add("--json", type=Path, metavar="FILE", help="write all figures there")
    add("--picture", type=Path, metavar="FILE", help="draw them there (.png, .svg or .pdf)")
    add("--write-nets", type=Path, metavar="FOLDER", help="write the nets as prototxt, and end")
    chosen = parser.parse_args()
    if chosen.rounds < 1:
        parser.error(f"--rounds must be at least 1; given {chosen.rounds}")
    if chosen.batch is not None and chosen.batch < 1:
        parser.error(f"--batch must be at least 1; given {chosen.batch}")
    try:
        chosen.nets = tuple(known(name, chosen.batch, chosen.image) for name in chosen.nets)
    except UnreadError as error:
        parser.error(str(error))
    return chosen


def known(name: str, batch: int | None, image: tuple[int, ...] | None) -> str:
    """Return the name of a net in ``NETS``, to which a net from a file is added."""
    if name in NETS:
        return name
    net = read(Path(name), batch, image)
    called, number = net.name, 1
    while called in NETS:
        number += 1
        called = f"{net.name} {number}"
    NETS[called] = partial(deepcopy, net)
    return called


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def run(chosen: argparse.Namespace) -> int:
    """Compare, print and write; return 1 if a contender disagrees or Demitasse failed, else 0."""
    left = {
        name: tuple(s for s in SETTINGS[name] if s in (*chosen.settings, "default"))
        for name in chosen.contenders
    }
    if chosen.skip_xla and "tensorflow" in left:
        left["tensorflow"] = tuple(s for s in left["tensorflow"] if s != "xla")
    comparison = Comparison(
        {name: Path(sys.executable) if name == OWN else chosen.peers_python for name in left},
        {name: settings for name, settings in left.items() if settings},
        chosen.threads,
        chosen.rounds,
        say,
    )
    result: dict[str, Any] = {"machine": machine(chosen.threads), "rounds": chosen.rounds, "rates": {}}
    rows: list[report.Row] = []
    timings: list[Timing] = []
    agreements: list[Agreement] = []
    starts: list[Start] = []
    print(f"{result['machine']['processor']}, {chosen.threads} threads, load {os.getloadavg()[0]:.1f}")
    for precision in chosen.precision:
        rates, said = comparison.rates(precision)
        result["rates"][precision] = {"best": asdict(rates), "contenders": said}
        print(
            f"{precision}: matrix product {rates.matrix_product:.0f} GFLOP/s, "
            f"triad {rates.triad:.1f} GB/s"
        )
        for what in ("train", "inference"):
            found: list[report.Row] = []
            memory_only = what == "train" and "train" not in chosen.what
            if what not in chosen.what and not (memory_only and "memory" in chosen.what):
                continue
            comparison.rounds = 0 if memory_only else chosen.rounds
            for net in chosen.nets:
                if memory_only and net not in report.MEMORY_NETS:
                    continue
                for task in tasks(what, net, precision):
                    if not chosen.skip_check and not memory_only:
                        agreements += comparison.check(task)
                    timed = comparison.compare(task)
                    timings += timed
                    found.append(report.row(task, timed, rates))
            rows += found
            show(what, precision, found, memory_only, "memory" in chosen.what)
        if "start" in chosen.what and OWN in comparison.settings:
            trained = [task for net in chosen.nets for task in tasks("train", net, precision)]
            begun = [comparison.start(task, chosen.rounds) for task in trained]
            print(f"\na cold start, {precision}, seconds\n{report.start_table(begun)}")
            starts += begun
    if agreements:
        print(f"\nthe same computation\n{report.agreement_table(agreements)}")
    result |= {
        "agreements": [{**asdict(each), "holds": each.holds} for each in agreements],
        "timings": [{**asdict(each), "seconds": each.seconds} for each in timings],
        "starts": [{**asdict(each), "share": each.share, "between": each.between} for each in starts],
        "rows": [{**asdict(r), "ratio": r.ratio, "memory_ratio": r.memory_ratio} for r in rows],
    }
    write(result, rows, chosen)
    failed: list[Timing | Start] = [each for each in timings if each.contender == OWN and each.note]
    failed += [each for each in starts if each.note]
    for each in failed:
        print(f"{each.task}: {OWN} {each.note}", file=sys.stderr)
    return 1 if failed or not all(each.holds for each in agreements) else 0


def show(what: str, precision: str, rows: list[report.Row], memory_only: bool, memory: bool) -> None:
    """Print the tables of some rows."""
    title = "a training step" if what == "train" else "inference of the deploy nets"
    if not memory_only:
        print(
            f"\n{title}, {precision}, ms (ratio: best peer over demitasse)\n{report.speed_table(rows)}"
        )
    if what == "train" and memory:
        print(f"\npeak memory while training, {precision}, MB\n{report.memory_table(rows)}")


def write(result: dict[str, Any], rows: list[report.Row], chosen: argparse.Namespace) -> None:
    """Write the JSON and the plot, if requested."""
    if chosen.json:
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(result, indent=2), encoding="utf-8")
        print(f"wrote {chosen.json}")
    timed = [row for row in rows if row.best]
    if chosen.picture and timed:
        from bench.picture import draw  # matplotlib takes a second to import

        draw(timed, chosen.picture)
        print(f"wrote {chosen.picture}")


def machine(threads: int) -> dict[str, Any]:
    """What the figures were measured on."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    processor = names[0] if names else platform.machine()
    return {"processor": processor, "threads": threads, "load": os.getloadavg()[0]}


def main() -> int:
    chosen = options()
    if chosen.write_nets:
        for name, make in NETS.items():
            print(f"wrote {prototxt.write(make(), chosen.write_nets / name)}")
        return 0
    return run(chosen)


if __name__ == "__main__":
    sys.exit(main())
