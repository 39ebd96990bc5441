"""If a description lacks a number that a prediction needs, this is an error that names the key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import demitasse
from demitasse import DescriptionError, discover, load_machine
from demitasse_simulator.described import standing_in
from demitasse_simulator.program import Simulation

ROOT = Path(__file__).parents[3]
SAMPLES = {"data": (1, 12, 12), "label": ()}
NUMBER = re.compile(r'(?m)(?<![\w])(\w+) = ("\d[^"]*"|\d[\d.]*)(, )?')
"""A key with a number, as descriptions write it, and the comma after it."""

MACHINES = ("taihulight", "kesch-cs-storm", "numa-broadwell", "power8-4xp100")


def numbers() -> list[tuple[str, int]]:
    """Return each number in the machines' files, with its place."""
    found = []
    for name in MACHINES:
        text = (ROOT / f"hwdesc/{name}.toml").read_text(encoding="utf-8")
        found += [(name, m.start()) for m in NUMBER.finditer(text) if m[1] != "schema"]
    return found


def simulated(path: Path, solver: Path) -> Simulation:
    machine, _ = standing_in(load_machine(path))
    with demitasse.compose(machine) as runtime:
        result = runtime.simulate(solver, samples=SAMPLES, scaling="weak")
    assert isinstance(result, Simulation)
    return result


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Simulation]:
    """The predictions with all numbers, made when they are first needed."""
    return {}


@pytest.mark.parametrize(("name", "start"), numbers())
def test_without_it_the_key_is_named_or_nothing_rests_on_it(
    solver: Path, tmp_path: Path, whole: dict[str, Simulation], name: str, start: int
) -> None:
    if not any("collectives" in manifest.roles for manifest in discover()):
        pytest.skip("no installed plugin has algorithms of collectives")
    source = ROOT / f"hwdesc/{name}.toml"
    text = source.read_text(encoding="utf-8")
    match = NUMBER.match(text, start)
    assert match is not None
    before = text[:start].rstrip(" ") if not match[3] else text[:start]
    bare = before.removesuffix(",") + text[match.end() :]
    path = tmp_path / source.name
    path.write_text(bare, encoding="utf-8")
    if name not in whole:
        whole[name] = simulated(source, solver)
    try:
        found = simulated(path, solver)
    except DescriptionError as error:
        assert match[1] in str(error) and source.name in str(error)
        return
    right = whole[name]
    if (found.seconds, found.memory, found.nodes) != (right.seconds, right.memory, right.nodes):
        # These keys have defaults: a level has one sibling, a link is not oversubscribed, siblings
        # without a link have the bandwidth of their memory, copies, additions and waiting in a sync
        # reach the rates of the link and the host's memory, and launches take no time. The lines say so.
        reached = ("d2h", "h2d", "accumulate", "synchronise", "interference", "interference_adding")
        assert match[1] in ("count", "oversubscription", "bandwidth", "launch", *reached)
        shown = found.nodes, found.workers, found.sources
        assert shown != (right.nodes, right.workers, right.sources)
