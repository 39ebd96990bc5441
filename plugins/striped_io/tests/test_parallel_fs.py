"""Layouts of stripes on parallel file systems: Lustre's commands, and MPI-IO's hints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from demitasse import DataError
from demitasse_striped_io import parallel_fs
from demitasse_striped_io.parallel_fs import (
    Striping,
    create_stripe,
    hints,
    is_lustre,
    lfs_command,
    why_no_lustre,
    why_no_mpi,
)


def test_lustre_is_told_the_layout_of_each_stripe(tmp_path: Path) -> None:
    path = Path("/lustre/set/stripe-33.bin")
    assert lfs_command(path, 33, 32, Striping()) == ["lfs", "setstripe", "-c", "1", "-i", "1", str(path)]
    assert lfs_command(path, 3, 32, Striping(8, 1 << 20)) == [
        *("lfs", "setstripe", "-c", "8", "-S", "1048576", str(path)),
    ]
    if is_lustre(tmp_path):
        pytest.skip("this folder is on Lustre")
    assert "is not on Lustre (its file system is " in str(why_no_lustre(tmp_path))


@pytest.mark.parametrize(
    ("magic", "told"), [(0x01021994, "is tmpfs)"), (0xABC, "is 0xabc)"), (None, "is unknown)")]
)
def test_a_file_system_is_told_by_name(
    magic: int | None, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_fs, "file_system", lambda path: magic)
    assert str(why_no_lustre(tmp_path)).endswith(told)


def test_to_ask_for_mpi_io_starts_no_mpi() -> None:
    """Under another MPI's launcher, initialising MPI ends the process: doctor would print nothing."""
    asked = (
        "from demitasse_striped_io.parallel_fs import why_no_mpi\n"
        "told = why_no_mpi()\n"
        "import mpi4py.MPI\n"
        "print(told, mpi4py.MPI.Is_initialized())"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=False)
    if "ImportError" in done.stderr or "RuntimeError" in done.stderr:
        pytest.skip(f"there is no MPI: {done.stderr}")
    assert done.stdout == "None False\n", done.stderr


def test_stripes_can_be_created_by_mpi_io_with_hints(tmp_path: Path) -> None:
    assert hints(32, 1 << 28) == {"striping_factor": "32", "striping_unit": "268435456"}
    if (reason := why_no_mpi()) is not None:
        pytest.skip(reason)
    create_stripe(tmp_path / "stripe", 0, Striping(32, 1 << 20, mpi=True))
    assert (tmp_path / "stripe").read_bytes() == b""
    with pytest.raises(DataError, match="MPI-IO cannot create it"):
        create_stripe(tmp_path / "no" / "stripe", 0, Striping(mpi=True))
