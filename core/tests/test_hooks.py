"""Hooks as a runtime calls them: errors name plugin and hook, arguments need not all be taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import demitasse
from demitasse import Level, Machine, PluginError, compose

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
    def kernels(request: Any) -> Iterator[int]:
        yield 1
        yield 1 // request

    served = offering(toy, "kernels", kernels)
    assert served(request=1, options={}) == [1, 1]
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
