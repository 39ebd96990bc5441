"""What several files of scripts of pycaffe are tested with."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from pycaffe_nets import Make

    from demitasse import Runtime


@pytest.fixture
def scripts() -> Iterator[Runtime]:
    """Scripts run on the kernels that users have, which ask for layouts of their own; without the trying
    of them."""
    from pycaffe_nets import PLUGINS, scripts_run_with

    with scripts_run_with(PLUGINS) as made:
        yield made


@pytest.fixture
def make(scripts: Runtime, tmp_path: Path) -> Make:
    """``make(spec, phase, force_backward=...)``: a net of a script, through a file."""
    from pycaffe_nets import through_a_file

    return partial(through_a_file, tmp_path)


@pytest.fixture
def x() -> np.ndarray:
    """A batch for ``branching``."""
    return np.random.default_rng(0).normal(size=(4, 6))
