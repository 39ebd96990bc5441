"""Mistakes in a user's own code, or in how a net names it, become one line that says where they are."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import DataError, ModelError
from demitasse_python_layer import python_2
from demitasse_python_layer.blob import LayerBlob
from demitasse_python_layer.user_layer import UserLayer

WHERE = "net.prototxt:3: layer 'own' (Python)"
WHOLE = """
def setup(self, bottom, top):
    pass
def reshape(self, bottom, top):
    top[0].reshape(*bottom[0].shape)
def forward(self, bottom, top):
    top[0].data[...] = bottom[0].data
def backward(self, top, propagate_down, bottom):
    bottom[0].diff[...] = top[0].diff
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def made(name: str, method: str = "", param_str: str = "") -> UserLayer:
    """Return a layer of a module of that name, whose class ``Own`` has one method replaced; it is
    planned for one bottom of three numbers."""
    text = f"class Own:{textwrap.indent(WHOLE + textwrap.dedent(method), '    ')}"
    Path(f"{name}.py").write_text(text)
    user = UserLayer(name, "Own", param_str, 0, ["y"], "float64", WHERE)
    user.plan([(3,)])
    return user


def line_of(name: str, text: str) -> int:
    lines = Path(f"{name}.py").read_text().splitlines()
    return max(number for number, line in enumerate(lines, 1) if text in line)


def forward(user: UserLayer) -> Any:
    user.forward([np.arange(3.0)], [], [np.zeros(user.top_shapes[0])])


def backward(user: UserLayer) -> np.ndarray:
    dx = np.zeros(3)
    user.backward([np.ones(3)], [np.zeros(3)], [np.arange(3.0)], [], [dx], [True])
    return dx


@pytest.mark.parametrize("method", ["setup", "reshape", "forward", "backward"])
def test_what_a_method_raises_is_told_with_the_line_of_its_file(method: str) -> None:
    given = "top, propagate_down, bottom" if method == "backward" else "bottom, top"
    name = f"fails_in_{method}"
    failing = f"""
        def {method}(self, {given}):
            import json
            if {method!r} in ("setup", "backward") or hasattr(self, "ready"):
                json.loads("[1, 2")
            self.ready = top[0].reshape(3)
    """
    kind = DataError if method in ("reshape", "forward") else ModelError
    with pytest.raises(kind) as raised:
        user = made(name, failing)
        for _ in range(2):
            forward(user)
        backward(user)
    assert type(raised.value) is kind
    line = line_of(name, "json.loads")
    told = f"{WHERE}: {name}.Own.{method} raised JSONDecodeError: Expecting "
    assert str(raised.value).startswith(told)
    assert str(raised.value).endswith(f" ({name}.py:{line})"), "its own line, and not json's"
    assert type(raised.value.__cause__).__name__ == "JSONDecodeError"


def test_setup_says_which_param_str_it_was_given() -> None:
    failing = """
        def setup(self, bottom, top):
            self.margin = eval(self.param_str)["margin"]
    """
    about = r"KeyError: 'margin' \(strict.py:\d+\); its param_str is \"\{'margn': 1\}\"$"
    with pytest.raises(ModelError, match=about):
        made("strict", failing, "{'margn': 1}")
    with pytest.raises(ModelError, match=r"SyntaxError: .*; its param_str is ''$"):
        made("strict", failing)
    with pytest.raises(ModelError, match=r"RuntimeError: two bottoms \(plain.py:\d+\)$"):
        made("plain", "def setup(self, bottom, top):\n    raise RuntimeError('two\\nbottoms')")


def test_a_blobs_arrays_are_written_to_and_not_replaced() -> None:
    """As in Caffe: no other layer would see arrays that take their place."""
    blob = LayerBlob((3,))
    blob.diff[...] = 1
    blob.diff += 2
    blob.data[...] = 4
    blob.data *= 2
    assert (blob.diff.tolist(), blob.data.tolist()) == ([3, 3, 3], [8, 8, 8])
    failing = """
        def backward(self, top, propagate_down, bottom):
            bottom[0].diff = 2 * top[0].diff
    """
    with pytest.raises(
        ModelError, match=r"diff cannot be replaced; write to it: diff\[...\] = x \(repl"
    ):
        backward(made("replacing", failing))
    assert backward(made("adding", failing.replace("diff =", "diff +="))).tolist() == [2, 2, 2]
    failing = "def forward(self, bottom, top):\n    top[0].data = bottom[0].data\n"
    with pytest.raises(DataError, match=r"data cannot be replaced; write to it"):
        forward(made("replacing_data", failing))


def test_a_top_without_a_shape_is_told_where_something_fails() -> None:
    user = made("unshaped", "def reshape(self, bottom, top):\n    pass\n")
    with pytest.raises(DataError, match=r"neither setup nor reshape gives top 'y' a shape"):
        forward(user)


def test_a_class_or_a_method_that_is_missing_is_told_with_those_that_are_there() -> None:
    made("several")
    text = Path("several.py").read_text()
    Path("several_more.py").write_text(f"{text}\nclass TripletLoss(Own): pass\nclass Reader: pass\n")
    told = (
        r"no class 'TripletLos'; did you mean 'TripletLoss'\?.*several_more.py has Own, TripletLoss\)$"
    )
    with pytest.raises(ValueError, match=told):
        UserLayer("several_more", "TripletLos", "", 0, ["y"], "float64", WHERE)
    Path("half.py").write_text("class Half:\n    def forward(self, bottom, top): pass\n")
    with pytest.raises(ValueError, match=r"half.Half has no reshape, backward"):
        UserLayer("half", "Half", "", 0, ["y"], "float64", WHERE)
    Path("given.py").write_text(
        "class Given:\n    def __init__(self, x): pass\n    reshape = forward = backward = None"
    )
    with pytest.raises(ValueError, match=r"given.Given\(\) raised TypeError: .* argument: 'x'"):
        UserLayer("given", "Given", "", 0, ["y"], "float64", WHERE)


def found(module: str, net: str = "") -> str:
    with pytest.raises(ValueError) as raised:
        UserLayer(module, "Own", "", 0, ["y"], "float64", WHERE, net)
    return str(raised.value)


def test_a_layer_that_ends_the_program_is_told_as_one_that_failed() -> None:
    """The run must not end silently, as a program that calls sys.exit does: the training does not belong
    to the layer."""
    method = "def forward(self, bottom, top):\n    import sys\n    sys.exit({})\n"
    for number, (given, words) in enumerate((("", "SystemExit"), ("'no more'", "SystemExit: no more"))):
        with pytest.raises(DataError, match=rf"Own.forward raised {words} \(ends_{number}.py:"):
            forward(made(f"ends_{number}", method.format(given)))
    Path("ends_at_once.py").write_text("raise SystemExit(2)\n")
    assert found("ends_at_once").endswith("SystemExit: 2 (ends_at_once.py:1)")


def test_a_module_that_import_does_not_find_is_told_with_its_folder(tmp_path: Path) -> None:
    """It is searched for beside the net's file, above it, and in the folders there, as repositories are
    laid out."""
    for path in ("nets/vgg/train.prototxt", "lib/rpn/targets.py", "nets/layers_of_mine/__init__.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    net = "nets/vgg/train.prototxt"
    assert found("rpn.targets", net).endswith(
        f"; {tmp_path}/lib/rpn/targets.py exists: set PYTHONPATH={tmp_path}/lib to import it"
    )
    assert found("layers_of_mine", net).endswith(f"set PYTHONPATH={tmp_path}/nets to import it")
    Path("pyloss.py").touch()
    assert found("pylos", net).endswith(f"; did you mean 'pyloss' ({tmp_path}/pyloss.py)?")
    assert found("nothing_like_it", net).endswith("(PYTHONPATH, the script's folder)")


def test_a_module_that_fails_is_told_with_its_line() -> None:
    Path("needs.py").write_text("import sys\nimport not_here_at_all\n")
    assert "No module named 'not_here_at_all' (needs.py:2); it is looked for" in found("needs")
    Path("broken_module.py").write_text("x = 1\ny = [][x]\n")
    assert "raised" not in found("broken_module")
    assert found("broken_module").endswith("IndexError: list index out of range (broken_module.py:2)")


def test_python_2_is_told_as_such_where_nothing_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_2, "readers", tuple)
    Path("old_print.py").write_text("\nprint 'x'\n")
    assert re.search(
        r"old_print.py:2: Missing .*; if it is Python 2, 2to3 rewrites it$", found("old_print")
    )
    Path("old_tabs.py").write_text("def f():\n        x = 1\n\ty = 2\n")
    assert found("old_tabs").endswith(
        "; in Python 2 a tab was as wide as 8 spaces, which 'expand' makes of it"
    )
    Path("old_module.py").write_text("import cPickle\n")
    assert "(old_module.py:1); it is Python 2, which 2to3 rewrites" in found("old_module")
    assert "did you mean" not in found("old_module")
    for number, line in enumerate(("{}.iteritems()", "xrange(3)", "raise KeyError('x')")):
        method = f"def forward(self, bottom, top):\n    {line}\n"
        with pytest.raises(DataError) as raised:
            forward(made(f"old_line_{number}", method))
        assert ("; it is Python 2, which 2to3 rewrites" in str(raised.value)) == (number < 2)
    with pytest.raises(DataError, match=r"it has to be an int: .* 7 // 2 of Python 2's 7 / 2$"):
        forward(made("old_quotient", "def forward(self, bottom, top):\n    range(bottom[0].num / 2)\n"))
