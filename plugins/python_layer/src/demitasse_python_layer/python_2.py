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

from demitasse import DemitasseError
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
        if is_python_2(error) and (again := _again(module, known)) is not None:
            return again
        raise
    if module in known or not _says_so(found):
        return found
    return _again(module, known) or found


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


def _again(module: str, known: set[str]) -> Any:
    """The module read as Python 2, and anew what was imported on the way; None where nobody can, or it
    is not that either. Raises what else importing it does."""
    if not readers():
        return None
    with ExitStack() as reading:
        for read in readers():
            reading.enter_context(read({*sys.modules} - known))
        try:
            found = importlib.import_module(module)
        except (SyntaxError, DemitasseError) as error:
            log.debug("%s is not read as Python 2: %s", module, error)
            return None
    log.warning("module %s (%s) is Python 2, and read as such", module, found.__file__)
    return found


def _says_so(module: Any) -> bool:
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
