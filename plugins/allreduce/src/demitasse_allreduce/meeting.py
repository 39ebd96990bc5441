"""What processes tell each other about themselves when they meet, and the checks of what must agree."""

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
    """Return the facts about this process that it tells the others first."""
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
    """Return the processors that this process may use: all of them if the system does not bind
    processes to processors (macOS)."""
    bound = hasattr(os, "sched_getaffinity")
    return sorted(os.sched_getaffinity(0)) if bound else list(range(os.cpu_count() or 1))


def check_errors(facts: list[dict[str, Any]]) -> None:
    """Raise WorkerError if some processes failed before they came here, unless all met the same
    error."""
    words = [fact["error"] for fact in facts]
    if len({*words}) > 1:
        rank = next(rank for rank, error in enumerate(words) if error is not None)
        who = f"host {facts[rank]['host']}, process {facts[rank]['process']}"
        raise WorkerError(
            f"rank {rank} of {len(facts)} ({who}) failed before it met the others: {words[rank]}"
        )


def check_versions(facts: list[dict[str, Any]]) -> None:
    """Raise WorkerError unless all processes have the same version of this plugin."""
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
    """Return a name for each rank's host. It includes an address if hosts of different networks have the
    same name."""
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
    """Return a warning about connections that could not be made. ``missing`` has, for each rank, the
    ranks that it could not connect to."""
    lacking = {rank: others for rank, others in enumerate(missing) if others}
    rank, others = next(iter(lacking.items()))
    first = f"rank {rank} on {hosts[rank]} to rank {others[0]} on {hosts[others[0]]}"
    return (
        f"{len(lacking)} of {len(missing)} processes cannot connect to all of their neighbours over TCP "
        f"(the first: {first}): one that dies or stops may be noticed only by MPI itself, or after "
        f"stall_timeout; open TCP ports between the hosts"
    )
