"""Programs that pages show, run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def programs(page: Path, language: str = "python") -> list[str]:
    """The programs of a page in a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)


def output(program: str, folder: Path) -> str:
    """What a program prints that is run in a folder, and that does not fail."""
    return printed([sys.executable, "-c", program], folder)


def printed(command: list[str], folder: Path) -> str:
    """What a command prints that is run in a folder, and that does not fail."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
