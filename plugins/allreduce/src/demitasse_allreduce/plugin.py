"""The plugin's hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from demitasse import hookimpl

if TYPE_CHECKING:
    from demitasse import Algorithm, Allocator, Finding, GradientSync, Group, Level, Machine, Processes


@hookimpl
def allocator(space: str, options: Mapping[str, Any]) -> Allocator | None:
    """Allocate memory of the space ``shared:node``, which all ranks of a node map."""
    from demitasse_allreduce.stages.near import allocate_space

    return allocate_space(space)


@hookimpl
def collectives() -> Mapping[str, Algorithm]:
    """Offer ring, halving and doubling, trees, chains and the two-level algorithms."""
    from demitasse_allreduce.algorithms import ALGORITHMS

    return ALGORITHMS


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """Offer ``schedule``, which prints, proves, costs and draws a collective."""
    from demitasse_allreduce.schedule_command import schedule

    return {"schedule": schedule}


@hookimpl
def gradient_sync(group: Group) -> GradientSync:
    """Sum the gradients of processes: in a node's memory, by messages during the backward pass, or in
    one of S-Caffe's stages."""
    from demitasse_allreduce.gradient_sync import gradient_sync as make

    return make(group)


@hookimpl
def probe(levels: Iterable[Level] = ()) -> Iterable[Level]:
    """Add a level for the processes that mpiexec or srun started around the levels that were found."""
    from demitasse_allreduce.launch import with_processes

    return with_processes(levels)


@hookimpl
def processes(machine: Machine, options: Mapping[str, Any]) -> Processes | None:
    """Return the processes that mpiexec or srun started together, or whose application has started
    MPI."""
    from demitasse_allreduce.processes import serve

    return serve(machine, options)


@hookimpl
def reproductions(paper: str) -> Mapping[str, Any] | None:
    """Return S-Caffe's Table 2, crossovers and printed speedups beside our predictions."""
    from demitasse_allreduce.reproduction import reproduce

    return reproduce(paper)


@hookimpl
def diagnose() -> Iterable[Finding]:
    """Check MPI and its threads, the launcher, shared memory, and addresses for processes on other
    hosts."""
    from demitasse_allreduce.diagnosis import findings

    return findings()
