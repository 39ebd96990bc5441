"""``demitasse workers``: finds the number of workers that trains a net fastest on this machine."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click


@click.command(
    "workers",
    epilog="Example: demitasse workers solver.prototxt --output best.toml",
    help="Find the number of workers that trains SOLVER's net fastest here, each with its share of the "
    "cores. The result is remembered for the machine and the net.",
)
@click.argument("solver", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--hw", default="auto", show_default=True, metavar="MACHINE", help="The machine's description."
)
@click.option("--plugins", metavar="A,B", help="The plugins, preferred first.")
@click.option("--seconds", type=click.FloatRange(min=0.1), default=2.0, show_default=True,
              help="How long to measure each number of workers.")  # fmt: skip
@click.option("--again", is_flag=True, help="Measure again, even if results are remembered.")
@click.option("--output", metavar="FILE", help="Write the best as a machine description for --hw.")
@click.option(
    "--json", "json_path", metavar="FILE", help="Write the trials as JSON; - is standard output."
)
def workers(
    solver: Path,
    hw: str,
    plugins: str | None,
    seconds: float,
    again: bool,
    output: str | None,
    json_path: str | None,
) -> int:
    """The exit status."""
    from demitasse import CompositionError, check_writable, compose, describe, write_json, write_text
    from demitasse_parameter_server import chosen as choice
    from demitasse_parameter_server import trials

    check_writable({"--output": output, "--json": json_path})
    with compose(hw, plugins.split(",") if plugins else None) as runtime:
        machine, names = runtime.machine, [*runtime.composition.versions]
    trials.check_free(machine, machine.origin)
    if machine.simulated:
        raise CompositionError(
            f"{machine.origin}: describes another machine, but workers are tried on this one; "
            f'leave --hw out, or set fingerprint = "any" there'
        )
    with compose(machine, list(dict.fromkeys([*names, "parameter_server"]))) as runtime:
        record = runtime.read(solver).solver()
        name, memory = trials.name_of(record, machine), trials.memory()
        found = [] if again else trials.remembered(memory, name)
        told = "remembered" if found else "measured"
        if not found:
            found = trials.tried(runtime, choice.trainers(runtime), record, seconds)
            trials.remember(memory, name, found)
    best = min(found, key=lambda trial: trial.seconds)
    try:
        if output is not None:
            write_text(output, describe(trials.arranged(machine, best.workers, best.threads)))
        if json_path is not None:
            table = {"net": name, "source": told, "trials": [asdict(trial) for trial in found]}
            write_json(json_path, {**table, "best": asdict(best)})
    finally:
        for trial in found if json_path != "-" else ():
            mark = "  <- the quickest" if trial is best else ""
            shape = (
                f"{trial.workers} worker{'s' * (trial.workers > 1)} of {trial.threads} "
                f"thread{'s' * (trial.threads > 1)}"
            )
            click.echo(f"{shape:<28} {trial.seconds * 1e3:9.3f} ms an iteration ({told}){mark}")
    return 0
