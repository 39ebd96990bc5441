"""Demitasse: a microkernel that composes plugins into a runtime and trains convolutional nets. Importing
it is cheap: each of the public names, listed in ``__init__.pyi``, is imported when it is first used."""

import importlib
import re
from pathlib import Path

__version__ = "0.1.0"

_STUB = __spec__.loader.get_data(str(Path(__file__).with_suffix(".pyi"))).decode()  # also in a zip file
_HOME = {
    name: module
    for module, names in re.findall(r"^from (\S+) import \((.*?)\)", _STUB, re.M | re.S)
    for name in re.findall(r" as (\w+)", names)
}

__all__ = ["__version__", *_HOME]  # noqa: PLE0604  the names are strings


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'demitasse' has no attribute {name!r}")
    return globals().setdefault(name, getattr(importlib.import_module(_HOME[name]), name))


def __dir__() -> list[str]:
    return sorted(__all__)
