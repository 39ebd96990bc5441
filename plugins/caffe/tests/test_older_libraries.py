"""What libraries had in Caffe's time, restored for Caffe's scripts and layers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

YAML = """
class SafeLoader: pass
def load(stream, Loader):
    return stream, Loader.__name__
def load_all(stream, Loader):
    return [stream, Loader.__name__]
"""
"""A stand-in for PyYAML 6, whose functions require a loader."""
LAYER = """
import numpy as np
import yaml
import caffe

class Margin(caffe.Layer):
    def setup(self, bottom, top):
        assert yaml.load(self.param_str) == ("5", "SafeLoader")
        self.margin = np.float(self.param_str) + np.asscalar(np.ones(1)) + len(np.in1d([[1, 2]], [2]))
        assert np.isnan(np.NaN) and np.Inf == np.inf and np.product([2, 3]) == 6
    def reshape(self, bottom, top):
        top[0].reshape(1)
    def forward(self, bottom, top):
        top[0].data[0] = self.margin
    def backward(self, top, propagate_down, bottom):
        pass
"""
NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 } } }
layer { name: "own" type: "Python" bottom: "x" top: "own"
  python_param { module: "margins" layer: "Margin" param_str: "5" } }
"""
SCRIPT = """
import demitasse
with demitasse.compose(plugins="+python_layer") as runtime:
    print(runtime.net("net.prototxt").forward()["own"])
"""


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    for name, text in (("yaml.py", YAML), ("margins.py", LAYER), ("net.prototxt", NET)):
        (tmp_path / name).write_text(text)


def run(folder: Path, script: str, *how: str) -> str:
    (folder / "script.py").write_text(script)
    command = [sys.executable, "-W", "error", *how, "script.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_layer_in_python_finds_them(tmp_path: Path) -> None:
    """This works without the facade's own command, too, for example in a training."""
    assert run(tmp_path, SCRIPT) == "[8.]\n"


@pytest.mark.parametrize("before", ["import yaml; ", ""])
def test_a_loader_that_is_named_is_used(tmp_path: Path, before: str) -> None:
    script = (
        f"{before}from demitasse_caffe.standing_in import stand_in; stand_in(); stand_in()\n"
        "import sys, yaml\n"
        "class Mine: pass\n"
        "print(yaml.load('a'), yaml.load('a', Mine), yaml.load('a', Loader=Mine), yaml.load_all('a'))\n"
        "print(yaml.__file__ == yaml.__spec__.origin, yaml.__name__, len(sys.meta_path) < 9)\n"
    )
    assert run(tmp_path, script) == (
        "('a', 'SafeLoader') ('a', 'Mine') ('a', 'Mine') ['a', 'SafeLoader']\nTrue yaml True\n"
    )


def test_a_library_that_asks_for_no_loader_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text("def load(stream, Loader=None): return Loader\n")
    script = "import yaml; print(yaml.load('a'), yaml.load.__module__)"
    assert run(tmp_path, script, "-m", "demitasse_caffe.pycaffe") == "None yaml\n"


def test_a_script_finds_them(tmp_path: Path) -> None:
    script = (
        "import time, yaml, numpy as np; assert 0 <= time.clock() - time.clock() + 1\n"
        "print(yaml.load('b'), np.float_(2.5), np.unicode, np.long(3))"
    )
    told = run(tmp_path, script, "-m", "demitasse_caffe.pycaffe")
    assert told.startswith("('b', 'SafeLoader') 2.5 <class ")


def test_bytes_become_numbers(tmp_path: Path) -> None:
    """Scripts read a Datum's pixels in this way; the array is writable."""
    script = (
        "import numpy as np\n"
        "a = np.fromstring(b'\\1\\2\\3', dtype=np.uint8)\n"
        "a[0] += 8\n"
        "print(a, np.fromstring(b'\\1\\0\\2\\0', 'u2', 1), np.fromstring('1 2', int, sep=' '))\n"
    )
    assert run(tmp_path, script, "-m", "demitasse_caffe.pycaffe") == "[9 2 3] [1] [1 2]\n"


def test_names_and_values_of_older_numpy_and_pillow_exist(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    script = (
        "from demitasse_caffe.standing_in import stand_in; stand_in(); stand_in()\n"
        "import numpy as np\n"
        "from PIL import Image\n"
        "np.set_printoptions(threshold='nan'); whole = str(np.zeros(2000)).count('0.')\n"
        "np.set_printoptions(threshold=float('nan'), suppress=True); np.set_printoptions(4, 10)\n"
        "print(whole, str(np.zeros(2000)).count('0.'), Image.ANTIALIAS == Image.LANCZOS)\n"
        "import fractions, Image as Old, ImageDraw\n"
        "print(Old is Image, ImageDraw.__name__, fractions.gcd(12, 18))\n"
        "print(*(np.fromstring(text, np.uint8).tolist() for text in ('ab\\udcff', '\\xff')))\n"
    )
    assert run(tmp_path, script) == ("2000 6 True\nTrue PIL.ImageDraw 6\n[97, 98, 255] [255]\n")
