"""What libraries had in Caffe's time and have since removed, for Caffe's scripts and layers: names of
NumPy before 1.24 and before 2, ``fromstring`` of bytes, ``set_printoptions(threshold="nan")``,
``time.clock``, ``fractions.gcd``, ``yaml.load`` with one argument (PyYAML before 6), Pillow's
``ANTIALIAS``, its modules under PIL's names (``import Image``), and ``scipy.misc``."""

from __future__ import annotations

import fractions
import functools
import importlib
import importlib.util
import inspect
import math
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
    _print_options()
    if not hasattr(time, "clock"):
        vars(time)["clock"] = time.perf_counter
    vars(fractions).setdefault("gcd", math.gcd)
    older_scipy.bring_back()
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
        sys.meta_path.append(_Images())  # last: a script's own Image.py comes first
    for name, restore in _RESTORED.items():
        if name in sys.modules:
            restore(sys.modules[name])


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
        data = _bytes_in(string) if isinstance(string, str) else string
        return np.frombuffer(data, dtype, count).copy()

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it still exists in this NumPy
            real(b"\0", np.uint8)
    except ValueError:
        vars(np)["fromstring"] = fromstring


def _print_options() -> None:
    """Make ``numpy.set_printoptions`` take a threshold that is not a number, by which arrays are
    printed whole."""
    real: Any = np.set_printoptions

    @functools.wraps(real)
    def set_printoptions(precision: Any = None, threshold: Any = None, *rest: Any, **more: Any) -> None:
        whole = isinstance(threshold, str | float) and np.isnan(float(threshold))
        real(precision, sys.maxsize if whole else threshold, *rest, **more)

    if not hasattr(real, "__wrapped__"):
        vars(np)["set_printoptions"] = set_printoptions


def _bytes_in(text: str) -> bytes:
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:  # it was read from a file, whose bytes became surrogates
        return text.encode("utf-8", "surrogateescape")


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


def _filters(image: ModuleType) -> None:
    """Give Pillow's module of images its older name of the filter LANCZOS, removed in version 10."""
    if hasattr(image, "LANCZOS") and not hasattr(image, "ANTIALIAS"):
        vars(image)["ANTIALIAS"] = image.LANCZOS


_RESTORED: Mapping[str, Callable[[ModuleType], None]] = {
    "yaml": _load_of_one_argument,
    "PIL.Image": _filters,
}


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _RESTORED:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = next((spec for each in others if (spec := each.find_spec(name, path, target))), None)
        if found is not None and found.loader is not None:
            found.loader = _Loading(found.loader, _RESTORED[name])
        return found


class _Loading(Loader):
    """Loads a module as another loader does, and then restores what it had."""

    def __init__(self, real: Loader, restore: Callable[[ModuleType], None]) -> None:
        self._real, self._restore = real, restore

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module as the other loader does."""
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module as the other loader does, then restore what it had."""
        self._real.exec_module(module)
        self._restore(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Images(MetaPathFinder, Loader):
    """Finds Pillow's modules under the names that they had in PIL."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        old = name in ("Image", "ImageDraw", "ImageFilter", "ImageFont", "ImageOps")
        return ModuleSpec(name, self) if old and importlib.util.find_spec("PIL") else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Return None, for an empty module that exists only during the import."""

    def exec_module(self, module: ModuleType) -> None:
        """Put Pillow's module into sys.modules under the old name."""
        sys.modules[module.__name__] = importlib.import_module(f"PIL.{module.__name__}")
