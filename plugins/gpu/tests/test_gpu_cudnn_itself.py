"""cuDNN's own library accepts the graphs that it is given, without a device."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from demitasse_gpu.libraries.loading import candidates

HERE = Path(__file__).parent
NAMES = (
    *("cuGetErrorString", "cuModuleGetFunction", "cuModuleLoadData", "cuModuleUnload"),
    *("cuTensorMapEncodeIm2col", "cuTensorMapEncodeTiled"),
)
"""The functions of CUDA's driver without which cuDNN 9.28 does not load; it looks for more, but works
without them."""
INSTALL = "pip install nvidia-cudnn-cu13 nvidia-cublas nvidia-cuda-nvrtc"


def test_cudnn_has_plans_for_every_convolution_of_the_nets_on_an_h200(tmp_path: Path) -> None:
    installed = [path for path in candidates("cudnn") if "/" in path]
    if not installed or not candidates("nvrtc")[0].startswith("/"):
        pytest.skip(f"cuDNN is not installed: {INSTALL}")
    if (compiler := shutil.which("gcc")) is None:
        pytest.skip("no C compiler for a stand-in for CUDA's driver")
    source, stand_in = tmp_path / "cuda.c", tmp_path / "libcuda.so.1"
    source.write_text("".join(f"int {name}(void) {{ return 100; }}\n" for name in NAMES))
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(stand_in)]
    subprocess.run([*command, str(source)], check=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, str(HERE / "cudnn_itself.py"), str(stand_in)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line.split() for line in done.stdout.splitlines() if line[:2] in ("10", "11", "12")]
    assert len(lines) == 10 * 3 * 3
    assert all(int(count) >= 1 for line in lines for count in line[3:])
