"""Choices are remembered for the machine; a file that cannot be used or written gives one message."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
import warnings
from contextlib import closing
from pathlib import Path

import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import demitasse
from demitasse_tuning import cache as caching
from demitasse_tuning.cache import Cache, Remembered, cache_file, read
from demitasse_tuning.diagnosis import findings
from demitasse_tuning.plugin import diagnose


@pytest.fixture
def pick(bench, relu):
    """Pick between kernels a (9 ms) and b (8 ms), or others, as a new process would do."""

    def run(count=64, version="1.0", kernels=(("a", 9), ("b", 8)), **options):
        tuner = bench.tuner(**options)
        tuner._versions["fast"] = version
        with closing(tuner):
            return tuner.pick("fast", relu(count), [bench.kernel(*kernel) for kernel in kernels])[1]

    return run


TRIED, REMEMBERED = "tried: 8 ms, next 9", "remembered: 8 ms, next 9"


def test_the_file_is_in_the_users_cache_folder(cache_home, pick, monkeypatch, tmp_path):
    name = f"{demitasse.fingerprint()}.json"
    assert cache_file() == cache_home / "demitasse" / "tuning" / name
    assert pick() == TRIED
    assert cache_file().is_file()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_file() == tmp_path / ".cache" / "demitasse" / "tuning" / name
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_file() == tmp_path / ".cache" / "demitasse" / "tuning" / name


def test_a_choice_is_remembered_by_later_processes(pick, bench, caplog):
    assert pick() == TRIED
    calls = list(bench.calls)
    assert pick() == REMEMBERED
    assert pick(count=65) == TRIED
    assert pick() == REMEMBERED
    assert bench.calls[: len(calls)] == calls
    assert caplog.messages == []


def test_the_file_says_what_was_tried(pick):
    pick()
    pick(kernels=[("a", 9), ("b", 8)], count=2)
    content = json.loads(cache_file().read_text())
    key = "fast: relu(64 float32) -> (64 float32); threads 1, f32, host"
    assert (content["schema"], content["fingerprint"]) == (1, demitasse.fingerprint())
    assert content["plugins"]["fast"]["version"] == "1.0"
    entry = content["plugins"]["fast"]["choices"][key]
    assert (entry["kernel"], entry["seconds"]) == ("b", pytest.approx({"a": 0.009, "b": 0.008}))
    assert len(content["plugins"]["fast"]["choices"]) == 2
    assert sum("relu" in line for line in cache_file().read_text().splitlines()) == 2, "one a line"


def test_the_option_cache_is_a_folder_or_off(pick, tmp_path, cache_home):
    assert pick(cache=str(tmp_path / "mine")) == TRIED
    assert pick(cache=str(tmp_path / "mine")) == REMEMBERED
    assert pick(cache="off") == pick(cache="off") == TRIED
    assert not cache_home.exists()
    assert cache_file(str(tmp_path / "mine")).is_file()


def test_a_failed_kernel_is_remembered_as_such(pick, bench, relu):
    offers = [
        bench.kernel("a", 9),
        bench.kernel("b", error=demitasse.PlanError("no")),
        bench.kernel("c", 8),
    ]
    assert bench.tuner().pick("fast", relu(), offers)[0] == 2
    assert bench.tuner().pick("fast", relu(), offers) == (2, REMEMBERED)


# Files that cannot be used.


def edited(**changes):
    """Return the file's text with some values replaced."""
    return json.dumps(json.loads(cache_file().read_text()) | changes)


def with_choice(**changes):
    content = json.loads(cache_file().read_text())
    (entry,) = content["plugins"]["fast"]["choices"].values()
    entry |= changes
    return json.dumps(content)


DAMAGED = {
    "empty": lambda: "",
    "cut off": lambda: cache_file().read_text()[:-9],
    "no text": lambda: "\ud800",
    "too deep": lambda: "[" * 100_000,
    "no table": lambda: "[1]",
    "another machine": lambda: edited(fingerprint="x86_64-1-0"),
    "another schema": lambda: edited(schema=2),
    "no plugins": lambda: edited(plugins=None),
    "plugins of another form": lambda: edited(plugins={"fast": {"version": "1.0", "choices": {"k": 3}}}),
    "no version": lambda: edited(plugins={"fast": {"version": 1, "choices": {}}}),
    "seconds that are no numbers": lambda: with_choice(seconds={"a": "x", "b": 1.0}),
    "seconds that are not finite": lambda: with_choice(seconds={"a": float("nan"), "b": 1.0}),
    "seconds below zero": lambda: with_choice(seconds={"a": -1, "b": 1.0}),
    "a choice that was not tried": lambda: with_choice(kernel="c"),
}


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_a_file_that_cannot_be_used_is_said_in_one_line_and_written_anew(pick, damage, caplog):
    pick()
    cache_file().write_bytes(damage().encode("utf-8", "surrogatepass"))
    assert pick() == TRIED
    assert pick() == REMEMBERED
    (line,) = caplog.messages
    assert str(cache_file()) in line
    assert line.endswith("; ignored, and written again")
    assert "\n" not in line


def test_choices_of_another_version_are_stale(pick, caplog):
    pick()
    pick(count=2)
    assert pick(version="1.1") == TRIED
    assert pick(version="1.1") == REMEMBERED
    assert pick(count=2, version="1.1") == TRIED
    (line,) = caplog.messages
    assert "its choices are for fast 1.0, but this is 1.1; ignored, and written again" in line


def test_choices_among_other_kernels_are_stale(pick, caplog):
    pick()
    more = [("a", 9), ("b", 8), ("c", 7)]
    assert pick(kernels=more) == "tried: 7 ms, next 8"
    assert pick(kernels=more) == "remembered: 7 ms, next 8"
    assert pick(kernels=more[::-1]) == "remembered: 7 ms, next 8"
    (line,) = caplog.messages
    assert "fast offers other kernels now than those that were tried" in line


def test_choices_of_other_plugins_stay(pick, bench, relu):
    assert bench.tuner().pick("other", relu(), [bench.kernel("a", 9), bench.kernel("b", 8)])[1] == TRIED
    pick()
    pick(version="2.0")
    assert {name: known.version for name, known in read(cache_file()).items()} == {
        "other": "1",
        "fast": "2.0",
    }


# Files that cannot be written.


def test_without_a_folder_to_write_choices_stay_in_memory(bench, relu, cache_home, caplog):
    cache_home.write_text("a file is where the folder should be")
    for _ in range(2):
        tuner = bench.tuner()
        for count in (2, 3, 2):
            reason = tuner.pick("fast", relu(count), [bench.kernel("a", 9), bench.kernel("b", 8)])[1]
        assert reason == REMEMBERED
    (line,) = caplog.messages
    assert line.startswith(f"tuning cache {cache_file()}: choices cannot be saved: ")


def test_on_a_read_only_file_system_what_is_there_is_used(pick, bench, relu, caplog, monkeypatch):
    pick()

    def refuse(path, *arguments, **options):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Path, "write_text", refuse)
    tuner = bench.tuner()
    reasons = [
        tuner.pick("fast", relu(count), [bench.kernel("a", 9), bench.kernel("b", 8)])[1]
        for count in (64, 2, 3, 64, 2)
    ]
    tuner.close()
    assert reasons == [REMEMBERED, TRIED, TRIED, REMEMBERED, REMEMBERED]
    (line,) = caplog.messages
    assert line.endswith("choices cannot be saved: Read-only file system")


def test_a_write_that_fails_leaves_the_file_and_nothing_else(pick, monkeypatch):
    pick()
    before = cache_file().read_bytes()

    def refuse(path, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", refuse)
        pick(count=2)
    assert cache_file().read_bytes() == before
    assert not list(cache_file().parent.glob(".*.partial"))
    assert pick() == REMEMBERED


def test_without_a_home_nothing_is_saved(bench, relu, caplog, monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", nowhere)
    for _ in range(2):
        assert (
            bench.tuner().pick("fast", relu(), [bench.kernel("a", 9), bench.kernel("b", 8)])[1] == TRIED
        )
    assert len(caplog.messages) == 1
    (finding,) = findings()
    assert finding.level == "problem"


# Several processes.


def entry(kernel="b"):
    return Remembered(kernel, {"a": 2.0, "b": 1.0})


def test_each_keeps_what_the_other_wrote_meanwhile():
    one, other = Cache(cache_file()), Cache(cache_file())
    assert one.find("fast", "1", "first", ["a", "b"]) is None
    assert other.find("fast", "1", "second", ["a", "b"]) is None
    for cache, *about in (one, "fast", "1", "first"), (other, "fast", "1", "second"):
        cache.put(*about, entry())
        cache.save()
    one.put("slow", "2", "third", entry("a"))
    one.save()
    assert set(read(cache_file())["fast"].choices) == {"first", "second"}
    assert one.find("fast", "1", "second", ["b", "a"]) == entry()
    assert other.find("slow", "2", "third", ["b", "a"]) == entry("a")


@settings(max_examples=examples(30))
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=5),
        st.tuples(st.text(max_size=3), st.floats(0, 1e9)),
        max_size=3,
    )
)
def test_what_is_written_is_read_again(tmp_path_factory, entries):
    folder = str(tmp_path_factory.mktemp("cache"))
    choices = {
        key: Remembered(kernel, {kernel: s, "x" + kernel: None}) for key, (kernel, s) in entries.items()
    }
    for key, choice in choices.items():
        cache = Cache(cache_file(folder))
        cache.put('a "plugin"', "1", key, choice)
        cache.save()
    found = read(cache_file(folder))
    assert {key: choice for known in found.values() for key, choice in known.choices.items()} == choices


WRITER = """
import sys
from demitasse_tuning.cache import Cache, Remembered, cache_file
cache = Cache(cache_file())
sys.stdin.readline()
for i in range(15):
    cache.put("fast", "1", f"{sys.argv[1]} {i}", Remembered("a", {"a": 1.0}))
    cache.save()
"""


def test_processes_that_write_at_once_lose_nothing():
    pytest.importorskip("fcntl", reason="a system without locks may lose a choice, and makes it again")
    command = [sys.executable, "-c", WRITER]
    writers = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, text=True) for name in ("one", "two")
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.close()
    assert [writer.wait(60) for writer in writers] == [0, 0]
    names = {f"{name} {i}" for name in ("one", "two") for i in range(15)}
    assert set(read(cache_file())["fast"].choices) == names
    assert {path.suffix for path in cache_file().parent.iterdir()} == {".json", ".lock"}


# When choices are saved.


def test_choices_are_saved_soon_and_together(monkeypatch):
    monkeypatch.setattr(caching, "SOON", 0.3)
    written = []
    write = Cache._write
    monkeypatch.setattr(Cache, "_write", lambda self, path: written.append(write(self, path)))
    cache = Cache(cache_file())
    for name in ("first", "second"):
        cache.put("fast", "1", name, entry())
    assert not cache_file().exists()
    until = time.monotonic() + 20
    while not written and time.monotonic() < until:
        time.sleep(0.01)
    assert set(read(cache_file())["fast"].choices) == {"first", "second"}
    cache.put("fast", "1", "third", entry())
    cache.save()
    assert len(written) == 2
    assert len(read(cache_file())["fast"].choices) == 3


def test_what_a_runtime_chose_another_of_the_process_finds_at_once():
    one, other = Cache(cache_file()), Cache(cache_file())
    one.put("fast", "1", "first", entry())
    assert other.find("fast", "1", "first", ["a", "b"]) == entry()


@pytest.mark.parametrize("end", ["", "raise SystemExit(3)", "1 / 0", "del cache"])
def test_a_process_that_ends_without_closing_saves_its_choices(end):
    put = 'cache.put("fast", "1", "it", Remembered("a", {"a": 1.0}))'
    lines = [
        "from demitasse_tuning import cache as caching",
        "from demitasse_tuning.cache import Cache, Remembered, cache_file",
        "caching.SOON = 60",
        "cache = Cache(cache_file())",
        put,
        end,
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=False, timeout=60)
    assert set(read(cache_file())["fast"].choices) == {"it"}


def test_a_forked_process_saves_its_choices(monkeypatch):
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    monkeypatch.setattr(caching, "SOON", 0.1)
    cache = Cache(cache_file())
    cache.put("fast", "1", "before", entry())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads
        child = os.fork()
    if not child:
        cache.put("fast", "1", "there", entry())
        time.sleep(20 * caching.SOON)
        os._exit(0)  # so that only the thread can have saved it
    os.waitpid(child, 0)
    assert "there" in read(cache_file())["fast"].choices


def test_what_is_tried_without_threads_that_a_fork_has_lost_is_kept_from_others(
    bench, relu, monkeypatch
):
    """Processes that have these threads would otherwise take the choice for their own."""

    def pick(tuner, threads, *kernels):
        request = relu(threads=threads)
        return tuner.pick("fast", request, [bench.kernel(*each) for each in kernels])[1]

    def lose(lost):
        monkeypatch.setattr("demitasse_host.forks._Here.threads_lost", lost)

    lost = (("a", 5), ("b", 9))
    lose(True)
    with closing(bench.tuner()) as tuner:
        assert pick(tuner, 2, *lost) == "tried: 5 ms, next 9"
        assert pick(tuner, 2, *lost) == "remembered: 5 ms, next 9"
        assert pick(tuner, 1, *lost) == "tried: 5 ms, next 9"
    lose(False)
    with closing(bench.tuner()) as tuner:
        assert pick(tuner, 2, ("a", 5), ("b", 3)) == "tried: 3 ms, next 5"
        assert pick(tuner, 1, *lost) == "remembered: 5 ms, next 9"
    lose(True)
    with closing(bench.tuner()) as tuner:
        assert pick(tuner, 2, *lost) == "remembered: 3 ms, next 5"


# Diagnosis.


def test_doctor_says_where_the_choices_are_and_how_to_clear_them(pick):
    (finding,) = diagnose()
    assert (finding.level, finding.remedy) == ("ok", "")
    pick()
    pick(count=2)
    (finding,) = diagnose()
    assert finding.level == "ok"
    assert finding.message == f"2 choices of kernels are saved in {cache_file()}"
    assert finding.remedy == f"to try the kernels again: rm {cache_file()}"


def test_doctor_tells_a_damaged_file(pick):
    pick()
    cache_file().write_text("{")
    (finding,) = findings()
    assert (finding.level, finding.subject) == ("note", "tuning cache")
    assert "damaged" in finding.message
    assert str(cache_file()) in finding.remedy


@pytest.mark.parametrize("hindrance", ["a file in its place", "no right to write"])
def test_doctor_tells_when_choices_cannot_be_kept(cache_home, hindrance, monkeypatch):
    if hindrance == "a file in its place":
        cache_home.write_text("")
    else:
        monkeypatch.setattr("os.access", lambda path, mode: False)
    (finding,) = findings()
    assert finding.level == "problem"
    assert "XDG_CACHE_HOME" in finding.remedy


def test_nothing_is_said_twice_in_a_process(caplog):
    for about in ("reading", "reading", "writing"):
        caching.say_once("file", about, "problem")
    assert len(caplog.messages) == 2
