"""PyTorch's nets, each prepared in a process of its own, which holds it until its turns come: compiling
one takes up to three minutes, mostly of one processor, and several compile beside each other."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PEERS = Path(__file__).with_name("peers.py")
AT_ONCE = 8
"""Processes that prepare beside each other."""
ROOM = 16.0
"""GiB of device memory that must be free for each that is being prepared."""
LOOK = 0.2
"""Seconds between looks at what they do."""
TURN = 60.0
"""Seconds after which a turn is given up."""

_BEGUN: list[subprocess.Popen[str]] = []
"""Processes that outlive this one, or end when nobody asks them any more."""


class Wish(NamedTuple):
    """A net in a precision, with so many images to a batch, in a setting of PyTorch's."""

    net: str
    precision: str
    batch: int
    setting: str

    def place(self, folder: Path) -> Path:
        """Where its process listens once it is prepared."""
        return folder / f"{self.net}-{self.precision}-{self.setting}"


def serve(training: Any, about: str, place: Path) -> None:
    """Run as many steps as are asked for at ``place``, and say how many seconds they took, until who
    asks goes away, or the folder does. ``about`` is said to begin with."""
    new = place.with_name(f"{place.name}.new")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(new))
        listening.listen()
        new.rename(place)
        listening.settimeout(1.0)
        while place.parent.exists():
            with contextlib.suppress(TimeoutError):
                asking, _ = listening.accept()
                with asking, asking.makefile("rw", buffering=1) as lines:
                    print(about, file=lines)
                    for line in lines:
                        print(timed(training, int(line)), file=lines)
                return


def timed(runner: Any, steps: int) -> float:
    """Seconds that some steps take, to their end."""
    start = time.perf_counter()
    runner.run(steps)
    return time.perf_counter() - start


class Held:
    """One that was prepared and waits at ``place``. Raises OSError where it does not answer."""

    def __init__(self, place: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(TURN)
        try:
            self._socket.connect(str(place))
        except OSError:
            self._socket.close()
            raise
        place.unlink()
        self._lines = self._socket.makefile("rw", buffering=1)
        seconds, memory = self._said().split()
        self.prepared, self.memory = float(seconds), int(memory)
        """The seconds that it took, and the bytes of device memory that it has had at most."""

    def timed(self, steps: int) -> float:
        """Seconds that some steps take it."""
        print(steps, file=self._lines)
        return float(self._said())

    def close(self) -> None:
        """Let it end."""
        self._lines.close()
        self._socket.close()

    def _said(self) -> str:
        if not (line := self._lines.readline()):
            raise ConnectionError("PyTorch's process has ended")
        return str(line)


def prepare(
    wishes: Sequence[Wish],
    folder: Path,
    seconds: float,
    free: Callable[[], float] | None = None,
    program: Path = PEERS,
) -> dict[str, str]:
    """Have ``program`` prepare them all, in their order, for so many seconds; why not, of those that are
    not prepared then. ``free`` says how many GiB of device memory are free."""
    end, free = time.monotonic() + seconds, free_memory if free is None else free
    waiting, begun, why = list(wishes), dict[Wish, subprocess.Popen[str]](), dict[str, str]()
    while waiting or begun:
        while waiting and len(begun) < AT_ONCE:
            if free() > ROOM * (len(begun) + 1):
                wish = waiting.pop(0)
                begun[wish] = _begin(program, wish, folder)
            elif begun:
                break  # what these leave is seen once they are prepared
            else:
                why |= {_name(wish): "no device memory was left for it" for wish in waiting}
                waiting.clear()
        time.sleep(LOOK)
        for wish, process in [*begun.items()]:
            if process.poll() is not None:
                why[_name(wish)] = _last_words(folder, wish)
            if process.poll() is not None or wish.place(folder).exists():
                del begun[wish]
        if time.monotonic() > end:
            for process in begun.values():
                process.kill()
            for wish in (*begun, *waiting):
                why[_name(wish)] = f"not prepared within {seconds:.0f} s"
            break
    return why


def _name(wish: Wish) -> str:
    return f"{wish.net} {wish.precision} {wish.setting}"


def _begin(program: Path, wish: Wish, folder: Path) -> subprocess.Popen[str]:
    """Its process, which outlives who began it, as long as the folder is there."""
    command = [sys.executable, str(program), *map(str, (*wish, folder))]
    with _words(folder, wish).open("w") as words:
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=words, text=True, start_new_session=True
        )
    _BEGUN.append(process)
    return process


def _words(folder: Path, wish: Wish) -> Path:
    return wish.place(folder).with_suffix(".err")


def _last_words(folder: Path, wish: Wish) -> str:
    return _words(folder, wish).read_text("utf-8", "replace")[-300:]


def free_memory() -> float:
    """GiB of the first GPU's memory that are free, as its driver says; none where it does not say."""
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return int(said.split()[0]) / 1024
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return 0.0
