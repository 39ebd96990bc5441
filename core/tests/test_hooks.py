"""Hooks as a runtime calls them: errors name plugin and hook; a hook need not take all arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import demitasse
from demitasse import (
    Candidate,
    DataError,
    DataSpec,
    Level,
    Link,
    Machine,
    MemorySpace,
    PluginError,
    Quantity,
    compose,
)

MACHINE = Machine("desk", (Level("machine"),), fingerprint="any")


def offering(toy: ModuleType, role: str, hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a third-party hook, as a runtime calls it."""
    with compose(MACHINE, [toy.plugin("stranger", **{role: hook})]) as runtime:
        ((_, served),) = runtime.explain().serving(role)
    return served


def test_what_a_hook_raises_names_the_plugin_and_the_hook(toy: ModuleType) -> None:
    def gradient_sync(group: Any) -> Any:
        return {}["size"]

    served = offering(toy, "gradient_sync", gradient_sync)
    with pytest.raises(PluginError) as caught:
        served(group=None)
    line = gradient_sync.__code__.co_firstlineno + 1
    where = f"(tests/test_hooks.py:{line})"
    told = f"plugin 'stranger': hook gradient_sync raised KeyError: 'size' {where}"
    assert str(caught.value) == told
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_hook_that_yields_is_named_too(toy: ModuleType) -> None:
    first = Candidate("first", lambda inputs, outputs, workspace: list)

    def kernels(request: Any) -> Iterator[Candidate]:
        yield first
        yield replace(first, workspace=1 // request)

    served = offering(toy, "kernels", kernels)
    assert served(request=2, options={}) == [first, first]
    with pytest.raises(PluginError, match="'stranger': hook kernels raised ZeroDivisionError"):
        served(request=0)


def test_an_error_of_the_family_stays_as_the_hook_raised_it(toy: ModuleType) -> None:
    error = demitasse.DataError("no samples in it")

    def data_source(spec: Any) -> Any:
        raise error

    with pytest.raises(demitasse.DataError) as caught:
        offering(toy, "data_source", data_source)(spec=None)
    assert caught.value is error


def test_a_hook_is_given_only_what_it_takes(toy: ModuleType) -> None:
    served = offering(toy, "reproductions", lambda paper: paper)
    assert served(paper="desk", options={}) == "desk"


def test_a_hook_that_fails_while_composing_is_named(toy: ModuleType) -> None:
    with pytest.raises(PluginError, match="'stranger': hook operations raised ZeroDivisionError"):
        compose(MACHINE, [toy.plugin("stranger", operations=lambda: 1 // 0)])


@pytest.mark.parametrize(
    ("hook", "given", "valid"),
    [
        ("kernels", 3, "a list of objects with kernel and bind"),
        ("kernels", "direct", "a list of objects with kernel and bind"),
        ("operations", ["softcap"], "a list of objects with name and shapes"),
        ("layer_types", {"SoftCap": 1}, "a list of objects with name and build"),
        ("probe", 3, "a list of objects with name and workers"),
        ("programs", ["trainer"], "a table of functions by name"),
        ("collectives", 5, "a table of algorithms by name"),
        ("collectives", {"ring": list}, "a table of algorithms by name"),
        ("programs", {"trainer": 3}, "a table of functions by name"),
        ("allocator", 3, "None, or an object with allocate"),
        ("tuner", "quick", "None, or an object with pick, choices and prefer"),
        ("processes", 2, "None, or an object with rank, size, gather and check"),
        ("stream_engine", 2, "None, or an object with place, default and stream"),
        ("data_source", "rows", "None, or an object with fields, size, stream and close"),
        ("model_reader", "net", "None, or an object with net, solver and weights"),
        ("commands", "schedule", "a table of commands by name"),
    ],
)
def test_what_a_hook_gives_of_a_wrong_type_is_told_in_a_line(
    toy: ModuleType, hook: str, given: Any, valid: str
) -> None:
    with pytest.raises(PluginError) as caught:
        offering(toy, hook, lambda: given)()
    assert str(caught.value) == f"plugin 'stranger': hook {hook} returned {given!r} (valid: {valid})"


def test_a_writer_that_leaves_no_file_is_told_with_its_plugin(toy: ModuleType, tmp_path: Path) -> None:
    facts = {"model_writer": {"suffixes": [".toy"]}}
    given = toy.plugin("stranger", roles=facts, model_writer=lambda path, weights: None)
    path = tmp_path / "weights.toy"
    with compose(MACHINE, [given]) as runtime, pytest.raises(PluginError) as caught:
        runtime.write(path, None)  # type: ignore[arg-type]
    assert str(caught.value) == f"plugin 'stranger': hook model_writer wrote no file {path}"


@pytest.mark.parametrize("name", ["trainer", "interactive trainer", "net"])
def test_a_program_that_makes_nothing_to_run_is_told_with_its_plugin(toy: ModuleType, name: str) -> None:
    def forgetful(runtime: Any, path: Any, **options: Any) -> Any:
        return None

    given = toy.plugin("stranger", programs=lambda: {name: forgetful, "tell": forgetful})
    with compose(MACHINE, [given]) as runtime:
        assert runtime.program("tell", "solver.prototxt") is None
        with pytest.raises(
            PluginError, match=f"forgetful.*: the program '{name}' returned None .valid: "
        ):
            runtime.program(name, "solver.prototxt")


@pytest.mark.parametrize("name", ["trainer", "net"])
def test_a_program_that_gives_another_object_is_told_what_is_valid(toy: ModuleType, name: str) -> None:
    given = toy.plugin("stranger", programs=lambda: {name: lambda runtime, path: "made"})
    with compose(MACHINE, [given]) as runtime, pytest.raises(PluginError) as caught:
        runtime.program(name, "solver.prototxt")
    told = str(caught.value)
    assert f"the program {name!r} returned 'made' (valid: demitasse.{name.capitalize()}, which" in told
    assert told.endswith(", profile, arrays and close)" if name == "trainer" else " and close)")


@pytest.mark.parametrize("made", [SimpleNamespace(run=print), SimpleNamespace(forward=print)])
def test_an_object_with_some_of_what_is_used_will_do(toy: ModuleType, made: object) -> None:
    given = toy.plugin(
        "stranger", programs=lambda: {"trainer": lambda runtime: made, "net": lambda runtime: made}
    )
    with compose(MACHINE, [given]) as runtime:
        assert runtime.program("trainer" if hasattr(made, "run") else "net") is made


def test_a_hook_that_ends_the_program_is_an_error_that_names_it(toy: ModuleType) -> None:
    def observe() -> Any:
        sys.exit("no licence")

    with pytest.raises(PluginError, match="'stranger': hook observe raised SystemExit: no licence"):
        offering(toy, "observe", observe)()


def test_a_data_source_is_given_its_plugins_options(toy: ModuleType) -> None:
    told = []

    def data_source(spec: Any, options: Any) -> Any:
        told.append(options)
        return toy.ArraySource(toy.images())

    given = toy.plugin("stranger", data_source=data_source)
    with compose(MACHINE, [given], {"stranger": {"root": "there"}}) as runtime:
        runtime.open_source(DataSpec("rows"))
    assert told == [{"root": "there"}]


@pytest.mark.parametrize("order", [["early", "late"], ["late", "early"]])
def test_a_plugin_that_cannot_open_samples_keeps_no_other_from_it(
    order: list[str], toy: ModuleType
) -> None:
    opened = toy.ArraySource(toy.images())

    def refuse(spec: Any) -> Any:
        raise DataError(f"no such file: {spec.source}")

    def late(spec: Any) -> Any:
        return opened if spec.source == "rows" else None

    plugins = {
        "early": toy.plugin("early", data_source=refuse),
        "late": toy.plugin("late", data_source=late),
    }
    with compose(MACHINE, [plugins[name] for name in order]) as runtime:
        assert runtime.open_source(DataSpec("rows")) is opened
        with pytest.raises(DataError, match=r"^no such file: columns$"):
            runtime.open_source(DataSpec("columns"))
        if order[0] == "early":  # whoever reads the kind that the user names has the last word
            with pytest.raises(DataError, match=r"^no such file: rows$"):
                runtime.open_source(DataSpec("rows", "idx"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": 3}, "name = 3 (valid: letters and digits, as in Swish)"),
        (
            {"parameters": ["beta"]},
            "parameters = ['beta'] (valid: a table of defaults by name, {} for none)",
        ),
        (
            {"parameters": None},  # it has none
            "parameters = None (valid: a table of defaults by name, {} for none)",
        ),
        (
            {"parameters": {1: 2.0}},
            "parameters = {1: 2.0} (valid: a table of defaults by name, {} for none)",
        ),
        ({"loss_weight": "1"}, "loss_weight = '1' (valid: a number, 1.0 for a loss)"),
    ],
)
def test_a_layer_type_with_an_attribute_that_is_none_is_refused(
    toy: ModuleType, given: dict[str, Any], told: str
) -> None:
    kind = SimpleNamespace(**{"name": "Swish", "parameters": {}, "build": list, **given})
    if given.get("parameters", "") is None:
        del kind.parameters
    with pytest.raises(PluginError) as caught:
        compose(MACHINE, [toy.plugin("stranger", layer_types=lambda: [kind])])
    assert str(caught.value) == f"plugin 'stranger': layer type {kind.name!r}: {told}"


def test_layer_types_that_differ_from_the_manifest_s_are_told(toy: ModuleType) -> None:
    kinds = [SimpleNamespace(name=name, parameters={}, build=list) for name in ("Mish", "Swish")]
    roles = {"layer_types": {"types": ["Mish", "Swsh"]}}
    with pytest.raises(PluginError) as caught:
        compose(MACHINE, [toy.plugin("stranger", roles=roles, layer_types=lambda: kinds)])
    told = str(caught.value)
    assert told.startswith(
        "plugin 'stranger': its plugin.toml lists other layer types than it defines: "
    )
    assert "only listed: Swsh, only defined: Swish" in told
    roles["layer_types"]["types"] = ["Swish", "Mish"]
    with compose(MACHINE, [toy.plugin("stranger", roles=roles, layer_types=lambda: kinds)]) as runtime:
        assert {"Mish", "Swish"} <= {*runtime.layer_types}


def test_a_layer_type_that_one_plugin_gives_twice_is_refused(toy: ModuleType) -> None:
    kind = SimpleNamespace(name="Swish", parameters={}, build=list)
    with pytest.raises(PluginError, match="'stranger': layer type 'Swish' is defined twice; give each"):
        compose(MACHINE, [toy.plugin("stranger", layer_types=lambda: [kind, kind])])


def test_an_argument_that_no_hook_is_given_is_told_in_a_line_with_the_nearest(toy: ModuleType) -> None:
    with pytest.raises(PluginError) as caught:
        compose(MACHINE, [toy.plugin("stranger", allocator=lambda space, optoins: None)])
    assert str(caught.value) == (
        "plugin 'stranger' breaks a hook's contract: hook allocator: unknown argument 'optoins'; did "
        "you mean 'options'? (valid: options, space)"
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"peak": "3 GFLOP/s"}, ": peak = '3 GFLOP/s' (valid: a demitasse.Quantity in FLOP/s, "),
        ({"clock": Quantity(3e9, "B")}, ": clock = Quantity("),
        ({"memory": (MemorySpace("host", capacity=8),)}, ", memory 'host': capacity = 8 (valid: a "),
        ({"link": Link(latency=1e-6)}, ", link: latency = 1e-06 (valid: a demitasse.Quantity in s, "),
    ],
)
def test_what_a_probe_says_without_its_unit_is_refused(
    toy: ModuleType, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(PluginError) as caught:
        offering(toy, "probe", lambda: [Level("node", **given)])()
    assert str(caught.value).startswith(f"plugin 'stranger': hook probe returned level 'node'{told}")
