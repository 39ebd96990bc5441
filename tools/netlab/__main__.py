"""``python tools/netlab``: run a command on a lab's hosts, measure one, compare collectives in one."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

if not __package__:  # run as a folder: modules are then looked for in it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from demitasse import DemitasseError
from netlab import LabError, Netlab, network
from netlab.compare import Comparison, check, compare
from netlab.measure import MB, Measurement, measure

ACTIONS = ("measure", "compare", "clean", "describe")


def listed(text: str) -> list[str]:
    """Parse names separated by commas."""
    return text.split(",")


def megabytes(text: str) -> tuple[float, ...]:
    """Parse numbers separated by commas."""
    return tuple(float(number) for number in text.split(","))


def options(words: list[str]) -> argparse.Namespace:
    """Parse the command line: ``[measure|describe|compare|clean] [options] [-- command]``."""
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="netlab",
        description="Hosts in supernodes on this machine, with an over-subscribed network.",
        epilog="What follows -- is a command that runs on every host, as an MPI job.",
    )
    add = parser.add_argument
    add("action", nargs="?", choices=ACTIONS, help="measure the lab; print its hardware description; "
        "compare collectives in it; remove what ended labs left")  # fmt: skip
    add("--hosts", type=int, default=8, help="how many (8)")
    add("--supernodes", type=int, default=2, help="groups that they are in (2)")
    add("--bandwidth", default="400Mbit", help="of a host, each way (400Mbit)")
    add("--oversubscription", type=float, default=4, help="hosts' bandwidth over their trunk's (4)")
    add("--ranks-per-host", type=int, default=1, help="of the command (1)")
    add("--json", type=Path, metavar="FILE", help="write what was measured there")
    add("--sizes", type=megabytes, default=(8, 16, 32), help="MB that are compared (8,16,32)")
    add("--rounds", type=int, default=3, help="turns of each contender; the median counts (3)")
    add("--mpich", type=listed, metavar="NAMES", help="some of MPICH's algorithms (all)")
    add("--ours", type=listed, metavar="NAMES", help="some of ours, and auto (all)")
    chosen = parser.parse_args(words[:cut])
    chosen.command = words[cut + 1 :]
    if bool(chosen.command) == bool(chosen.action):
        parser.error(f"give either an action ({', '.join(ACTIONS)}) or -- and a command")
    return chosen


def main() -> int:
    chosen = options(sys.argv[1:])
    try:
        return act(chosen)
    except (LabError, DemitasseError) as error:
        print(f"netlab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def act(chosen: argparse.Namespace) -> int:
    """Do what was requested; return the exit status."""
    if chosen.action == "clean":
        for name in network.dead():
            removed = network.remove(name)
            print(f"{name}: {len(removed)} namespaces removed")
        return 0
    sizes = [round(size * MB) // 4 * 4 for size in chosen.sizes]
    if chosen.action == "compare":
        check(sizes, chosen.rounds, chosen.mpich, chosen.ours)
    shape = chosen.hosts, chosen.supernodes, chosen.bandwidth, chosen.oversubscription
    with Netlab(*shape) as lab:
        if chosen.command:
            return lab.start(chosen.command, chosen.ranks_per_host).wait()
        if chosen.action == "describe":
            print(lab.machine(), end="")
            return 0
        measured = measure(lab)
        print(measured.table(), flush=True)
        keep(chosen.json, measured)
        if chosen.action == "measure":
            return 0

        def told(found: Comparison) -> None:
            print(f"\n{found.only(len(found.sizes) - 1).table()}", flush=True)
            keep(chosen.json, found)

        compare(lab, sizes, chosen.rounds, chosen.mpich, chosen.ours, measured, told)
    return 0


def keep(path: Path | None, found: Measurement | Comparison) -> None:
    """Write the results so far, if requested."""
    if path is not None:
        path.write_text(json.dumps(found.json(), indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
