"""``demitasse doctor`` reports what several processes need but is missing."""

from __future__ import annotations

import ctypes.util
import os
import socket
from pathlib import Path

import pytest

from demitasse import CompositionError, Finding
from demitasse_allreduce import addresses, diagnosis, library
from demitasse_allreduce.plugin import diagnose


def by_subject(found: list[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in found}


def test_what_is_here_is_told_with_a_remedy_for_what_is_not() -> None:
    found = by_subject(list(diagnose()))
    assert {"MPI", "MPI launcher", "shared memory", "addresses"} <= set(found)
    assert all(finding.remedy for finding in found.values() if finding.level == "problem")


def test_without_mpi_it_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise CompositionError("mpi4py finds no MPI library: libmpi.so; pip install it")

    monkeypatch.setattr(library, "loaded", absent)
    found = by_subject(list(diagnosis.findings()))
    assert found["MPI"].level == "note"
    assert found["MPI"].message == "mpi4py finds no MPI library: libmpi.so"
    assert found["MPI"].remedy == "for runs of several processes: pip install it"
    assert "MPI threads" not in found


def test_a_library_of_another_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes.util, "find_library", {"mpich": "libmpich.so.12"}.get)
    assert "MPICH's is libmpich.so.12 on this system" in library.to_be_found(there=True)
    assert library.to_be_found(there=False).startswith("pip install mpi4py mpich")
    monkeypatch.setattr(ctypes.util, "find_library", {}.get)
    assert library.to_be_found(there=True).startswith("pip install mpi4py mpich")


def test_a_host_without_a_network_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(addresses, "addresses", lambda: [])
    monkeypatch.setattr(diagnosis, "SHARED", tmp_path / "absent")
    found = by_subject(list(diagnosis.findings()))
    assert "does not resolve" in found["host name"].message
    assert "only processes of this host" in found["addresses"].message
    assert found["shared memory"].level == "note"


@pytest.mark.parametrize(
    ("said", "level"),
    [
        ("mpiexec (Open MPI) 5.0.11", {"Open MPI": "ok", "MPICH": "problem"}),
        ("HYDRA build details:", {"Open MPI": "problem", "MPICH": "ok"}),
        ("a launcher of a site's own", {"Open MPI": "ok", "MPICH": "ok"}),
    ],
)
def test_a_launcher_of_another_mpi_on_the_path_is_a_problem(
    said: str, level: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mpiexec = tmp_path / "mpiexec"
    mpiexec.write_text(f'#!/bin/sh\necho "{said}"\n')
    mpiexec.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    found = by_subject(list(diagnosis.findings()))["MPI launcher"]
    assert found.level == level[library.family(library.loaded())]
    assert str(mpiexec) in found.message


def test_doctor_tells_of_a_launcher_that_mpi_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    strange = {"MPICH": ("OMPI_COMM_WORLD_", "PMIx"), "Open MPI": ("PMI_", "PMI")}
    variables, protocol = strange[library.family(library.loaded())]
    monkeypatch.setenv(f"{variables}RANK", "0")
    monkeypatch.setenv(f"{variables}SIZE", "2")
    found = by_subject(list(diagnosis.findings()))["MPI launch"]
    assert found.level == "problem"
    assert f"does not know its protocol, {protocol}" in found.message
    assert "docs/cluster.md" in found.remedy


def test_doctor_tells_how_srun_speaks_to_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("OMPI_", "PMI", "MPI_", "SLURM_"))]:
        monkeypatch.delenv(name)
    for name, value in {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}.items():
        monkeypatch.setenv(name, value)
    found = by_subject(list(diagnosis.findings()))["MPI launch"]
    assert found.level == "note"
    assert found.message == "srun started 2 processes and told MPI nothing (--mpi=none)"
    assert library.spoken(library.loaded()) in found.remedy
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert by_subject(list(diagnosis.findings()))["MPI launch"].level == "ok"
    monkeypatch.setattr(library, "unheard", lambda found, mpi: "")
    monkeypatch.setattr(library, "network", lambda mpi: "ofi")
    monkeypatch.setenv("SLURM_MPI_TYPE", "pmi2")
    found = by_subject(list(diagnosis.findings()))
    assert found["MPI launch"].level == "ok"
    assert found["MPI network"].message.startswith("ofi between hosts")
