"""The programs in docs/ besides the plugin guide's run as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize(
    ("guide", "said"),
    [
        ("testing_plugins.md", "synchronisation: as one worker"),
        ("embedding.md", "ModelError: no such file: solvr.prototxt; did you mean 'solver.prototxt'?"),
    ],
)
def test_its_program_runs(guide, said, tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", (DOCS / guide).read_text("utf-8"), flags=re.DOTALL)
    command = [sys.executable, "-c", program]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    assert said in run.stdout.splitlines()


@pytest.mark.parametrize("guide", sorted(path.name for path in DOCS.glob("*.md")))
def test_its_links_lead_somewhere(guide):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", (DOCS / guide).read_text("utf-8"))
    assert [target for target in targets if not (DOCS / target).exists()] == []
