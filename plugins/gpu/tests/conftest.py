"""What tests of the gpu plugin share: devices that are this processor."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
