"""In every stage, ranks end an iteration with the same parameters, updated with the sum of
gradients."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse_allreduce.algorithms import ALGORITHMS
from demitasse_allreduce.stages.options import ROOTED, STAGES

SUMMING = Path(__file__).with_name("summing.py")
ELEMENTS, STEPS = 9216, 3


def every_stage(apart: int) -> list[dict[str, Any]]:
    """Return options for each stage with the algorithms that it supports, with and without shared
    memory, and for HR. Of the algorithms, "auto" is always included and of the others every
    ``apart``-th one, in turns by stage; 1 means all."""
    made: list[dict[str, Any]] = [{}, {"dtype": "float32"}]
    for turn, stage in enumerate(STAGES):
        for number, algorithm in enumerate(("auto", *ALGORITHMS)):
            able = algorithm == "auto" or "reduce" in ALGORITHMS[algorithm].goals
            its_turn = algorithm == "auto" or (turn + number) % apart == 0
            if its_turn and (able or stage not in ROOTED):
                made.append({"stage": stage, "algorithm": algorithm, "shared": False, "bucket": 4096})
        made.append({"stage": stage, "chain": 2, "lower": "chain", "upper": "binomial", "shared": False})
        made.append({"stage": stage, "chain": 2, "members": "node", "shared": False})
        if stage not in ROOTED:
            made.append({"stage": stage, "between": "leaders"})
            made.append({"stage": stage, "bucket": 4096})
    made.append({"ranks": "round-robin", "shared": False, "algorithm": "ring"})
    return made


def told(output: str) -> list[list[dict[str, Any]]]:
    """Return what each rank has at the end, for each of the options."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("[")]


def expected(ranks: int, dtype: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the parameters and momentum of one worker that has all gradients, in float64."""
    parameters = np.random.default_rng(1).normal(size=ELEMENTS).astype(dtype).astype(np.float64)
    momentum, rng = np.zeros(ELEMENTS), np.random.default_rng(7)
    for _ in range(STEPS):
        gradients = rng.normal(size=(ranks, ELEMENTS)).astype(dtype).astype(np.float64)
        momentum = 0.5 * momentum + gradients.sum(axis=0)
        parameters -= momentum / 4
    return parameters, momentum


@pytest.mark.parametrize(
    ("ranks", "apart"),
    # Two cores have four for long; three need all that two do.
    [(1, 3), (3, 3), *(pytest.param(ranks, 1, marks=pytest.mark.slow) for ranks in (1, 2, 3, 4))],
)
def test_every_stage_follows_the_sum_of_gradients(
    on_ranks: Callable[..., str], ranks: int, apart: int
) -> None:
    """In the fast tests each stage has every third algorithm, and each algorithm every third stage."""
    wanted = every_stage(apart)
    found = on_ranks(ranks, SUMMING.read_text(), json.dumps(wanted))
    check(wanted, told(found), ranks)


@pytest.mark.parametrize("ranks", [3, pytest.param(4, marks=pytest.mark.slow)])
def test_nodes_of_two_ranks_follow_the_sum_of_gradients(
    on_ranks: Callable[..., str], ranks: int
) -> None:
    """By slices, and by leaders if one node has only one rank."""
    wanted: list[dict[str, Any]] = [
        {"stage": stage, "between": between, "bucket": 4096, "dtype": dtype}
        for stage in STAGES
        if stage not in ROOTED
        for between in ("slices", "leaders")
        for dtype in ("float32", "float64")
    ]
    wanted += [{"stage": "SC-OBR", "chain": 2, "members": "node"}, {}]
    found = told(on_ranks(ranks, SUMMING.read_text(), json.dumps(wanted), "2"))
    check(wanted, found, ranks)
    if ranks == 4:
        assert any("2 nodes by slices" in note for note in found[0][0]["notes"])
    assert any("2 nodes by leaders" in note for note in found[2][0]["notes"])


def test_two_nodes_sum_slices_by_messages(on_ranks: Callable[..., str]) -> None:
    wanted: list[dict[str, Any]] = [
        {"stage": stage, "bucket": 4096, "trials": 0} for stage in ("packed", "buckets", "overlap")
    ]
    found = told(on_ranks(4, SUMMING.read_text(), json.dumps(wanted), "2"))
    check(wanted, found, 4)
    assert all("2 nodes by slices" in "; ".join(results[0]["notes"]) for results in found)


def test_ways_of_two_nodes_are_measured_and_the_sums_are_right(on_ranks: Callable[..., str]) -> None:
    wanted: list[dict[str, Any]] = [
        {"stage": "buckets", "shared": False, "bucket": 4096},
        {"stage": "buckets", "shared": False, "bucket": 4096, "trials": 0},
        {"stage": "SC-OBR", "shared": False, "bucket": 4096, "trials": 1},
    ]
    found = told(on_ranks(4, SUMMING.read_text(), json.dumps(wanted), "2"))
    check(wanted, found, 4)
    tried, by_cost, rooted = ("; ".join(results[0]["notes"]) for results in found)
    assert "measured in a node" in tried and "measured between nodes" in tried
    assert ", measured " in tried and ", measured " not in by_cost
    assert "reduce of" in rooted and "broadcast of" in rooted and ", measured " in rooted
    for results in found:
        assert len({tuple(note for note in r["notes"] if "bytes" in note) for r in results}) == 1
        # Before the first sum, there is only what needs no measurement.
        assert results[0]["forecast"][-1].startswith("the network is not described")
        assert not any("not described" in note for note in results[0]["notes"])


def check(wanted: list[dict[str, Any]], found: list[list[dict[str, Any]]], ranks: int) -> None:
    """All ranks have the same parameters, and the first has the whole state: both equal those of a
    worker that has everything."""
    assert len(found) == len(wanted)
    for options, results in zip(wanted, found, strict=True):
        dtype = options.get("dtype", "float64")
        parameters, momentum = expected(ranks, dtype)
        tolerance = 1e-12 if dtype == "float64" else 1e-5
        for result in results:
            assert not result["wrong"], options
            assert result["parameters"] == results[0]["parameters"], options
        for name, state in (("parameters", parameters), ("momentum", momentum)):
            ours = np.frombuffer(bytes.fromhex(results[0][name]), dtype)
            assert np.allclose(ours, state, rtol=tolerance, atol=tolerance), (name, options)
        # Together the ranks own each element of a sum exactly once.
        updates = [result["total"][0] for result in results if result["owned"][0]]
        assert updates == [ELEMENTS] * len(updates), options
        assert results[0]["notes"], options
