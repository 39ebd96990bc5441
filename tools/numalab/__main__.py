"""``python tools/numalab --domains 4 -- python script.py``: run a program with memory domains."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from pathlib import Path

if not __package__:  # run as a folder: modules are then looked for in it
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from numalab import Lab, LabError, missing
from numalab.kernel import kernel
from numalab.lab import TIMEOUT
from numalab.shape import Shape


def main(arguments: list[str] | None = None) -> int:
    """Return the program's exit status, or 2, with a message, if the lab itself fails."""
    parser = argparse.ArgumentParser(prog="numalab", description=__doc__)
    parser.add_argument("--domains", type=int, default=4, help="memory domains with processors (4)")
    parser.add_argument("--cpus-per-domain", type=int, default=1, help="processors in each (1)")
    parser.add_argument("--threads", type=int, default=1, help="hardware threads of a core (1)")
    parser.add_argument("--memory", type=int, default=512, help="MiB in each (512)")
    parser.add_argument("--memory-only", type=int, default=0, help="further domains without processors")
    parser.add_argument("--cpus", default="", metavar="LIST", help="put it into a cpuset: 0-3,6")
    parser.add_argument("--mems", default="", metavar="LIST", help="the cpuset's memory domains")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds for all (300)")
    parser.add_argument("--results", type=Path, help="a new folder for the files that it leaves")
    parser.add_argument("--fetch", action="store_true", help="download the guest's kernel, and end")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- the program and its arguments")
    given = parser.parse_args(arguments)
    # Ending this process ends the guest, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    try:
        if given.fetch:
            print(kernel().image)
            return 0
        if not command:
            parser.error("say what to run: numalab --domains 4 -- python script.py")
        shape = Shape(
            given.domains, given.cpus_per_domain, given.memory, given.memory_only, threads=given.threads
        )
        variables = dict(each.split("=", 1) for each in given.env)
        with Lab(shape=shape) as lab:
            outcome = lab.run(
                command,
                cpus=given.cpus,
                mems=given.mems,
                environment=variables,
                timeout=given.timeout,
                show=lambda text: print(text, end="", flush=True),
            )
            if given.results is not None:
                shutil.copytree(outcome.results, given.results)
    except (LabError, ValueError) as error:
        print(f"numalab: {missing() or error}", file=sys.stderr)
        return 2
    print(
        f"numalab: booted in {outcome.boot_seconds:.1f} s, ended after {outcome.seconds:.1f} s, "
        f"status {outcome.status}",
        file=sys.stderr,
    )
    return outcome.status


if __name__ == "__main__":
    sys.exit(main())
