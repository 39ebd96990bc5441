"""Scripts that import ``caffe``, run as they are by ``python -m demitasse_caffe.pycaffe``."""

from __future__ import annotations

import os
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
    told = run("script.py", "n.prototxt").stderr
    assert "python_layer" in told, "no code of a net's file unasked"
    assert told.endswith("--python-layers ... lets a script's nets have them\n")
    assert told.count("File ") == 1, "the script's own lines alone"
    assert 'script.py", line 3, in <module>' in told
    assert run("scrip.py").stderr.startswith("scrip.py: no such script\nusage: python -m")
    assert run().returncode == 1


def test_tests_of_a_users_own_are_run_as_a_module(tmp_path: Path) -> None:
    """As Caffe's are: ``python -m unittest discover``. The working directory comes first on the path."""
    (tmp_path / "own_layers.py").write_text("import caffe\nKIND = caffe.Layer.__module__\n")
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "test_own.py").write_text(
        "import sys, unittest, caffe, own_layers\n"
        "class Own(unittest.TestCase):\n"
        "    def test_it(self):\n"
        "        self.assertEqual(own_layers.KIND, caffe.Layer.__module__)\n"
        "        print(own_layers.KIND, sys.argv[1:])\n"
    )

    def run(*given: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "demitasse_caffe.pycaffe", *given]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = run("-m", "unittest", "discover", "-s", "checks")
    assert done.stdout == "demitasse_caffe.pycaffe.layer ['discover', '-s', 'checks']\n", done.stderr
    assert done.stderr.rstrip().endswith("OK")
    for missing in ("no_such", "no_such.module"):
        assert run("-m", missing).stderr.startswith(f"{missing}: no such module\nusage: python -m")
    assert run("--python2", "-m", "unittest").stderr.startswith("--python2 is for a script, not for a")
    assert run("-m").stderr.startswith("usage: ")


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


def test_a_script_in_python_2_runs_with_its_own_modules(tmp_path: Path) -> None:
    """What lies beside it, what PYTHONPATH has and a layer's module are Python 2; what is installed is
    not."""
    (tmp_path / "lib" / "tools").mkdir(parents=True)
    (tmp_path / "lib" / "tools" / "__init__.py").write_text(
        "import sizes\nprint 'half', sizes.half(7)\n"
    )
    (tmp_path / "lib" / "tools" / "sizes.py").write_text("def half(n): return n / 2\n")
    (tmp_path / "__init__.py").write_text("")  # which does not make the script part of a package
    (tmp_path / "beside.py").write_text("name = 'beside'\n")
    (tmp_path / "installed" / "new-1.0.dist-info").mkdir(parents=True)
    (tmp_path / "installed" / "new.py").write_text("half = 7 / 2\n")
    (tmp_path / "old_layer.py").write_text(
        "import caffe\n"
        "class Ones(caffe.Layer):\n"
        "    def setup(self, bottom, top): print 'set up',\n"
        "    def reshape(self, bottom, top): top[0].reshape(5 / 2)\n"
        "    def forward(self, bottom, top): top[0].data[...] = 1\n"
        "    def backward(self, top, propagate_down, bottom): pass\n"
    )
    (tmp_path / "n.prototxt").write_text(
        'layer { name: "a" type: "Python" top: "a" python_param { module: "old_layer" layer: "Ones" } }'
    )
    (tmp_path / "script.py").write_text(
        "import caffe, sys, tools, new, beside\n"
        "print 'new', new.half, __name__, __file__, sys.argv[1:]\n"
        "print caffe.Net('n.prototxt', caffe.TEST).forward().values()[0].shape\n"
        "for k, v in {'x': 1}.iteritems(): raise KeyError, k\n"
    )

    def run(*flags: str) -> subprocess.CompletedProcess[str]:
        paths = [
            f"../{tmp_path.name}/lib",
            tmp_path / "installed",
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
        about = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
        command = [sys.executable, "-m", "demitasse_caffe.pycaffe", *flags, "script.py", "--gpu", "0"]
        return subprocess.run(
            command, cwd=tmp_path, env=about, capture_output=True, text=True, check=False
        )

    done = run("--python2", "--python-layers")
    assert done.stdout.splitlines() == [
        "half 3",
        "new 3.5 __main__ script.py ['--gpu', '0']",
        "set up (2,)",
    ], done.stderr
    assert done.stderr.endswith("KeyError: 'x'\n")
    assert 'File "script.py", line 4' in done.stderr
    told = run().stderr
    assert "SyntaxError" in told
    assert told.endswith("If the script is Python 2: python -m demitasse_caffe.pycaffe --python2 ...\n")


def test_a_scripts_training_is_logged_on_standard_error(tmp_path: Path) -> None:
    """As Caffe's module does, for ``solve.py 2>&1 | tee log``; GLOG_minloglevel, which scripts set, and
    logging's own configuration do as they do there."""
    (tmp_path / "n.prototxt").write_text(
        'layer { name: "p" type: "Parameter" top: "p" parameter_param { shape { dim: 1 } } }\n'
        'layer { name: "s" type: "Reduction" bottom: "p" top: "s" loss_weight: 3 }'
    )
    (tmp_path / "s.prototxt").write_text(
        'net: "n.prototxt" base_lr: 0.5 lr_policy: "fixed" display: 1 max_iter: 2\n'
        "snapshot_after_train: false"
    )
    (tmp_path / "script.py").write_text(
        "import logging, os, sys; logging.basicConfig()\n"
        "if sys.argv[1:]: os.environ['GLOG_minloglevel'] = sys.argv[1]\n"
        "import caffe\ncaffe.get_solver('s.prototxt').solve()\n"
    )

    def log(*given: str) -> list[str]:
        command = [sys.executable, "-m", "demitasse_caffe.pycaffe", "script.py", *given]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        return [line.partition("] ")[2].split(" (")[0] for line in done.stderr.splitlines()]

    for lines in (log(), log("0")):
        assert [line for line in lines if "Train net" in line] == [
            "    Train net output #0: s = 0",
            "    Train net output #0: s = -1.5",
        ], lines
        assert lines[-1] == "Optimization Done."
    assert log("1") == []


def test_names_that_numpy_had_until_1_24_are_there_for_a_script(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import caffe, numpy as np\nprint(np.zeros(2, np.float).dtype, np.int is int)\n"
        "print(np.complex is complex, np.str is str, np.unicode(4), np.long(3))\n"
    )
    command = [sys.executable, "-m", "demitasse_caffe.pycaffe", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "float64 True\nTrue True 4 3\n", done.stderr
