"""``demitasse schedule``: what it prints and writes, and what it rejects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from demitasse import DemitasseError
from demitasse_allreduce.schedule_command import schedule

HWDESC = Path(__file__).resolve().parents[3] / "hwdesc"


def run(*words: Any) -> Result:
    return CliRunner().invoke(schedule, [str(word) for word in words], catch_exceptions=False)


def test_it_prints_the_moves_the_cost_and_the_proof() -> None:
    lines = run("ring", "--ranks", 3, "--size", 6, "--check").output.splitlines()
    assert lines[0] == "ring: allreduce of 6 by 3"
    assert lines[1].startswith("   0  send(1, 4:6) reduce(2, 2:4) send(1, 2:4) reduce(2, 0:2)")
    assert lines[-3] == ("ring on 1 supernode of 3: latency 1 us, bandwidth 12 GB/s (paper)")
    assert lines[-2] == "4.0 us (simulated): latency 4.0 us, transfer 0.0 us; 4 rounds"
    assert lines[-1] == (
        "ring: allreduce of 6 by 3: proved: 12 messages in 4 rounds, each contribution exactly once, "
        "the same bits on all ranks (3 cells, 6 sums)"
    )


def test_many_moves_are_told_by_rounds() -> None:
    output = run(
        "recursive-halving-doubling", "--ranks", 256, "--supernodes", 4, "--map", "round-robin"
    ).output
    lines = output.splitlines()
    assert lines[1] == "    0  256 messages, 134,217,728 elements, 0 of them between groups"
    assert lines[8].endswith("messages, 1,048,576 elements, 1,048,576 of them between groups")


@pytest.mark.parametrize("order", ["natural", "round-robin"])
@pytest.mark.parametrize("supernodes", [1, 2, 3, 5, 20])
def test_what_leaves_a_supernode_is_counted_under_any_map(order: str, supernodes: int) -> None:
    """In a ring of one element each, a message leaves its supernode where two consecutive ranks are in
    different ones."""
    ranks = 512
    words = ("ring", "--ranks", ranks, "--size", ranks, "--map", order, "--json", "-")
    rounds = json.loads(run(*words, "--supernodes", supernodes).output)["rounds"]
    each = -(-ranks // supernodes)
    groups = [range(start, min(start + each, ranks)) for start in range(0, ranks, each)]
    ring = list(range(ranks))
    if order == "round-robin":
        ring = [group[i] for i in range(each) for group in groups if i < len(group)]
    leaves = sum(a // each != b // each for a, b in zip(ring, [*ring[1:], ring[0]], strict=True))
    assert {each["between_groups"] for each in rounds} == {leaves}


def test_without_supernodes_nothing_leaves_one(tmp_path: Path) -> None:
    drawn = tmp_path / "ring.svg"
    words = ("ring", "--ranks", 4, "--size", 8)
    rounds = json.loads(run(*words, "--json", "-", "--draw", drawn).output)["rounds"]
    assert {each["between_groups"] for each in rounds} == {0}
    assert "group 0" not in drawn.read_text()


def test_auto_shows_the_offers_and_takes_the_cheapest() -> None:
    output = run("auto", "--ranks", 8, "--supernodes", 2, "--size", 4_000_000, "--map", "auto").output
    offers = [line for line in output.splitlines() if " simulated " in line]
    assert offers[0].startswith("->") and len(offers) > 9
    assert offers[0].split()[4] in ("ring", "two-level")


def test_a_described_machine_gives_the_network() -> None:
    output = run("rabenseifner", "--ranks", 512, "--hw", HWDESC / "taihulight.toml", "--check").output
    assert (
        "supernode link: latency 1 us (paper), bandwidth 12 GB/s (paper), oversubscription 4" in output
    )
    assert "proved" in output


STRANGER = """
from demitasse import hookimpl
from demitasse_allreduce.algorithms import ALGORITHMS

@hookimpl
def collectives():
    return {"strangers-ring": ALGORITHMS["ring"]}
"""


def test_algorithms_of_all_installed_plugins_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, facts = tmp_path / "a_stranger", tmp_path / "a_stranger-1.0.dist-info"
    package.mkdir()
    facts.mkdir()
    (package / "__init__.py").write_text("")
    (package / "plugin.py").write_text(STRANGER)
    (package / "plugin.toml").write_text('name = "stranger"\napi = ">=0.1"\n[roles.collectives]\n')
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: a-stranger\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[demitasse.plugins]\nstranger = a_stranger.plugin\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ("--ranks", 4, "--size", 8, "--check")
    assert run("strangers-ring", *words).output.startswith("strangers-ring: allreduce of 8 by 4\n")
    assert "proved" in run("strangers-ring", *words).output
    with pytest.raises(DemitasseError, match="unknown algorithm 'strangers-ring'"):
        run("strangers-ring", *words, "--plugins", "allreduce")
    assert "strangers-ring" in run("auto", *words).output


def test_files_hold_the_picture_and_the_data(tmp_path: Path) -> None:
    drawn, written = tmp_path / "a.svg", tmp_path / "a.json"
    words = ("two-level", "--ranks", 6, "--supernodes", 2, "--chunks", 2, "--size", 600, "--check")
    run(*words, "--draw", drawn, "--json", written)
    assert drawn.read_text().startswith("<svg")
    data = json.loads(written.read_text())
    assert (data["algorithm"], data["ranks"], data["size"], data["goal"]) == (
        "two-level",
        6,
        600,
        "allreduce",
    )
    assert data["proof"]["identical"] is True
    assert data["simulated"]["seconds"] > 0
    assert len(data["rounds"]) == data["simulated"]["rounds"] == 5
    assert sum(each["between_groups"] for each in data["rounds"]) == 2 * 600
    assert json.loads(run(*words, "--json", "-").output) == data


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rign", "--ranks", 4), "unknown algorithm 'rign'; did you mean 'ring'"),
        (("aut", "--ranks", 4), "unknown algorithm 'aut'; did you mean 'auto'"),
        (
            ("ring", "--ranks", 4, "--goal", "reduced"),
            "unknown goal 'reduced'; did you mean 'allreduce'|valid",
        ),
        (
            ("ring", "--ranks", 4, "--map", "robin"),
            "'robin'; .*valid: auto, natural, round-robin",
        ),
        (("ring", "--ranks", 12, "--supernodes", 20), "20: 12 ranks, 1 in each, fill at most 12"),
        (("ring", "--ranks", 12, "--supernodes", 5), "3 in each, fill only 4; give 4"),
        (("ring", "--ranks", 4, "--draw", "x.png"), "--draw x.png: the picture is SVG; .* ends in .svg"),
        (
            ("two-level", "--ranks", 4, "--map", "round-robin"),
            "--map does not apply to two-level",
        ),
        (("ring", "--ranks", 4, "--chain", 2), "--chain does not apply to ring .*: auto, chain-chain"),
        (("ring", "--ranks", 4, "--chunks", 2), "--chunks does not apply to ring"),
        (("ring", "--ranks", 4, "--supernodes", 2, "--hw", "x.toml"), "both describe the network"),
        (("ring", "--ranks", 99, "--draw", "x.svg"), "do not fit in a picture"),
        (("binomial", "--ranks", 4, "--root", 4), "root 4"),
    ],
)
def test_mistakes_are_named(words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(DemitasseError, match=message):
        run(*words)


@pytest.mark.parametrize("option", ["--ranks", "--size"])
def test_numbers_that_no_array_counts_are_refused(option: str) -> None:
    done = run("ring", "--ranks", 4, option, 10**20)
    assert done.exit_code == 2
    assert f"{10**20} is not in the range" in done.output
