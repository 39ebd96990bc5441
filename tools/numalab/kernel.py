"""The guest's kernel and its modules, from Debian's package of the generic kernel."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from numalab.errors import LabUnavailableError

PACKAGE = "linux-image-amd64"
MODULES = (
    *("virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci"),
    *("netfs", "fscache", "9pnet", "9pnet_virtio", "9p"),
)
"""Modules, in the order in which they are loaded, that transport the host's files."""

PATIENCE = 300
"""How many seconds the download of a package may take."""


@dataclass(frozen=True)
class Kernel:
    """A kernel's image and the modules that the guest loads, in order."""

    image: Path
    modules: tuple[Path, ...]


def folder() -> Path:
    """Where a kernel is kept between runs: ``NUMALAB_CACHE``, or the user's cache folder."""
    own = os.environ.get("NUMALAB_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(own) if own else base / "numalab"


def kernel(download: bool = True) -> Kernel:
    """Return the kernel, from the cache or downloaded now. Raises LabUnavailableError with the
    reason."""
    kept = folder() / "kernel"
    if not kept.is_dir():
        if not download:
            raise LabUnavailableError(f"no kernel in {kept}; `python -m numalab --fetch` downloads one")
        _fetch(kept)
    return _found(kept)


def _found(kept: Path) -> Kernel:
    images = sorted((kept / "boot").glob("vmlinuz-*"))
    if not images:
        raise LabUnavailableError(f"{kept} has no boot/vmlinuz-*; delete it, and it is downloaded anew")
    version = images[-1].name.removeprefix("vmlinuz-")
    tree = kept / "lib/modules" / version
    modules = []
    for name in MODULES:
        there = sorted(tree.rglob(f"{name}.ko"))
        if there:
            modules.append(there[0])
            continue
        if not _built_in(tree, name):
            raise LabUnavailableError(
                f"kernel {version} in {kept} has no module {name}.ko (Debian's cloud kernel has none "
                f"for 9p): unpack {PACKAGE} there"
            )
    return Kernel(images[-1], tuple(modules))


def _built_in(tree: Path, name: str) -> bool:
    listed = tree / "modules.builtin"
    return listed.is_file() and f"/{name}.ko" in listed.read_text(encoding="utf-8")


def _fetch(kept: Path) -> None:
    for tool in ("apt-get", "apt-cache", "dpkg"):
        if shutil.which(tool) is None:
            raise LabUnavailableError(
                f"{tool} is not here to fetch Debian's {PACKAGE}; unpack that package into {kept}"
            )
    depends = _said(["apt-cache", "depends", PACKAGE])
    names = [line.split()[-1] for line in depends.splitlines() if "Depends: linux-image" in line]
    if not names:
        raise LabUnavailableError(
            f"apt knows no {PACKAGE}; run apt-get update, or unpack one into {kept}"
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as scratch:
        _said(["apt-get", "download", names[0]], cwd=scratch)
        (package,) = Path(scratch).glob("*.deb")
        unpacked = Path(scratch) / "unpacked"
        _said(["dpkg", "-x", str(package), str(unpacked)])
        if not kept.exists():  # another process may have been faster
            unpacked.rename(kept)


def _said(command: list[str], cwd: str | None = None) -> str:
    try:
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise LabUnavailableError(f"{' '.join(command)} took more than {PATIENCE} s") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines()[-1:] or ["nothing"]
        raise LabUnavailableError(f"{' '.join(command)} failed and said: {said[0]}") from error
    return done.stdout
