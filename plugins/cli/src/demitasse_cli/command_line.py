"""Finds commands in manifests, runs one, and reports users' mistakes in one line."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stderr, redirect_stdout, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import shell_complete

import demitasse
from demitasse import (
    DemitasseError,
    PluginError,
    WorkerError,
    __version__,
    discover,
    printable,
    unknown,
)
from demitasse_cli import garbage, interrupts, launch, strangers, usage
from demitasse_cli.flags import command_first
from demitasse_cli.main import BROKEN_PIPE, INTERRUPTED
from demitasse_cli.outlets import Named, Shown

if TYPE_CHECKING:
    from demitasse import Manifest

MISTAKE = 2

ALONE: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""Raised for a command group without a sub-command. Click before 8.2 prints the help by itself."""

COMPLETE = "_DEMITASSE_COMPLETE"
"""The variable that a shell sets to ask for completions."""

CAFFES_TOOLS = {
    "device_query": "detect",
    "draw_net": "draw",
    "upgrade_net_proto_binary": "convert",
    "upgrade_net_proto_text": "convert",
    "upgrade_solver_proto_text": "convert",
}
"""For each of Caffe's tools and commands that has another name here: the command that does its work."""


class CommandLine(click.Group):
    """Commands that manifests declare. A plugin is imported when one of its commands runs."""

    @cached_property
    def manifests(self) -> tuple[Manifest, ...]:
        return discover()

    @cached_property
    def claims(self) -> dict[str, list[tuple[Manifest, str]]]:
        """Which plugins offer each command, and with what summary: this package's first, then by
        plugin."""
        found: dict[str, list[tuple[Manifest, str]]] = {}
        for manifest in sorted(self.manifests, key=lambda manifest: manifest.name != "cli"):
            offered = manifest.roles.get("commands", {}).get("commands", {})
            for name, summary in () if manifest.problem else offered.items():
                found.setdefault(name, []).append((manifest, summary))
        return found

    def list_commands(self, context: click.Context) -> list[str]:
        return list(self.claims)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return the command from the plugin that offers it. Raises a usage error if two plugins do."""
        if name not in self.claims:
            return None
        owners = [manifest for manifest, _ in self.claims[name]]
        if len(owners) > 1:
            both = " and ".join(f"{owner.name!r} ({owner.distribution})" for owner in owners)
            raise click.UsageError(
                f"the command {name!r} is claimed by the plugins {both}; uninstall one of them"
            )
        return load(owners[0], name)

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.claims and not name.startswith("-"):
            message = unknown("command", name, self.claims) + demitasse.uninstalled("commands", name)
            if name in CAFFES_TOOLS:
                message = (
                    f"unknown command {name!r}: what it does in Caffe, {CAFFES_TOOLS[name]!r} does here"
                )
            broken = [manifest.name for manifest in self.manifests if manifest.problem]
            if broken:
                message += f"; demitasse doctor says why {', '.join(broken)} cannot be used"
            raise click.UsageError(message, context)
        return super().resolve_command(context, args)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name, claims in self.claims.items():
            note = ""
            if len(claims) > 1:
                note = f" (claimed by {' and '.join(manifest.name for manifest, _ in claims)})"
            elif claims[0][0].name != "cli":
                note = f" ({claims[0][0].name})"
            rows.append((name, claims[0][1] + note))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


def load(manifest: Manifest, name: str) -> click.Command:
    """Import a plugin and return one of its commands. Raises PluginError if it does not provide it."""
    declares = f"plugin {manifest.name!r} ({manifest.distribution} {manifest.version}) declares the "
    declares += f"command {name!r} but does not provide it"
    try:
        given = importlib.import_module(manifest.module).commands()
    except (Exception, SystemExit) as error:
        raise PluginError(
            f"{declares}: {type(error).__name__}: {error}; "
            f"reinstall or uninstall {manifest.distribution}"
        ) from error
    if not isinstance(given, Mapping) or name not in given:
        raise PluginError(
            f"{declares}: its hook commands returned {given!r:.99} (valid: a table with {name!r})"
        )
    command = given[name]
    if not isinstance(command, click.Command):
        raise PluginError(
            f"plugin {manifest.name!r}: its command {name!r} is a {type(command).__name__}, "
            f"not a click command"
        )
    usage.refuse_empty(command)
    return command


def command_line() -> CommandLine:
    """Return the command with all sub-commands of installed plugins."""
    debug = click.Option(
        ["--debug"], is_flag=True, help="Show the traceback of an error; works after a command too."
    )
    group = CommandLine(
        "demitasse",
        help="Train convolutional nets on a runtime that is composed from plugins.",
        epilog="Each command has its own --help.",
        params=[debug],
        callback=_alone,
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    click.version_option(__version__, prog_name="demitasse")(group)
    return group


@click.pass_context
def _alone(context: click.Context, debug: bool) -> None:
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def run(given: list[str]) -> int:
    """Run the command line and return its exit status: 0; 1 for a finding; 2 for a mistake of the user
    or an error in a third-party plugin; 128 plus the number of a signal that ended it. Our own bugs are
    raised, for the traceback; Python then exits with 1."""
    debug = "--debug" in given
    given = command_first([argument for argument in given if argument != "--debug"])
    try:
        # Not click's own main: its exit statuses differ, and it prints more than one line.
        group = command_line()
        if instruction := os.environ.get(COMPLETE):
            return shell_complete(group, {}, "demitasse", COMPLETE, instruction)
        # Training has handlers of its own; and a process that waits in MPI runs no Python handlers.
        apart = given[:1] == ["train"] or launch.processes() > 1
        ending = nullcontext() if apart else interrupts.ended_as_interrupted()
        with (
            redirect_stdout(Named(Shown(sys.stdout))),
            redirect_stderr(Shown(sys.stderr)),
            ending,
            launch.told_once(),
            group.make_context("demitasse", [*given]) as context,
        ):
            if given[:1] != ["train"]:  # training continues to start up until its first step
                garbage.settle()
            status = group.invoke(context)
            sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except BrokenPipeError:  # the reader of our output has gone
        return BROKEN_PIPE
    except interrupts.Ended as error:
        return _say(error, error.status, once=False)
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", INTERRUPTED, once=False)
    except ALONE as error:
        click.echo(error.message)
        return 0
    except click.UsageError as error:
        # An option without its value is reported by a parser that does not know the command.
        known = given[:1] if given[:1] and given[0] in group.claims else []
        path = error.ctx.command_path if error.ctx else " ".join(["demitasse", *known])
        return _say(f"{usage.told(error, given)}; see {path} --help", MISTAKE)
    except click.ClickException as error:
        return _say(error.format_message(), error.exit_code, once=False)
    except (DemitasseError, OSError, MemoryError) as error:
        # The system's own message about a missing file or memory is clear enough without a traceback.
        if debug:
            raise
        # An error about other processes differs between processes, unless all say that they have met it;
        # an error in files may be a single host's.
        everywhere = getattr(error, "everywhere", False)
        joins = given[:1] and given[0] in launch.JOINING and not isinstance(error, WorkerError)
        return _say(_words(error), MISTAKE, once=bool(joins or everywhere), everywhere=everywhere)
    except Exception as error:
        if debug or (told := strangers.blamed(error)) is None:
            raise
        return _say(told, MISTAKE, once=False)


def _words(error: BaseException) -> str:
    """Return an error's message; for a system error about a file, without its number, with the nearest
    name."""
    if not isinstance(error, OSError) or not error.strerror or not isinstance(error.filename, str):
        from demitasse_cli import memory

        return memory.told(error)
    hint = demitasse.nearest_path(error.filename) if isinstance(error, FileNotFoundError) else ""
    return f"{error.filename}: {error.strerror}{hint}"


def _say(message: Any, status: int, once: bool = True, everywhere: bool = False) -> int:
    """Report an error in one line. With ``once``, processes that have met the same error report it once
    for all; ``everywhere`` says that all of them are known to have met it."""
    words = printable(" ".join(str(message).split()))
    with launch.said_once(words, everywhere) if once else nullcontext(launch.name()) as who:
        if who is not None:
            with suppress(OSError):  # if that is full or gone, too, only the status tells
                click.echo(f"{who}: {words}", err=True)
    return status
