"""The driver of GPUs, on a stand-in for CuPy: what CUDA's errors become, and which calls are made."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from demitasse import CompositionError, PlanError, WorkerError
from demitasse_gpu import compiled, cupy_driver, problems
from demitasse_gpu.cupy_driver import CupyDriver
from demitasse_gpu.device import Device
from demitasse_gpu.pool import PinnedPool, Pool

TOLD = {
    "name": b"NVIDIA H200",
    "major": 9,
    "minor": 0,
    "totalGlobalMem": 2**37,
    "multiProcessorCount": 132,
}


class CudaError(RuntimeError):
    """As CuPy's: the run-time's number, with its name and text as the message."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


DRIVERS = ("moduleLoadData", "moduleGetFunction", "funcSetAttribute", "launchKernel")
"""Calls of CUDA's driver rather than of its run-time, which makes the device's context current in a
thread."""


class Runtime(SimpleNamespace):
    """CuPy's run-time and driver: records the calls, and fails where it is told to. As in CUDA, a new
    thread reports device 0, and has no context, so that calls of the driver fail, before the first call
    of the run-time."""

    def __init__(self) -> None:
        constants = {"hostAllocPortable": 1, "streamNonBlocking": 1, "eventDefault": 0}
        super().__init__(
            **constants, streamCaptureModeThreadLocal=1, cudaDevAttrMaxSharedMemoryPerBlockOptin=97
        )
        self.calls: list[tuple[Any, ...]] = []
        self.current = threading.local()
        self.errors: dict[str, CudaError] = {}
        self.answers: dict[str, Any] = {
            "getDeviceProperties": TOLD,
            "deviceGetAttribute": 232448,
            "driverGetVersion": 13000,
            "getDeviceCount": 1,
            "memGetInfo": (2**30, 2**37),
            "eventQuery": 600,
            "eventElapsedTime": 1500.0,
        }

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            if name == "getDevice":
                return getattr(self.current, "device", 0)
            if name == "setDevice":
                self.current.device = arguments[0]
            self.calls.append((name, *arguments))
            if name in DRIVERS and not hasattr(self.current, "device"):
                raise CudaError(201, "CUDA_ERROR_INVALID_CONTEXT: invalid device context")
            if name in self.errors:
                raise self.errors[name]
            return self.answers.get(name, 4096)

        return call


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Runtime:
    """An installed CuPy, as far as the driver uses it."""
    made = Runtime()
    modules = {
        name: ModuleType(name)
        for name in (
            "cupy",
            "cupy.cuda",
            "cupy_backends",
            "cupy_backends.cuda",
            "cupy_backends.cuda.libs",
        )
    }
    modules["cupy.cuda"].runtime = made  # type: ignore[attr-defined]
    modules["cupy.cuda"].driver = made  # type: ignore[attr-defined]
    modules["cupy"].__version__ = "14.2.0"  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return made


ERRORS = [
    (2, "cudaErrorMemoryAllocation: out of memory", MemoryError, "use a smaller batch"),
    (35, "cudaErrorInsufficientDriver: too old", CompositionError, "update it, or pip install"),
    (100, "cudaErrorNoDevice: no device", CompositionError, "nvidia-smi lists the devices"),
    (46, "cudaErrorDevicesUnavailable: busy", WorkerError, "end that process, or choose another device"),
    (214, "cudaErrorECCUncorrectable: uncorrectable", WorkerError, "the device was lost"),
    (719, "cudaErrorLaunchFailure: unspecified", WorkerError, "continue from the last snapshot"),
    (700, "cudaErrorIllegalAddress: illegal access", WorkerError, "CUDA_LAUNCH_BLOCKING=1"),
    (999, "cudaErrorUnknown: unknown error", WorkerError, "continue from the last snapshot"),
    (209, "cudaErrorNoKernelImageForDevice: no image", PlanError, "delete the cache of kernels"),
    (701, "cudaErrorLaunchOutOfResources: too many", PlanError, "more than this device has"),
    (400, "cudaErrorInvalidResourceHandle: invalid", WorkerError, "demitasse doctor"),
]


@pytest.mark.parametrize(
    ("code", "words", "kind", "remedy"), ERRORS, ids=[e[1].split(":")[0] for e in ERRORS]
)
def test_an_error_is_one_line_that_says_where_what_and_what_to_do(
    runtime: Runtime, code: int, words: str, kind: type[Exception], remedy: str
) -> None:
    driver = CupyDriver(0)
    runtime.errors["streamSynchronize"] = CudaError(code, words)
    with pytest.raises(kind) as raised:
        driver.synchronise(1)
    told = str(raised.value)
    assert told.startswith(f"gpu:0: synchronise: {words}; ")
    assert remedy in told
    assert "\n" not in told


def test_cupy_that_cannot_be_loaded_is_told_by_its_cause() -> None:
    rule = "=" * 64
    told = str(
        problems.no_cupy(
            f"\n{rule}\nFailed to import CuPy.\n\nIf you installed CuPy via wheels, make\n\n"
            f"Original error:\n  ImportError: libcuda.so.1: cannot open shared object file\n{rule}\n"
        )
    )
    assert told.startswith("the gpu plugin needs CuPy: ImportError: libcuda.so.1: cannot open")
    assert "\n" not in told


def test_an_error_that_is_none_of_cudas_stays_as_it_is(runtime: Runtime) -> None:
    driver = CupyDriver(0)
    runtime.streamSynchronize = lambda stream: (_ for _ in ()).throw(RuntimeError("of somebody else"))
    with pytest.raises(RuntimeError, match=r"^of somebody else$"):
        driver.synchronise(1)


def test_a_driver_that_is_too_old_is_found_when_the_device_is_opened(runtime: Runtime) -> None:
    runtime.errors["setDevice"] = CudaError(35, "cudaErrorInsufficientDriver: too old")
    with pytest.raises(CompositionError, match=r"gpu:1: properties: .*update it"):
        CupyDriver(1)


def test_cupy_that_is_missing_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    with pytest.raises(CompositionError, match=r"needs CuPy: .*demitasse-gpu\[cuda13\]"):
        CupyDriver(0)


@pytest.mark.parametrize(
    ("version", "taken"), [("13.6.0", False), ("14.0.1", False), ("14.1.0rc1", True)]
)
def test_a_cupy_with_which_a_step_may_wait_for_ever_is_not_taken(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, version: str, taken: bool
) -> None:
    monkeypatch.setattr(sys.modules["cupy"], "__version__", version)
    if taken:
        CupyDriver(0)
        return
    with pytest.raises(
        CompositionError, match=r"^[^\n]*valid: 14\.1 or newer[^\n]*pip install[^\n]*$"
    ) as raised:
        CupyDriver(0)
    assert version in str(raised.value)


def test_out_of_memory_gives_kept_memory_back_first_then_says_what_is_free(runtime: Runtime) -> None:
    driver = CupyDriver(0)
    pool = Pool(driver, 1)
    pool.take(1000).close()
    runtime.errors["malloc"] = CudaError(2, "cudaErrorMemoryAllocation: out of memory")
    with pytest.raises(MemoryError, match=rf"free: {2**30:,} of {2**37:,} \(0 are this process's own\)"):
        pool.take(2**33)
    assert ("free", 4096) in runtime.calls


class Trainer:
    """Refers to itself, and to memory."""

    def __init__(self, held: object) -> None:
        self.held, self.own = held, self


def test_memory_of_what_was_dropped_is_found_before_any_is_missed(runtime: Runtime) -> None:
    """A reference cycle is freed by Python's next collection, which a lack of device memory does not
    start."""
    pool, pinned = Pool(CupyDriver(0), 1), PinnedPool(CupyDriver(0))
    gc.collect()
    gc.disable()
    try:
        Trainer((pool.take(1000), pinned.take(1000)))
        runtime.calls.clear()
        for name in ("malloc", "hostAlloc"):
            runtime.errors[name] = CudaError(2, "cudaErrorMemoryAllocation: out of memory")
        with pytest.raises(MemoryError, match="0 are this process's own"):
            pool.take(2**33)
        with pytest.raises(MemoryError, match="use a smaller batch"):
            pinned.take(2**33)
    finally:
        gc.enable()
    assert [call[0] for call in runtime.calls if call[0].startswith("free")] == ["free", "freeHost"]


def test_who_asks_a_device_chooses_it_first(runtime: Runtime) -> None:
    """At every call: another library may have selected another device in the thread meanwhile."""
    runtime.answers["getDeviceCount"] = 0
    first, second = CupyDriver(0), CupyDriver(1)
    runtime.calls.clear()
    first.memory()
    second.memory()
    runtime.setDevice(1)  # another library's
    first.memory()
    assert runtime.calls == [
        *(("setDevice", 0), ("memGetInfo",), ("setDevice", 1), ("memGetInfo",)),
        *(("setDevice", 1), ("setDevice", 0), ("memGetInfo",)),
    ]


@pytest.mark.parametrize("begins_with", ["function", "launch"])
def test_a_new_thread_has_a_context_before_the_driver_is_called(
    runtime: Runtime, begins_with: str
) -> None:
    """It reports device 0 before it has one."""
    driver = CupyDriver(0)
    cubin = SimpleNamespace(image=lambda *asked: b"machine code")
    driver._modules.clear()
    found: list[Any] = []

    def begin() -> None:
        try:
            if begins_with == "launch":
                driver.launch(1, (1, 1, 1), (1, 1, 1), [np.int32(1)], 2**17, 7)
            else:
                driver._compiler = lambda: "13.0"  # type: ignore[method-assign]
                driver.function("source", "kernel")
        except Exception as error:  # noqa: BLE001 - looked at below
            found.append(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cupy_driver, "CompiledKernels", lambda *asked: cubin)
        thread = threading.Thread(target=begin)
        thread.start()
        thread.join()
    assert found == []
    asked = {name for name, *_ in runtime.calls}
    assert asked.issuperset(DRIVERS[:2] if begins_with == "function" else DRIVERS[2:])


def test_devices_that_a_process_drives_reach_each_other_where_they_can(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other devices are left alone: a context on each would take some of its memory."""
    monkeypatch.setattr(cupy_driver, "_DRIVEN", set())
    runtime.answers |= {"getDeviceCount": 8, "deviceCanAccessPeer": 1}
    CupyDriver(1)
    named = "setDevice", "deviceEnablePeerAccess"
    assert {call for call in runtime.calls if call[0] in named} == {("setDevice", 1)}
    runtime.calls.clear()
    CupyDriver(5)
    assert [call for call in runtime.calls if call[0] in named][-5:] == [
        *(("setDevice", 5), ("deviceEnablePeerAccess", 1)),
        *(("setDevice", 1), ("deviceEnablePeerAccess", 5)),
        ("setDevice", 5),
    ]
    for status in (46, 217, 704, 711):
        runtime.errors["deviceEnablePeerAccess"] = CudaError(status, "cudaError: copies go by the host")
        CupyDriver(1)
    runtime.errors["deviceEnablePeerAccess"] = CudaError(719, "cudaErrorLaunchFailure: lost")
    with pytest.raises(WorkerError, match="lost"):
        CupyDriver(1)


def test_a_device_says_what_it_is(runtime: Runtime) -> None:
    told = CupyDriver(0).properties
    assert (told.name, told.capability, told.memory) == ("NVIDIA H200", (9, 0), 2**37)
    assert (told.multiprocessors, told.shared_memory, told.driver) == (132, 232448, 13000)


def test_arguments_of_a_launch_are_read_by_their_addresses(runtime: Runtime) -> None:
    seen: list[Any] = []

    def launch(function: int, *rest: Any) -> None:
        *extents, shared, stream, parameters, extra = rest
        places = (ctypes.c_void_p * 3).from_address(parameters)
        seen.append((function, extents, shared, stream, extra))
        seen.append(ctypes.c_uint64.from_address(places[0]).value)
        seen.append(ctypes.c_int32.from_address(places[1]).value)
        seen.append(ctypes.c_double.from_address(places[2]).value)

    runtime.launchKernel = launch
    driver = CupyDriver(0)
    driver.launch(11, (2, 3, 4), (5, 6, 7), (2**40, np.int32(-5), np.float64(0.1)), 0, 9)
    assert seen == [(11, [2, 3, 4, 5, 6, 7], 0, 9, 0), 2**40, -5, 0.1]
    runtime.calls.clear()
    driver.launch(11, (1, 1, 1), (1, 1, 1), (0, np.int32(0), np.float64(0)), 100_000, 9)
    assert ("funcSetAttribute", 11, 8, 100_000) in runtime.calls


def test_events_tell_the_time_in_seconds_and_whether_they_were_reached(runtime: Runtime) -> None:
    driver = CupyDriver(0)
    assert driver.seconds_between(1, 2) == 1.5
    assert not driver.reached(1)
    runtime.answers["eventQuery"] = 0
    assert driver.reached(1)
    runtime.answers["eventQuery"] = 700
    runtime.errors["check_status"] = CudaError(700, "cudaErrorIllegalAddress: illegal access")
    with pytest.raises(WorkerError, match="gpu:0: reached: cudaErrorIllegalAddress"):
        driver.reached(1)


def test_a_graph_is_made_of_what_was_captured_which_is_then_forgotten(runtime: Runtime) -> None:
    runtime.answers |= {"streamEndCapture": 5, "graphInstantiate": 6}
    driver = CupyDriver(0)
    runtime.calls.clear()
    driver.begin_capture(3)
    assert driver.end_capture(3) == 6
    driver.launch_graph(6, 3)
    driver.end_graph(6)
    driver.synchronise(3)
    assert [call for call in runtime.calls if "raph" in call[0] or "Capture" in call[0]] == [
        ("streamBeginCapture", 3, 1),
        ("streamEndCapture", 3),
        ("graphInstantiate", 5),
        ("graphDestroy", 5),
        ("graphLaunch", 6, 3),
        ("graphExecDestroy", 6),
    ]


def test_what_is_forgotten_is_ended_by_a_thread_that_waits(runtime: Runtime) -> None:
    """It may be dropped in a thread of CUDA's that calls back, or while a graph is captured; neither may
    destroy anything."""
    driver = CupyDriver(0)
    runtime.calls.clear()
    driver.end_event(7)
    driver.end_graph(8)
    driver.later(runtime.check_status, 6)
    assert runtime.calls == []
    ended: list[tuple[Any, ...]] = [("eventDestroy", 7), ("graphExecDestroy", 8), ("check_status", 6)]
    driver.synchronise(3)
    assert runtime.calls == [("setDevice", 0), ("streamSynchronize", 3), *ended]
    runtime.calls.clear()
    driver.synchronise(3)
    assert runtime.calls == [("setDevice", 0), ("streamSynchronize", 3)]
    driver.end_event(9)
    runtime.calls.clear()
    driver.wait(5)
    assert runtime.calls == [("setDevice", 0), ("eventSynchronize", 5), ("eventDestroy", 9)]


class Nvrtc(ModuleType):
    """CuPy's binding of the compiler."""

    class NVRTCError(RuntimeError):
        pass

    def __init__(self) -> None:
        super().__init__("nvrtc")
        self.compilations: list[tuple[str, ...]] = []
        self.log = self.missing = ""
        self.version = 13, 0

    def getVersion(self) -> tuple[int, int]:
        if self.missing:
            raise RuntimeError(self.missing)
        return self.version

    def createProgram(self, source: str, name: str, headers: Any, names: Any) -> str:
        return source

    def compileProgram(self, program: str, options: Any) -> None:
        self.compilations.append(tuple(options))
        if self.log:
            raise self.NVRTCError("compilation")

    def getProgramLog(self, program: str) -> str:
        return self.log

    def getCUBIN(self, program: str) -> bytes:
        return program.encode()

    def destroyProgram(self, program: str) -> None:
        self.destroyed = program


@pytest.fixture
def nvrtc(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> Nvrtc:
    made = Nvrtc()
    monkeypatch.setattr(sys.modules["cupy_backends.cuda.libs"], "nvrtc", made, raising=False)
    return made


def test_a_kernel_is_compiled_once_for_its_device_and_kept_for_other_processes(
    runtime: Runtime, nvrtc: Nvrtc, tmp_path: Path
) -> None:
    for driver in (CupyDriver(0), CupyDriver(0)):
        for name in ("f", "g", "f"):
            driver.function("source", name, ("-DN=3",))
    assert nvrtc.compilations == [("--std=c++17", "--gpu-architecture=sm_90", "-DN=3")]
    assert len(list((tmp_path / "demitasse" / "gpu").iterdir())) == 1
    assert [call[2] for call in runtime.calls if call[0] == "moduleGetFunction"] == ["f", "g"] * 2
    CupyDriver(0).function("source", "f", ("-DN=4",))
    assert len(nvrtc.compilations) == 2
    nvrtc.version = 12, 8  # another node's, with an older driver and the same home
    CupyDriver(0).function("source", "f", ("-DN=4",))
    assert len(nvrtc.compilations) == 3


def test_a_kernel_is_compiled_again_when_a_header_changes(
    runtime: Runtime, nvrtc: Nvrtc, tmp_path: Path
) -> None:
    header = tmp_path / "numbers.cuh"
    for text in ("int a;", "int a;", "int b;"):
        header.write_text(text)
        CupyDriver(0).function("source", "f", (f"-I{tmp_path}",))
    assert len(nvrtc.compilations) == 2


def test_source_that_does_not_compile_is_told_by_its_first_error(runtime: Runtime, nvrtc: Nvrtc) -> None:
    nvrtc.log = "f.cu(1): warning\nf.cu(3): error: identifier x is undefined\nf.cu(9): error: another"
    with pytest.raises(PlanError) as raised:
        CupyDriver(0).function("source", "f")
    words = "gpu:0: kernel 'f' does not compile here: f.cu(3): error: identifier x is undefined"
    assert str(raised.value) == words
    assert nvrtc.destroyed == "source"


def test_a_device_that_the_compiler_does_not_know_is_told_with_what_to_install(
    runtime: Runtime, nvrtc: Nvrtc
) -> None:
    runtime.answers["getDeviceProperties"] = {**TOLD, "name": b"Tesla P100", "major": 6, "minor": 0}
    nvrtc.log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n"  # NVRTC 13.5's message
    with pytest.raises(PlanError, match=r"^gpu:0: compute capability 6\.0 is unknown") as raised:
        CupyDriver(0).function("source", "f")
    assert "demitasse-gpu[cuda12]" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_damaged_machine_code_is_made_anew(runtime: Runtime, nvrtc: Nvrtc, tmp_path: Path) -> None:
    CupyDriver(0).function("source", "f")
    (kept,) = (tmp_path / "demitasse" / "gpu").iterdir()
    whole = kept.read_bytes()
    for damaged in (b"", whole[:-1], whole[:-1] + b"E", b"\0" + whole[1:], whole):
        kept.write_bytes(damaged)
        CupyDriver(0).function("source", "f")
        assert kept.read_bytes() == whole
    assert len(nvrtc.compilations) == 5
    assert {call[1] for call in runtime.calls if call[0] == "moduleLoadData"} == {b"source"}


def test_a_user_without_a_home_has_kernels_compiled(
    runtime: Runtime, nvrtc: Nvrtc, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless(name: str) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(compiled, "cache_folder", homeless)
    CupyDriver(0).function("source", "f")
    assert len(nvrtc.compilations) == 1


def test_a_compiler_that_is_missing_is_told_in_a_line(runtime: Runtime, nvrtc: Nvrtc) -> None:
    nvrtc.missing = 'Failure finding "libnvrtc.so.13": No such file: libnvrtc.so.13\n'
    with pytest.raises(CompositionError, match=r"^gpu:0: CuPy finds no NVRTC .*pip install") as raised:
        CupyDriver(0).function("source", "f")
    assert "\n" not in str(raised.value)


def test_a_cache_that_cannot_be_written_costs_time_only(
    runtime: Runtime, nvrtc: Nvrtc, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(compiled, "cache_folder", lambda name: tmp_path / "file" / "gpu")
    for _ in range(2):
        CupyDriver(0).function("source", "f")
    assert len(nvrtc.compilations) == 2


def test_a_device_has_a_stream_of_its_own(runtime: Runtime) -> None:
    device = Device(CupyDriver(0))
    assert ("streamCreateWithFlags", 1) in runtime.calls
    assert (device.space, device.stream) == ("gpu:0", 4096)


def test_every_remedy_is_one_line() -> None:
    for code in range(1000):
        told = str(problems.explained(code, "words", "doing", "gpu:0"))
        assert told.startswith("gpu:0: doing: words; ")
        assert "\n" not in told
