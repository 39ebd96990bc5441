"""Python 2 scripts do in Python 3 what they did before; expected values are those of Python 2.7."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import ModelError
from demitasse_caffe.python2 import looks_like_python_2, translation
from demitasse_caffe.python2.translation import source_of, translated


def run(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(translated(source, "old.py"), "old.py", "exec"), names)
    return names


def value(expression: str) -> Any:
    return run(f"import numpy as np\nx = {expression}\n")["x"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("7 / 2", 3),
        ("-7 / 2", -4),
        ("7 / 2.", 3.5),
        ("True / 2", 0),
        ("(3 - 1) / 2", 1),
        ("np.int64(7) / 2", 3),
        ("np.float32(7) / 2", 3.5),
        ("(np.arange(4) / 2).tolist()", [0, 0, 1, 1]),
        ("(np.arange(4) / 2.).tolist()", [0, 0.5, 1, 1.5]),
        ("(np.ones(2) / 2).tolist()", [0.5, 0.5]),
        ("8 / 2 / 2", 2),
        ("len > 0", True),
        ("None < -5", True),
        ("'a' > 10**9", True),
        ("1 < 2 < 3", True),
        ("round(2.5)", 3.0),
        ("round(-0.5)", -1.0),
        ("round(0.285, 2)", 0.28),
        ("round(1250, -2)", 1300.0),
        ("type(round(7))", float),
        ("map(lambda v: v * 2, xrange(3))", [0, 2, 4]),
        ("{'a': 1}.keys()[0]", "a"),
        ("{'a': 1}.has_key('b')", False),
        ("0777", 511),
        ("1 <> 2", True),
        ("`3`", "3"),
        ("unicode(3L)", "3"),
        ("cmp(1, 2), cmp('b', 'a'), cmp(None, 0), cmp(3, 3)", (-1, 1, -1, 0)),
        ("sorted([3, 1, 2], lambda a, b: b - a)", [3, 2, 1]),
        ("sorted([3, 1, -2], cmp=cmp, key=abs, reverse=True)", [3, -2, 1]),
        ("sorted('ba', None, lambda c: c)", ["a", "b"]),
        ("(lambda l: l.sort(lambda a, b: cmp(b, a)) or l)([1, 3, 2])", [3, 2, 1]),
        ("(lambda l: l.sort(cmp=cmp, key=abs) or l)([3, -1, 2])", [-1, 2, 3]),
        ("(lambda a: a.sort(0) or a.tolist())(np.array([[3], [1]]))", [[1], [3]]),
        ("iter([[1, 2]]).next()[1]", 2),
        ("type('Cursor', (), {'next': lambda self: True})().next()", True),
        ("ValueError('told').message", "told"),
        ("ValueError('told', 2).message", ""),
        ("np.arange(3, dtype='u1').tostring()", b"\0\1\2"),
        ("type('Own', (), {'tostring': lambda self: 'own'})().tostring()", "own"),
        ("(lambda (a, b): a - b)((5, 3))", 2),
    ],
)
def test_an_expression_is_what_it_was(expression: str, expected: Any) -> None:
    found = value(expression)
    assert found == expected
    assert type(found) is type(expected) or isinstance(found, np.generic)


def test_a_modules_own_names_are_its_own(tmp_path: Path) -> None:
    path = str(tmp_path / "some.txt")
    made = run(
        "def cmp(a, b): return 'own'\nx = cmp(1, 2)\n"
        f"with file({path!r}, 'w') as f: f.write('a line')\n"
        f"with file({path!r}) as f: y = f.read()\n"
    )
    assert (made["x"], made["y"]) == ("own", "a line")
    assert run("for file in ['a']: z = file\n")["z"] == "a"
    assert run("def next(a): return a + 1\nz = next(1)\n")["z"] == 2


def test_an_error_of_a_comparison_of_the_scripts_own_is_told() -> None:
    with pytest.raises(TypeError, match="mine"):
        run("class A:\n  def __lt__(self, other): raise TypeError('mine')\nx = A() < 3")


def test_a_quotient_in_place() -> None:
    made = run(
        "import numpy as np\n"
        "i = 7\ni /= 2\n"
        "a = np.array([7, -7]); same = a\na /= 2\n"
        "b = np.array([7, -7]); b /= 2.\n"
        "c = np.ones(2); kept = c; c /= 2\n"
        "class Box: pass\n"
        "box = Box(); box.x = [9.]\nbox.x[0] /= 2; box.y = 9; box.y /= 2\n"
    )
    assert made["i"] == 3
    assert made["a"] is made["same"]
    assert made["a"].tolist() == [3, -4]
    assert made["b"].tolist() == [3, -3], "NumPy cut off what was put into whole numbers"
    assert made["c"] is made["kept"]
    assert made["c"].tolist() == [0.5, 0.5]
    assert (made["box"].x, made["box"].y) == ([4.5], 4)


def test_what_python_2_pickled_is_read(tmp_path: Path) -> None:
    """Like CIFAR-10's batches: a dict of str, with an array's bytes in a str, in protocol 2."""
    written = b"\x80\x02}q\x01(U\x06labelsq\x02]q\x03K\x06aU\x04dataq\x04U\x02\xff\x01q\x05u."
    (tmp_path / "batch").write_bytes(written)
    made = run(
        "import cPickle as pkl, pickle\n"
        f"with open({str(tmp_path / 'batch')!r}, 'rb') as f: batch = pkl.load(f)\n"
        f"again = pickle.loads({written!r})\n"
    )
    assert made["batch"] == made["again"] == {"labels": [6], "data": "\xff\x01"}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # such scripts leave files open
def test_pickles_are_in_files_that_were_opened_as_text(tmp_path: Path) -> None:
    """Python 2 made no difference between text and binary files."""
    path = str(tmp_path / "own.pkl")
    made = run(
        "import cPickle\n"
        f"with open({path!r}, 'w') as f: cPickle.dump({{'a': [1, 2]}}, f, 2)\n"
        f"first, again = cPickle.load(open({path!r})), cPickle.load(open({path!r}, 'rb'))\n"
    )
    assert made["first"] == made["again"] == {"a": [1, 2]}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # such scripts leave files open
def test_files_that_are_opened_as_text_hold_any_bytes(tmp_path: Path) -> None:
    data, text = bytes(range(256)), tmp_path / "labels.txt"
    (tmp_path / "any").write_bytes(data)
    text.write_bytes("caf\u00e9\r\n\u00e9".encode())
    made = run(
        "from cStringIO import StringIO\nimport StringIO as memory\nimport numpy as np\n"
        f"with open({str(tmp_path / 'any')!r}) as f: data = f.read()\n"
        f"with open({str(tmp_path / 'copy')!r}, 'w') as f:\n"
        "    f.write(data[:9]); f.write(b'\\xff'); f.write('1')\n"
        f"lines = open({str(text)!r}, 'rt').readlines()\n"
        "in_memory = StringIO(data).read(), memory.StringIO(data).getvalue()\n"
    )
    assert (tmp_path / "copy").read_bytes() == data[:9] + b"\xff1"
    made |= run(f"log = open({str(tmp_path / 'log')!r}, 'w', 0); log.write('a\\n'); log.write(b'b')")
    assert (tmp_path / "log").read_bytes() == b"a\nb", "without a buffer"
    made["log"].close()
    assert made["in_memory"] == (data, data)
    assert made["lines"] == ["caf\u00e9\r\n", "\u00e9"], "Linux leaves the ends of lines"


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
def test_files_that_are_opened_for_bytes_take_text(tmp_path: Path) -> None:
    """As csv's writers, which Python 2 wants on such files, and programs that write source code do."""
    path = str(tmp_path / "table")
    run(
        "import csv, pickle\n"
        f"with open({path!r}, 'wb') as f:\n"
        "    csv.writer(f).writerow([1, 'a']); print >>f, 'caf\u00e9'; f.writelines(['b', b'\\xff'])\n"
        f"with open({path!r}, 'ab') as f: pickle.dump(7, f, 0)\n"
        f"import numpy as np\nnp.save(open({path + '.npy'!r}, 'wb'), np.arange(3))\n"
    )
    written = (tmp_path / "table").read_bytes()
    assert written.startswith("1,a\r\ncaf\u00e9\nb".encode() + b"\xff")
    assert written.partition(b"\xff")[2] == pickle.dumps(7, 0)
    assert np.load(path + ".npy").tolist() == [0, 1, 2]


def test_files_in_memory_hold_what_is_written_first() -> None:
    made = run(
        "import StringIO, cStringIO\nfrom StringIO import StringIO as Memory\n"
        "image, text, empty = StringIO.StringIO(), cStringIO.StringIO(), Memory()\n"
        "image.seek(0); image.write(b'\\x89PNG'); image.seek(1)\n"
        "text.write('a\\n'); text.writelines(['b', 'c'])\n"
        "found = image.read(), text.getvalue(), list(Memory('a\\nb')), empty.getvalue(), empty.read()\n"
    )
    assert made["found"] == (b"PNG", "a\nbc", ["a\n", "b"], "", "")


def test_databases_and_messages_take_text(tmp_path: Path) -> None:
    pytest.importorskip("lmdb")
    (tmp_path / "mean").write_bytes(
        b"\x08\x01\x10\xac\x02\x2a\x04\xff\xfe\x80\x3f"
    )  # num, channels, data
    made = run(
        "import lmdb\nfrom demitasse_caffe.pycaffe.proto import caffe_pb2\n"
        f"environment = lmdb.open({str(tmp_path / 'set')!r})\n"
        "with environment.begin(write=True) as txn:\n"
        "    for i in range(2): txn.put('{:0>5d}'.format(i), 'some value')\n"
        "    txn.delete('00000')\n"
        "    found = txn.get('00001'), txn.get('00000'), {'a': 1}.get('b', 'c')\n"
        "environment.close()\n"
        "blob = caffe_pb2.BlobProto()\n"
        f"with open({str(tmp_path / 'mean')!r}) as f: blob.ParseFromString(f.read())\n"
    )
    assert made["found"] == (b"some value", None, "c")
    assert (made["blob"].num, made["blob"].channels) == (1, 300)
    with pytest.raises(TypeError, match="mine"):  # the script's own function is called once
        run(
            "class Own:\n"
            "  called = 0\n"
            "  def put(self, key):\n"
            "    Own.called += 1\n"
            "    raise TypeError('mine, %d' % Own.called)\n"
            "Own().put('a')\n"
        )


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("division", 3.5),
        ("print_function, division", 3.5),
        ("(absolute_import,\n    division)", 3.5),
        ("absolute_import, \\\n  division", 3.5),
        ("print_function  # no division", 3),
        ("print_function\n# division", 3),
        ("print_function\ndivision = 1", 3),
    ],
)
def test_division_is_true_where_the_source_asks_for_it(names: str, expected: float) -> None:
    assert run(f"from __future__ import {names}\nx = 7 / 2\n")["x"] == expected


def test_what_the_source_says_of_itself_is_heard(capsys: pytest.CaptureFixture[str]) -> None:
    run(
        '"""A module."""\nfrom __future__ import print_function, division\n'
        "import sys\nprint(7 / 2, __doc__, file=sys.stdout)\n"
    )
    assert capsys.readouterr().out == "3.5 A module.\n"
    run(
        "class A:\n\tdef x(self):\n\t    return 1\n        def y(self): return 2\n"
        "print A().y(),\nprint 3\n"
    )
    assert capsys.readouterr().out == "2 3\n", "a tab goes to the next eighth column"
    run("try:\n    raise ValueError, 'bad'\nexcept ValueError, e: print 'told', e")
    assert capsys.readouterr().out == "told bad\n"
    run("print(f'{7 * 6}')\ny = (z := 3)")  # already Python 3
    assert capsys.readouterr().out == "42\n"
    run("'A.'\nfrom __future__ import annotations\nprint(1 < 2, sep='')")
    assert capsys.readouterr().out == "True\n"
    with pytest.raises(SyntaxError) as error:
        translated("a = 1\nb = ]\n", "old.py")
    assert (error.value.filename, error.value.lineno) == ("old.py", 2)


def test_sources_are_read_in_the_encoding_that_they_name() -> None:
    text = "# \u00e9\r\nx = 1\n"
    assert source_of(text.encode()) == "# \u00e9\nx = 1\n"
    assert source_of(text.encode("latin-1")) == "# \u00e9\nx = 1\n"
    gbk = "# -*- coding: gbk -*-\nx = '\u4e2d'\n"
    assert source_of(gbk.encode("gbk")) == gbk


def test_a_python_without_2to3_says_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = translation._library, translation._refactoring
    for each in made:
        each.cache_clear()
    for name in {"lib2to3", "fissix", *sys.modules}:
        if name.split(".")[0] in ("lib2to3", "fissix"):
            monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ModelError, match=r"lib2to3, which Python has up to 3\.12, .* pip install fissix"
    ):
        translated("print 1", "old.py")
    monkeypatch.undo()
    for each in made:
        each.cache_clear()


@pytest.mark.parametrize(
    ("source", "old"),
    [
        ("import cPickle", True),
        ("xrange(3)", True),
        ("{}.iteritems()", True),
        ("exec('print 3')", True),
        ("import nothing_of_the_kind", False),
        ("xrang(3)", False),
        ("1 / 0", False),
    ],
)
def test_errors_of_python_2_are_known(source: str, old: bool) -> None:
    with pytest.raises(Exception) as error:
        exec(source)
    assert looks_like_python_2(error.value) is old
