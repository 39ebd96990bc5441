"""Misspelt options in a hardware description are told with file and line, and with the nearest name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from demitasse import DescriptionError, Group, Team, compose, load_machine
from demitasse_simulator.described import standing_in

ROOT = Path(__file__).parents[1]
SOLVER = ROOT / "examples/digits/digits_solver.prototxt"

LEVELS = """\
schema = 1
name = "small"
fingerprint = "any"
plugins = [{plugins}]

[[level]]
name = "worker"
count = 2
workers = "threads"
memory = [{{ space = "host", bandwidth = "10 GB/s (assumed)" }}]
peak = "1 GFLOP/s (assumed)"
sync = {{ plugin = "{plugin}", {option} = 1 }}
"""
CHAIN = '"caffe", "training", "datasets"'


def described(folder: Path, text: str) -> Path:
    path = folder / "small.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("plugin", "option", "told"),
    [
        ("reference", "arity", "(valid: none)"),
        ("null", "arity", "(valid: none)"),
        ("sw26010", "schem", "did you mean 'scheme'? (valid: scheme)"),
        ("numa", "airty", "did you mean 'arity'? (valid: arity, bucket_bytes, root)"),
        ("parameter_server", "modl", "did you mean 'model'?"),
        ("simulator", "pakced", "did you mean 'packed'?"),
    ],
)
def test_an_option_of_a_sync_that_is_none_has_its_line(
    plugin: str, option: str, told: str, tmp_path: Path
) -> None:
    plugins = f'{CHAIN}, "reference", "{plugin}"' if plugin != "reference" else f'{CHAIN}, "reference"'
    path = described(tmp_path, LEVELS.format(plugins=plugins, plugin=plugin, option=option))
    where = f"{path}:12: level 'worker': sync: unknown option {option!r}"
    with compose(path) as runtime, pytest.raises(DescriptionError) as caught:
        runtime.trainer(SOLVER)
    assert str(caught.value).startswith(where) and told in str(caught.value)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("taihulight", "algorithm = ", "algoritm = "),
        ("taihulight", "scheme = ", "schem = "),
        ("kesch-cs-storm", "packed = ", "pakced = "),
        ("two-workers", '"reference" }', '"reference", packed = true }'),
    ],
)
def test_a_simulation_refuses_it_too(name: str, right: str, wrong: str, tmp_path: Path) -> None:
    text = (ROOT / f"hwdesc/{name}.toml").read_text(encoding="utf-8")
    assert text.count(right) == 1
    path = described(tmp_path, text.replace(right, wrong))
    line = text[: text.index(right)].count("\n") + 1
    machine, _ = standing_in(load_machine(path))
    with compose(machine) as runtime, pytest.raises(Exception, match="unknown option") as caught:
        runtime.simulate(SOLVER, samples={"data": (1, 8, 8), "label": ()}, scaling="weak")
    assert str(caught.value).startswith(f"{path}:{line}: level ")
    assert wrong.split(" = ")[0].split()[-1] in str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("packed = 1", "packed = 1 (valid: true or false)"),
        ('chain = "8"', "chain = '8' (valid: a whole number, 1 or more)"),
    ],
)
def test_a_value_that_means_nothing_among_nodes_is_told(given: str, told: str, tmp_path: Path) -> None:
    text = (ROOT / "hwdesc/kesch-cs-storm.toml").read_text(encoding="utf-8")
    path = described(tmp_path, text.replace("packed = false", given))
    machine, _ = standing_in(load_machine(path))
    with compose(machine) as runtime, pytest.raises(Exception, match=re.escape(told)) as caught:
        runtime.simulate(SOLVER, samples={"data": (1, 8, 8), "label": ()}, scaling="weak")
    assert str(caught.value).startswith(f"{path}:29: ")


def test_without_a_description_the_level_is_told() -> None:
    from demitasse_reference.plugin import gradient_sync

    with pytest.raises(
        DescriptionError, match=r"^level 'cg': sync: unknown option 'a' \(valid: none\)$"
    ):
        gradient_sync(Group(("cg",), 0, Team(1), "float32", {"a": 1}))
