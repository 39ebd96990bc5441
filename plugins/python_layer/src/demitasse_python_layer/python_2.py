"""Users' modules written in Python 2, as many of Caffe's time are: how they are recognised,
and read as such."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from functools import cache
from typing import Any, TypeAlias

from demitasse import DemitasseError, launched
from demitasse_python_layer.entries import made_by_all

log = logging.getLogger("demitasse.python_layer")

Reader: TypeAlias = Callable[[Iterable[str]], AbstractContextManager[None]]

READERS = "demitasse.python2"
"""The group of entry points for functions without arguments, which are called before users' modules are
imported. Each returns a function that takes the names of modules and returns a context manager. Within
that context imports read users' modules as Python 2, and import the named ones again."""

MODULES = ["ConfigParser", "Queue", "StringIO", "cPickle", "cStringIO", "urllib2"]
NAMES = ["basestring", "cmp", "file", "long", "raw_input", "reduce", "reload", "unicode", "xrange"]
METHODS = ["has_key", "iteritems", "iterkeys", "itervalues", "next"]
"""Methods that exist only in Python 2."""

_ONLY_THERE = {*METHODS} - {"next"}
_OF_BOTH = {"six", "PY2", "PY3", "version_info"}
"""Names that appear in code that runs in both versions."""


def imported(module: str) -> Any:
    """Import a user's module. It is read as Python 2, together with what it imports of the
    user's, if it does not work in Python 3 and a distribution provides a reader. Raise whatever
    importing it raises."""
    known = {*sys.modules}
    try:
        found = importlib.import_module(module)
    except Exception as error:
        if not is_python_2(error) or not readers():
            raise
        try:
            return _as_python_2(module, known)
        except (SyntaxError, DemitasseError) as other:
            log.debug("%s is not read as Python 2: %s", module, other)
            raise error from None
    if module in known or not readers() or not _shows_python_2(found):
        return found
    try:
        return _as_python_2(module, known)
    except Exception as error:  # noqa: BLE001  the module can be used until it reaches such code
        log.debug("%s is not read as Python 2: %s", module, error)
        return found


def is_python_2(error: BaseException) -> bool:
    """Return whether an error is typical of Python 2 code; a syntax error may be."""
    return (
        (isinstance(error, SyntaxError) and not str(error.filename or "<").startswith("<"))
        or (isinstance(error, ModuleNotFoundError) and error.name in MODULES)
        or (isinstance(error, NameError) and error.name in NAMES)
        or (isinstance(error, AttributeError) and error.name in METHODS)
    )


@cache
def readers() -> tuple[Reader, ...]:
    """Return the readers of Python 2 that are installed. Raise PluginError with the entry
    point if one fails."""
    return tuple(made_by_all(READERS))


def _as_python_2(module: str, known: set[str]) -> Any:
    """Import the module again as Python 2, with everything that it had imported on the way. Raise
    whatever importing it raises, after restoring the earlier imports."""
    before = {name: sys.modules[name] for name in {*sys.modules} - known}
    with ExitStack() as reading:
        for read in readers():
            reading.enter_context(read(before))
        try:
            found = importlib.import_module(module)
        except Exception:
            sys.modules.update(before)
            raise
    if found is before.get(module):
        return found  # it is installed, so it is not read as Python 2
    if (started := launched()) is None or not started.rank:  # only one of several processes says so
        log.warning("module %s (%s) is Python 2 and is read as such", module, found.__file__)
    return found


def _shows_python_2(module: Any) -> bool:
    """Return whether a module that Python 3 can import uses something that only Python 2 has, without
    any sign that it runs in both versions."""
    try:
        tree = ast.parse(importlib.util.decode_source(module.__loader__.get_data(module.__file__)))
    except (AttributeError, OSError, SyntaxError, TypeError, UnicodeDecodeError):
        return False  # not from a file, or loaded by another loader
    read, bound, attributes = set[str](), {*vars(module)}, set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.Attribute):
            attributes.add(node.attr)
    if (read | attributes | bound) & _OF_BOTH:
        return False
    return bool((read & {*NAMES}) - bound or attributes & _ONLY_THERE)
