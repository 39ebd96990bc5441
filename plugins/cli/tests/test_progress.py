"""Progress: current rates, lines for logs, and one live line for a terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import threading
import time
from collections.abc import Callable
from typing import IO

import pytest

from demitasse import Event
from demitasse_cli import progress
from demitasse_cli.outlets import Drawing, Named, Shown
from demitasse_cli.progress import WINDOW, Lines, Live, Meter, Quiet, batches, fit, said_if_long, shown


def iteration(number: int, seconds: float = 0.5, read: float = 0.1, samples: int = 64) -> Event:
    values = {
        "loss": 2.0,
        "smoothed": 1.5,
        "rate": 0.01,
        "seconds": seconds,
        "samples": samples,
        "phases": {"read": read, "forward": seconds - read},
    }
    return Event("iteration", number, values)


def test_rates_forget_what_is_long_ago() -> None:
    meter = Meter(0, 1000)
    for number in range(1, 6):
        meter.count(iteration(number, seconds=10.0, read=10.0))
    for number in range(6, 6 + WINDOW):
        meter.count(iteration(number))
    assert meter.samples_per_second == pytest.approx(128)
    assert meter.waiting == pytest.approx(0.2)
    assert meter.overall == pytest.approx(64 * (WINDOW + 5) / (50 + 0.5 * WINDOW))


def test_before_the_first_iteration_nothing_is_known() -> None:
    meter = Meter(10, 20)
    assert (meter.samples_per_second, meter.waiting, meter.overall) == (0.0, 0.0, 0.0)
    assert meter.left == float("inf")


def test_the_time_left_is_at_the_pace_without_the_first_iterations() -> None:
    meter = Meter(0, 103)
    meter.count(iteration(1, seconds=60.0))
    assert meter.left == float("inf")
    meter.count(iteration(2, seconds=30.0))
    meter.count(iteration(3, seconds=0.5))
    assert meter.left == pytest.approx(50, rel=0.01)


def test_a_log_is_told_what_keeps_the_first_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    out = io.StringIO()
    show = Lines(Meter(0, 10), 1, out)
    show(Event("start", 0, {}))
    assert show.waiting is not None
    show.waiting.join(10)
    assert out.getvalue() == "binding kernels (the first time compiles them)\n"


def test_what_takes_long_is_said_and_what_does_not_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    out = io.StringIO()
    with said_if_long("choosing", out):
        pass
    assert out.getvalue() == ""
    with said_if_long("choosing", out):
        time.sleep(0.5)
    assert out.getvalue() == "choosing\n"
    out.close()
    with said_if_long("choosing", out):
        time.sleep(0.2)


def test_an_output_that_is_lost_meanwhile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output drops everything after its first error, so the run would continue silently."""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    with open("/dev/full", "w") as full:  # noqa: PTH123
        met = threading.Event()

        class Told(Named):
            def flush(self) -> None:
                try:
                    super().flush()
                finally:
                    met.set()

        with pytest.raises(OSError, match="No space left on device"), said_if_long("x", Told(full)):
            assert met.wait(10)


@pytest.mark.parametrize(("width", "last"), [(80, 10_000), (40, 10_000), (40, 1_000_000)])
def test_a_line_that_fits_has_what_matters_most(width: int, last: int) -> None:
    meter = Meter(0, last)
    for number in range(1, 1235):
        meter.count(iteration(number))
    place, bar, shown = fit(1234, last, meter.fields(iteration(1234).values), width)
    assert place.strip().startswith("1234")
    assert "loss 1.5" in shown
    assert "left " in shown
    assert len(f"{place} {'-' * bar} {shown}" if bar else f"{place} {shown}") <= width
    assert ("samples/s" in shown, bar > 0) == ((True, True) if width == 80 else (False, False))


def test_after_the_last_iteration_nothing_is_left() -> None:
    meter = Meter(10, 20)
    meter.count(iteration(20))
    assert meter.left == 0.0


def test_logs_have_lines_at_the_display_interval() -> None:
    out = io.StringIO()
    show = Lines(Meter(0, 10), 5, out)
    for number in range(1, 11):
        show(iteration(number))
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[0] for line in lines] == ["iteration 5", "iteration 10"]
    assert lines[1] == (
        "iteration 10  loss 1.5  rate 0.01  128 samples/s  data wait 20.0%  left 0:00:00"
    )


def test_without_an_interval_logs_have_tests_and_snapshots_only() -> None:
    out = io.StringIO()
    show = Lines(Meter(0, 10), 0, out)
    show(iteration(1))
    show(Event("test", 1, {"scores": {"accuracy": 0.5}}))
    show(Event("snapshot", 1, {"path": "a_iter_1.demitasse"}))
    assert out.getvalue().splitlines() == [
        "iteration 1  test  accuracy 0.5000",
        "iteration 1  snapshot a_iter_1.demitasse",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "term", "quiet", "kind"),
    [
        (io.StringIO(), "xterm", False, Lines),
        (Terminal(), "dumb", False, Lines),
        (Terminal(), "", False, Lines),
        (Terminal(), "xterm", True, Quiet),
    ],
)
def test_what_fits_is_shown(
    stream: io.StringIO, term: str, quiet: bool, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    assert type(shown(Meter(0, 10), 1, stream, quiet)) is kind


def test_a_launcher_s_terminal_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Open MPI's mpiexec also gives ranks a terminal when it writes to a file, which must get no control
    sequences."""
    monkeypatch.setenv("TERM", "xterm")
    assert type(shown(Meter(0, 10), 1, Terminal())) is Live
    for size in ("1", "2"):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
        monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", size)
        assert type(shown(Meter(0, 10), 1, Terminal())) is Lines


def a_training(terminal: IO[str]) -> None:
    """Show a live display of ten iterations and a test."""
    show = shown(Meter(0, 10), 5, terminal)
    assert isinstance(show, Live)
    for number in range(1, 11):
        show(iteration(number))
    show(Event("test", 10, {"scores": {"accuracy": 0.5}}))
    show.close()


def a_test_within_a_training(terminal: IO[str]) -> None:
    """Show a live display of an iteration, and of a test after it."""
    show = shown(Meter(0, 10), 5, terminal)
    show(iteration(1))
    show(Event("testing", 1, {"done": 3, "batches": 40}))
    assert isinstance(show, Live)
    show._progress.refresh()
    show(Event("test", 1, {"scores": {"accuracy": 0.5}}))
    show.close()


def three_batches(stream: IO[str]) -> None:
    """Show a test of three batches."""
    with batches(3, stream) as show:
        for number in range(1, 4):
            show.done(number)


def on_a_terminal(work: Callable[[IO[str]], None] = a_training) -> str:
    """Return what some work sends to a terminal."""
    main, child = pty.openpty()
    received: list[bytes] = []

    def receive() -> None:
        try:
            while block := os.read(main, 65536):
                received.append(block)
        except OSError:
            return  # on Linux: the other end is closed

    reader = threading.Thread(target=receive)
    reader.start()
    with open(child, "w") as terminal:  # noqa: PTH123  a descriptor has no path
        work(terminal)
    reader.join()
    os.close(main)
    return b"".join(received).decode()


def test_a_test_that_goes_on_is_told_of_until_it_has_its_scores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    text = re.sub(r"\x1b\[[\d;]*m", "", on_a_terminal(a_test_within_a_training))
    before, _, after = text.partition("iteration 1  test  accuracy 0.5000")
    assert "testing 3/40" in before
    assert "samples/s" in after
    assert "testing" not in after


def test_a_log_tells_of_a_long_test_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    log, now = io.StringIO(), [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    show = Lines(Meter(0, 10), 1, log)
    show(iteration(1))
    for second, done in ((29.0, 10), (31.0, 11), (40.0, 14), (62.0, 20)):
        now[0] = second
        show(Event("testing", 1, {"done": done, "batches": 40}))
    assert log.getvalue().splitlines()[1:] == [
        "iteration 1  testing 11/40",
        "iteration 1  testing 20/40",
    ]


def test_batches_are_counted_on_a_terminal_and_the_line_is_gone_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    text = re.sub(r"\x1b\[[\d;]*m", "", on_a_terminal(three_batches))
    assert "0/3" in text
    assert "3/3" in text
    assert text.endswith("\x1b[2K")


def test_batches_are_not_counted_in_a_log() -> None:
    log = io.StringIO()
    three_batches(log)
    assert log.getvalue() == ""


def test_a_terminal_has_one_live_line_and_permanent_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = on_a_terminal()
    assert "iteration 10  test  accuracy 0.5000\r\n" in text
    assert "10/10" in text
    assert "loss 1.5  rate 0.01" in text
    assert text.count("iteration") == 1
    # The cursor is hidden while the line changes, and shown again.
    assert text.index("\x1b[?25l") < text.rindex("\x1b[?25h")
    assert "\x1b[38;" in text


def test_a_narrow_terminal_has_one_line_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "50")
    text = on_a_terminal()
    drawn = text.rpartition("\x1b[2K")[2]
    assert drawn.startswith("10/10")
    assert "loss 1.5" in drawn
    assert drawn.count("\r\n") == 1


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "1")
    text = on_a_terminal()
    assert "10/10" in text
    assert "\x1b[3" not in text


def test_a_live_line_draws_and_obeys_no_name() -> None:
    stream = io.StringIO()
    console = Shown(stream)
    Drawing(console).write("\r\x1b[2K\x1b[1mscore \x1b]0;mine\a\x1b[0m\n")
    print("\x1b[1m", file=console)
    assert stream.getvalue() == "\r\x1b[2K\x1b[1mscore \\x1b]0;mine\\x07\x1b[0m\n\\x1b[1m\n"


def test_what_a_terminal_cannot_write_is_an_escape() -> None:
    raw = io.BytesIO()
    stream = Shown(io.TextIOWrapper(raw, "ascii", write_through=True))
    print("net \u00fc\udcff", file=stream)
    assert raw.getvalue() == b"net \\xfc\\udcff\n"
