"""Running a Python 2 script, and importing its own modules, as Python 3."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from demitasse_caffe.python2.translation import source_of, translated


def import_as_python_2() -> None:
    """Make imports read the user's own modules as Python 2 from now on: those in the first folder of
    sys.path, which is the script's, in the folders of PYTHONPATH, and in folders added later. Installed
    packages are not affected. ``sys.setdefaultencoding`` exists again and does nothing."""
    vars(sys).setdefault("setdefaultencoding", lambda name: None)
    sys.meta_path.insert(0, _finder())


def reader() -> Callable[[Iterable[str]], AbstractContextManager[None]]:
    """Return a function for callers that meet a module in Python 2 later. Given the names of modules to
    import again, it returns a context manager in which imports read the user's own modules as Python 2.
    All entries of sys.path at the time of this call, other than its first folder and those of
    PYTHONPATH, count as installed."""
    finder = _finder()

    @contextmanager
    def reading(anew: Iterable[str]) -> Iterator[None]:
        finders = sys.meta_path
        # After the finders that replace other modules: a checkout's own caffe is not to be found.
        finders.insert(finders.index(PathFinder) if PathFinder in finders else 0, finder)
        try:
            for name in anew:
                file = getattr(sys.modules.get(name), "__file__", None)
                if file is not None and finder.is_users(name, _absolute(file)):
                    del sys.modules[name]
            yield
        finally:
            sys.meta_path.remove(finder)

    return reading


def _finder() -> _Finder:
    return _Finder(frozenset(_absolute(entry) for entry in sys.path[1:]))


def run_as_python_2(script: Path) -> None:
    """Run a script as Python would, as ``__main__``. Raise SyntaxError for anything
    that is not Python."""
    module = ModuleType("__main__")
    module.__file__ = str(script)
    sys.modules["__main__"] = module
    _Loader("__main__", str(script)).exec_module(module)


def _absolute(path: str) -> Path:
    """Return the path without ``..``, as Python itself has already put PYTHONPATH on sys.path."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def _code(data: bytes, path: str, packaged: bool = False) -> CodeType:
    tree = translated(source_of(data), path, packaged=packaged)
    made: CodeType = compile(tree, path, "exec", dont_inherit=True)
    return made


class _Finder(MetaPathFinder):
    def __init__(self, installed: frozenset[Path]) -> None:
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        self._installed = installed - {_absolute(entry) for entry in given if entry}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = PathFinder.find_spec(name, path)
        if found is None or type(found.loader) is not SourceFileLoader or found.origin is None:
            return None
        if not self.is_users(name, _absolute(found.origin)):
            return None
        found.loader = _Loader(name, found.origin)
        return found

    def is_users(self, name: str, file: Path) -> bool:
        """Return whether the nearest folder on sys.path belongs to a user."""
        if name.partition(".")[0].startswith("demitasse"):
            return False
        folders = {_absolute(entry) for entry in sys.path}
        nearest = next((each for each in file.parents if each in folders), None)
        if nearest is None or nearest in self._installed:
            return False
        return not any(nearest.glob("*.dist-info"))  # what pip put there is installed, too


class _Loader(SourceFileLoader):
    """Reads a module as Python 2. It does not use cached bytecode, which is Python 3's."""

    def get_code(self, fullname: str) -> Any:
        """Return the module's code."""
        packaged = "." in fullname or self.is_package(fullname)
        return _code(self.get_data(self.path), self.path, packaged)
