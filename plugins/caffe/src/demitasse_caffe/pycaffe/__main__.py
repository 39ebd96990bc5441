"""Run an unmodified script that imports ``caffe``: ``python -m demitasse_caffe.pycaffe SCRIPT``."""

from __future__ import annotations

import importlib.util
import runpy
import sys
import traceback
from pathlib import Path

from demitasse import DemitasseError
from demitasse_caffe.pycaffe.runtime import LOG, init_log
from demitasse_caffe.python2 import import_as_python_2, looks_like_python_2, run_as_python_2
from demitasse_caffe.standing_in import stand_in

USAGE = (
    "usage: python -m demitasse_caffe.pycaffe [--python-layers] [--python2] SCRIPT [ARGUMENTS]\n"
    "       python -m demitasse_caffe.pycaffe [--python-layers] -m MODULE [ARGUMENTS]"
)
FLAGS = ("--python-layers", "--python2")
_RUNNING = ("demitasse", "runpy", "importlib", "_frozen_importlib")
"""Modules whose frames surround the script's own in a traceback; ``_in_the_script`` drops them."""


def main(arguments: list[str]) -> None:
    """Run the script as Python would: the script's folder is the first place where modules are looked
    for. With ``-m MODULE`` (for example unittest or pytest) it is the working directory. The option
    ``--python-layers`` lets nets have layers of type Python, whose code is then run. With ``--python2``
    the script and its own modules are read as Python 2. The log is written to standard error, as Caffe's
    module writes it."""
    flags = set()
    while arguments[:1] and arguments[0] in FLAGS:
        flags.add(arguments[0])
        arguments = arguments[1:]
    module = arguments[1] if arguments[:1] == ["-m"] and len(arguments) > 1 else ""
    if module and "--python2" in flags:
        sys.exit(f"--python2 is for a script, not for a module (-m {module})\n{USAGE}")
    if not module and (not arguments or arguments[0].startswith("-")):
        sys.exit(USAGE)
    script = Path(arguments[0])
    if not module and not script.is_file():
        sys.exit(f"{script}: no such script\n{USAGE}")
    if "--python2" in flags:
        import_as_python_2()
    stand_in(always=True)
    init_log()
    LOG.propagate = False  # lines appear once, also if the script configures logging
    if "--python-layers" in flags:
        from demitasse_caffe.pycaffe import allow_python_layers

        allow_python_layers()
    sys.argv[:] = arguments[1:] if module else arguments
    sys.path[0] = str(Path.cwd() if module else script.resolve().parent)
    if module and not _is_there(module):
        sys.exit(f"{module}: no such module\n{USAGE}")
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        elif "--python2" in flags:
            run_as_python_2(script)
        else:
            runpy.run_path(str(script), run_name="__main__")
    except DemitasseError as error:
        sys.exit(_in_the_script(error))
    except Exception as error:
        if "--python2" not in flags and looks_like_python_2(error):
            error.add_note("If the script is Python 2: python -m demitasse_caffe.pycaffe --python2 ...")
            traceback.print_exception(error)  # Python before 3.11.4 omits a SyntaxError's notes
            sys.exit(1)
        raise


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # raised by the import of a parent package
        return False


def _in_the_script(error: DemitasseError) -> str:
    """Return the traceback that Python would print, reduced to the frames of the script itself. Causes
    are left out, because the error's message already contains what matters of them."""
    if "python_layer" in str(error):
        error.add_note(
            "python -m demitasse_caffe.pycaffe --python-layers ... lets a script's nets have them"
        )
    told = traceback.TracebackException.from_exception(error)
    modules = (frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(error.__traceback__))
    told.stack = traceback.StackSummary.from_list(
        [
            frame
            for frame, module in zip(told.stack, modules, strict=True)
            if frame.filename != __file__ and not str(module).startswith(_RUNNING)
        ]
    )
    told.__cause__ = told.__context__ = None
    return "".join(told.format()).rstrip()


if __name__ == "__main__":
    main(sys.argv[1:])
