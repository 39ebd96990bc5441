"""The shape of a guest: its memory domains, their processors and sizes, and qemu's arguments for
them."""

from __future__ import annotations

from dataclasses import dataclass, field

LOCAL, NEAR = 10, 20
"""Distances as given by firmware: from a domain to itself, and to another one."""


@dataclass(frozen=True)
class Shape:
    """``domains`` with ``cpus`` processors and ``memory`` MiB each; ``memory_only`` further domains of
    ``memory_only_size`` MiB without processors, like high-bandwidth memory. Each core has ``threads``
    hardware threads. ``distances`` (from, to) overrides single distances. Raises ValueError for a shape
    that no machine has."""

    domains: int = 4
    cpus: int = 1
    memory: int = 512
    memory_only: int = 0
    memory_only_size: int = 256
    threads: int = 1
    distances: dict[tuple[int, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.domains <= 64 or self.cpus < 1 or self.memory_only < 0:
            raise ValueError(f"{self}: a lab has 1 to 64 domains with at least one processor each")
        if self.memory < 256:
            raise ValueError(f"{self.memory} MiB a domain: a kernel and Python need 256 at least")
        if self.threads < 1 or self.cpus % self.threads:
            raise ValueError(f"{self.cpus} processors are not cores of {self.threads} threads each")

    @property
    def total(self) -> int:
        """MiB of memory in all domains."""
        return self.domains * self.memory + self.memory_only * self.memory_only_size

    def arguments(self) -> list[str]:
        """Return qemu's arguments for processors and memory."""
        cores = self.cpus // self.threads
        made = [
            *("-m", f"{self.total}M", "-smp"),
            f"{self.domains * self.cpus},sockets={self.domains},cores={cores},threads={self.threads}",
        ]
        sizes = [self.memory] * self.domains + [self.memory_only_size] * self.memory_only
        for node, size in enumerate(sizes):
            first = node * self.cpus
            own = f",cpus={first}-{first + self.cpus - 1}" if node < self.domains else ""
            made += ["-object", f"memory-backend-ram,id=m{node},size={size}M"]
            made += ["-numa", f"node,nodeid={node}{own},memdev=m{node}"]
        for a in range(len(sizes)):
            for b in range(len(sizes)):
                value = self.distances.get((a, b), LOCAL if a == b else self._distance(a, b))
                made += ["-numa", f"dist,src={a},dst={b},val={value}"]
        return made

    def _distance(self, a: int, b: int) -> int:
        """The distance of two domains; one without processors is nearest to the one with the same
        number."""
        pair = {a, b}
        if max(pair) >= self.domains > min(pair) and (max(pair) - self.domains) == min(pair):
            return NEAR - 3
        return NEAR
