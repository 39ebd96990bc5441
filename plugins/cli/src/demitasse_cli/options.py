"""Options that several commands share, and composing the runtime that they describe."""

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
"""A file that need not exist: the runtime then reports it, and suggests the nearest name."""

named = click.Path(readable=False)
"""A file name, or a word in its place, passed on unchanged; shells complete file names."""


class _Machine(click.Path):
    """A description's file, or a machine's name: shells complete both."""

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from demitasse import described_machines

        known = [name for name in ("auto", *described_machines()) if name.startswith(incomplete)]
        return [*map(CompletionItem, known), *super().shell_complete(ctx, param, incomplete)]


machine = _Machine(readable=False)


def setting(text: str) -> tuple[str, str]:
    """Parse ``KEY=VALUE`` into a pair. Raises click's BadParameter."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise click.BadParameter(f"{text!r} is not KEY=VALUE")
    return key.strip(), value.strip()


def plugin_setting(text: str) -> tuple[str, str, Any]:
    """Parse ``PLUGIN.KEY=VALUE`` into a triple. Raises click's BadParameter."""
    path, sign, value = text.partition("=")
    plugin, dot, key = path.strip().partition(".")
    if not sign or not dot or not plugin or not key:
        raise click.BadParameter(f"{text!r} is not PLUGIN.KEY=VALUE")
    return plugin, key, plain(value.strip())


def plain(text: str) -> Any:
    """Parse a value: a TOML number, boolean, list or quoted string; anything else is taken as text.
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
    """Add --plugins: what to compose instead of the default."""
    return click.option(
        "--plugins",
        metavar="A,B",
        help="The plugins, preferred first; +A adds one to the default, -A leaves one out.",
    )(function)


def runtime_options(function: F) -> F:
    """Add --hw, --plugins and --option: what a runtime is composed from."""
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
    """Add --json: a file for ``what``."""
    about = f"Write {what} as JSON; - is standard output."
    return click.option("--json", "json_path", metavar="FILE", help=about)


def samples_option(function: F) -> F:
    """Add --samples: shapes of samples that are not available here."""
    return click.option(
        "--samples",
        multiple=True,
        metavar="SHAPE",
        help="The shape of a sample (3x227x227, with a label; NAME=SHAPE for other fields), if the "
        "data are not here: random samples, with a mean, stand in. May be repeated.",
    )(function)


@contextmanager
def standing_in(samples: tuple[str, ...], *phases: str) -> Iterator[dict[str, Any] | None]:
    """Yield the ``data`` of a trainer or net that follows from --samples. If the option is not given, a
    DataError for samples that cannot be read is extended by a hint at it."""
    from demitasse import DataError, DataSpec

    try:
        shapes = ",".join(each.removeprefix("random:") for each in samples)  # as in a net's file
        spec = DataSpec(f"random:{shapes}", "random")
        yield dict.fromkeys(phases, spec) if samples else None
    except DataError as error:
        if samples:
            raise
        remedy = "if the data are not here, give their shape (--samples 3x224x224)"
        raise DataError(f"{error}; {remedy}") from error


def overrides_option(function: F) -> F:
    """Add --set: overrides of the solver's fields, in the file's syntax."""
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
    """Add --precision: of activations and weights; by default, the description's."""
    return click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        help="The precision of activations and weights; default: f32, unless the description gives one.",
    )(function)


def compose(hw: str, plugins: str | None, options: Sequence[tuple[str, str, Any]] = ()) -> Runtime:
    """Compose the runtime that the shared options describe; the caller closes it."""
    import demitasse

    names = None
    if plugins is not None:
        names = [name.strip() for name in plugins.split(",") if name.strip()]
    tables: dict[str, dict[str, Any]] = {}
    for plugin, key, value in options:
        tables.setdefault(plugin, {})[key] = value
    return demitasse.compose(hw=hw, plugins=names, options=tables or None)
