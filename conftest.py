"""What tests of several packages share: the toys, interrupts, and a watch on threads left behind."""

from __future__ import annotations

import gc
import lzma
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from drawn_examples import DRAWN
from hypothesis import settings
from launchers import allow


def pytest_configure() -> None:
    """A shell without job control has what it starts in the background ignore SIGINT, nohup has it
    ignore SIGHUP, and children do as their parents: those that tests interrupt would run for ever. A
    signal that is handled is the system's own matter again in a child."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda number, frame: None)
    # By hypothesis's default of 200 ms an example fails where other processes have the cores.
    settings.register_profile("demitasse", deadline=None, max_examples=DRAWN)
    settings.load_profile("demitasse")
    allow()


def pytest_collection_finish() -> None:
    """Ten thousand tests stay until the end: garbage is not looked for among them, nor as often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, 20)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes are called after their argument: packed ones have the time in them, and processes that share
    the tests must call them alike."""
    return argname if isinstance(val, bytes) else None


@pytest.fixture(scope="session", autouse=True)
def cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests remember (choices of kernels) is not what the user's runs remember."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real files."""
    from real_files import DATA

    if not DATA.is_dir():
        pytest.skip(f"no real files at {DATA}; DEMITASSE_SHARED names the folder that `data` is in")
    return DATA


@pytest.fixture(scope="session")
def unpacked_cifar(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``unpacked_cifar(name)``: a file of the real CIFAR-10, such as ``test_batch``, unpacked once for
    all processes that share the tests: that takes seconds."""
    from real_files import DATA

    import demitasse

    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def unpacked(name: str) -> Path:
        path = folder / f"{name}.bin"
        with demitasse.locked(folder / f"{name}.lock"):
            if not path.exists():
                packed = (DATA / "cifar10" / f"{name}.bin.xz").read_bytes()
                with demitasse.replacing(path) as file:
                    file.write_bytes(lzma.decompress(packed))
        return path

    return unpacked


@pytest.fixture(scope="session")
def toy() -> ModuleType:
    """The module tests/toy.py."""
    import toy

    return toy


@pytest.fixture
def no_threads_left() -> Iterator[None]:
    """Fails a test that leaves a thread behind."""
    before = set(threading.enumerate())
    yield
    left = [thread.name for thread in threading.enumerate() if thread not in before]
    assert not left, f"threads left behind: {left}"


@pytest.fixture
def threads_end() -> Iterator[None]:
    """Fails a test whose threads go on when nobody holds what they work for."""
    before = set(threading.enumerate())
    yield
    for generation in range(3):  # what nobody holds is young, mostly; all garbage takes long
        if not (left := set(threading.enumerate()) - before):
            return
        gc.collect(generation)
        for thread in left:
            thread.join(0.05)
    for thread in set(threading.enumerate()) - before:
        thread.join(5)
        assert not thread.is_alive(), f"{thread} was left behind"


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Has ``interrupted.Interrupted`` raised in the main thread, wherever it is."""
    from interrupted import Interrupted

    def handle(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handle)
    yield lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
