"""What each rank of ``on_ranks`` runs: one script after the other, named through a pipe of its own."""

from __future__ import annotations

import gc
import json
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
from mpi4py import MPI


def main(folder: Path) -> None:
    """A rank that fails in a script ends all ranks."""
    world = MPI.COMM_WORLD
    with (folder / str(world.rank)).open() as tasks:
        for line in tasks:
            script, ended, *arguments = json.loads(line)
            sys.argv = [script, *arguments]
            names = {"np": np, "MPI": MPI, "sys": sys, "comm": world}
            names |= {"rank": world.rank, "size": world.size, "__name__": "__main__"}
            with (
                Path(f"{script}.{world.rank}").open("w") as said,
                redirect_stdout(said),
                redirect_stderr(said),
            ):
                try:
                    exec(compile(Path(script).read_text(), script, "exec"), names)
                except BaseException:  # noqa: BLE001  whatever it is, it is printed and ends all
                    traceback.print_exc()
                    said.flush()
                    world.Abort(1)
            names.clear()
            gc.collect()
            print(ended, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
