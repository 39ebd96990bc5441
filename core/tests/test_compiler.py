"""numba starts without SciPy's linear algebra, but still has it; loops are kept on disk unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from demitasse import damaged_loops

pytest.importorskip("numba")
pytest.importorskip("scipy")

START = "import sys\nfrom demitasse import load_numba\nnumba = load_numba()\nimport numpy as np\n"
SUM = "@numba.njit\ndef total(a):\n    return (a * 2).sum()\nassert total(np.ones(3)) == 6\n"
PRODUCT = "@numba.njit\ndef product(a, b):\n    return np.dot(a, b)\n"


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_loop_is_compiled_without_scipy_and_products_of_matrices_as_ever() -> None:
    told = "print('scipy.linalg' in sys.modules)\n"
    check = "a = np.arange(6.0).reshape(2, 3)\nassert (product(a, a.T) == a @ a.T).all()\n"
    assert run(f"{START}{SUM}{told}{PRODUCT}{check}{told}").split() == ["False", "True"]


def test_who_has_compiled_before_is_left_alone() -> None:
    before = "import numba\nimport numpy as np\n"
    asked = "from numba.np import linalg\nasked = linalg.ensure_blas\n"
    after = "import demitasse\ndemitasse.load_numba()\nassert linalg.ensure_blas is asked\n"
    assert run(f"{before}{SUM}{asked}{after}print('kept')") == "kept"


def test_its_question_is_its_own_again() -> None:
    named = "from numba.np import linalg\nprint(linalg.ensure_blas.__name__)"
    assert run(START + named) == "ensure_blas"


LOOP = """
from demitasse import compiled_loop

@compiled_loop
def double(x):
    return x + x
"""
KEEP = """
import sys, time
from numba import types
from numba.core.caching import IndexDataCacheFile
import loops

# Whoever keeps something takes its time between having read what is there and writing it.
load = IndexDataCacheFile._load_index
def slow(self):
    found = load(self)
    if "save" in sys._getframe(1).f_code.co_name:
        time.sleep(0.5)
    return found
IndexDataCacheFile._load_index = slow
print("ready", flush=True)
sys.stdin.readline()
loops.double.compile((getattr(types, sys.argv[1]),))
"""
READ = """
from numba import types
import loops
for name in ("int64", "float64"):
    signature = (getattr(types, name),)
    loops.double.compile(signature)
    assert loops.double.overloads[signature].signature.return_type == signature[0]
print(len(loops.double.stats.cache_hits), len(loops.double.stats.cache_misses))
"""


def python(folder: Path, program: str, *given: str) -> subprocess.Popen[str]:
    (folder / "loops.py").write_text(LOOP) if not (folder / "loops.py").exists() else None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}
    environment.pop("NUMBA_CACHE_DIR", None)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, "-c", program, *given], env=environment, text=True, cwd=folder, **pipes
    )


def ended_at_once(ones: list[subprocess.Popen[str]]) -> list[str]:
    """Return what the processes print. They continue together once all are ready; none has an error."""
    for one in ones:
        assert one.stdout is not None and one.stdout.readline() == "ready\n"
    for one in ones:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    ends = [one.communicate(timeout=60) for one in ones]
    assert [err for _, err in ends] == [""] * len(ones)
    return [out for out, _ in ends]


def read(folder: Path) -> str:
    out, err = python(folder, READ).communicate(timeout=60)
    assert err == ""
    return out.strip()


def test_processes_that_keep_a_loop_at_once_keep_both(tmp_path: Path) -> None:
    """numba alone would keep both under one name, and later processes would get the wrong one."""
    pytest.importorskip("fcntl", reason="a system without locks")
    ones = [python(tmp_path, KEEP, name) for name in ("int64", "float64")]
    ended_at_once(ones)
    assert read(tmp_path) == "2 0"


def test_what_was_kept_under_a_wrong_name_is_compiled_again(tmp_path: Path) -> None:
    assert read(tmp_path) == "0 2"
    one, other = sorted((tmp_path / "__pycache__").glob("*.nbc"))
    other.write_bytes(one.read_bytes())
    assert read(tmp_path) == "1 1"
    assert read(tmp_path) == "1 1"  # the right one was forgotten along with the wrong one


def test_where_nothing_can_be_kept_it_is_compiled_in_each_process(tmp_path: Path) -> None:
    program = (
        "from numba.core.caching import CacheImpl\nCacheImpl._locator_classes = []\n"
        "from numba.core.caching import FunctionCache\n"
        "def none(*_): raise RuntimeError\nFunctionCache.__init__ = none\n"
        "import loops\nassert loops.double(2) == 4\nprint(loops.double.stats.cache_path)"
    )
    out, err = python(tmp_path, program).communicate(timeout=60)
    assert (out.strip(), err) == ("None", "")
    assert not list(tmp_path.rglob("*.nbi"))


def test_one_process_compiles_a_loop_and_others_wait(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl", reason="a system without locks")
    program = """
import loops, sys
from numba import types
from demitasse import compile_once
signature = (types.int64,)
print(compile_once(loops.double, signature), loops.double.signatures, flush=True)
sys.stdin.readline()
print(compile_once(loops.double, signature, 30), len(loops.double.stats.cache_misses), flush=True)
"""
    (tmp_path / "loops.py").write_text(LOOP)
    folder = tmp_path / "__pycache__" / "compiling"
    folder.mkdir(parents=True)
    with (folder / "loops.double").open("w") as busy:
        fcntl.flock(busy, fcntl.LOCK_EX)
        waiting = python(tmp_path, program)
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "False []\n"
        # A caller waits for a while, in case the compiling process is stopped, and then compiles it.
        patience = "from demitasse_host import compiler\ncompiler._PATIENCE = 0.2\n"
        other = patience + READ.replace('"float64"', '"float32"')
        assert python(tmp_path, other).communicate(timeout=60) == ("0 2\n", "")
        assert waiting.stdin is not None
        waiting.stdin.write("\n")
        waiting.stdin.flush()
        assert waiting.stdout.readline() == "True 0\n"
    assert waiting.communicate(timeout=60)[1] == ""


CALL = """
import sys, time
from numba.core import dispatcher
import loops

compile_it = dispatcher._FunctionCompiler.compile
def slow(self, args, return_type):
    time.sleep(0.5)
    return compile_it(self, args, return_type)
dispatcher._FunctionCompiler.compile = slow
print("ready", flush=True)
sys.stdin.readline()
assert loops.double(2) == 4
print(len(loops.double.stats.cache_misses))
"""


@pytest.mark.slow
def test_of_processes_that_call_a_loop_at_once_one_compiles_it(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="a system without locks")
    ones = [python(tmp_path, CALL) for _ in range(3)]
    assert sorted(ended_at_once(ones)) == ["0\n", "0\n", "1\n"]


def test_threads_that_call_loops_of_each_other_at_once_wait_for_nobody(tmp_path: Path) -> None:
    """One thread compiles into its loop one that the other compiles by itself; numba has one lock."""
    loops = "from demitasse import compiled_loop\n"
    loops += "@compiled_loop\ndef inner(x):\n    return x + x\n"
    loops += "@compiled_loop\ndef outer(x):\n    return inner(x) + inner(x + 1)\n"
    (tmp_path / "loops.py").write_text(loops)
    program = """
import threading, time
import loops
from demitasse_host import compiler

compiler._PATIENCE = 50.0
start = threading.Barrier(2)
def call(loop):
    start.wait()
    loop(3)
began = time.monotonic()
threads = [threading.Thread(target=call, args=(loop,)) for loop in (loops.outer, loops.inner)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(time.monotonic() - began < 40)
"""
    assert python(tmp_path, program).communicate(timeout=60) == ("True\n", "")


def test_calls_with_numbers_have_a_loop_compiled_once(tmp_path: Path) -> None:
    program = """
from demitasse import compiled_loop, load_numba
def power(x, n):
    return x**n
with_literals, without = compiled_loop(power), compiled_loop(power, literals=False)
for part in (with_literals, without):
    def outer(x):
        return part(x, 2) + part(x, 3)
    assert load_numba().njit(outer)(2) == 12
    print(len(part.signatures))
"""
    (tmp_path / "program.py").write_text(program)
    out, err = python(tmp_path, "import program").communicate(timeout=60)
    assert (out.split(), err) == (["2", "1"], "")


PRINTS = """
import logging
logging.basicConfig(format="%(name)s: %(message)s")
import loops
assert loops.double(2) == 4
assert loops.add.ctypes(2, 3) == 5
print(len(loops.double.stats.cache_misses), loops.add.cache_hits)
"""
CALLBACK = """
from numba import types
from demitasse import compiled_callback

@compiled_callback(types.int64(types.int64, types.int64))
def add(x, y):
    return x + y
"""


def damage(content: bytes, kind: str) -> bytes:
    at = len(content) * 2 // 3
    changed = bytes([content[at] ^ 16])
    kinds = {"empty": b"", "cut off": content[:at], "a bit": content[:at] + changed + content[at + 1 :]}
    return kinds[kind]


@pytest.mark.parametrize(
    ("suffix", "kind"),
    [
        pytest.param("nbi", "empty", marks=pytest.mark.slow),  # 3 s each
        ("nbi", "cut off"),
        pytest.param("nbc", "empty", marks=pytest.mark.slow),
        ("nbc", "a bit"),
    ],
)
def test_a_damaged_loop_is_forgotten_and_compiled_again(tmp_path: Path, suffix: str, kind: str) -> None:
    """This includes a flipped bit in machine code, which numba alone would run."""
    (tmp_path / "loops.py").write_text(LOOP + CALLBACK)
    assert python(tmp_path, PRINTS).communicate(timeout=60) == ("1 0\n", "")
    files = list((tmp_path / "__pycache__").glob(f"*.{suffix}"))
    assert len(files) == 2 and damaged_loops(tmp_path / "__pycache__") == ()
    for file in files:
        file.write_bytes(damage(file.read_bytes(), kind))
    assert damaged_loops(tmp_path / "__pycache__") == tuple(sorted(files))

    out, err = python(tmp_path, PRINTS).communicate(timeout=60)
    assert out == "1 0\n"
    names = [f"{name}-" in line for name, line in zip(("add", "double"), err.splitlines(), strict=True)]
    assert names == [True, True] and err.count("demitasse.host: a saved compiled loop is damaged") == 2
    assert python(tmp_path, PRINTS).communicate(timeout=60) == ("0 1\n", "")
    assert damaged_loops(tmp_path / "__pycache__") == ()


FAILS_ONCE = """
import logging, os
logging.basicConfig(format="%(name)s: %(message)s")
from numba.core.caching import IndexDataCacheFile
load, failures = IndexDataCacheFile.load, [{error}]
def fails_once(self, key):
    if failures:
        raise failures.pop()
    return load(self, key)
IndexDataCacheFile.load = fails_once
import loops
assert loops.double(2) == 4
print(len(loops.double.stats.cache_misses), len(failures))
"""


@pytest.mark.parametrize(
    "error",
    [
        "OSError(24, os.strerror(24))",  # too many open files, which says nothing about the content
        "ValueError('mended by another process before this one may write')",
    ],
)
def test_what_can_be_read_later_is_not_removed(tmp_path: Path, error: str) -> None:
    (tmp_path / "loops.py").write_text(LOOP)
    python(tmp_path, "import loops; loops.double(2)").communicate(timeout=60)
    kept = {file.name: file.read_bytes() for file in (tmp_path / "__pycache__").glob("*.nb*")}
    program = FAILS_ONCE.replace("{error}", error)
    assert python(tmp_path, program).communicate(timeout=60) == ("0 0\n", "")
    assert kept == {file.name: file.read_bytes() for file in (tmp_path / "__pycache__").glob("*.nb*")}


def test_a_loop_that_a_full_disk_does_not_keep_is_used_all_the_same(tmp_path: Path) -> None:
    program = """
import errno, os
from numba.core.caching import IndexDataCacheFile
def full(*_): raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
IndexDataCacheFile._save_data = full
import loops
assert (loops.double(2), loops.double(2.5)) == (4, 5)
"""
    out, err = python(tmp_path, program).communicate(timeout=60)
    folder = tmp_path / "__pycache__"
    assert (out, err) == ("", f"compiled loops cannot be saved in {folder}: No space left on device\n")


def test_where_numba_is_told_not_to_compile_that_is_said() -> None:
    program = (
        "import os; os.environ['NUMBA_DISABLE_JIT'] = '1'\n"
        "from demitasse import compiled_loop\n"
        "try:\n    compiled_loop(print)\nexcept ImportError as error:\n    print(error)\n"
    )
    assert run(program) == "NUMBA_DISABLE_JIT is set, but these kernels are compiled loops; unset it"
