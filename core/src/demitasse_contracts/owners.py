"""Which plugin an error comes from: the owner of an object, or of the code that raised it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import BrokenBarrierError
from traceback import walk_tb
from types import TracebackType
from typing import Any

from demitasse import DemitasseError, PluginError, discover


def whose(thing: Any) -> str:
    """Return the owner of an object, class or function, for messages: the installed plugin in whose
    package it is defined, or else its name and module."""
    defined = thing if isinstance(thing, type) or hasattr(thing, "__code__") else type(thing)
    module = str(getattr(defined, "__module__", ""))
    name = getattr(defined, "__qualname__", type(thing).__qualname__)
    for manifest in discover():
        if isinstance(manifest.module, str) and _package(manifest.module) == _package(module):
            return f"plugin {manifest.name!r}, {name}"
    return f"{name} of {module}" if module else str(name)


def _package(module: str) -> str:
    return module.partition(".")[0]


def raised(error: BaseException, doing: str = "") -> str:
    """Return an exception as one line: its kind, what was being done, its text, and the innermost place
    in the package that was called, if the traceback has one."""
    told = " ".join(f"{type(error).__name__}{doing and ' '}{doing}: {error}".split())
    traceback = [*walk_tb(error.__traceback__)]
    where = [(str(frame.f_globals.get("__name__", "")), frame.f_code, line) for frame, line in traceback]
    where = [(_package(name), code, line) for name, code, line in where if name != __name__]
    passed = {"demitasse", "importlib", *(package for package, *_ in where[:1])}
    called = next((package for package, *_ in where if package not in passed), None)
    places = [(Path(code.co_filename), line) for package, code, line in where if package == called]
    return f"{told} ({'/'.join(places[-1][0].parts[-2:])}:{places[-1][1]})" if places else told


@contextmanager
def blamed(
    thing: Any, doing: str, where: object = None, but: type[Exception] | tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Turn any exception in the block, SystemExit included, into a PluginError that begins with
    ``where`` and names the owner of ``thing`` (or ``thing`` itself, if it is a string). These pass
    unchanged: errors of the DemitasseError family, MemoryError, a broken barrier, those in ``but``, and
    what a signal handler raises."""
    try:
        yield
    except (DemitasseError, BrokenBarrierError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, but) or _interrupts(error.__traceback__):
            raise
        before = f"{where}: " if where is not None else ""
        who = thing if isinstance(thing, str) else whose(thing)
        raise PluginError(f"{before}{who}: raised {raised(error, doing)}") from error


def closed(made: Any) -> None:
    """Call an object's ``close``, if it has one; an error names the object's owner."""
    with blamed(made, "in close"):
        getattr(made, "close", list)()


@contextmanager
def blamed_inside(thing: Any, where: object = None) -> Iterator[None]:
    """Do as ``blamed``, but only for exceptions that pass through code of the package in which ``thing``
    is defined, whoever called it. The message names the function there."""
    try:
        yield
    except (Exception, SystemExit) as error:
        package, name = _package(type(thing).__module__), ""
        for frame, _ in walk_tb(error.__traceback__):
            if _package(str(frame.f_globals.get("__name__", ""))) == package:
                name = frame.f_code.co_qualname
        if not name:
            raise
        with blamed(thing, f"in {name}", where):
            raise


def _interrupts(traceback: TracebackType | None) -> bool:
    """Return whether one of the functions in the traceback is a signal handler."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False
