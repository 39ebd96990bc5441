"""Namespaces, bridges and shaped links: what a lab is made of, how it is named, made and removed."""

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
"""A host's two interfaces: the shaped network, and an unshaped one on which the launcher speaks."""

MTU = 9000
"""Jumbo frames: headers are 0.7% of what is shaped, where they are 4.4% with 1,500 bytes."""

GSO = 32 * 1024
"""Bytes of TCP that go through the stack as one packet. tbf cuts what exceeds its burst, which costs
processor time, so this bounds the burst from below."""

BURST = 40 * 1024
"""Bytes that a tbf lets pass at once: with 96 KB, 1 MB came 8% too fast; with 40 KB, 2%."""

QUEUE = 64 * 1024 * 1024
"""Bytes that may wait in a tbf. More than all TCP windows together, so that nothing is ever dropped:
like the credits of InfiniBand, and unlike retransmissions, that gives each its share."""

WINDOW = 256 * 1024
"""Bytes that a TCP connection may have under way, which bounds the queues, unless a lab asks for more.
128 KB to 512 KB gave the same rates; with 64 KB MPI came to a halt."""

SETTINGS = {
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv4/tcp_congestion_control": "reno",
    "net/ipv4/tcp_slow_start_after_idle": "0",
    "net/ipv4/tcp_no_metrics_save": "1",
}


class LabError(Exception):
    """A lab that cannot be: what was asked, what is valid; or the command that failed, and why."""


def missing() -> str | None:
    """Why there can be no lab here; None where there can."""
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
    """The output of a command. Raises LabError with what it says when it fails."""
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise LabError(f"{' '.join(words)}: {said}")
    return done.stdout


def batch(program: str, namespace: str, lines: Iterable[str]) -> None:
    """Lines of ``ip`` or ``tc``, all in one namespace."""
    command(program, "-n", namespace, "-batch", "-", text="\n".join(lines) + "\n")


def shaped(device: str, rate: float) -> str:
    """The line of tc that lets a device send ``rate`` bytes a second."""
    bits = round(rate * 8)
    return f"qdisc replace dev {device} root tbf rate {bits}bit burst {BURST} limit {QUEUE}"


@dataclass(frozen=True)
class Plan:
    """A lab's shape: hosts are numbered supernode by supernode; rates in bytes a second each way, and
    the bytes of a TCP window."""

    hosts: int
    supernodes: int
    rate: float
    oversubscription: float
    window: int = WINDOW

    @property
    def settings(self) -> dict[str, str]:
        """What is written to /proc/sys on each host."""
        windows = {
            "net/ipv4/tcp_rmem": f"4096 {2 * self.window} {2 * self.window}",
            "net/ipv4/tcp_wmem": f"4096 {self.window} {self.window}",
        }
        return SETTINGS | windows

    @property
    def inside(self) -> int:
        """Hosts in a supernode."""
        return self.hosts // self.supernodes

    @property
    def trunk(self) -> float:
        """What a supernode can send to, and receive from, all others together."""
        return self.inside * self.rate / self.oversubscription

    def supernode(self, host: int) -> int:
        """The supernode that a host is in."""
        return host // self.inside

    def check(self) -> None:
        """Raises LabError for a lab that cannot be."""
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
    """Make the namespaces of a lab, and what joins them."""
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
    """A host's address on the shaped network."""
    return f"10.1.0.{host + 1}"


def join(name: str, one: tuple[str, str], other: tuple[str, str]) -> None:
    """A cable between two (namespace, device); those that have a bridge put it there."""
    (left, device), (right, port) = one, other
    whole = f"mtu {MTU} gso_max_size {GSO}"
    line = f"link add {device} {whole} type veth peer name {port} {whole} netns {name}-{right}"
    batch("ip", f"{name}-{left}", [line])
    for part, end in (one, other):
        bridged = [] if part.startswith("host") else [f"link set {end} master bridge"]
        batch("ip", f"{name}-{part}", [*bridged, f"link set {end} up"])


def identity(pid: int) -> str:
    """A process for all time: its number and when it began, so that a number used again is another.
    Raises ProcessLookupError where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None
    return f"{pid}-{fields[19]}"


def namespaces(start: str = f"{PREFIX}-") -> list[str]:
    """The names of network namespaces that begin so."""
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.glob(f"{start}*")) if folder.is_dir() else []


def processes(namespace: str) -> list[int]:
    """The processes in a namespace."""
    return [int(line) for line in command("ip", "netns", "pids", namespace).split()]


def signalled(pids: Sequence[int], number: int) -> None:
    """Send a signal to processes; those that have ended meanwhile need none."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def remove(name: str) -> list[str]:
    """End what runs in a lab and remove it; the namespaces that there were. Removes all that it can,
    and then raises LabError for what it could not."""
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
    """The names of labs whose owner has ended without removing them."""
    names = {"-".join(each.split("-")[:4]) for each in namespaces() if each.count("-") >= 4}
    for name in sorted(names):
        _, pid, started, _ = name.split("-")
        try:
            if identity(int(pid)) != f"{pid}-{started}":
                yield name
        except (ProcessLookupError, ValueError):
            yield name
