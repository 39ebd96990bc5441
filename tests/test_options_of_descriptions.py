"""What a hardware description misspells is told with file and line, and with the nearest name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from demitasse import (
    CompositionError,
    DemitasseError,
    DescriptionError,
    Group,
    PlanError,
    PluginOptions,
    Team,
    compose,
    load_machine,
    option_place,
)
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
        ("kesch-cs-storm", "lower = ", "lowre = "),
        ("h200-box", '"simulator" }', '"simulator", pakced = true }'),
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
    before, _, after = text.rpartition("\nsync = ")
    sync = f'\nsync = {{ plugin = "simulator", {given} }}\n'
    path = described(tmp_path, before + sync + after.partition("\n")[2])
    machine, _ = standing_in(load_machine(path))
    with compose(machine) as runtime, pytest.raises(Exception, match=re.escape(told)) as caught:
        runtime.simulate(SOLVER, samples={"data": (1, 8, 8), "label": ()}, scaling="weak")
    line = before.count("\n") + 2
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_without_a_description_the_level_is_told() -> None:
    from demitasse_reference.plugin import gradient_sync

    with pytest.raises(
        DescriptionError, match=r"^level 'cg': sync: unknown option 'a' \(valid: none\)$"
    ):
        gradient_sync(Group(("cg",), 0, Team(1), "float32", {"a": 1}))


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ("hots", "did you mean 'host'? (valid: host)"),
        ("ddr3", "compose sw26010 (--plugins +sw26010) (valid: host)"),
    ],
)
def test_a_space_that_nobody_allocates_has_its_line(space: str, told: str, tmp_path: Path) -> None:
    text = LEVELS.format(plugins=f'{CHAIN}, "reference"', plugin="reference", option="a")
    text = text.replace('space = "host"', f'space = "{space}"').replace(", a = 1", "")
    path = described(tmp_path, text)
    with compose(path) as runtime, pytest.raises(PlanError) as caught:
        runtime.trainer(SOLVER)
    where = f"{path}:10: level 'worker': no composed plugin allocates memory in space {space!r}; "
    assert str(caught.value) == where + told


OPTIONS = """\
schema = 1
name = "small"
fingerprint = "any"
plugins = ["caffe", "training", "datasets", "reference", "null", "tuning"]

[options.null]
# What a device can do, in
# multiplications and additions.
peak = "1 GFLOP/s"

[options.tuning]
tune = "off"

[[level]]
name = "worker"
"""


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("tune =", "tun =", "12: options.tuning: unknown option 'tun'; did you mean 'tune'?"),
        ('"off"', '"of"', "12: options.tuning: unknown tune 'of'; did you mean 'off'?"),
        ("peak =", "paek =", "9: options.null: unknown option 'paek'; did you mean 'peak'?"),
        ("1 GFLOP/s", "1 GFLOPS", "9: options.null: peak = '1 GFLOPS'; did you mean 'GFLOP/s'?"),
        ("options.null", "options.nul", "6: unknown plugin in options 'nul'; did you mean 'null'?"),
        ("options.null", "options.cpu", "6: plugin 'cpu' in options is installed, but not composed"),
    ],
)
def test_an_option_of_a_plugin_has_its_line(right: str, wrong: str, told: str, tmp_path: Path) -> None:
    path = described(tmp_path, OPTIONS.replace(right, wrong))
    with pytest.raises(DemitasseError) as caught, compose(path) as runtime:
        runtime.trainer(SOLVER)
    assert str(caught.value).startswith(f"{path}:{told}")


def test_an_option_that_is_given_beside_the_description_has_no_line(tmp_path: Path) -> None:
    path = described(tmp_path, OPTIONS)
    with pytest.raises(CompositionError, match=r"^options.tuning: unknown option 'tun'; did you mean"):
        compose(path, options={"tuning": {"tun": "off"}})
    with compose(path, options={"null": {"peak": "2 GFLOP/s"}}) as runtime:
        assert runtime.options["null"] == {"peak": "2 GFLOP/s"}
        assert option_place(runtime.options["null"], "null", "peak") == "options.null"
        place = option_place(runtime.options["tuning"], "tuning", "tune")
    assert place == f"{path}:12: options.tuning"


def test_options_without_a_description_are_of_their_origin() -> None:
    assert option_place({}, "null", "peak", "machine 'm'") == "machine 'm': options.null"
    assert option_place(PluginOptions({"peak": 1}, {}), "null", "peak", "machine 'm'") == "options.null"
