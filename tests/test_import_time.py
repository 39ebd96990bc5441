"""``import demitasse`` is cheap: what is heavy is imported when it is first used."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def loaded(*modules: str) -> set[str]:
    """What importing some modules imports."""
    return set(run(f"import sys, {', '.join(modules)}; print(*sys.modules)").split())


def test_it_imports_nothing_but_a_few_modules_of_python() -> None:
    """Neither arrays nor hooks nor any plugin: 0.15 s at most, most of it the interpreter's own."""
    assert loaded("demitasse") - loaded("importlib", "pathlib", "re") == {"demitasse"}


def test_its_names_are_there_when_they_are_asked_for() -> None:
    """Reading the public errors and records needs no array library; the runtime does its own."""
    code = "import sys, demitasse; demitasse.DemitasseError; print('numpy' in sys.modules)"
    assert run(code).strip() == "False"
    code = "import demitasse; print([n for n in demitasse.__all__ if not hasattr(demitasse, n)])"
    assert run(code).strip() == "[]"


def test_to_compose_all_plugins_loads_no_compiler() -> None:
    """Commands that compute nothing need not wait for it, nor need a look at whose a source is."""
    code = """
import sys, demitasse
with demitasse.compose() as runtime:
    runtime.open_source(demitasse.DataSpec("digits:train"))
print([name for name in ("numba", "scipy", "torch") if name in sys.modules])
"""
    assert run(code).splitlines()[-1] == "[]"
