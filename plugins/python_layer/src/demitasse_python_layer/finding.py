"""Importing the class that a net's file names; if that fails, the error says where its module may be."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from demitasse import nearest
from demitasse_python_layer.entries import made_by_all
from demitasse_python_layer.faults import advice, installed, told
from demitasse_python_layer.python_2 import imported, readers

METHODS = ("reshape", "forward", "backward")
STAND_INS = "demitasse.stand_ins"
"""The group of entry points for functions without arguments, each named after a module that users' code
imports. The function makes imports of that module succeed if nobody has installed it."""
_ABOVE, _MANY = 4, 500
"""How many folders above a net's file are searched for a missing module, and how many
names in each folder."""


def instance(module: str, layer: str, net: str) -> Any:
    """Return an object of class ``layer`` of a module, both named by the file ``net``. Raise ValueError
    that says where a missing module or class may be, or which line of the module failed."""
    stand_in()
    about = f"python_param names module {module!r}, which cannot be imported"
    try:
        found = imported(module)
    except ModuleNotFoundError as error:
        looked = "it is looked for where import looks (PYTHONPATH, the script's folder)"
        missing = str(error.name or "")
        missing = module if module.startswith(f"{missing}.") else missing
        near = "" if advice(error) else _there(missing, net)
        raise ValueError(f"{about}: {told(error)}; {looked}{near}") from error
    except SyntaxError as error:
        where = f"{error.filename}:{error.lineno}: {error.msg}{advice(error)}"
        raise ValueError(f"{about}: {where}") from error
    except (Exception, SystemExit) as error:
        raise ValueError(f"{about}: {told(error)}") from error
    made = getattr(found, layer, None)
    if made is None or not callable(made):
        raise ValueError(
            f"module {module!r} of python_param has no class {layer!r}{_others(found, layer)}"
        )
    if lacking := [method for method in METHODS if not hasattr(made, method)]:
        raise ValueError(f"{module}.{layer} has no {', '.join(lacking)}")
    try:
        return made()
    except (Exception, SystemExit) as error:
        raise ValueError(f"{module}.{layer}() raised {told(error)}") from error


@cache
def stand_in() -> None:
    """Let modules stand in for others, once in a process, and find the readers of Python 2. Raise
    PluginError with the entry point if one of them fails."""
    list(made_by_all(STAND_INS))
    readers()


def _others(module: Any, layer: str) -> str:
    """Return the layers that a module has instead, the nearest name first."""
    classes = inspect.getmembers(module, inspect.isclass)
    names = [name for name, made in classes if made.__module__ == module.__name__]
    names = [name for name in names if all(hasattr(vars(module)[name], each) for each in METHODS)]
    guess = nearest(layer, names)
    hint = f"; did you mean {guess!r}?" if guess else ""
    return f"{hint} ({module.__file__} has {', '.join(names) or 'no layers'})"


def _there(module: str, net: str) -> str:
    """Return where a module that could not be imported is, if it is near the net's file or the working
    directory; otherwise a module with a similar name there, or on the import path."""
    parts = module.split(".")
    if not all(parts):
        return ""
    folders = list(dict.fromkeys(_near(net)))
    for folder in folders:
        for root in (folder, *_folders(folder)):
            path = root.joinpath(*parts)
            for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
                if _is_file(file):
                    return f"; {file} exists: set PYTHONPATH={root} to import it"
    files = [file for folder in (*folders, *map(Path, sys.path)) for file in _names(folder, ".py")]
    known = {file.stem: file for file in reversed(files) if not installed(file)}
    guess = nearest(parts[0], known) if len(parts) == 1 else None
    return f"; did you mean {guess!r} ({known[guess]})?" if guess else ""


def _near(net: str) -> Iterator[Path]:
    yield Path.cwd()
    yield from Path(net).absolute().parents[:_ABOVE]


def _folders(folder: Path) -> list[Path]:
    return [path for path in _names(folder, "") if path.is_dir()]


def _names(folder: Path, suffix: str) -> list[Path]:
    """Return some of the files in a folder, or some of all its entries; none if the
    folder cannot be read."""
    if folder == Path(folder.anchor):
        return []
    try:
        with os.scandir(folder) as entries:
            found = [entry.name for entry in islice(entries, _MANY)]
    except OSError:
        return []
    shown = (name for name in sorted(found) if not name.startswith("."))
    return [folder / name for name in shown if not suffix or name.endswith(suffix)]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
