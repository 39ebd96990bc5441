"""Imports of ``caffe`` find the facade, where no other one is installed: ``import caffe``, ``from
caffe.proto import caffe_pb2`` and the like, each the same module as in ``demitasse_caffe.pycaffe``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_FACADE = "demitasse_caffe.pycaffe"


def stand_in() -> None:
    """Have imports find it from now on. A caffe that is installed stays what is imported."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, dot, rest = name.partition(".")
        if root != "caffe" or not (_is_ours() if dot else not _is_installed()):
            return None
        real = _FACADE + dot + rest
        try:
            found = importlib.util.find_spec(real)
        except ModuleNotFoundError:  # within what is no package
            return None
        return ModuleSpec(name, _Loader(real)) if found is not None else None


def _is_ours() -> bool:
    """Whether what was imported as caffe is the facade: its modules are found here, before others find
    its files and make other modules of them."""
    return sys.modules.get("caffe") is sys.modules.get(_FACADE) is not None


def _is_installed() -> bool:
    others = (finder for finder in sys.meta_path if not isinstance(finder, _Finder))
    return any(finder.find_spec("caffe", None) is not None for finder in others)


class _Loader(Loader):
    """Makes a module of another name that same module."""

    def __init__(self, real: str) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> None:
        """An empty module, which is only there while it is imported."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the module that stands in where imports look."""
        sys.modules[module.__name__] = importlib.import_module(self._real)
