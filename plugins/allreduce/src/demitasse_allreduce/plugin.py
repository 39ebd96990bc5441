"""The plugin's hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from demitasse import hookimpl

if TYPE_CHECKING:
    from demitasse import Algorithm, Allocator, Finding, GradientSync, Group, Level, Machine, Processes


@hookimpl
def allocator(space: str, options: Mapping[str, Any]) -> Allocator | None:
    """Memory of ``shared:node``, which all ranks of a node map."""
    from demitasse_allreduce.stages.near import allocate_space

    return allocate_space(space)


@hookimpl
def collectives() -> Mapping[str, Algorithm]:
    """Ring, halving and doubling, trees, chains and the two-level algorithms."""
    from demitasse_allreduce.algorithms import ALGORITHMS

    return ALGORITHMS


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """``schedule``: the moves of a collective, its proof, its cost and its picture."""
    from demitasse_allreduce.schedule_command import schedule

    return {"schedule": schedule}


@hookimpl
def gradient_sync(group: Group) -> GradientSync:
    """The sum of processes' gradients: in a node's memory, by messages beside backward, or in one of
    S-Caffe's stages."""
    from demitasse_allreduce.gradient_sync import gradient_sync as make

    return make(group)


@hookimpl
def probe(levels: Iterable[Level] = ()) -> Iterable[Level]:
    """What was found, in each of the processes that mpiexec or srun started."""
    from demitasse_allreduce.launch import with_processes

    return with_processes(levels)


@hookimpl
def processes(machine: Machine, options: Mapping[str, Any]) -> Processes | None:
    """Those that mpiexec or srun started together, or whose application has started MPI."""
    from demitasse_allreduce.processes import serve

    return serve(machine, options)


@hookimpl
def reproductions(paper: str) -> Mapping[str, Any] | None:
    """S-Caffe's Table 2, crossovers and printed speedups beside predictions."""
    from demitasse_allreduce.reproduction import reproduce

    return reproduce(paper)


@hookimpl
def diagnose() -> Iterable[Finding]:
    """MPI and its threads, a launcher, shared memory, and addresses for processes on other hosts."""
    from demitasse_allreduce.diagnosis import findings

    return findings()
