"""PyTorch's nets wait in processes of their own until their turns come."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[3] / "tools" / "gpu_check"
sys.path.insert(0, str(TOOL))

import held  # noqa: E402
from held import Held, Wish  # noqa: E402

PROGRAM = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(TOOL)!r})
from held import Wish, serve
class Sleeping:
    def run(self, steps):
        if steps == 99:
            raise ValueError("no such step")
        time.sleep(steps * 1e-3)
net, precision, batch, setting, folder = sys.argv[1:]
if net == "bad":
    raise SystemExit("this net is bad")
if net == "stuck":
    time.sleep(60)
serve(Sleeping(), f"2.5 {{batch}}", Wish(net, precision, int(batch), setting).place(Path(folder)))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "peer.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder in which nets wait. Once it is gone, none of them waits any more."""
    made = tmp_path / "held"
    made.mkdir()
    yield made
    shutil.rmtree(made, ignore_errors=True)
    while held._BEGUN:
        held._BEGUN.pop().wait(20)


def test_turns_are_taken_and_timed(program: Path, folder: Path) -> None:
    wishes = [Wish("lenet", "f32", 64, setting) for setting in ("eager", "compiled")]
    assert held.prepare(wishes, folder, 30, lambda: 100.0, program) == {}
    peers = [Held(wish.place(folder)) for wish in wishes]
    assert [(peer.prepared, peer.memory) for peer in peers] == [(2.5, 64)] * 2
    for steps in (3, 20):
        assert all(steps * 1e-3 <= peer.timed(steps) < 5 for peer in peers)
    with pytest.raises(OSError):
        peers[0].timed(99)
    for peer in peers:
        peer.close()
    with pytest.raises(OSError):
        Held(wishes[0].place(folder))


def test_why_one_is_not_prepared_is_said(program: Path, folder: Path) -> None:
    wishes = [Wish(net, "f32", 1, "eager") for net in ("bad", "good", "stuck")]
    why = held.prepare(wishes, folder, 5, lambda: 100.0, program)
    assert why.pop("bad f32 eager").strip() == "this net is bad"
    assert why == {"stuck f32 eager": "not prepared within 5 s"}
    Held(wishes[1].place(folder)).close()


def test_no_more_are_prepared_than_memory_is_for(program: Path, folder: Path) -> None:
    free = [100.0, 40.0, 40.0, 10.0]
    wishes = [Wish(net, "f32", 1, "eager") for net in "abc"]

    def left() -> float:
        return free.pop(0) if len(free) > 1 else free[0]

    why = held.prepare(wishes, folder, 30, left, program)
    assert why == {"c f32 eager": "no device memory was left for it"}
    assert {path.name for path in folder.glob("?-f32-eager")} == {"a-f32-eager", "b-f32-eager"}


def test_one_that_nobody_asks_ends_with_its_folder(program: Path, folder: Path) -> None:
    wish = Wish("lenet", "f32", 64, "eager")
    process = held._begin(program, wish, folder)
    end = time.monotonic() + 20
    while not wish.place(folder).exists():
        assert time.monotonic() < end
        time.sleep(0.05)
    shutil.rmtree(folder)
    assert process.wait(20) == 0


def test_large_nets_are_compiled_again_for_graphs_when_that_is_asked_for_and_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(TOOL.parent))
    import race

    wished: list[list[Wish]] = []
    monkeypatch.setattr(race.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(race.held, "prepare", lambda wishes, *_: wished.append([*wishes]))
    for graphs in (False, True):
        monkeypatch.setattr(race, "asked", race.Asked(folder=tmp_path, graphs=graphs))
        list(race.preparing(60.0, False, frozenset()))
    without, with_graphs = wished
    assert with_graphs[: len(without)] == without
    assert {wish.setting for wish in with_graphs[len(without) :]} == {"reduce-overhead"}
    assert {wish[:3] for wish in with_graphs[len(without) :]} == set(race.BIG)
