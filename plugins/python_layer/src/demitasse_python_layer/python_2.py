"""Users' modules in Python 2, as many of Caffe's time are: how they are known, and read as such."""

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
"""Entry points of functions without arguments, which are called before users' modules are imported. Each
gives a function of names that makes a context: within it imports read users' modules as Python 2, those
of these names anew."""

MODULES = ["ConfigParser", "Queue", "StringIO", "cPickle", "cStringIO", "urllib2"]
NAMES = ["basestring", "cmp", "file", "long", "raw_input", "reduce", "reload", "unicode", "xrange"]
METHODS = ["has_key", "iteritems", "iterkeys", "itervalues", "next"]
"""What Python 2 alone has."""

_ONLY_THERE = {*METHODS} - {"next"}
_OF_BOTH = {"six", "PY2", "PY3", "version_info"}
"""What code says that runs in either."""


def imported(module: str) -> Any:
    """A user's module: as Python 2, with what it imports of the user's, where it is none in Python 3 and
    a distribution reads that. Raises what importing it does."""
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
    except Exception as error:  # noqa: BLE001  it can be used as it is, up to where it says so
        log.debug("%s is not read as Python 2: %s", module, error)
        return found


def is_python_2(error: BaseException) -> bool:
    """Whether an error is one that code has for being Python 2; of syntax, it may be."""
    return (
        (isinstance(error, SyntaxError) and not str(error.filename or "<").startswith("<"))
        or (isinstance(error, ModuleNotFoundError) and error.name in MODULES)
        or (isinstance(error, NameError) and error.name in NAMES)
        or (isinstance(error, AttributeError) and error.name in METHODS)
    )


@cache
def readers() -> tuple[Reader, ...]:
    """What reads Python 2 here. Raises PluginError that names the entry point for one that cannot."""
    return tuple(made_by_all(READERS))


def _as_python_2(module: str, known: set[str]) -> Any:
    """The module read as Python 2, and anew what was imported on the way. Raises what importing it does;
    then what was imported is what it was."""
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
        return found  # it is installed, and nobody's to read otherwise
    if (started := launched()) is None or not started.rank:  # of several processes one says it
        log.warning("module %s (%s) is Python 2 and is read as such", module, found.__file__)
    return found


def _shows_python_2(module: Any) -> bool:
    """Whether a module that Python 3 imports uses what Python 2 alone has, and does not say that it runs
    in either."""
    try:
        tree = ast.parse(importlib.util.decode_source(module.__loader__.get_data(module.__file__)))
    except (AttributeError, OSError, SyntaxError, TypeError, UnicodeDecodeError):
        return False  # it is not of a file, or was read otherwise
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
