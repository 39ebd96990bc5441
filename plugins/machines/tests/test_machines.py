"""The list of machines, and the descriptions that it lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from toy_packages import installing

from demitasse import Manifest, described_machines, discover, find_machine, load_machine
from demitasse_machines.command import machines

HWDESC = Path(__file__).parents[3] / "hwdesc"
NAMES = sorted(path.stem for path in HWDESC.glob("*.toml"))


def run(*words: str) -> Result:
    return CliRunner().invoke(machines, words, catch_exceptions=False)


def test_its_entry_points_are_found() -> None:
    (found,) = [each for each in discover() if each.name == "machines"]
    assert isinstance(found, Manifest) and not found.problem
    assert found.roles["commands"]["commands"].keys() == {"machines"}


def test_every_description_of_the_project_is_known_by_its_name() -> None:
    known = described_machines()
    assert set(NAMES) <= set(known) and len(NAMES) >= 14
    for name in NAMES:
        assert known[name].distribution == "demitasse-machines"
        assert load_machine(name).levels == load_machine(HWDESC / f"{name}.toml").levels
        assert find_machine(name).samefile(HWDESC / f"{name}.toml")


def test_each_is_listed_with_the_first_sentence_of_its_comment() -> None:
    lines = run().output.splitlines()
    rows = dict(line.split(maxsplit=1) for line in lines)
    assert set(NAMES) <= set(rows)
    assert (
        rows["taihulight"] == "Sunway TaihuLight: 40,960 nodes in 160 supernodes (swCaffe, section II)"
    )
    assert rows["two-workers"] == (
        "One computer with two workers, threads that each compute half of every batch"
    )
    assert all(len(text) < 115 for text in rows.values())


def test_a_description_is_printed_as_it_is() -> None:
    assert run("laptop").output == (HWDESC / "laptop.toml").read_text(encoding="utf-8")


def test_this_machine_is_described_by_another_command() -> None:
    refused = run("auto")
    assert refused.exit_code == 2 and "'demitasse detect' describes it" in refused.output


def test_the_list_as_data(tmp_path: Path) -> None:
    assert json.loads(run("--json", "-").output) == json.loads(
        (run("--json", str(tmp_path / "m.json")), (tmp_path / "m.json").read_text())[1]
    )
    rows = {row["name"]: row for row in json.loads(run("--json", "-").output)["machines"]}
    assert rows["sw26010-node"]["levels"][-1]["count"] == 64
    assert rows["sw26010-node"]["problem"] is None
    assert run("laptop", "--json", "-").exit_code == 2


def test_one_that_cannot_be_read_is_told_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installing(tmp_path, monkeypatch) as install:
        folder = install("shop", describes={"shop-floor": "# Ours.\nschema = 1\n"})
        lines = run().output.splitlines()
    (line,) = [line for line in lines if line.startswith("shop-floor")]
    assert f"PROBLEM: {folder / 'machines' / 'shop-floor.toml'}:1: a description needs 'name'" in line
    assert len(lines) > len(NAMES)
