"""The program in docs/plugins.md, a plugin with a data source and a listener, runs as it stands."""

import re
from pathlib import Path

from shown_programs import output, programs

GUIDE = Path(__file__).parents[1] / "docs" / "plugins.md"


def test_its_program_trains_on_its_own_format(tmp_path):
    (program,) = programs(GUIDE)
    accuracy = float(re.findall(r"after 100: ([\d.]+)", output(program, tmp_path))[0])
    assert accuracy > 0.9
