"""The plugin is found, its manifest is true, and asking for kernels stays cheap."""

from __future__ import annotations

import inspect
import os
import platform
import subprocess
import sys
import tomllib
from dataclasses import replace
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from demitasse import CompositionError, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_cpu.diagnosis import findings
from demitasse_cpu.kernels import candidates
from demitasse_cpu.loops import processor
from demitasse_cpu.onednn.inner_product import bfloat16_kernel
from demitasse_cpu.onednn.library import library
from demitasse_cpu.plugin import kernels


def plugin() -> Any:
    (entry,) = entry_points(group="demitasse.plugins", name="cpu")
    return entry.load()


def test_manifest_declares_the_hooks_that_are_implemented() -> None:
    manifest = tomllib.loads(files("demitasse_cpu").joinpath("plugin.toml").read_text("utf-8"))
    implemented = {
        name
        for name, member in inspect.getmembers(plugin(), inspect.isfunction)
        if hasattr(member, "demitasse_impl")
    }
    assert manifest["name"] == "cpu"
    assert set(manifest["roles"]) == implemented


def test_asking_for_kernels_does_not_import_the_compiler() -> None:
    script = """
import sys
from importlib.metadata import entry_points
from demitasse import Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
(entry,) = entry_points(group="demitasse.plugins", name="cpu")
kernels = entry.load().kernels
x, w, y = (TensorSpec(s, "float32") for s in ((8, 3, 9, 9), (4, 3, 3, 3), (8, 4, 7, 7)))
operation = VOCABULARY["convolution"]
given = Request(operation, (x, w, None), (y,), operation.attributes, Place("here"))
assert len(list(kernels(given))) == 1
assert "numba" not in sys.modules, "numba was imported"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_what_is_not_served_is_left_to_others() -> None:
    relu = VOCABULARY["relu"]
    for kind, space in (("float16", "host"), ("int32", "host"), ("float32", "gpu:0")):
        spec = TensorSpec((4, 4), kind)
        place = Place("here", space)
        assert list(candidates(Request(relu, (spec,), (spec,), relu.attributes, place))) == []


def test_volumes_of_double_precision_are_left_to_others() -> None:
    x, w, y = (TensorSpec(s, "float64") for s in ((2, 3, 9, 9, 9), (4, 3, 3, 3, 3), (2, 4, 7, 7, 7)))
    threes: dict[str, object] = {"stride": (1,) * 3, "pad": (0,) * 3, "dilation": (1,) * 3}
    attributes = {**threes, "groups": 1}
    operation = VOCABULARY["convolution"]
    asked = Request(operation, (x, w, None), (y,), attributes, Place("here"))
    assert list(candidates(asked)) == []


def asked(name: str, precision: str, fixed: bool) -> Request:
    """Return a request for a convolution of 64 channels with 3 x 3 taps, or for one of its gradients."""
    image, w = TensorSpec((2, 64, 20, 20), "float32"), TensorSpec((64, 64, 3, 3), "float32")
    threes = {"stride": (1, 1), "pad": (1, 1), "dilation": (1, 1), "groups": 1}
    operands, shape = {
        "convolution": ((image, w, None), image.shape),
        "convolution_relu": ((image, w, None), image.shape),
        "convolution_backward_data": ((image, w), image.shape),
        "convolution_backward_weights": ((image, image), w.shape),
    }[name]
    attributes = {**threes, "shape": shape} if "backward" in name else threes
    word = VOCABULARY[name.removesuffix("_relu")]
    word = replace(word, name=name)
    result = TensorSpec(shape, "float32")
    return Request(word, operands, (result,), attributes, Place("here"), precision, fixed)


@pytest.mark.parametrize(
    ("name", "fixed"),
    [
        ("convolution", False),
        ("convolution_relu", True),
        ("convolution_backward_data", False),
        ("convolution_backward_weights", False),
    ],
)
@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_winograds_algorithm_may_be_left_out(name: str, fixed: bool, precision: str) -> None:
    request = asked(name, precision, fixed)
    offered = {each.kernel for each in kernels(request, {"winograd": "on"})}
    rest = {each.kernel for each in kernels(request, {"winograd": "off"})}
    assert any("Winograd" in kernel for kernel in offered)
    assert not any("Winograd" in kernel for kernel in rest)
    bfloat16 = library() is not None and bfloat16_kernel(library())
    apart = name == "convolution_relu" and precision == "bf16" and not bfloat16
    assert rest or apart  # where oneDNN convolves no bfloat16, functions are done apart


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names features of x86-64 processors")
@pytest.mark.parametrize("features", ["+avx,+avx2,+fma", pytest.param("+sse2", marks=pytest.mark.slow)])
def test_kernels_for_other_processors(features: str) -> None:
    """Processors without AVX-512, and without fused multiply-add, have other tiles but the same
    results."""
    tests = Path(__file__).parent
    chosen = ["-k", "float32 and (odd_numbers or several_blocks)"]
    files = [str(tests / name) for name in ("test_convolution.py", "test_inner_product.py")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, *files]
    compiler = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": features}
    environment = {**os.environ, **compiler}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 passed" in done.stdout


def test_an_older_llvm_is_not_asked_to_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor.config, "CPU_FEATURES", "+avx512f,+avx512bf16")
    for version, rounds in (((15, 0, 7), False), ((16, 0, 0), True)):
        monkeypatch.setattr(processor.llvmlite.binding, "llvm_version_info", version)
        assert processor._features() == {"avx512f", *(["avx512bf16"] if rounds else [])}


@pytest.mark.parametrize("threads", ["0", "-2"])
def test_a_number_of_threads_that_numba_refuses_is_told_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, threads: str
) -> None:
    monkeypatch.setenv("NUMBA_NUM_THREADS", threads)
    spec = TensorSpec((4, 4), "float32")
    relu = VOCABULARY["relu"]
    with pytest.raises(CompositionError, match=f"NUMBA_NUM_THREADS is set to {threads}"):
        kernels(Request(relu, (spec,), (spec,), relu.attributes, Place("here", "host")))


def test_diagnosis_tells_where_compiled_kernels_are_kept() -> None:
    subjects = {finding.subject: finding for finding in findings()}
    assert subjects["vectors"].level == "ok"
    kept = subjects["numba cache"]
    assert kept.level == "ok" or kept.remedy


def test_diagnosis_tells_of_damaged_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / f"tiles.tile-1.py{sys.version_info[0]}{sys.version_info[1]}.nbi"
    file.write_bytes(b"")
    relu = SimpleNamespace(stats=SimpleNamespace(cache_path=str(tmp_path)))
    monkeypatch.setattr("demitasse_cpu.loops.elementwise.relu", relu)
    told = {finding.subject: finding for finding in findings()}["numba cache"]
    assert told.level == "note" and file.name in told.message
    assert told.remedy == f"or delete: rm {file}"
