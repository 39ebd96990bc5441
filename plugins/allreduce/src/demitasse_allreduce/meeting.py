"""What processes tell each other of themselves when they meet, and what must be alike."""

from __future__ import annotations

import importlib.metadata
import os
import secrets
import socket
from collections.abc import Mapping
from typing import Any

from demitasse import WorkerError
from demitasse_allreduce import addresses


def introduction(given: Mapping[str, float], host: str | None) -> dict[str, Any]:
    """What processes tell each other of themselves to begin with."""
    return {
        "version": _version(),
        "host": host or socket.gethostname(),
        "process": os.getpid(),
        "machine": addresses.machine(),
        "network": addresses.network() if host is None else f"{addresses.network()} {host}",
        "addresses": addresses.addresses(),
        "cores": _cores(),
        "token": secrets.token_bytes(16),
        "timeouts": dict(given),
    }


def _cores() -> list[int]:
    """The processors that this process may use: all where the system binds none to a process (macOS)."""
    bound = hasattr(os, "sched_getaffinity")
    return sorted(os.sched_getaffinity(0)) if bound else list(range(os.cpu_count() or 1))


def check_errors(facts: list[dict[str, Any]]) -> None:
    """Raise WorkerError where some have met an error before they came here, and not all the same one."""
    words = [fact["error"] for fact in facts]
    if len({*words}) > 1:
        rank = next(rank for rank, error in enumerate(words) if error is not None)
        who = f"host {facts[rank]['host']}, process {facts[rank]['process']}"
        raise WorkerError(
            f"rank {rank} of {len(facts)} ({who}) failed before it met the others: {words[rank]}"
        )


def check_versions(facts: list[dict[str, Any]]) -> None:
    """Raise WorkerError where not all have the same version of this plugin."""
    for rank, fact in enumerate(facts):
        if fact["version"] != facts[0]["version"]:
            raise WorkerError(
                f"rank {rank} of {len(facts)} on host {fact['host']} has demitasse-allreduce "
                f"{fact['version']}, but rank 0 has {facts[0]['version']}; install one version on all "
                f"hosts"
            )


def _version() -> str:
    try:
        return importlib.metadata.version("demitasse-allreduce")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def host_names(facts: list[dict[str, Any]]) -> tuple[str, ...]:
    """A name for each rank's host: with an address where two networks' hosts are called the same."""
    networks: dict[str, set[str]] = {}
    for fact in facts:
        networks.setdefault(fact["host"], set()).add(fact["network"])
    return tuple(
        " ".join([fact["host"], *fact["addresses"][:1]])
        if len(networks[fact["host"]]) > 1
        else fact["host"]
        for fact in facts
    )


def unlinked(missing: list[list[int]], hosts: tuple[str, ...]) -> str:
    """What is said of connections that did not come about; ``missing`` has each rank's."""
    lacking = {rank: others for rank, others in enumerate(missing) if others}
    rank, others = next(iter(lacking.items()))
    first = f"rank {rank} on {hosts[rank]} to rank {others[0]} on {hosts[others[0]]}"
    return (
        f"{len(lacking)} of {len(missing)} processes cannot connect to all of their neighbours over TCP "
        f"(the first: {first}): one that dies or stops may be noticed only by MPI itself, or after "
        f"stall_timeout; open TCP ports between the hosts"
    )
