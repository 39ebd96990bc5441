"""What libraries had in Caffe's time and have since removed, for Caffe's scripts and layers: names of
NumPy before 1.24 and before 2, ``fromstring`` of bytes, ``time.clock``, ``yaml.load`` with one argument
(PyYAML before 6), and ``scipy.misc``."""

from __future__ import annotations

import functools
import inspect
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import numpy as np

from demitasse_caffe import older_scipy

_PYTHONS: tuple[type, ...] = (bool, int, float, complex, object, str)
_NUMPYS: Mapping[str, Any] = {
    **{kind.__name__: kind for kind in _PYTHONS},
    **{"long": int, "unicode": str, "float_": np.float64, "unicode_": np.str_, "string_": np.bytes_},
    **dict.fromkeys(("Inf", "Infinity", "PINF", "infty"), np.inf),
    **{"NINF": -np.inf, "NaN": np.nan, "NAN": np.nan},
    **{"alltrue": np.all, "sometrue": np.any, "product": np.prod, "cumproduct": np.cumprod},
    **{"row_stack": np.vstack, "asscalar": lambda a: np.asarray(a).item()},
    "in1d": lambda x, *given, **options: np.isin(x, *given, **options).ravel(),
    **{"round_": np.round, "mat": np.asmatrix, "asfarray": lambda a: np.asarray(a, np.float64)},
}


def bring_back() -> None:
    """Restore the removed names from now on; names that exist are left unchanged."""
    for name, kind in _NUMPYS.items():
        if name not in vars(np):
            setattr(np, name, kind)
    _bytes_of_strings()
    if not hasattr(time, "clock"):
        vars(time)["clock"] = time.perf_counter
    older_scipy.bring_back()
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    if "yaml" in sys.modules:
        _load_of_one_argument(sys.modules["yaml"])


def _bytes_of_strings() -> None:
    """Make ``numpy.fromstring`` accept bytes again, as every script that reads a Datum expects, where
    NumPy (from 2.3 on) no longer does."""
    real: Any = np.fromstring

    @functools.wraps(real)
    def fromstring(
        string: Any, dtype: Any = float, count: int = -1, *, sep: str = "", like: Any = None
    ) -> Any:
        if sep:
            return real(string, dtype, count, sep=sep)
        data = string.encode("latin-1") if isinstance(string, str) else string
        return np.frombuffer(data, dtype, count).copy()

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it still exists in this NumPy
            real(b"\0", np.uint8)
    except ValueError:
        vars(np)["fromstring"] = fromstring


def _load_of_one_argument(yaml: ModuleType) -> None:
    """Give PyYAML's ``load`` and ``load_all`` a default loader again, as they had before version 6. It
    loads plain data only, because a text may be untrusted."""
    for name in ("load", "load_all"):
        load = getattr(yaml, name, None)
        if load is None or not hasattr(yaml, "SafeLoader"):
            continue
        known = inspect.signature(load).parameters.get("Loader")
        if known is not None and known.default is inspect.Parameter.empty:
            setattr(yaml, name, _with_default(load, yaml.SafeLoader))


def _with_default(load: Callable[..., Any], usual: Any) -> Callable[..., Any]:
    @functools.wraps(load)
    def of_one_argument(stream: Any, Loader: Any = usual) -> Any:  # noqa: N803 (PyYAML's name)
        return load(stream, Loader)

    del of_one_argument.__wrapped__
    return of_one_argument


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "yaml":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = next((spec for each in others if (spec := each.find_spec(name, path, target))), None)
        if found is not None and found.loader is not None:
            found.loader = _Loading(found.loader)
        return found


class _Loading(Loader):
    """Loads PyYAML as another loader does, and then restores the old default."""

    def __init__(self, real: Loader) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as the other loader does."""
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module as the other loader does, then restore the old default."""
        self._real.exec_module(module)
        _load_of_one_argument(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
