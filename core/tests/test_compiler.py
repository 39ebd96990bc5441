"""numba starts without SciPy's linear algebra, and still has it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("numba")
pytest.importorskip("scipy")

START = "import sys\nfrom demitasse import load_numba\nnumba = load_numba()\nimport numpy as np\n"
SUM = "@numba.njit\ndef total(a):\n    return (a * 2).sum()\nassert total(np.ones(3)) == 6\n"
PRODUCT = "@numba.njit\ndef product(a, b):\n    return np.dot(a, b)\n"


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_loop_is_compiled_without_scipy() -> None:
    assert run(f"{START}{SUM}print('scipy.linalg' in sys.modules)") == "False"


def test_products_of_matrices_are_compiled_as_ever() -> None:
    check = "a = np.arange(6.0).reshape(2, 3)\nassert (product(a, a.T) == a @ a.T).all()\n"
    assert run(f"{START}{SUM}{PRODUCT}{check}print('scipy.linalg' in sys.modules)") == "True"


def test_who_has_compiled_before_is_left_alone() -> None:
    before = "import numba\nimport numpy as np\n"
    asked = "from numba.np import linalg\nasked = linalg.ensure_blas\n"
    after = "import demitasse\ndemitasse.load_numba()\nassert linalg.ensure_blas is asked\n"
    assert run(f"{before}{SUM}{asked}{after}print('kept')") == "kept"


def test_its_question_is_its_own_again() -> None:
    named = "from numba.np import linalg\nprint(linalg.ensure_blas.__name__)"
    assert run(START + named) == "ensure_blas"
