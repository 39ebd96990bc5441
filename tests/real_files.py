"""Where real files lie, which are not the project's: in the folder that DEMITASSE_SHARED names, or in
``shared`` beside the project."""

from __future__ import annotations

import os
from pathlib import Path

SHARED = Path(os.environ.get("DEMITASSE_SHARED", Path(__file__).parents[2] / "shared"))
DATA = SHARED / "data"
