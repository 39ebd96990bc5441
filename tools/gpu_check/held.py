"""PyTorch's nets, each prepared in a separate process, which holds it until its turn. Compiling one
takes up to three minutes, mostly of one processor, so several are compiled concurrently."""

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
"""How many processes prepare concurrently."""
ROOM = 16.0
"""How many GiB of device memory must be free for each net that is being prepared."""
LOOK = 0.2
"""Seconds between checks of the processes."""
TURN = 60.0
"""Seconds after which a turn is given up."""

_BEGUN: list[subprocess.Popen[str]] = []
"""Processes that may outlive this one; they end when nobody asks them any more."""


class Wish(NamedTuple):
    """A net in a precision, with a batch size and a setting of PyTorch."""

    net: str
    precision: str
    batch: int
    setting: str

    def place(self, folder: Path) -> Path:
        """Where its process listens once the net is prepared."""
        return folder / f"{self.net}-{self.precision}-{self.setting}"


def serve(training: Any, about: str, place: Path) -> None:
    """Send ``about`` to whoever connects at ``place``. Then run as many steps as requested, and report
    their seconds, until the other side disconnects or the folder is removed."""
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
    """Return the seconds that some steps take, to their end."""
    start = time.perf_counter()
    runner.run(steps)
    return time.perf_counter() - start


class Held:
    """A net that was prepared, and waits at ``place``. Raises OSError if it does not answer."""

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
        """How many seconds preparing took, and the peak of its device memory in bytes."""

    def timed(self, steps: int) -> float:
        """Let it run some steps; return its seconds."""
        print(steps, file=self._lines)
        return float(self._said())

    def close(self) -> None:
        """Let the process end."""
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
    """Have ``program`` prepare all wishes, in order, within so many seconds. Returns the reasons for
    those that are not prepared by then. ``free`` returns the free device memory in GiB."""
    end, free = time.monotonic() + seconds, free_memory if free is None else free
    waiting, begun, why = list(wishes), dict[Wish, subprocess.Popen[str]](), dict[str, str]()
    while waiting or begun:
        while waiting and len(begun) < AT_ONCE:
            if free() > ROOM * (len(begun) + 1):
                wish = waiting.pop(0)
                begun[wish] = _begin(program, wish, folder)
            elif begun:
                break  # how much memory these need is known only once they are prepared
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
    """Start its process, which outlives this one as long as the folder exists."""
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
    """Return the free memory of the first GPU in GiB, as its driver reports it; 0 if it does not."""
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        return int(said.split()[0]) / 1024
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return 0.0
