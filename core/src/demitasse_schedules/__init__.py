"""Collectives as data: what each rank sends, receives and adds; to be printed, proved, costed and
run."""

from demitasse_schedules.costs import Cost, cost, play, rounds_of
from demitasse_schedules.network import RANK_MAPS, Tier, Topology, missing_number, topology
from demitasse_schedules.proof import Proof, check
from demitasse_schedules.record import (
    GOALS,
    Algorithm,
    InRounds,
    Move,
    Round,
    Schedule,
    joined,
)
from demitasse_schedules.threads import run_threads

__all__ = [
    "GOALS",
    "RANK_MAPS",
    "Algorithm",
    "Cost",
    "InRounds",
    "Move",
    "Proof",
    "Round",
    "Schedule",
    "Tier",
    "Topology",
    "check",
    "cost",
    "joined",
    "missing_number",
    "play",
    "rounds_of",
    "run_threads",
    "topology",
]
