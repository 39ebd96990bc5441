"""Exceptions of a user's own code in one line: where in that code, and whether
Python 2 is the reason."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from pathlib import Path
from traceback import walk_tb

from demitasse import shortened
from demitasse_python_layer.python_2 import is_python_2

_OF_QUOTIENTS = ("cannot be interpreted as an integer", "slice indices must be", "only integers, slices")
"""Parts of the messages for a number with a fraction where an integer is needed."""
_MOST = 600


def told(error: BaseException, param_str: str | None = None) -> str:
    """Describe an exception of a user's code: its type, its text in one line, the line of that code, and
    the layer's ``param_str`` if it is, or may be, the reason."""
    text = " ".join(str(error).split())
    text = f"{text[:_MOST]}..." if len(text) > _MOST else text
    kind = f"{type(error).__name__}: {text}" if text else type(error).__name__
    file, line = place(error)
    where = f" ({_shown(file)}:{line})" if file else ""
    if param_str is not None and (param_str or "param_str" in linecache.getline(file, line)):
        where += f"; its param_str is {shortened(param_str, quoted=True)}"
    return f"{kind}{where}{advice(error)}"


def place(error: BaseException) -> tuple[str, int]:
    """Return file and line of the innermost line of the user's own code that an error passed through;
    the name is empty if there is none."""
    frames = [
        (frame.f_code.co_filename, line)
        for frame, line in walk_tb(error.__traceback__)
        if not str(frame.f_globals.get("__name__", "")).startswith(("demitasse", "importlib"))
        and not frame.f_code.co_filename.startswith("<")
    ]
    own = [(file, line) for file, line in frames if not installed(file)] or frames
    return own[-1] if own else ("", 0)


def installed(file: str | Path) -> bool:
    """Return whether a file is part of Python, or was installed by pip."""
    folders, known = Path(file).absolute().parents, {Path(entry).absolute() for entry in sys.path}
    root = next((folder for folder in folders if folder in known), None)
    if Path(sysconfig.get_path("stdlib")) in folders or "site-packages" in Path(file).parts:
        return True
    return root is not None and any(root.glob("*.dist-info"))


def _shown(file: str) -> str:
    """Return a path relative to the working directory, if it is below that."""
    path = Path(os.path.normpath(file)).absolute()
    return str(path.relative_to(Path.cwd())) if Path.cwd() in path.parents else str(path)


def advice(error: BaseException) -> str:
    """Return advice for code that is Python 2; "" for other errors."""
    if isinstance(error, TabError):
        return "; in Python 2 a tab was as wide as 8 spaces, which 'expand' makes of it"
    if is_python_2(error):
        if isinstance(error, SyntaxError):
            return "; if it is Python 2, 2to3 rewrites it"
        return "; it is Python 2, which 2to3 rewrites"
    if isinstance(error, TypeError | IndexError) and any(part in str(error) for part in _OF_QUOTIENTS):
        return "; it has to be an int: int(x) of what older NumPy cut off, 7 // 2 of Python 2's 7 / 2"
    return ""
