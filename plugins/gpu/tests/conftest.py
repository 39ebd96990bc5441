"""Shared by the tests of the gpu plugin: devices that are this processor."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from cuda_on_cpu import compiled


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Processes that share the tests share what they compile for the emulated device."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "cuda-on-cpu"
    folder.mkdir(exist_ok=True)
    compiled().folder = folder
