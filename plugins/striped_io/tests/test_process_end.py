"""A process may end while a stream that nobody closed is reading ahead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from demitasse import compose

PROGRAM = """
import atexit, sys, threading

def left():
    return [each.name for each in threading.enumerate() if each.name.startswith("read-ahead")]

atexit.register(lambda: print(len(left())))  # what is registered first is done last

from pathlib import Path
from demitasse import DataSpec
from demitasse_striped_io.source import Source

source = Source(Path(sys.argv[1]), DataSpec("", None, True, 1, {"ahead": 8}), {})
reading = source.stream(0, 16, 16)
reading.take()
print(len(left()))
"""


def test_a_process_ends_well_while_images_are_decoded(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2", reason="OpenCV makes the images")
    folder = tmp_path / "images"
    folder.mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8)
    for number in range(4):
        cv2.imwrite(str(folder / f"{number}.jpg"), np.roll(noise, number, 0))
    with compose(plugins=["striped_io", "datasets"]) as runtime:
        made = runtime.program(
            "convert_to_striped", folder, tmp_path / "set", stripes=2, height=64, width=64
        )
    assert made["samples"] == 4
    asked = [sys.executable, "-c", PROGRAM, str(tmp_path / "set")]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    # A thread that is in C++ code when the interpreter ends would sometimes abort the process.
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n0\n", "")
