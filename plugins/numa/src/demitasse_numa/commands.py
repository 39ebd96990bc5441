"""``demitasse numa``: shows memory domains, the bandwidth between them, and where a training's pages
are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from demitasse import check_writable, write_json


@click.command(
    "numa",
    epilog="Example: demitasse numa solver.prototxt --bandwidth",
    help="Show the memory domains; with SOLVER, train a few iterations and show where its pages are.",
)
@click.argument("solver", required=False, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--hw", default="auto", show_default=True, metavar="MACHINE", help="The hardware description."
)
@click.option(
    "--plugins", metavar="A,B", help="The plugins, preferred first; +A adds one, -A leaves one out."
)
@click.option(
    "--iterations",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="The number of iterations.",
)
@click.option("--bandwidth", is_flag=True, help="Measure the bandwidth between domains.")
@click.option(
    "--json", "json_path", metavar="FILE", help="Write everything as JSON; - is standard output."
)
def numa(
    solver: Path | None,
    hw: str,
    plugins: str | None,
    iterations: int,
    bandwidth: bool,
    json_path: str | None,
) -> int:
    """The exit status."""
    from demitasse_numa.bandwidth import matrix, table
    from demitasse_numa.machine import this_machine

    check_writable({"--json": json_path})
    machine = this_machine()
    lines = [str(machine), f"(by {machine.source})"]
    record: dict[str, Any] = {
        "domains": [
            {
                "space": f"numa:{each.index}",
                "node": each.node,
                "cpus": sorted(each.cpus),
                "cores": len(each.cores),
                "memory": list(each.memory),
                "high_bandwidth": list(each.fast),
            }
            for each in (*machine.domains, *machine.others)
        ]
    }
    if bandwidth:
        rates = matrix(machine)
        lines += ["", "measured: rows are processors, columns memory"]
        lines += ["".join(f"{word:>10}" for word in row) for row in table(rates)]
        record["bandwidth"] = [[here, there, rate] for (here, there), rate in rates.items()]
    if solver is not None:
        text, record["placement"] = _trained(solver, hw, plugins, iterations)
        lines += ["", *text]
    try:
        if json_path is not None:
            write_json(json_path, record)
    finally:
        if json_path != "-":
            click.echo("\n".join(lines))
    return 0


def _trained(
    solver: Path, hw: str, plugins: str | None, iterations: int
) -> tuple[list[str], dict[str, Any]]:
    from demitasse import compose
    from demitasse_numa.counters import Reading, counters
    from demitasse_numa.machine import this_machine
    from demitasse_numa.report import placement

    machine, there = this_machine(), counters()
    moved: dict[int, tuple[float, float]] = {}
    with compose(hw, plugins.split(",") if plugins else None) as runtime:
        described = runtime.machine
        trainer = runtime.trainer(solver)
        trainer.step(1)
        reading = Reading(there.events) if there.events else None
        try:
            result = trainer.step(iterations)
            moved = reading.bytes(machine) if reading else {}
        finally:
            if reading:
                reading.close()
        found = placement(trainer.arrays(), machine)
    lines = [f"{'worker':>6}  {'blob':<32} {'pages':>8} {'remote':>7}  nodes"]
    for blob in found.blobs:
        nodes = ", ".join(f"{node}: {count}" for node, count in sorted(blob.nodes.items()) if node >= 0)
        lines.append(
            f"{blob.worker:>6}  {blob.name:<32.32} {blob.pages:>8} {100 * blob.remote:>6.1f}%  {nodes}"
        )
    lines.append(found.line())
    if described.simulated:
        lines.append(
            f"note: {described.origin} describes another machine: here neither its solvers nor their "
            f"memory is bound"
        )
    record = {**found.to_dict(), "simulated": described.simulated}
    if moved:
        for index, (read, written) in sorted(moved.items()):
            rates = f"{read / result.seconds / 1e9:.2f} GB/s read, {written / result.seconds / 1e9:.2f}"
            lines.append(f"numa:{index}: {rates} written (measured by the memory controllers)")
        record["bytes"] = {str(index): list(values) for index, values in moved.items()}
    else:
        lines.append(f"the run's bandwidth is not known: {there.reason}; --bandwidth measures a triad")
    return lines, record
