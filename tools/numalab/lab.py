"""A lab: what it requires of this machine, and runs in it."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from numalab import guest, image
from numalab.errors import LabUnavailableError
from numalab.kernel import folder, kernel
from numalab.shape import Shape

TIMEOUT = 300.0


def missing(download: bool = True) -> str | None:
    """Say why this machine cannot run a lab, or return None; tests skip with this reason. A kernel
    counts as available if it is in the cache or, with ``download``, if apt can download it."""
    if platform.system() != "Linux":
        return "a lab needs Linux: the guest runs the host's own programs"
    if platform.machine() != "x86_64":
        return f"a lab needs an x86-64 host, this is {platform.machine()}"
    for tool, package in ((guest.QEMU, "qemu-system-x86"), ("busybox", "busybox-static")):
        if shutil.which(tool) is None:
            return f"{tool} is not installed: apt-get install {package}"
    found = shutil.which("busybox")
    if found and b"ld-linux" in Path(found).read_bytes()[:4096]:
        return "busybox is linked dynamically and cannot run alone: apt-get install busybox-static"
    if not (folder() / "kernel").is_dir() and not (download and shutil.which("apt-get")):
        return "no kernel for a guest is kept: python -m numalab --fetch"
    return None


class Lab:
    """Guests of one shape; a context manager whose folder of results exists until it ends.

    Each ``run`` boots a guest, runs one program over the host's files (read-only, with empty ``/run``
    and ``/dev/shm``), and powers off. Raises LabUnavailableError if a lab is not possible here.
    """

    def __init__(self, domains: int = 4, *, shape: Shape | None = None) -> None:
        reason = missing()
        if reason is not None:
            raise LabUnavailableError(reason)
        self.shape = shape or Shape(domains)
        self._kernel = kernel()
        self._folder = tempfile.TemporaryDirectory(prefix="numalab-")
        self._runs = 0

    def run(
        self,
        command: Sequence[str],
        *,
        cpus: str = "",
        mems: str = "",
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        timeout: float = TIMEOUT,
        show: Callable[[str], None] | None = None,
    ) -> guest.Outcome:
        """Run a program in a new guest. ``cpus`` and ``mems`` (as ``0-3,6``) put it in a cpuset;
        ``directory`` is its working directory (default: the current one). It can write only to
        ``$NUMALAB_RESULTS``, ``/run`` and ``/dev/shm``. ``show`` is called with its output as it
        arrives. Raises LabError."""
        self._runs += 1
        place = Path(self._folder.name) / f"run{self._runs}"
        place.mkdir()
        busybox = Path(shutil.which("busybox") or "busybox")
        initial = Path(self._folder.name) / f"initial{self._runs}"
        image.write(initial, self._kernel, busybox, cpus, mems)
        text = guest.command_file(command, directory or Path.cwd(), environment or {})
        (place / "command").write_text(text, encoding="utf-8")
        return guest.run(self.shape, self._kernel.image, initial, place, timeout, show)

    def close(self) -> None:
        """Delete the results."""
        self._folder.cleanup()

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
