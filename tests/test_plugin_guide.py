"""The program in docs/plugins.md, a plugin with a data source and a listener, runs as it stands."""

import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[1] / "docs" / "plugins.md"


def test_its_program_trains_on_its_own_format(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), flags=re.DOTALL)
    run = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    accuracy = float(re.findall(r"after 100: ([\d.]+)", run.stdout)[0])
    assert accuracy > 0.9
