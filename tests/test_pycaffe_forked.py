"""Scripts for pycaffe whose processes are forked, as Faster R-CNN's alternating training has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_has_a_runtime_of_its_own(tmp_path: Path) -> None:
    """A thread of its parent's may be at work with the other one, and hold what nets wait for."""
    script = """
import os, signal, sys, threading
import demitasse_caffe.pycaffe as caffe
from demitasse_caffe.pycaffe.runtime import current
caffe.Net(sys.argv[1], caffe.TEST)
held, forked = threading.Event(), threading.Event()
def hold():
    with current()._making:
        held.set()
        forked.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
if child == 0:
    signal.alarm(30)
    caffe.Net(sys.argv[1], caffe.TEST).forward()
    os._exit(0)
forked.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 } } } '
        'layer { name: "relu" type: "ReLU" bottom: "data" top: "relu" }'
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, str(net)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "0\n", done.stderr
