"""What each rank of ``test_training`` runs: it trains a small net with dropout, with every job's
options."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demitasse import Level, Machine, MemorySpace, SyncSpec, compose, hookimpl
from demitasse_allreduce.algorithms import ALGORITHMS
from demitasse_allreduce.launch import started

PLUGINS = ["cpu", "reference", "training", "caffe", "datasets", "snapshots", "allreduce"]


class Stranger:
    """Another plugin's algorithm: a ring under a name of its own."""

    manifest: Mapping[str, Any] = {"name": "stranger", "api": ">=0.1", "roles": {"collectives": {}}}

    @staticmethod
    @hookimpl
    def collectives() -> Mapping[str, Any]:
        return {"strangers-ring": ALGORITHMS["ring"]}


def machine(sync: Mapping[str, Any]) -> Machine:
    """Return this machine, with as many processes as were started."""
    found = started()
    count = found.size if found is not None and found.size else 1
    levels = (
        Level("process", count, workers="mpi", sync=SyncSpec("allreduce", sync)),
        Level("node", memory=(MemorySpace("host"),), cores=1),
    )
    patience = {"allreduce": {"peer_timeout": "100 s"}}  # a busy machine may stop for long
    return Machine("processes", levels, fingerprint="any", options=patience)


def trained(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the losses of a job's iterations, the last parameters, and the path of a snapshot."""
    folder = Path(job["folder"])
    with compose(machine(job.get("sync", {})), plugins=[*PLUGINS, Stranger]) as runtime:
        trainer = runtime.trainer(
            folder / job.get("solver", "solver.prototxt"),
            precision=job.get("precision", "f64"),
            scaling=job.get("scaling", "strong"),
            overrides={"snapshot_prefix": str(folder / job.get("prefix", "out"))},
            resume=job.get("resume"),
        )
        losses = [trainer.step().loss for _ in range(job["iterations"])]
        saved = str(trainer.snapshot())
        parameters = {
            name: [array.data.tobytes() for array in arrays]
            for name, arrays in trainer.net.params.items()
        }
        found = {"losses": losses, "parameters": parameters}
        everyone: list[dict[str, Any]] = runtime.processes.gather(found)
    alike = all(each == everyone[0] for each in everyone)
    return {"losses": losses, "alike": alike, "saved": saved, "notes": list(trainer.notes)}


def main() -> None:
    for job in json.loads(sys.argv[1]):
        found = trained(job)
        launch = started()
        if launch is None or launch.rank == 0:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
