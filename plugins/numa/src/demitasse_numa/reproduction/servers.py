"""The four servers of Table 1, as hwdesc/numa-*.toml describe them (a test compares the numbers)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Server:
    """The figures of one memory domain of a server: ``cores``, ``clock`` in Hz, ``peak`` in FLOP/s, and
    in bytes per second the ``bandwidth`` of its memory, of its ``links`` to all others, and of its
    high-bandwidth memory (None: it has none). ``fused``: the peak counts fused multiply-add.
    ``on_die``: all domains are on one chip."""

    file: str
    domains: int
    cores: int
    clock: float
    peak: float
    bandwidth: float
    links: float
    fused: bool
    high_bandwidth: float | None = None
    on_die: bool = False


SERVERS = {
    "Sandy Bridge": Server("numa-sandy-bridge.toml", 4, 8, 2.7e9, 345.6e9, 51.2e9, 32e9, False),
    "KNL": Server(
        "numa-knights-landing.toml", 4, 16, 1.3e9, 1331.2e9, 25.6e9, 80e9, True, 120e9, on_die=True
    ),
    "Broadwell": Server("numa-broadwell.toml", 4, 14, 2e9, 896e9, 85e9, 48e9, True),
    "AMD": Server("numa-opteron.toml", 8, 6, 1.9e9, 91.2e9, 21.3e9, 32e9, False),
}
