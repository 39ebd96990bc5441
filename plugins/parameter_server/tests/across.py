"""One of several processes that train a toy: prints its losses, or dies at an iteration, as JSON lines.

mpiexec -n 3 python across.py ITERATIONS [RANK AT]
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))

import toy

from demitasse import DemitasseError, Level, Machine, SyncSpec, compose


def main() -> None:
    iterations, *death = map(int, sys.argv[1:])
    outer = Level("node", 3, workers="mpi", sync=SyncSpec("parameter_server", {"servers": 2}))
    inner = Level("core", 2, workers="threads", sync=SyncSpec("parameter_server"))
    levels = (outer,) if "THREADS" not in os.environ else (outer, inner)
    names = ["parameter_server", "allreduce", "reference", "training", "snapshots", toy.toy()]
    with compose(Machine("toys", levels, fingerprint="any"), names) as runtime:
        rank = runtime.processes.rank
        try:
            trainer = runtime.trainer(toy.solver(toy.classifier(batch=11)), precision="f64")
            losses = []
            for iteration in range(iterations):
                if death == [rank, iteration]:
                    os._exit(9)
                losses.append(trainer.step(1).loss)
            if "SNAPSHOT" in os.environ:
                trainer.snapshot(os.environ["SNAPSHOT"])
            told = {"rank": rank, "losses": losses, "notes": trainer.notes}
        except DemitasseError as error:
            told = {"rank": rank, "error": f"{type(error).__name__}: {error}"}
        os.write(1, (json.dumps(told) + "\n").encode())  # whole, whatever others write


if __name__ == "__main__":
    main()
