"""One-line messages for mistakes in a command: option or argument, value, and what is valid."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from demitasse import nearest, unknown


def told(error: click.UsageError, given: Sequence[str]) -> str:
    """Return the sentence for a mistake in the words ``given`` on the command line."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        return _option(error.option_name, error.ctx.command.get_params(error.ctx), given)
    words = error.format_message().rstrip(".")
    match = re.match(r"No such command '(.*?)'", words)
    if match and error.ctx is not None and isinstance(group := error.ctx.command, click.Group):
        return unknown("command", match[1], group.list_commands(error.ctx))
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"{_name(error.param)} is missing"
    if isinstance(error, click.BadOptionUsage):
        takes = "takes no" if "does not take" in words else "needs a"
        return f"{error.option_name} {takes} value"
    if isinstance(error, click.BadParameter):
        words = error.message.rstrip(".")
        return words if error.param is None else _value(_name(error.param), error.param.type, words)
    if match := re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", words):
        return f"too many arguments: {match[1]}"
    return words


def refuse_empty(command: click.Command) -> None:
    """Make a command reject empty text for a path, which would mean the working folder, and for a
    required word. Usually a shell variable is not set."""
    for each in getattr(command, "commands", {}).values():
        refuse_empty(each)
    for parameter in command.params:
        word = isinstance(parameter, click.Argument) and parameter.nargs == 1
        if (word or isinstance(parameter.type, click.Path)) and "type_cast_value" not in vars(parameter):
            cast = partial(_cast, parameter, parameter.type_cast_value)
            parameter.type_cast_value = cast  # type: ignore[method-assign]


def _cast(
    parameter: click.Parameter, cast: Callable[..., Any], context: click.Context, value: Any
) -> Any:
    if value == "" or (isinstance(value, tuple | list) and "" in value):
        raise click.UsageError(f"{_name(parameter)} is empty (is a shell variable not set?)", context)
    return cast(context, value)


def _option(name: str, parameters: Sequence[click.Parameter], given: Sequence[str]) -> str:
    """Report an unknown option. After a single dash, the parser reports only the first letter."""
    if len(name) == 2:
        name = next((word.partition("=")[0] for word in given if word.startswith(name)), name)
    valid = [n for each in parameters for n in (*each.opts, *each.secondary_opts) if n[0] == "-"]
    alike = [n for n in valid if n.startswith("--") == (name.startswith("--") or len(name) == 2)]
    return unknown("option", name, alike if nearest(name, alike) else valid)


def _name(parameter: click.Parameter) -> str:
    """Return a parameter's name as shown in the help."""
    if isinstance(parameter, click.Option):
        return max(parameter.opts, key=len)
    metavar = getattr(parameter, "metavar", None) or parameter.name or "?"
    return re.sub(r"^\[(\w+)\]$", r"\1", str(metavar)).upper()


def _value(name: str, kind: click.ParamType[Any], words: str) -> str:
    quoted = re.match(r"(?:File )?'(.*)' is ", words)
    value = quoted[1] if quoted else words.partition(" ")[0]
    if isinstance(kind, click.Choice):
        # As the help shows them: in lower case if case does not matter.
        shown = [str(each) if kind.case_sensitive else str(each).lower() for each in kind.choices]
        return unknown("value", value, shown, name)
    whole = isinstance(kind, type(click.INT))
    if whole or isinstance(kind, type(click.FLOAT)):
        least, most = getattr(kind, "min", None), getattr(kind, "max", None)
        valid = "a whole number" if whole else "a number"
        valid += "" if least is None else f" from {least}" if most is not None else f", {least} or more"
        valid += "" if most is None else f" to {most}"
        return f"{name}: {value!r} (valid: {valid})"
    if isinstance(kind, click.Path) and words.endswith("is a directory"):
        return f"{name}: {value} is a folder; a file is needed here: name one in it"
    return f"{name}: {words}"
