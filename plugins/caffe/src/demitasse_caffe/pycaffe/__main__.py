"""Run a script that imports ``caffe`` as it is: ``python -m demitasse_caffe.pycaffe SCRIPT``."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from demitasse_caffe.standing_in import stand_in

USAGE = "usage: python -m demitasse_caffe.pycaffe [--python-layers] SCRIPT [ARGUMENTS]"


def main(arguments: list[str]) -> None:
    """Run the script as Python would: its folder comes first where modules are looked for. With
    ``--python-layers`` before it, nets may have layers of type Python, whose code is then run."""
    if allowed := arguments[:1] == ["--python-layers"]:
        arguments = arguments[1:]
    if not arguments or arguments[0].startswith("-"):
        sys.exit(USAGE)
    script = Path(arguments[0])
    if not script.is_file():
        sys.exit(f"{script}: no such script\n{USAGE}")
    stand_in(always=True)
    if allowed:
        from demitasse_caffe.pycaffe import allow_python_layers

        allow_python_layers()
    sys.argv[:] = arguments
    sys.path[0] = str(script.resolve().parent)
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
