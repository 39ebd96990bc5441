"""One rank of a group that trains: ``python -m bench_processes.rank CONTENDER PORT RANK RANKS THREADS``.

It reports at the driver's port and answers its lines of JSON. ``prepare`` makes a net and runs a few
steps; ``run`` runs more. Between lines it sleeps, so that a group takes no time from another.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import time
import traceback
from typing import Any

import numpy as np
from bench import values
from bench.contenders.__main__ import PARENT_DIES
from bench.layers import Net

Arrays = dict[str, np.ndarray]
STEPS = 3


def own(net: Net, precision: str, setting: str, arrays: Arrays, rank: int, ranks: int) -> Any:
    """Return Demitasse's trainer as launched by mpiexec: the solver's batch is shared by all ranks, and
    gradients are summed as the composition says."""
    from bench.contenders.own import Training

    return Training(net, precision, setting, arrays)


def ddp(net: Net, precision: str, setting: str, arrays: Arrays, rank: int, ranks: int) -> Any:
    """Return PyTorch's training with DistributedDataParallel over gloo, on this rank's part of the
    batch."""
    import torch
    import torch.distributed as dist
    from bench.contenders.pytorch import Training
    from torch.nn.parallel import DistributedDataParallel

    if ranks > 1 and not dist.is_initialized():
        dist.init_process_group("gloo", rank=rank, world_size=ranks)
    share = slice(rank * net.batch // ranks, (rank + 1) * net.batch // ranks)
    mine = {name: arrays[name][share] for name in ("data", "label")}
    # What is compiled here is the wrapped model, as PyTorch's documentation says, not its loss.
    training = Training(net, precision, setting.replace("compiled", "eager"), {**arrays, **mine})
    if ranks > 1:
        training.model = DistributedDataParallel(
            training.model, static_graph=True, gradient_as_bucket_view=True
        )
    if setting.startswith("compiled"):
        training.model = torch.compile(training.model)
    return training


MAKES = {"demitasse": own, "pytorch": ddp}


class Rank:
    """What this rank was asked to prepare, and its answers."""

    def __init__(self, contender: str, rank: int, ranks: int) -> None:
        self._make, self._rank, self._ranks = MAKES[contender], rank, ranks
        self._training: Any = None

    def prepare(
        self, net: dict[str, Any], precision: str, setting: str, dropout: bool
    ) -> dict[str, Any]:
        """Make a net (of its ``message``), and return the losses of a few steps."""
        made = Net.of(net) if dropout else Net.of(net).without("dropout")
        arrays = {**values.weights(made), **values.samples(made, made.batch)}
        self._training = self._make(made, precision, setting, arrays, self._rank, self._ranks)
        return {"losses": [self._training.run(1)[-1] for _ in range(STEPS)]}

    def run(self, steps: int) -> dict[str, Any]:
        """Return when so many steps began and ended, by the machine's monotonic clock in seconds."""
        begin = time.monotonic()
        self._training.run(steps)
        return {"begin": begin, "end": time.monotonic()}


def bound(rank: int, threads: int) -> None:
    """Bind this process to processors of its own, if there are enough."""
    allowed = sorted(os.sched_getaffinity(0))
    mine = allowed[rank * threads : (rank + 1) * threads]
    if len(mine) == threads:
        os.sched_setaffinity(0, mine)


def main() -> None:
    contender, port, rank, ranks, threads = sys.argv[1], *map(int, sys.argv[2:6])
    ctypes.CDLL(None).prctl(PARENT_DIES, signal.SIGKILL)
    if contender == "demitasse":  # which binds its own threads
        from demitasse import launched

        rank = found.rank if (found := launched()) is not None else 0
    else:
        import torch

        bound(rank, threads)
        torch.set_num_threads(threads)
    each = Rank(contender, rank, ranks)
    with socket.create_connection(("127.0.0.1", port)) as link, link.makefile("rw") as lines:
        print(json.dumps({"rank": rank, "process": os.getpid()}), file=lines, flush=True)
        for line in lines:
            command = json.loads(line)
            try:
                answer = getattr(each, command.pop("do"))(**command)
            except Exception as error:  # noqa: BLE001 - the driver reports it beside others' figures
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"}
            print(json.dumps(answer), file=lines, flush=True)


if __name__ == "__main__":
    main()
