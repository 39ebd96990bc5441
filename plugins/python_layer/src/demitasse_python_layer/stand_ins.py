"""Modules that stand in for some that users' code imports and nobody has installed: what a distribution
names as an entry point of the group ``demitasse.stand_ins`` is imported by the entry's name, with all
that is in it. So a layer's file that begins with ``import caffe`` is used as it is."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from types import ModuleType

GROUP = "demitasse.stand_ins"


def offered() -> dict[str, str]:
    """The modules that stand in for others, by the name that is imported."""
    return {point.name: point.value for point in entry_points(group=GROUP)}


def stand_in() -> None:
    """Have imports find them from now on, after all that is installed."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder(offered()))


class _Finder(MetaPathFinder):
    def __init__(self, modules: Mapping[str, str]) -> None:
        self._modules = modules

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, dot, rest = name.partition(".")
        if root not in self._modules:
            return None
        real = self._modules[root] + dot + rest
        try:
            found = importlib.util.find_spec(real) is not None
        except ModuleNotFoundError:  # within what is no package
            return None
        return ModuleSpec(name, _Loader(real)) if found else None


class _Loader(Loader):
    """Makes a module of another name that same module."""

    def __init__(self, real: str) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> None:
        """An empty module, which is only there while it is imported."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module that stands in where imports look."""
        sys.modules[module.__name__] = importlib.import_module(self._real)
