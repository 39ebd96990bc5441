"""PyTorch's DataLoader and WebDataset, in a separate Python, which runs this file."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np

if not __package__:  # run as a file: modules are then looked for in its folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench_io.made_up import BATCH, PHOTO, PHOTOS_BATCH, SETS, Task


def loader(folder: Path, name: str, workers: int) -> Generator[Any]:
    """Yield batches of PyTorch's DataLoader over a memory-mapped array, or over photos through
    Pillow."""
    import torch

    data: Any
    if name == "photos":
        from PIL import Image

        def decoded(file: str) -> np.ndarray:
            image = Image.open(file).convert("RGB")
            return np.asarray(image.resize(PHOTO[::-1], Image.Resampling.BILINEAR)).copy()

        data = _photos(folder, decoded)
    else:
        count, shape = SETS[name]
        pixels = np.memmap(folder / f"{name}.bin", np.uint8, "r", shape=(count, *shape))

        class Pixels(torch.utils.data.Dataset):
            def __len__(self) -> int:
                return count

            def __getitem__(self, i: int) -> Any:
                return torch.from_numpy(np.array(pixels[i])), i % 1000

        data = Pixels()
    yield from _loaded(data, PHOTOS_BATCH if name == "photos" else BATCH, workers)


def opencv_loader(folder: Path, name: str, workers: int) -> Generator[Any]:
    """The same over photos, with the decoder and the resizing that the striped set uses."""
    import cv2

    cv2.setNumThreads(1)

    def decoded(file: str) -> np.ndarray:
        pixels: np.ndarray = cv2.resize(cv2.imread(file), PHOTO[::-1], interpolation=cv2.INTER_LINEAR)
        return pixels

    yield from _loaded(_photos(folder, decoded), PHOTOS_BATCH, workers)


def _photos(folder: Path, decoded: Callable[[str], np.ndarray]) -> Any:
    import torch

    files = (folder / "photos.txt").read_text().split("\n")

    class Photos(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, i: int) -> Any:
            return torch.from_numpy(decoded(files[i])), 0

    return Photos()


def _loaded(data: Any, batch: int, workers: int) -> Generator[Any]:
    import torch

    made = torch.utils.data.DataLoader(data, batch, shuffle=True, num_workers=workers, drop_last=True)
    while True:
        yield from made


def shards(folder: Path, name: str, workers: int) -> Generator[Any]:
    """Yield batches of WebDataset over tar shards, shuffled as in its documentation."""
    import torch
    import webdataset

    _, shape = SETS[name]

    def pixels(sample: dict[str, bytes]) -> Any:
        image = np.frombuffer(sample["bin"], np.uint8).reshape(shape)
        return torch.from_numpy(image.copy()), int(sample["cls"])

    urls = str(folder / f"{name}-{{0..3}}.tar")
    data = webdataset.WebDataset(urls, shardshuffle=4).shuffle(1000).map(pixels).batched(BATCH)
    made = webdataset.WebLoader(data, batch_size=None, num_workers=workers)
    while True:
        yield from made


def serve(folder: Path) -> None:
    """Report on standard output how long a peer's batches take, for lines ``KIND NAME WORKERS
    BATCHES``."""
    kinds = {"dataloader": loader, "dataloader_opencv": opencv_loader, "webdataset": shards}
    for line in sys.stdin:
        kind, name, workers, batches = line.split()
        running = kinds[kind](folder, name, int(workers))
        try:
            # Batches that workers had ready before the clock starts do not count.
            for _ in range(2 * int(workers) + 1):
                batch = next(running)
            start = time.perf_counter()
            for _ in range(int(batches)):
                batch = next(running)
            answer = {"samples": int(batches) * len(batch[0]), "seconds": time.perf_counter() - start}
        except ImportError as error:
            answer = {"missing": str(error)}
        # Otherwise workers go on preparing batches that nobody takes, on the next contender's cores.
        running.close()
        print(json.dumps(answer), flush=True)


class Peers:
    """The other Python, with a contender for each kind and number of workers."""

    def __init__(self, python: str, folder: Path) -> None:
        # Its warning: three workers on two cores exceed the recommended number. They are measured
        # anyway.
        command = [python, "-W", "ignore::UserWarning", __file__, str(folder)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def task(self, kind: str, name: str, workers: int, batches: int) -> Task | None:
        """Run a contender once, to see whether it works; None if a package is missing."""

        def work() -> tuple[int, float]:
            answer = self._ask(f"{kind} {name} {workers} {batches}")
            return answer["samples"], answer["seconds"]

        answer = self._ask(f"{kind} {name} {workers} 1")
        if "missing" in answer:
            print(f"left out: {kind}: {answer['missing']}", file=sys.stderr)
            return None
        return work

    def _ask(self, line: str) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
