"""Options that several commands share, and the runtime that they describe."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from demitasse import Runtime

F = TypeVar("F", bound=Callable[..., Any])

PRECISIONS = ("f32", "tf32", "bf16", "f64")

file = click.Path(dir_okay=False, path_type=Path)
"""A file that may not be there: the runtime says so, and names the nearest."""

named = click.Path(readable=False)
"""A file's name as it is given, or a word in its place: shells complete it."""


class _Machine(click.Path):
    """A description's file, or the name of one: shells complete both."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from demitasse import described_machines

        known = [name for name in ("auto", *described_machines()) if name.startswith(incomplete)]
        return [*map(CompletionItem, known), *super().shell_complete(ctx, param, incomplete)]


machine = _Machine(readable=False)


def setting(text: str) -> tuple[str, str]:
    """``KEY=VALUE`` as a pair. Raises click's BadParameter."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


def plugin_setting(text: str) -> tuple[str, str, Any]:
    """``PLUGIN.KEY=VALUE`` as a triple. Raises click's BadParameter."""
    path, sign, value = text.partition("=")
    plugin, dot, key = path.strip().partition(".")
    if not sign or not dot or not plugin or not key:
        raise click.BadParameter(f"{text!r} is not PLUGIN.KEY=VALUE")
    return plugin, key, plain(value.strip())


def plain(text: str) -> Any:
    """What a value means: a TOML number, truth value, list or quoted text, else the text itself.
    Raises click's BadParameter for a list or a number that is too long."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError) as error:
        from demitasse import shortened

        wrong = "is nested too deeply" if isinstance(error, RecursionError) else "is not a number"
        raise click.BadParameter(f"{shortened(text, 20)} {wrong}") from error


def plugins_option(function: F) -> F:
    """--plugins: what to compose instead of the default."""
    return click.option(
        "--plugins",
        metavar="A,B",
        help="The plugins, preferred first; +A adds one to the default, -A leaves one out.",
    )(function)


def runtime_options(function: F) -> F:
    """--hw, --plugins and --option: what a runtime is composed from."""
    for option in (
        click.option(
            "--option",
            "options",
            multiple=True,
            type=plugin_setting,
            metavar="PLUGIN.KEY=VALUE",
            help="An option of a plugin; may be repeated.",
        ),
        plugins_option,
        click.option(
            "--hw",
            default="auto",
            type=machine,
            show_default=True,
            metavar="MACHINE",
            help="A hardware description's file, or a name that 'demitasse machines' lists; auto probes "
            "this one.",
        ),
    ):
        function = option(function)
    return function


def json_option(what: str) -> Callable[[F], F]:
    """--json: a file for ``what`` was found."""
    about = f"Write {what} as JSON; - is standard output."
    return click.option("--json", "json_path", metavar="FILE", help=about)


def samples_option(function: F) -> F:
    """--samples: shapes of samples that are not here."""
    return click.option(
        "--samples",
        multiple=True,
        metavar="SHAPE",
        help="The shape of a sample (3x227x227, with a label; NAME=SHAPE for other fields), if the "
        "data are not here: random samples, with a mean, stand in. May be repeated.",
    )(function)


@contextmanager
def standing_in(samples: tuple[str, ...], *phases: str) -> Iterator[dict[str, Any] | None]:
    """The ``data`` of a trainer or a net for what --samples was given; where it was not, samples that
    cannot be read while it is made raise a DataError that speaks of it."""
    from demitasse import DataError, DataSpec

    try:
        shapes = ",".join(each.removeprefix("random:") for each in samples)  # as a net's file has it
        spec = DataSpec(f"random:{shapes}", "random")
        yield dict.fromkeys(phases, spec) if samples else None
    except DataError as error:
        if samples:
            raise
        remedy = "if the data are not here, give their shape (--samples 3x224x224)"
        raise DataError(f"{error}; {remedy}") from error


def overrides_option(function: F) -> F:
    """--set: fields of the solver in the file's own words."""
    return click.option(
        "--set",
        "settings",
        multiple=True,
        type=setting,
        metavar="KEY=VALUE",
        help="A solver field (base_lr=0.1) or a layer's (layer.NAME.data_param.source=FILE); "
        "may be repeated.",
    )(function)


def precision_option(function: F) -> F:
    """--precision of activations and weights; by default the description's."""
    return click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        help="The precision of activations and weights; default: f32, unless the description gives one.",
    )(function)


def compose(hw: str, plugins: str | None, options: Sequence[tuple[str, str, Any]] = ()) -> Runtime:
    """The runtime that the shared options describe; the caller closes it."""
    import demitasse

    names = None
    if plugins is not None:
        names = [name.strip() for name in plugins.split(",") if name.strip()]
    tables: dict[str, dict[str, Any]] = {}
    for plugin, key, value in options:
        tables.setdefault(plugin, {})[key] = value
    return demitasse.compose(hw=hw, plugins=names, options=tables or None)
