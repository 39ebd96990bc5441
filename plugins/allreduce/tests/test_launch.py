"""What launchers put into the environment tells whether a process was started with others."""

from __future__ import annotations

import pytest

from demitasse_allreduce.launch import Launch, started

HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_FD": "11", "MPI_LOCALNRANKS": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "0",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "0",
}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}
STEP = {**BATCH, "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "8"}


@pytest.mark.parametrize(
    ("environment", "launch"),
    [
        ({}, None),
        ({"HOME": "/root", "PMI_RANK": "", "PMI_SIZE": "x"}, None),
        (HYDRA, Launch("a PMI launcher", 1, 4, 2)),
        (OPEN_MPI, Launch("Open MPI's mpiexec", 0, 2, 2)),
        ({"PMIX_RANK": "5"}, Launch("a PMIx launcher", 5, None, None)),
        ({**STEP, "PMIX_RANK": "3"}, Launch("a PMIx launcher", 3, 8, None)),
        (BATCH, None),
        (STEP, Launch("srun", 3, 8, None)),
        ({**STEP, "SLURM_MPI_TYPE": "none"}, None),
        ({**STEP, **HYDRA}, Launch("a PMI launcher", 1, 4, 2)),
    ],
)
def test_each_launcher_is_known_by_its_variables(
    environment: dict[str, str], launch: Launch | None
) -> None:
    assert started(environment) == launch


def test_one_process_under_a_launcher_is_alone() -> None:
    one = started({"PMI_RANK": "0", "PMI_SIZE": "1"})
    assert one is not None
    assert one.alone
    assert not Launch("a PMIx launcher", 0, None, None).alone
