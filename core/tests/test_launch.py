"""The variables that launchers set tell whether a process was started together with others."""

from __future__ import annotations

import pytest

from demitasse import Launch, launched, launched_by_srun, local_rank

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
        (HYDRA, Launch("a PMI launcher", 1, 4, 2, "PMI")),
        (OPEN_MPI, Launch("Open MPI's mpiexec", 0, 2, 2, "PMIx")),
        ({"PMIX_RANK": "5"}, Launch("a PMIx launcher", 5, None, None, "PMIx")),
        ({**STEP, "PMIX_RANK": "3"}, Launch("a PMIx launcher", 3, 8, None, "PMIx")),
        ({"PMI_SIZE": "4"}, Launch("a PMI launcher", None, 4, None, "PMI")),
        ({"MPI_WORLD_RANK": "1", "MPI_WORLD_SIZE": "2"}, Launch("an MPI launcher", 1, 2)),
        (BATCH, None),
        (STEP, None),
        ({**STEP, **HYDRA}, Launch("a PMI launcher", 1, 4, 2, "PMI")),
    ],
)
def test_each_launcher_is_known_by_its_variables(
    environment: dict[str, str], launch: Launch | None
) -> None:
    assert launched(environment) == launch


def test_one_process_under_a_launcher_is_alone() -> None:
    one = launched({"PMI_RANK": "0", "PMI_SIZE": "1"})
    assert one is not None
    assert one.alone
    assert not Launch("a PMIx launcher", 0, None, None).alone


@pytest.mark.parametrize(
    ("environment", "step"),
    [
        ({}, None),
        (BATCH, None),
        (STEP, (Launch("srun", 3, 8), True)),  # as srun --mpi=none leaves it
        ({**STEP, "SLURM_MPI_TYPE": "pmix"}, (Launch("srun", 3, 8), True)),
        ({**STEP, "SLURM_MPI_TYPE": "none"}, (Launch("srun", 3, 8), False)),
        ({**STEP, **HYDRA, "SLURM_MPI_TYPE": "none"}, None),
    ],
)
def test_a_step_of_srun_s_that_tells_mpi_nothing_is_told_apart(
    environment: dict[str, str], step: tuple[Launch, bool] | None
) -> None:
    assert launched_by_srun(environment) == step


def test_the_number_on_a_host_is_the_inner_launcher_s() -> None:
    assert local_rank({}) is None
    assert local_rank({"SLURM_LOCALID": "6"}) == 6
    assert local_rank({"SLURM_LOCALID": "6", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}) == 1
