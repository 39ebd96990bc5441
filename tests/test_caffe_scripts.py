"""Scripts that import ``caffe``, run as they are by ``python -m demitasse_caffe.pycaffe``."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path


def test_a_script_runs_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("import caffe\nLayer = caffe.Layer\n")
    (tmp_path / "layer_file.py").write_text(
        "import caffe\nclass Ones(caffe.Layer):\n    def setup(self, bottom, top): pass\n"
        "    def reshape(self, bottom, top): top[0].reshape(2)\n"
        "    def forward(self, bottom, top): top[0].data[...] = 1\n"
        "    def backward(self, top, propagate_down, bottom): pass\n"
    )
    (tmp_path / "n.prototxt").write_text(
        'layer { name: "a" type: "Python" top: "a" python_param { module: "layer_file" layer: "Ones" } }'
    )
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, caffe, beside\n"
        "assert beside.Layer is caffe.Layer and __name__ == '__main__'\n"
        "net = caffe.Net(sys.argv[1], caffe.TEST)\n"
        "print(net.forward()['a'], sys.argv[2:])\n"
    )

    def run(*given: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "demitasse_caffe.pycaffe", *given]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = run("--python-layers", "script.py", "n.prototxt", "--gpu", "0")
    assert done.stdout == "[1. 1.] ['--gpu', '0']\n", done.stderr
    assert "python_layer" in run("script.py", "n.prototxt").stderr, "no code of a net's file unasked"
    assert run("scrip.py").stderr.startswith("scrip.py: no such script\nusage: python -m")
    assert run().returncode == 1


def test_a_script_in_a_checkout_of_caffe_runs_on_the_facade(tmp_path: Path) -> None:
    """What lies in ``python/caffe`` there was never built, or for another Python; what a fork alone has
    there is the fork's. A mere folder ``caffe`` beside a script is no module, either."""
    package = tmp_path / "python" / "caffe"
    (package / "proto").mkdir(parents=True)
    (package / "__init__.py").write_text("from .pycaffe import Net\n")
    (package / "pycaffe.py").write_text("from ._caffe import Net\n")
    (package / "_caffe.cpp").write_text("")
    (package / "model_libs.py").write_text(
        "import caffe\nfrom caffe import layers as L\nfrom .proto import caffe_pb2\n"
        "def VGGNetBody(): return L.Input, caffe_pb2.NetParameter\n"
    )
    (tmp_path / "examples" / "caffe").mkdir(parents=True)
    script = tmp_path / "examples" / "script.py"
    script.write_text(
        "import sys\n"
        "import caffe\n"
        "assert caffe.set_mode_cpu\n"
        "sys.path.insert(0, '../python'); sys.path.insert(0, '../python/caffe/proto')\n"
        "from caffe.model_libs import *\n"
        "import caffe_pb2 as messages, caffe.model_libs\n"
        "assert messages is caffe_pb2 is caffe.proto.caffe_pb2\n"
        "print(caffe.model_libs.__file__, VGGNetBody()[1] is caffe_pb2.NetParameter)\n"
        "import caffe.nothing\n"
    )

    def run(built: str = "") -> subprocess.CompletedProcess[str]:
        (package / "_caffe.so").write_text(built)
        command = [sys.executable, "-m", "demitasse_caffe.pycaffe", "script.py"]
        return subprocess.run(command, cwd=script.parent, capture_output=True, text=True, check=False)

    for done in (run(), run("built for Python 2")):
        assert done.stdout == f"{script.parent}/../python/caffe/model_libs.py True\n", done.stderr
        assert "No module named 'caffe.nothing'" in done.stderr
    imports = (
        "import sys; from demitasse_caffe.standing_in import stand_in; stand_in()\n"
        "sys.path.insert(0, 'python'); import caffe; print(caffe.__name__)"
    )
    command = [sys.executable, "-c", imports]
    whose = partial(subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "_caffe.so" in whose().stderr, "a caffe that was built is what a layer's file imports"
    (package / "_caffe.so").unlink()
    assert whose().stdout == "demitasse_caffe.pycaffe\n"
