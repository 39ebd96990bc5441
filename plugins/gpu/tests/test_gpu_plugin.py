"""The plugin is found, its manifest is true, and it reports what it finds and what is missing."""

from __future__ import annotations

import ctypes
import inspect
import os
import shutil
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

import nvrtc
import pytest
from cuda_on_cpu.driver import EmulatedDriver

import demitasse
from demitasse import CompositionError, Level, Machine, MemorySpace, TensorSpec, fingerprint
from demitasse.operations import VOCABULARY
from demitasse_gpu import device as devices
from demitasse_gpu import diagnosis, machine
from demitasse_gpu.kernels.launches import CUDA
from demitasse_gpu.libraries import library_candidates, loading
from demitasse_gpu.libraries.epilogue import ELEMENTS

PLUGINS = ["caffe", "training", "datasets", "gpu", "cpu", "reference"]


def plugin() -> Any:
    (entry,) = entry_points(group="demitasse.plugins", name="gpu")
    return entry.load()


def test_manifest_declares_the_hooks_that_are_implemented() -> None:
    manifest = tomllib.loads(files("demitasse_gpu").joinpath("plugin.toml").read_text("utf-8"))
    implemented = {
        name
        for name, member in inspect.getmembers(plugin(), inspect.isfunction)
        if hasattr(member, "demitasse_impl")
    }
    assert manifest["name"] == "gpu"
    assert set(manifest["roles"]) == implemented


def test_composing_it_imports_nothing_heavy() -> None:
    code = (
        "import demitasse, sys; demitasse.compose(plugins=['gpu', 'caffe', 'training', 'cpu'])"
        "; print(sorted({'cupy', 'numba', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_memory_and_streams_of_other_spaces_are_left_to_others() -> None:
    nobody: Any = Machine("x", ())
    for space in ("host", "numa:0", "gpus"):
        assert plugin().allocator(space, {}) is None
        assert plugin().stream_engine(space, nobody, {}) is None


def test_a_machine_without_a_description_trains_on_its_processors() -> None:
    with demitasse.compose(plugins=PLUGINS) as runtime:
        assert {m.space for level in runtime.machine.levels for m in level.memory} <= {"host"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"graph": True}, "options.gpu: unknown option 'graph'; did you mean 'graphs'"),
        ({"graphs": "no"}, "graphs = 'no'"),
        ({"libraries": 1}, "libraries = 1"),
        ({"own_convolutions": "no"}, "own_convolutions = 'no'"),
        ({"driver": "cupy"}, "driver = 'cupy'"),
        ({"workspace": "much"}, "options.gpu: workspace = .*much"),
        ({"workspace": 2**20}, "workspace = 1048576 .valid: a string like '512 MiB'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(CompositionError, match=words.replace("'", ".")):
        plugin().allocator("gpu:0", options)


def test_a_space_names_a_device_or_the_processs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"driver": EmulatedDriver}
    assert plugin().allocator("gpu:3", options).space == "gpu:3"
    with pytest.raises(CompositionError, match="as in gpu:0"):
        plugin().allocator("gpu:first", options)
    monkeypatch.setattr(machine, "device_count", lambda: 4)
    for name in [name for name in os.environ if "LOCAL" in name]:
        monkeypatch.delenv(name)
    assert plugin().allocator("gpu", options).space == "gpu:0"
    monkeypatch.setenv("SLURM_LOCALID", "6")
    assert plugin().allocator("gpu", options).space == "gpu:2"
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "5")
    assert plugin().allocator("gpu", options).space == "gpu:1"


def test_memory_and_streams_of_a_space_are_of_one_device() -> None:
    options = {"driver": EmulatedDriver}
    allocator = plugin().allocator("gpu:1", options)
    engine = plugin().stream_engine("gpu:1", Machine("x", ()), options)
    assert engine.device is allocator.device
    assert engine.place == allocator.space == "gpu:1"
    engine.close()


def test_threads_that_ask_at_once_are_given_one_device() -> None:
    """Importing CuPy and making a context take long enough for all threads to arrive meanwhile."""
    made = list[int]()

    def slowly(number: int) -> EmulatedDriver:
        made.append(number)
        time.sleep(0.05)
        return EmulatedDriver(number)

    with ThreadPoolExecutor(4) as threads:
        given = [*threads.map(lambda _: devices.device("gpu:2", {"driver": slowly}), range(4))]
    assert made == [2]
    assert len({*map(id, given)}) == 1


def test_a_gpu_that_is_not_there_is_an_error_that_says_what_to_do() -> None:
    if machine.device_count():
        pytest.skip("there is a GPU here")
    gpu = Level("gpu", workers="streams", memory=(MemorySpace("gpu", at="gpu:*"),))
    described = Machine("one", (Level("node"), gpu), fingerprint=fingerprint())
    with demitasse.compose(described, PLUGINS) as runtime, pytest.raises(CompositionError) as raised:
        runtime.allocator("gpu:0")
    assert "pip install" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_libraries_are_asked_for_real_devices_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "library", lambda name: object())
    x, w = TensorSpec((8, 3, 9, 9), "float32"), TensorSpec((4, 3, 3, 3), "float32")
    y, word = TensorSpec((8, 4, 7, 7), "float32"), VOCABULARY["convolution"]
    real = demitasse.Place("gpu", "gpu")
    asked = demitasse.Request(word, (x, w, None), (y,), word.attributes, real)
    described = replace(asked, place=replace(real, simulated=True))
    (candidate,) = library_candidates(asked, {})
    assert candidate.kernel == "cuDNN f32"
    assert library_candidates(described, {}) == []
    assert library_candidates(asked, {"libraries": False}) == []
    assert library_candidates(asked, {"driver": EmulatedDriver}) == []


def test_scratch_memory_of_convolutions_is_at_most_what_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "library", lambda name: object())
    x, w = TensorSpec((64, 64, 112, 112), "float32"), TensorSpec((64, 64, 3, 3), "float32")
    word = VOCABULARY["convolution"]
    attributes = {**word.attributes, "pad": (1, 1)}
    asked = demitasse.Request(word, (x, w, None), (x,), attributes, demitasse.Place("gpu", "gpu"))
    rooms = [
        library_candidates(asked, {"workspace": f"{size} MiB"})[0].workspace  # type: ignore[index]
        for size in (16, 100, 100_000)
    ]
    assert rooms == [256 + size for size in (16 * 2**20, 100 * 2**20, 4 * x.nbytes)]


# What the machine reports.


def listing(folder: Path, *names: str) -> Path:
    """Return the files of a kernel driver that found these GPUs."""
    for number, name in enumerate(names):
        place = folder / "gpus" / f"0000:{number:02x}:00.0"
        place.mkdir(parents=True)
        (place / "information").write_text(f"Model: \t\t {name}\nIRQ: 5\n")
    return folder


def test_detection_shows_gpus_and_lets_nobody_work_in_them(tmp_path: Path) -> None:
    node, domain = Level("node", devices=("nvme0",)), Level("numa", 2)
    found = machine.with_devices((node, domain), listing(tmp_path, "NVIDIA H200", "NVIDIA H200"))
    assert found[0].devices == ("nvme0", "gpu:0 NVIDIA H200", "gpu:1 NVIDIA H200")
    assert found[1] == domain
    assert machine.with_devices((node, domain), tmp_path / "nothing") == (node, domain)
    assert machine.with_devices((), tmp_path) == ()


class Library:
    """CUDA's driver, as far as its answers go."""

    def __init__(self, error: int = 0, *names: str) -> None:
        self.error, self.names = error, names

    def cuInit(self, flags: int) -> int:
        return self.error

    def cuDriverGetVersion(self, place: Any) -> int:
        place._obj.value = 13000
        return 0

    def cuDeviceGetCount(self, place: Any) -> int:
        place._obj.value = len(self.names)
        return 0

    def cuDeviceGet(self, place: Any, number: int) -> int:
        place._obj.value = number
        return 0

    def cuDeviceGetName(self, buffer: Any, size: int, device: Any) -> int:
        buffer.value = self.names[device.value].encode()
        return 0

    def cuDeviceGetAttribute(self, place: Any, attribute: int, device: Any) -> int:
        place._obj.value = {75: 9, 76: 0}[attribute]
        return 0

    def cuDeviceTotalMem_v2(self, place: Any, device: Any) -> int:
        place._obj.value = 141 * 2**30
        return 0

    def cuGetErrorString(self, code: int, place: Any) -> int:
        place._obj.value = ctypes.c_char_p(b"unknown error").value
        return 0


def test_the_driver_is_asked_without_cupy() -> None:
    two: Any = Library(0, "NVIDIA H200", "NVIDIA H200")
    assert machine.ask(two) == machine.Driver(
        13000, ("NVIDIA H200, 141 GiB",) * 2, capabilities=(90, 90)
    )
    lost: Any = Library(999)
    assert machine.ask(lost) == machine.Driver(13000, (), 999, "unknown error")


WORKING = machine.Driver(13000, ("NVIDIA H200, 141 GiB",), capabilities=(90,))


@pytest.mark.parametrize(
    ("driver", "cupy", "level", "subject", "words"),
    [
        (WORKING, "13 of 13.6.0", "problem", "CuPy", "13.6.0 is installed"),
        (machine.Driver(), "", "ok", "GPU", "none here"),
        (machine.Driver(12000, (), 999, "unknown error"), "", "problem", "CUDA driver", "error 999"),
        (machine.Driver(0, (), 35, "too old"), "", "problem", "CUDA driver", "too old"),
        (WORKING, "", "problem", "CuPy", "not installed"),
        (machine.Driver(12080, WORKING.devices), "13", "problem", "CuPy", "too old for it"),
        (WORKING, "13", "problem", "CuPy", "cannot compile kernels: no libnvrtc.so.13"),
    ],
)
def test_doctor_lists_what_would_fail(
    monkeypatch: pytest.MonkeyPatch,
    driver: machine.Driver,
    cupy: str,
    level: str,
    subject: str,
    words: str,
) -> None:
    monkeypatch.setattr(diagnosis, "listed", list)
    made_for, _, release = cupy.partition(" of ")
    found = diagnosis.findings(driver, made_for, "no libnvrtc.so.13", release or "14.2.0")
    last = list(found)[-1]
    assert (last.level, last.subject) == (level, subject)
    assert words in last.message
    assert bool(last.remedy) == (level == "problem")


def test_doctor_says_when_the_system_has_gpus_that_cuda_does_not_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diagnosis, "listed", lambda: ["NVIDIA H200"])
    (found,) = diagnosis.findings(machine.Driver(reason="libcuda.so.1: cannot open"))
    assert found.level == "problem"
    assert "libcuda.so.1: cannot open" in found.message


@pytest.mark.parametrize(("capability", "words"), [(60, "6.0 is unknown"), (999, "99.9 is unknown")])
def test_doctor_says_which_devices_no_kernel_can_be_compiled_for(capability: int, words: str) -> None:
    """It is a problem if there is no other device."""
    two = replace(WORKING, devices=WORKING.devices * 2, capabilities=(capability, capability))
    for driver, level in ((replace(two, capabilities=(capability, 90)), "note"), (two, "problem")):
        found = [*diagnosis.findings(driver, "13", "", "14.2.0", [75, 80, 90])]
        wrong = [each for each in found if words in each.message]
        assert {each.level for each in wrong} == {level}
        assert [each.subject for each in wrong] == ["gpu:0", "gpu:1"][: len(wrong)]
        assert len(wrong) == (1 if level == "note" else 2)
        assert ("problem" in {each.level for each in found}) == (level == "problem")
        assert ("7.5 and newer" in wrong[0].message) == (capability < 75)
        assert "[cuda12]" in wrong[0].remedy
        assert ('at = "gpu:1"' in wrong[0].remedy) == (level == "note")


def test_doctor_names_libraries_that_are_missing_and_what_that_costs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diagnosis, "library", lambda name: None)
    monkeypatch.setattr(diagnosis, "why_not", lambda name: f"lib{name}.so: not found")
    found = {each.subject: each for each in diagnosis.findings(WORKING, "13", "", "14.2.0", [90])}
    assert found["cuDNN"].level == found["cuBLASLt"].level == "note"
    assert "several times slower" in found["cuDNN"].message
    assert "pip install" in found["cuDNN"].remedy
    assert found["gpu:0"].message == "NVIDIA H200, 141 GiB"


def test_libraries_are_looked_for_in_packages_then_wherever_the_system_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (
        "cublas/lib/libcublasLt.so.12",
        "cu13/lib/libcublasLt.so.13",
        "x/lib/libcublasLt.so.11",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("no library")
    monkeypatch.setattr(loading, "_folders", lambda: [tmp_path])
    assert loading.candidates("cublasLt") == [
        str(tmp_path / "cu13/lib/libcublasLt.so.13"),
        str(tmp_path / "cublas/lib/libcublasLt.so.12"),
        "libcublasLt.so.13",
        "libcublasLt.so.12",
    ]


# Our own CUDA sources.

SOURCES = [
    ("array.cu", "fill", ()),
    *(
        ("libraries/epilogue.cu", "add_bias", (f"-I{CUDA}", f"-DELEMENT={element}", f"-DSUM={total}"))
        for element, total in ELEMENTS.values()
    ),
]


@pytest.mark.parametrize(("path", "name", "options"), SOURCES, ids=lambda value: str(value)[-20:])
def test_sources_compile_without_a_gpu(
    path: str, name: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    source = files("demitasse_gpu").joinpath(path).read_text("utf-8")
    if nvrtc.library() is not None:
        assert nvrtc.compiled(source, name, options)
        return
    if (compiler := shutil.which("nvcc")) is None:
        pytest.skip(f"{nvrtc.NO_COMPILER}, and no nvcc")
    target = tmp_path / "kernel.ptx"
    command = [compiler, "-ptx", "-arch=sm_90", "--std=c++17", *options, "-o", str(target)]
    (tmp_path / "kernel.cu").write_text(source)
    subprocess.run([*command, str(tmp_path / "kernel.cu")], check=True, capture_output=True)
    assert name in target.read_text()
