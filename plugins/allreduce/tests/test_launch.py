"""A step of srun is one run unless the step says otherwise; processes that an mpiexec started belong to
it."""

from __future__ import annotations

import pytest

from demitasse import Launch
from demitasse_allreduce.launch import started

STEP = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("environment", "launch"),
    [
        ({}, None),
        (HYDRA, Launch("a PMI launcher", 1, 4, 2, "PMI")),
        (STEP, Launch("srun", 3, 8)),
        ({**STEP, "SLURM_MPI_TYPE": "none"}, None),
        ({**STEP, **HYDRA, "SLURM_MPI_TYPE": "none"}, Launch("a PMI launcher", 1, 4, 2, "PMI")),
    ],
)
def test_who_trains_together_is_told_by_the_launcher(
    environment: dict[str, str], launch: Launch | None
) -> None:
    assert started(environment) == launch
