"""``--until`` stops a training at a test score."""

from __future__ import annotations

from typing import Any

import click
import pytest

from demitasse import ModelError
from demitasse_cli.main import main
from demitasse_cli.until import Until


@pytest.mark.parametrize(
    ("text", "scores", "done"),
    [
        ("accuracy>=0.99", {"accuracy": 0.99}, True),
        ("accuracy > 0.99", {"accuracy": 0.99}, False),
        ("loss<1e-3", {"loss": 0.0005, "accuracy": 0.1}, True),
        (" loss <= -.5 ", {"loss": 0.0}, False),
        ("1.accuracy>=0.5", {"1.accuracy": 0.75}, True),
    ],
)
def test_a_score_is_compared(text: str, scores: dict[str, float], done: bool) -> None:
    assert Until.parse(text)(scores) is done


@pytest.mark.parametrize("text", ["accuracy", "accuracy=0.9", ">=0.9", "accuracy>=", "accuracy>=0.9.1"])
def test_what_is_no_comparison_is_told_with_what_is(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"like 'accuracy>=0\.99'"):
        Until.parse(text)


def test_a_score_that_no_net_has_is_told_with_those_that_there_are() -> None:
    with pytest.raises(ModelError, match=r"'acuracy'.*did you mean 'accuracy'"):
        Until.parse("acuracy>=0.9")({"accuracy": 0.5, "loss": 1.0})
    with pytest.raises(ModelError, match="list of 3 numbers"):
        Until.parse("accuracy>=0.9")({"accuracy": [0.1, 0.2, 0.3]})


def test_a_run_ends_at_the_score(runtime: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def prepare(trainer: Any) -> None:
        trainer.solver.tests, trainer.solver.test_interval = ["net"], 2

    runtime.prepare = prepare
    assert main(["train", "s.prototxt", "--until", "accuracy>=0.5"]) == 0
    assert "done: 2 iterations" in capsys.readouterr().out


def test_without_tests_there_is_nothing_to_wait_for(
    runtime: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare(trainer: Any) -> None:
        trainer.solver.tests, trainer.solver.test_interval = [], 0

    runtime.prepare = prepare
    assert main(["train", "s.prototxt", "--until", "accuracy>=0.5"]) == 2
    assert "test_interval" in capsys.readouterr().err
