"""How plugins come by numba."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

_ASKS = "numba.np.arraymath"  # which asks ``numba.np.linalg.ensure_blas`` when it is imported


def load_numba() -> Any:
    """The module numba: ``numba = load_numba()`` instead of ``import numba``.

    When it first compiles or loads anything, numba imports SciPy's linear algebra where that is
    installed, only to learn whether it could, and a process starts 0.2 to 0.4 s later. Here it is told
    that SciPy is there without importing it. Whoever compiles a product of matrices imports it then, as
    before. Raises ImportError where numba is not installed.
    """
    import numba

    try:
        linalg: Any = importlib.import_module("numba.np.linalg")
    except ImportError:  # another numba has it elsewhere
        return numba
    asked = getattr(linalg, "ensure_blas", None)
    loaded = _ASKS in sys.modules or "scipy.linalg.cython_blas" in sys.modules
    if loaded or asked is None or importlib.util.find_spec("scipy") is None:
        return numba
    linalg.ensure_blas = lambda: None
    try:
        importlib.import_module(_ASKS)
    finally:
        linalg.ensure_blas = asked
    return numba
