"""A lab: hosts in supernodes on this machine, MPI across them, and faults on demand."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from demitasse import Quantity
from netlab import network
from netlab.network import LabError, Plan

SERIAL = itertools.count()
ENDING = 5.0
"""Killed ranks are gone within so many seconds, unless the system is stuck."""

MPI_SETTINGS = {
    "FI_PROVIDER": "tcp",
    "FI_TCP_IFACE": network.DATA,
    "MPIR_CVAR_CH4_NETMOD": "ofi",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1",
    "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""MPICH over TCP on the shaped network. The hosts share this machine's few processors. So that a waiting
rank does not keep others from working, it sleeps briefly after some unsuccessful polls."""

LAUNCHER = """#!/bin/sh
# Called like ssh: options, a host, and words of a command for its shell.
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "NAME-$host" unshare --uts sh -c "hostname '$host'; exec $*"
"""


def rate(text: str) -> float:
    """Parse a rate, such as ``400 Mbit/s``, ``400Mbit`` or ``50 MB/s``, to bytes per second. Raises
    DescriptionError."""
    return Quantity.parse(f"{text}/s" if text.endswith("bit") else text, unit="B/s").value


class Netlab:
    """Hosts as network namespaces, ``hosts`` of them in ``supernodes`` equal groups. Each has its
    ``bandwidth`` to and from the others of its supernode; those of one supernode share ``hosts /
    supernodes * bandwidth / oversubscription`` each way to all the others. A TCP connection may have
    ``window`` bytes in flight. This is a context manager: the lab exists within the block, and nothing
    is left of it afterwards, even after errors and signals.

    Raises LabError if such a lab is not possible (``netlab.missing()`` says why in advance)."""

    def __init__(
        self,
        hosts: int = 8,
        supernodes: int = 2,
        bandwidth: str = "400 Mbit/s",
        oversubscription: float = 4,
        window: int = network.WINDOW,
    ) -> None:
        self.plan = Plan(hosts, supernodes, rate(bandwidth), oversubscription, window)
        self.plan.check()
        self.name = f"{network.PREFIX}-{network.identity(os.getpid())}-{next(SERIAL)}"
        self.folder: tempfile.TemporaryDirectory[str] | None = None
        self.before: Any = None
        self.jobs: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Self:
        if (why := network.missing()) is not None:
            raise LabError(why)
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            self.before = signal.signal(signal.SIGTERM, _ended)
        try:
            self.folder = tempfile.TemporaryDirectory(prefix=f"{self.name}-")
            script = Path(self.folder.name) / "launcher"
            script.write_text(LAUNCHER.replace("NAME", self.name))
            script.chmod(0o755)
            network.build(self.name, self.plan)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything that runs in the lab, and remove it; signals that arrive meanwhile are
        deferred."""
        waiting = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        try:
            for job in self.jobs:
                job.kill()
            network.remove(self.name)
            for job in self.jobs:
                job.wait()
                for pipe in (job.stdin, job.stdout, job.stderr):
                    if pipe is not None:
                        pipe.close()
            self.jobs.clear()
        finally:
            if self.folder is not None:
                self.folder.cleanup()
                self.folder = None
            if self.before is not None:
                signal.signal(signal.SIGTERM, self.before)
                self.before = None
            signal.pthread_sigmask(signal.SIG_SETMASK, waiting)

    def start(
        self,
        command: Sequence[str],
        ranks_per_host: int = 1,
        env: Mapping[str, str] | None = None,
        hosts: Sequence[int] | None = None,
        options: Sequence[str] = (),
        **popen: Any,
    ) -> subprocess.Popen[Any]:
        """Start an MPI job: ``ranks_per_host`` ranks of a command on each of ``hosts`` (default: all),
        in that order. ``env`` is added to the environment, and ``options`` to mpiexec's; the rest are
        Popen's arguments. ``python`` in the command stands for the running interpreter."""
        if self.folder is None:
            raise LabError("the lab is not there yet: use it as a context manager")
        chosen = range(self.plan.hosts) if hosts is None else hosts
        for host in chosen:
            self.check(host)
        if ranks_per_host < 1 or not chosen:
            raise LabError(f"{ranks_per_host} ranks on each of {len(chosen)} hosts (valid: at least 1)")
        mpiexec = Path(sys.executable).parent / "mpiexec"
        if not mpiexec.exists():
            raise LabError(f"no {mpiexec}: install the mpich wheel there (pip install mpich mpi4py)")
        words = ["ip", "netns", "exec", f"{self.name}-{network.FRONT}", str(mpiexec)]
        words += ["-launcher", "ssh", "-launcher-exec", f"{self.folder.name}/launcher"]
        words += ["-iface", "bridge", "-hosts", ",".join(f"host{host}" for host in chosen)]
        words += ["-ppn", str(ranks_per_host), "-n", str(ranks_per_host * len(chosen)), *options]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        alone = {"MPIR_CVAR_NOLOCAL": "1"} if ranks_per_host == 1 else {}
        environment = os.environ | {"PATH": path} | MPI_SETTINGS | alone | dict(env or {})
        job = subprocess.Popen([*words, *command], env=environment, **popen)
        self.jobs.append(job)
        return job

    def run(
        self,
        command: Sequence[str],
        ranks_per_host: int = 1,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        check: bool = True,
        **start: Any,
    ) -> subprocess.CompletedProcess[str]:
        """Run an MPI job to its end; return what it printed. The arguments are those of ``start``.
        Raises LabError if the job fails (unless ``check`` is false), or has not ended after ``timeout``
        seconds."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        job = self.start(command, ranks_per_host, env, **pipes, **start)
        try:
            output, errors = job.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.end(job)
            raise LabError(f"{' '.join(command)}: not ended after {timeout:g} seconds") from None
        except BaseException:
            self.end(job)
            raise
        if check and job.returncode:
            said = (errors.strip() or output.strip())[-2000:]
            raise LabError(f"{' '.join(command)}: exit status {job.returncode}: {said}")
        return subprocess.CompletedProcess(command, job.returncode, output, errors)

    def end(self, job: subprocess.Popen[Any]) -> None:
        """End everything that runs on the hosts, and wait for the job and, for a while, for its
        ranks."""
        job.kill()
        for host in range(self.plan.hosts):
            network.signalled(network.processes(self.namespace(host)), signal.SIGKILL)
        job.wait()
        until = time.monotonic() + ENDING
        while any(map(self.ranks, range(self.plan.hosts))) and time.monotonic() < until:
            time.sleep(0.02)

    def namespace(self, host: int) -> str:
        """Return the name of a host's network namespace."""
        self.check(host)
        return f"{self.name}-host{host}"

    def check(self, host: int) -> None:
        """Raise LabError if there is no such host."""
        if host not in range(self.plan.hosts):
            raise LabError(f"no host {host} (valid: 0 to {self.plan.hosts - 1})")

    def ranks(self, host: int) -> list[int]:
        """Return the processes on a host, except the launcher's own."""
        found = []
        for pid in network.processes(self.namespace(host)):
            try:
                name = Path(f"/proc/{pid}/comm").read_text().strip()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if not name.startswith("hydra"):
                found.append(pid)
        return found

    def stop_host(self, host: int) -> None:
        """Stop (SIGSTOP) a host's ranks: its kernel still acknowledges what is sent to it."""
        network.signalled(self.ranks(host), signal.SIGSTOP)

    def resume_host(self, host: int) -> None:
        """Let a stopped host's ranks continue."""
        network.signalled(self.ranks(host), signal.SIGCONT)

    def kill_host(self, host: int) -> None:
        """Kill (SIGKILL) a host's ranks while its network is down: peers learn of their end only by
        silence. The launcher learns of it on its own network, and ends the job unless it was started
        with ``options=["-disable-auto-cleanup"]``."""
        self.unplug(host)
        network.signalled(self.ranks(host), signal.SIGKILL)

    def unplug(self, host: int) -> None:
        """Disconnect a host from the shaped network."""
        network.batch("ip", self.namespace(host), [f"link set {network.DATA} down"])

    def plug(self, host: int) -> None:
        """Reconnect a host to the shaped network."""
        network.batch("ip", self.namespace(host), [f"link set {network.DATA} up"])

    def machine(self) -> str:
        """Return the lab's hardware description (TOML) for Demitasse, with its latency and bandwidths
        measured now, which takes some seconds."""
        from netlab.measure import measure

        return measure(self).description()


def _ended(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
