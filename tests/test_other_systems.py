"""What Linux has and other systems have not is asked for only where it is there. A process that lacks
their names is as near to Windows and macOS as these tests come."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOLVER = Path(__file__).parents[1] / "examples" / "digits" / "digits_solver.prototxt"
LINUX = {"os": ["sched_getaffinity", "sched_setaffinity", "memfd_create", "posix_fadvise", "O_DIRECT"]}
LACKING = {
    "macOS": LINUX,
    "Windows": {
        "os": [*LINUX["os"], "sysconf", "sysconf_names", "register_at_fork", "fork", "pread"],
        "signal": ["SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL", "SIGBUS", "SIGQUIT"],
    },
}
PROGRAM = """
import importlib, subprocess, sys
import h5py, lmdb, numba, sklearn.datasets  # take what they need of Python's library before it goes

for name, lacking in {lacking!r}.items():
    module = importlib.import_module(name)
    for each in lacking:
        if hasattr(module, each):
            delattr(module, each)
from demitasse_cli.main import main

for arguments in {commands!r}:
    sys.argv = ["demitasse", *arguments]
    status = main()
    if status:
        sys.exit(f"{{arguments}}: {{status}}")
"""


@pytest.mark.parametrize("system, processes", [("macOS", 2), ("Windows", 1)])
def test_a_net_is_trained_without_what_the_system_lacks(
    system: str, processes: int, tmp_path: Path
) -> None:
    """Two processes of macOS, too, which share no memory: they send messages."""
    launcher = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(processes)] * (processes > 1)
    train = ["train", str(SOLVER), "--iterations", "1", "--plugins", "-cpu,-tuning", "--quiet"]
    commands = [train] if launcher else [["plugins"], train, ["detect"]]
    made = subprocess.run(
        [*launcher, sys.executable, "-c", PROGRAM.format(lacking=LACKING[system], commands=commands)],
        cwd=tmp_path,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    assert launcher or "fingerprint" in made.stdout
    assert list(tmp_path.glob("out/*_iter_1.demitasse"))
