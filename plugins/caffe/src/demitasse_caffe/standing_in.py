"""Imports of ``caffe`` that find the facade unless another caffe is installed: ``import caffe``, ``from
caffe.proto import caffe_pb2`` and so on. Each is the same module as in ``demitasse_caffe.pycaffe``.

A checkout that was never built does not count as installed: its folder ``python/caffe`` lacks the
compiled module. Python modules that only a fork has there (SSD's ``caffe.model_libs``) are imported from
it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from demitasse_caffe.older_libraries import bring_back

_FACADE = "demitasse_caffe.pycaffe"
_MESSAGES = "caffe_pb2"
"""The name under which scripts that put ``python/caffe/proto`` on the path import Caffe's messages."""


def stand_in(*, always: bool = False) -> None:
    """Make imports find the facade from now on, and restore what other libraries had in Caffe's
    time. An installed caffe takes precedence, unless ``always``, which is for a script that was
    given to the facade."""
    bring_back()
    finder = next((each for each in sys.meta_path if isinstance(each, _Finder)), None)
    if finder is None:
        sys.meta_path.insert(0, finder := _Finder())
    finder.always |= always


class _Finder(MetaPathFinder):
    always = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, dot, rest = name.partition(".")
        if name == _MESSAGES and _found_elsewhere(name) is None:
            return ModuleSpec(name, _Loader(f"{_FACADE}.proto.{name}"))
        if root != "caffe" or not (_is_ours() if dot else self.always or not _is_installed()):
            return None
        real = _FACADE + dot + rest
        try:
            found = importlib.util.find_spec(real)
        except ModuleNotFoundError:  # raised inside something that is not a package
            found = None
        if found is None:
            return _found_elsewhere(name, _checkouts()) if name.count(".") == 1 else None
        return ModuleSpec(name, _Loader(real))


def _is_ours() -> bool:
    """Return whether the imported caffe is the facade. Its modules must then be found here, before other
    finders find its files and make separate modules of them."""
    return sys.modules.get("caffe") is sys.modules.get(_FACADE) is not None


def _is_installed() -> bool:
    found = _found_elsewhere("caffe")
    folders = found.submodule_search_locations if found is not None else None
    if found is None or folders is None:
        return found is not None
    if found.origin is None:  # a folder of that name with other content
        return False
    unbuilt = any((Path(folder) / "_caffe.cpp").is_file() for folder in folders)
    return not unbuilt or PathFinder.find_spec("caffe._caffe", list(folders)) is not None


def _found_elsewhere(name: str, path: Sequence[str] | None = None) -> ModuleSpec | None:
    others = (finder for finder in sys.meta_path if not isinstance(finder, _Finder))
    return next((found for each in others if (found := each.find_spec(name, path))), None)


def _checkouts() -> list[str]:
    """Return the folders of a caffe that imports would find, in the order of the path."""
    folders = (Path(entry) / "caffe" for entry in sys.path)
    return [str(folder) for folder in folders if (folder / "__init__.py").is_file()]


class _Loader(Loader):
    """Makes another name refer to the same module."""

    def __init__(self, real: str) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, for an empty module that exists only during the import."""

    def exec_module(self, module: ModuleType) -> None:
        """Put the facade's module into sys.modules under this name."""
        sys.modules[module.__name__] = importlib.import_module(self._real)
