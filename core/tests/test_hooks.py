"""Hooks as a runtime calls them: errors name plugin and hook, arguments need not all be taken."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

import demitasse
from demitasse import Candidate, DataSpec, Level, Machine, PluginError, compose

MACHINE = Machine("desk", (Level("machine"),), fingerprint="any")


def offering(toy: ModuleType, role: str, hook: Callable[..., Any]) -> Callable[..., Any]:
    """A stranger's hook, as a runtime calls it."""
    with compose(MACHINE, [toy.plugin("stranger", **{role: hook})]) as runtime:
        ((_, served),) = runtime.explain().serving(role)
    return served


def test_what_a_hook_raises_names_the_plugin_and_the_hook(toy: ModuleType) -> None:
    def gradient_sync(group: Any) -> Any:
        return {}["size"]

    served = offering(toy, "gradient_sync", gradient_sync)
    with pytest.raises(PluginError) as caught:
        served(group=None)
    assert str(caught.value) == "plugin 'stranger': hook gradient_sync raised KeyError: 'size'"
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
    served = offering(toy, "allocator", lambda space: space)
    assert served(space="desk", options={}) == "desk"


def test_a_hook_that_fails_while_composing_is_named(toy: ModuleType) -> None:
    with pytest.raises(PluginError, match="'stranger': hook operations raised ZeroDivisionError"):
        compose(MACHINE, [toy.plugin("stranger", operations=lambda: 1 // 0)])


@pytest.mark.parametrize(
    ("hook", "given", "valid"),
    [
        ("kernels", 3, "a list of what has kernel and bind"),
        ("kernels", "direct", "a list of what has kernel and bind"),
        ("operations", ["softcap"], "a list of what has name and shapes"),
        ("layer_types", {"SoftCap": 1}, "a list of what has name and build"),
        ("probe", 3, "a list of what has name and workers"),
        ("programs", ["trainer"], "a table by name"),
        ("collectives", 5, "a table by name"),
        ("commands", "schedule", "a table by name"),
    ],
)
def test_what_a_hook_gives_of_a_wrong_type_is_told_in_a_line(
    toy: ModuleType, hook: str, given: Any, valid: str
) -> None:
    with pytest.raises(PluginError) as caught:
        offering(toy, hook, lambda: given)()
    assert str(caught.value) == f"plugin 'stranger': hook {hook} gave {given!r} (valid: {valid})"


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
