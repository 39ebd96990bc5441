"""Namespaces, bridges and shaped links: how the components of a lab are named, made and removed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PREFIX = "netlab"
CORE, FRONT = "core", "front"
DATA, CONTROL = "data", "control"
"""A host's two interfaces: the shaped network, and an unshaped one for the launcher."""

MTU = 9000
"""Jumbo frames: headers are 0.7% of the shaped traffic; with 1,500 bytes they would be 4.4%."""

GSO = 32 * 1024
"""How many bytes of TCP pass through the stack as one packet. tbf cuts packets that exceed its burst,
which costs processor time, so this is a lower bound for the burst."""

BURST = 40 * 1024
"""How many bytes a tbf lets pass at once: with 96 KB, 1 MB arrived 8% too fast; with 40 KB, 2%."""

QUEUE = 64 * 1024 * 1024
"""How many bytes may wait in a tbf: more than all TCP windows together, so that nothing is ever dropped.
Like InfiniBand's credits, and unlike retransmissions, this gives each flow its share."""

WINDOW = 256 * 1024
"""How many bytes a TCP connection may have in flight, which limits the queues, unless a lab asks for
more. 128 KB to 512 KB gave the same rates; with 64 KB, MPI came to a halt."""

SETTINGS = {
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv4/tcp_congestion_control": "reno",
    "net/ipv4/tcp_slow_start_after_idle": "0",
    "net/ipv4/tcp_no_metrics_save": "1",
}


class LabError(Exception):
    """A lab is not possible: what was asked, and what is valid; or the command that failed, and why."""


def missing() -> str | None:
    """Say why a lab is not possible here; None if it is."""
    for program in ("ip", "tc", "unshare"):
        if shutil.which(program) is None:
            return f"the network lab needs the program {program!r}, which is not here"
    if os.geteuid() != 0:
        return "the network lab needs root, for network namespaces"
    probe = f"{PREFIX}-{identity(os.getpid())}-probe"
    try:
        command("ip", "netns", "add", probe)
        try:
            lines = ["link add data type veth peer name other", "link set data up"]
            batch("ip", probe, lines)
            batch("tc", probe, [shaped("data", 1e6)])
        finally:
            command("ip", "netns", "del", probe)
    except LabError as error:
        return f"the network lab needs namespaces, veth and tbf: {error}"
    return None


def command(*words: str, text: str | None = None) -> str:
    """Return the output of a command. Raises LabError with its message if it fails."""
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise LabError(f"{' '.join(words)}: {said}")
    return done.stdout


def batch(program: str, namespace: str, lines: Iterable[str]) -> None:
    """Run lines of ``ip`` or ``tc``, all in one namespace."""
    command(program, "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")


def shaped(device: str, rate: float) -> str:
    """Return the line of tc that lets a device send ``rate`` bytes per second."""
    bits = round(rate * 8)
    return f"qdisc replace dev {device} root tbf rate {bits}bit burst {BURST} limit {QUEUE}"


@dataclass(frozen=True)
class Plan:
    """A lab's shape: hosts are numbered supernode by supernode. Rates are in bytes per second each way;
    ``window`` is in bytes of TCP."""

    hosts: int
    supernodes: int
    rate: float
    oversubscription: float
    window: int = WINDOW

    @property
    def settings(self) -> dict[str, str]:
        """The values that are written to /proc/sys on each host."""
        windows = {
            "net/ipv4/tcp_rmem": f"4096 {2 * self.window} {2 * self.window}",
            "net/ipv4/tcp_wmem": f"4096 {self.window} {self.window}",
        }
        return SETTINGS | windows

    @property
    def inside(self) -> int:
        """The number of hosts in a supernode."""
        return self.hosts // self.supernodes

    @property
    def trunk(self) -> float:
        """The rate at which a supernode can send to, and receive from, all others together."""
        return self.inside * self.rate / self.oversubscription

    def supernode(self, host: int) -> int:
        """The supernode of a host."""
        return host // self.inside

    def check(self) -> None:
        """Raise LabError for a lab that is not possible."""
        if not 1 <= self.hosts <= 64:
            raise LabError(f"{self.hosts} hosts (valid: 1 to 64)")
        if not 1 <= self.supernodes <= self.hosts or self.hosts % self.supernodes:
            fits = [str(n) for n in range(1, max(self.hosts, 1) + 1) if self.hosts % n == 0]
            raise LabError(
                f"{self.supernodes} supernodes of {self.hosts} hosts (valid: {', '.join(fits)}, "
                "which divide the hosts evenly)"
            )
        if not 0 < self.oversubscription <= 1000:
            raise LabError(f"oversubscription {self.oversubscription:g} (valid: above 0, to 1000)")
        if not WINDOW // 2 <= self.window <= QUEUE // 8:
            raise LabError(
                f"a TCP window of {self.window:,} bytes (valid: {WINDOW // 2:,} to {QUEUE // 8:,})"
            )
        if min(self.rate, self.trunk) < 1e5:
            raise LabError(
                f"{self.rate * 8e-6:g} Mbit/s a host and {self.trunk * 8e-6:g} Mbit/s a trunk "
                "(valid: at least 0.8 Mbit/s each)"
            )


def build(name: str, plan: Plan) -> None:
    """Make a lab's namespaces, and connect them."""
    switches = [f"supernode{number}" for number in range(plan.supernodes)]
    hosts = [f"host{number}" for number in range(plan.hosts)]
    for part in (FRONT, CORE, *switches, *hosts):
        command("ip", "netns", "add", f"{name}-{part}")
    for part in (FRONT, CORE, *switches):
        lines = [f"link add bridge mtu {MTU} type bridge", "link set lo up", "link set bridge up"]
        batch("ip", f"{name}-{part}", lines)
    batch("ip", f"{name}-{FRONT}", ["address add 10.2.255.1/16 dev bridge"])
    for number, switch in enumerate(switches):
        join(name, (switch, "trunk"), (CORE, f"trunk{number}"))
        for part, device in ((switch, "trunk"), (CORE, f"trunk{number}")):
            batch("tc", f"{name}-{part}", [shaped(device, plan.trunk)])
    for number, host in enumerate(hosts):
        switch = switches[plan.supernode(number)]
        settings = " && ".join(f"echo {text!r} > /proc/sys/{key}" for key, text in plan.settings.items())
        command("ip", "netns", "exec", f"{name}-{host}", "sh", "-c", settings)
        join(name, (host, DATA), (switch, host))
        join(name, (host, CONTROL), (FRONT, host))
        lines = [
            f"address add {address(number)}/16 dev {DATA}",
            f"address add 10.2.0.{number + 1}/16 dev {CONTROL}",
            "link set lo up",
        ]
        batch("ip", f"{name}-{host}", lines)
        for part, device in ((host, DATA), (switch, host)):
            batch("tc", f"{name}-{part}", [shaped(device, plan.rate)])


def address(host: int) -> str:
    """Return a host's address on the shaped network."""
    return f"10.1.0.{host + 1}"


def join(name: str, one: tuple[str, str], other: tuple[str, str]) -> None:
    """Connect two (namespace, device) by a cable; in a namespace with a bridge, attach the end to it."""
    (left, device), (right, port) = one, other
    whole = f"mtu {MTU} gso_max_size {GSO}"
    line = f"link add {device} {whole} type veth peer name {port} {whole} netns {name}-{right}"
    batch("ip", f"{name}-{left}", [line])
    for part, end in (one, other):
        bridged = [] if part.startswith("host") else [f"link set {end} master bridge"]
        batch("ip", f"{name}-{part}", [*bridged, f"link set {end} up"])


def identity(pid: int) -> str:
    """Identify a process uniquely by its number and start time, because numbers are reused. Raises
    ProcessLookupError if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    return f"{pid}-{fields[19]}"


def namespaces(start: str = f"{PREFIX}-") -> list[str]:
    """Return the names of network namespaces that begin with ``start``."""
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.glob(f"{start}*")) if folder.is_dir() else []


def processes(namespace: str) -> list[int]:
    """Return the processes in a namespace."""
    return [int(line) for line in command("ip", "netns", "pids", namespace).split()]


def signalled(pids: Sequence[int], number: int) -> None:
    """Send a signal to processes, ignoring those that have ended meanwhile."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def remove(name: str) -> list[str]:
    """End what runs in a lab and remove it; return its namespaces. Removes as much as possible, and then
    raises LabError for the rest."""
    gone, faults = [], []
    found = namespaces(f"{name}-")
    for _ in range(50):
        alive = [pid for namespace in found for pid in processes(namespace)]
        if not alive:
            break
        signalled(alive, signal.SIGKILL)
        time.sleep(0.02)
    for namespace in found:
        try:
            command("ip", "netns", "del", namespace)
            gone.append(namespace)
        except LabError as error:
            faults.append(str(error))
    if faults:
        raise LabError("; ".join(faults))
    return gone


def dead() -> Iterator[str]:
    """Yield the names of labs whose owner has ended without removing them."""
    names = {"-".join(each.split("-")[:4]) for each in namespaces() if each.count("-") >= 4}
    for name in sorted(names):
        _, pid, started, _ = name.split("-")
        try:
            if identity(int(pid)) != f"{pid}-{started}":
                yield name
        except (ProcessLookupError, ValueError):
            yield name
