"""Every CUDA kernel of ours compiles without a GPU: with NVRTC if its wheel is installed, otherwise with
a toolkit's nvcc."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import nvrtc
import pytest

from demitasse_gpu.kernels.launches import CUDA, Source
from demitasse_gpu.libraries.tiles import AROUND, CUT, SCALAR, SPLIT, WINOGRAD

NVCC = shutil.which("nvcc")
SOURCES = sorted(path.relative_to(CUDA.parent) for path in CUDA.parent.rglob("*.cu"))
needs_compiler = pytest.mark.skipif(nvrtc.library() is None and NVCC is None, reason=nvrtc.NO_COMPILER)

FORMS: dict[str, list[Source]] = {
    **{each.file: [each] for each in (SCALAR, SPLIT, CUT, AROUND, WINOGRAD)},
    "image_transform.cu": [
        Source("image_transform.cu", "float32", "bfloat16", (("FROM", "uint8"),)),
        Source("image_transform.cu", "float64", "", (("FROM", "int8"),)),
    ],
    "inner_product.cu": [
        Source(
            "inner_product.cu", "float32", kind, (("LEFT", kind), ("RIGHT", kind), ("RESULT", "float32"))
        )
        for kind in ("bfloat16", "float32")
    ],
    "pooling.cu": [
        Source("pooling.cu", "float32", "bfloat16", (("PLACE", "uint16"),)),
        Source("pooling.cu", "float32", "", (("PLACE", "int32"),)),
    ],
    "reorder.cu": [
        Source("reorder.cu", "float32", types=(("FROM", "float32"), ("TO", "bfloat16"))),
        Source("reorder.cu", "float32", types=(("FROM", "bfloat16"), ("TO", "float32"))),
        Source("reorder.cu", "float32", "", (("FROM", "int32"), ("TO", "uint16")), ("WHOLE_NUMBERS",)),
        Source("reorder.cu", "float32", types=(("FROM", "uint8"), ("TO", "uint8"))),
    ],
    "softmax.cu": [Source("softmax.cu", "float32", "bfloat16", (("LABEL", "int32"),))],
}
"""The element types that kernels are compiled for, if not the usual ones."""


EPILOGUES = [("bf16", "float"), ("double", "double")]
"""The types that the libraries' kernels are compiled for."""

TARGETS = ("compute_90", "compute_80")
"""Virtual architectures for Hopper and Ampere, from which a driver makes machine code."""
OTHERS = {SCALAR.file: "compute_75", **dict.fromkeys((SPLIT.file, CUT.file, "elementwise.cu"), "sm_90")}
"""Sources that newer devices do not use; and real architectures for sources that contain assembler, or
use most of a device's shared memory."""

_SUPPRESSED = "-diag-suppress=177"  # functions of a header that a source does not use


def forms(path: Path) -> list[tuple[str, ...]]:
    """Return the option lists that a source is compiled with."""
    if path.parent.name == "libraries":
        return [(f"-I{CUDA}", f"-DELEMENT={element}", f"-DSUM={total}") for element, total in EPILOGUES]
    if path.parent.name != "cuda":
        return [()]
    usual = [Source(path.name, "float32", "bfloat16"), Source(path.name, "float64")]
    return [form.options for form in FORMS.get(path.name, usual)]


def compile_source(path: Path, options: Sequence[str], folder: Path) -> int:
    """Return the size of the compiled code in bytes. Raises nvrtc.CompileError if it does not
    compile."""
    if nvrtc.library() is not None:
        return len(nvrtc.compiled(path.read_text("utf-8"), path.name, options))
    told = ["-cubin" if "sm_" in options[0] else "-ptx", "-Werror=all-warnings", *options]
    command = [str(NVCC), *told, "-o", str(folder / "kernels"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise nvrtc.CompileError(done.stderr)
    return (folder / "kernels").stat().st_size


@needs_compiler
@pytest.mark.parametrize(
    "more",
    [
        pytest.param(("--device-debug",), id="as written"),
        pytest.param((), id="optimised", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_kernels_compile(path: Path, more: tuple[str, ...], tmp_path: Path) -> None:
    """Without optimising, which takes most of the time, all errors in a text are found, also in
    assembler and in the use of shared memory. The slow tests optimise too."""
    for number, form in enumerate(forms(path)):
        target = OTHERS.get(path.name, TARGETS[number % 2])
        options = [f"--gpu-architecture={target}", "--std=c++17", _SUPPRESSED, *form, *more]
        assert compile_source(CUDA.parent / path, options, tmp_path) > 1000


@needs_compiler
def test_a_mistake_is_told_with_its_line(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.cu"
    wrong.write_text('extern "C" __global__ void f(float *x) {\n    x[0] = y;\n}\n', encoding="utf-8")
    with pytest.raises(nvrtc.CompileError, match=r'wrong.cu\(2\).*identifier "y" is undefined'):
        compile_source(wrong, ["--gpu-architecture=compute_80"], tmp_path)
