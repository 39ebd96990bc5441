"""Caffe's command-line flags, with one dash or two, so that scripts for Caffe run unchanged."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

SWITCHES = ("logtostderr", "alsologtostderr", "colorlogtostderr", "log_prefix")
LOGGING = (*SWITCHES, "log_dir", "minloglevel", "stderrthreshold", "v", "vmodule", "logbufsecs")
"""Flags of Caffe's logging library: accepted, but without effect unless a command has such an option."""

OFF = ("=0", "=false", "=no", "=f", "=n")
"""Values that turn such a switch off."""

EFFECTS = ("stop", "snapshot", "none")
PHASES = ("TRAIN", "TEST")

_COMMANDS = ("train", "test", "time")
_FIRST = re.compile(r"--?(solver|model|weights|snapshot|iterations|gpu|phase|level|stage)(=.*)?")
_FLAG = re.compile(r"(--?)([A-Za-z][\w-]*)(=.*)?", re.DOTALL)


class FlagCommand(click.Command):
    """A command whose options may also be written as Caffe's are: ``-solver=FILE``, ``-gpu 0``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse after converting every flag to the form in which options are declared."""
        options = {name: each for each in self.get_params(ctx) for name in each.opts}
        return super().parse_args(ctx, _spelled(args, options))


def _spelled(args: Sequence[str], options: dict[str, click.Parameter]) -> list[str]:
    result: list[str] = []
    waiting = iter(args)
    for word in waiting:
        match = _FLAG.fullmatch(word)
        if word == "--":
            return [*result, word, *waiting]
        if match is None or (match[1] == "-" and len(match[2]) == 1 and word in options):
            result.append(word)
            continue
        name, value = match[2], match[3]
        dashed = f"--{name.replace('_', '-')}"
        if name in SWITCHES and value is not None:
            if value.lower() in OFF or dashed not in options:
                continue
            value = None
        if name in LOGGING and dashed not in options:
            if name not in SWITCHES and value is None:
                next(waiting, None)
            continue
        option = dashed if dashed in options else f"--{name}"
        result.append(option + (value or ""))
        known = options.get(option)
        if value is None and isinstance(known, click.Option) and not known.is_flag:
            result.extend(each for each in [next(waiting, None)] if each is not None)
    return result


def command_first(given: Sequence[str]) -> list[str]:
    """Move the command in front of its flags: Caffe also accepts flags before the command."""
    if given and _FIRST.fullmatch(given[0]):
        for number, word in enumerate(given):
            if word in _COMMANDS:
                return [word, *given[:number], *given[number + 1 :]]
    return list(given)


def state_options(function: F) -> F:
    """Add --phase, --level and --stage."""
    for option in (
        click.option("--stage", metavar="A,B", help="The stages for layers' include and exclude rules."),
        click.option(
            "--level",
            type=int,
            metavar="N",
            help="The level for layers' include and exclude rules.",
        ),
        click.option(
            "--phase",
            type=click.Choice(PHASES, case_sensitive=False),
            help="The net's phase; the commands train and test have their own.",
        ),
    ):
        function = option(function)
    return function


def gpu_option(function: F) -> F:
    """Add --gpu, which has no effect."""
    return click.option(
        "--gpu",
        metavar="IDS",
        help="Accepted for Caffe's scripts, but has no effect: --hw says where nets run.",
    )(function)


def log_options(function: F) -> F:
    """Add --log-dir and --logtostderr; the environment variables that glog reads also set them."""
    for option in (
        click.option(
            "--logtostderr",
            "--alsologtostderr",
            "log_to_stderr",
            is_flag=True,
            envvar=["GLOG_logtostderr", "GLOG_alsologtostderr"],
            help="Write Caffe's log to standard error, instead of the progress.",
        ),
        click.option(
            "--log-dir",
            type=click.Path(file_okay=False, path_type=Path),
            envvar="GLOG_log_dir",
            metavar="FOLDER",
            help="Write Caffe's log to FOLDER, as caffe.INFO.",
        ),
    ):
        function = option(function)
    return function


def logs(log_dir: Path | None, log_to_stderr: bool) -> list[str]:
    """Return where Caffe's log is to go, as options of the plugin that writes it; empty if not
    requested."""
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)
    return [*(["-"] if log_to_stderr else []), *([str(log_dir)] if log_dir is not None else [])]


def effect_options(function: F) -> F:
    """Add --sigint-effect and --sighup-effect."""
    for name, what in (("sighup", "A hangup (SIGHUP)"), ("sigint", "Ctrl-C (SIGINT)")):
        function = click.option(
            f"--{name}-effect",
            type=click.Choice(EFFECTS),
            default="stop",
            show_default=True,
            help=f"{what} saves a snapshot and stops, saves one and goes on, or does nothing.",
        )(function)
    return function


def named(argument: Path | None, flag: Path | None, name: str) -> Path:
    """Return the file that the argument or the flag names. Raises click's UsageError unless exactly one
    does."""
    if argument is not None and flag is not None and argument != flag:
        raise click.UsageError(f"two files are given, {argument} and --{name} {flag}; leave one out")
    path = argument if argument is not None else flag
    if path is None:
        raise click.UsageError(f"{name.upper()} is missing", click.get_current_context())
    return path


def state(level: int | None, stage: str | None, at: str, level_at: str | None = None) -> dict[str, Any]:
    """Return the overrides that set level and stages in the state of a net, whose field is ``at``."""
    given: dict[str, Any] = {}
    if level is not None:
        given[f"{level_at or at}.level"] = level
    if stage is not None:
        given[f"{at}.stage"] = [each.strip() for each in stage.split(",") if each.strip()]
    return given


def tell_without_effect(gpu: str | None, phase: str | None = None, fixed: str | None = None) -> None:
    """Print a line on standard error for each flag that is accepted but has no effect."""
    if gpu is not None:
        click.echo(
            f"demitasse: --gpu {gpu} has no effect: the composition decides which device runs "
            f"(--hw, --plugins)",
            err=True,
        )
    if phase is not None and fixed is not None and phase != fixed:
        click.echo(f"demitasse: --phase {phase} has no effect: this runs in phase {fixed}", err=True)
