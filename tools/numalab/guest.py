"""One run of a guest: qemu is started, watched and ended; what the program wrote, and how it ended."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numalab import image
from numalab.errors import LabError
from numalab.shape import Shape

QEMU = "qemu-system-x86_64"
LOOK = 0.2
"""Seconds between checks of what the program wrote."""

SHOWN = 12
"""How many lines of the console an error shows."""


@dataclass(frozen=True)
class Outcome:
    """How a program ended in a guest: its exit status, what it wrote to both outputs, the seconds from
    power-on to boot and to the end, and the folder of files that it left in ``$NUMALAB_RESULTS``."""

    status: int
    output: str
    boot_seconds: float
    seconds: float
    results: Path

    def json(self, name: str = "result.json") -> Any:
        """Return what the program left in a JSON file. Raises LabError if there is no such file."""
        path = self.results / name
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            said = "\n".join(self.output.splitlines()[-SHOWN:])
            raise LabError(
                f"the program left no {name} (status {self.status}); it said:\n{said}"
            ) from error

    def checked(self) -> Outcome:
        """Return self. Raises LabError if the program failed."""
        if self.status:
            said = "\n".join(self.output.splitlines()[-SHOWN:])
            raise LabError(f"the program ended with status {self.status} in the guest; it said:\n{said}")
        return self


def command_file(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> str:
    """Return the shell script that the guest runs, in the host's root."""
    about = {
        "HOME": "/run/home",
        "TMPDIR": "/run/tmp",
        "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
        "PYTHONDONTWRITEBYTECODE": "1",
        "NUMALAB_RESULTS": image.RESULTS,
        **environment,
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in about.items()]
    lines += [f"cd {shlex.quote(str(directory))} || exit 126", f"exec {shlex.join(command)}"]
    return "\n".join(lines) + "\n"


def arguments(shape: Shape, kernel: Path, initial: Path, results: Path) -> list[str]:
    """Return qemu's command line."""
    shares = []
    for tag, path, more in (("root", Path("/"), ",readonly=on"), ("results", results, "")):
        shares += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{more}"]
        shares += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
    return [
        *(QEMU, "-accel", "tcg,thread=multi", "-cpu", "max", "-nodefaults", "-nographic", "-no-reboot"),
        *("-serial", "stdio", "-kernel", str(kernel), "-initrd", str(initial)),
        *("-append", "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off tsc=unstable"),
        *shape.arguments(),
        *shares,
    ]


def run(
    shape: Shape,
    kernel: Path,
    initial: Path,
    folder: Path,
    timeout: float,
    show: Callable[[str], None] | None = None,
) -> Outcome:
    """Boot, run the command file in ``folder``, and power off. Raises LabError if the guest dies, or
    does not boot or end within ``timeout`` seconds; qemu is ended in any case."""
    console = folder / "console"
    start = time.monotonic()
    booted = shown = 0.0
    with console.open("wb") as log:
        qemu = subprocess.Popen(
            arguments(shape, kernel, initial, folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            while True:
                ended = _ended(qemu)
                if not booted and (folder / "state").exists():
                    booted = time.monotonic() - start
                if show is not None:
                    shown = _show(folder / "output", shown, show)
                if ended:
                    break
                if time.monotonic() - start > timeout:
                    when = f"{booted:.0f} s after power on" if booted else "never"
                    raise LabError(
                        f"the guest did not end within {timeout:g} s (it booted {when})" + _last(folder)
                    )
        finally:
            if qemu.poll() is None:
                qemu.kill()
            qemu.wait()
    seconds = time.monotonic() - start
    try:
        status = int((folder / "status").read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise LabError(
            f"the guest ended after {seconds:.0f} s without a result (qemu: {qemu.returncode})"
            + _last(folder)
        ) from error
    output = (folder / "output").read_text(encoding="utf-8", errors="replace")
    return Outcome(status, output, booted, seconds, folder)


def _ended(qemu: subprocess.Popen[bytes]) -> bool:
    try:
        qemu.wait(LOOK)
    except subprocess.TimeoutExpired:
        return False
    return True


def _show(path: Path, shown: float, show: Callable[[str], None]) -> float:
    if not path.exists():
        return shown
    with path.open("rb") as file:
        file.seek(int(shown))
        fresh = file.read()
    if fresh:
        show(fresh.decode("utf-8", errors="replace"))
    return shown + len(fresh)


def _last(folder: Path) -> str:
    lines: list[str] = []
    for name in ("console", "output"):
        path = folder / name
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        lines += [f"  {name}: {line}" for line in text.splitlines()[-SHOWN:] if line.strip()]
    return ":\n" + "\n".join(lines) if lines else "; its console is empty"
