"""``demitasse schedule``: prints a collective's moves, proves it, costs it on a machine and draws it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from demitasse import check_writable, write_json, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from demitasse import Algorithm, Proof, Schedule, Topology
    from demitasse_allreduce.choice import Way

MOST_MOVES = 256
"""Up to this many moves, each one is printed; above, one line for each round."""

PAPER = {"alpha": 1e-6, "bandwidth": 12e9, "oversubscription": 4.0}
"""The network of swCaffe, section II.B: 1 us, 12 GB/s, a quarter of that between supernodes."""


@click.command(
    "schedule",
    help="Print the moves of the collective ALGORITHM; prove, cost and draw it.",
    epilog="Example: demitasse schedule two-level --ranks 8 --check --draw two-level.svg",
)
@click.argument("algorithm")
@click.option(
    "--ranks",
    required=True,
    type=click.IntRange(1, 1 << 20),
    metavar="N",
    help="The number of ranks.",
)
@click.option(
    "--size",
    default=1 << 20,
    show_default=True,
    type=click.IntRange(0, 1 << 48),
    metavar="ELEMENTS",
    help="The number of elements, of 4 bytes each.",
)
@click.option(
    "--supernodes",
    type=click.IntRange(min=1),
    metavar="Q",
    help="Divide the ranks among N supernodes of swCaffe's network; default, without --hw: one.",
)
@click.option(
    "--goal",
    default="allreduce",
    show_default=True,
    metavar="GOAL",
    help="allreduce, allgather, reduce_scatter, reduce or broadcast, if the algorithm can.",
)
@click.option(
    "--root",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    metavar="RANK",
    help="The rank that a broadcast begins at, or a reduction ends at.",
)
@click.option(
    "--map",
    "order",
    default="natural",
    show_default=True,
    metavar="M",
    help="The rank map: natural, round-robin, auto (the cheapest) or, with --hw, an order of its tiers.",
)
@click.option(
    "--chunks", type=click.IntRange(min=1), metavar="N", help="The number of pieces in a pipeline."
)
@click.option(
    "--chain",
    type=click.IntRange(min=1),
    metavar="N",
    help="The number of ranks in a lower communicator.",
)
@click.option("--hw", metavar="MACHINE", help="Predict its cost on this machine's network.")
@click.option(
    "--plugins", metavar="A,B", help="The plugins to take algorithms from; default: all that have any."
)
@click.option("--check", "proves", is_flag=True, help="Prove it: each contribution once, no deadlock.")
@click.option(
    "--draw",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw it as an SVG picture.",
)
@click.option("--json", "json_path", metavar="FILE", help="Write it as JSON; - is standard output.")
def schedule(
    algorithm: str,
    ranks: int,
    size: int,
    supernodes: int | None,
    goal: str,
    root: int,
    order: str,
    chunks: int | None,
    chain: int | None,
    hw: str | None,
    plugins: str | None,
    proves: bool,
    draw: Path | None,
    json_path: str | None,
) -> None:
    """Make it, prove it, print it, write what is asked for."""
    from demitasse import CompositionError, check
    from demitasse_allreduce.choice import Way
    from demitasse_allreduce.drawing import picture

    if draw is not None and draw.suffix != ".svg":
        raise CompositionError(f"--draw {draw}: the picture is SVG; give a name that ends in .svg")
    check_writable({"--draw": draw, "--json": json_path})
    known = _known(plugins)
    network = _network(hw, supernodes, ranks)
    way, table = _way(algorithm, order, chunks, chain, network, ranks, size, goal, known)
    made = way.schedule(size, network, ranks, goal, root, known)
    seconds = _seconds(made, network)
    proof = check(made) if proves else None
    groups = _groups(network, ranks)
    cost = f"{seconds['seconds'] * 1e6:,.1f} us (simulated)"
    rounds = _by_round(made, network)
    whole = {
        "algorithm": algorithm,
        "way": str(way) if isinstance(way, Way) else None,
        "goal": goal,
        "ranks": ranks,
        "size": size,
        "network": list(network.sources),
        "simulated": seconds,
        "proof": None if proof is None else _plain(proof),
        "rounds": rounds,
    }
    try:
        if json_path is not None:
            write_json(json_path, whole)
        if draw is not None:
            write_text(draw, picture(made, groups, f"{way}: {goal}", [cost, *network.sources]))
    finally:
        if json_path != "-":
            parts = ", ".join(
                f"{name} {seconds[name] * 1e6:,.1f} us" for name in ("latency", "transfer")
            )
            told = [_moves(made, rounds), *table, f"{way} on {', '.join(network.sources)}"]
            told += [f"{cost}: {parts}; {seconds['rounds']:,} rounds"]
            click.echo("\n".join(told + [str(proof)] * (proof is not None)))


def _known(plugins: str | None) -> Mapping[str, Algorithm]:
    """Return the algorithms of the named plugins, or of all installed plugins that offer some."""
    from demitasse import Level, Machine, compose, discover
    from demitasse_allreduce.algorithms import given

    there = {each.name: each for each in discover() if not each.problem}
    serving = [each for each in there.values() if each.serves("collectives")]
    names = [each.name for each in sorted(serving, key=lambda each: -each.priority)]
    for name in names:  # and the plugins that they require, which are appended
        names += [other for other in there[name].requires if other in there and other not in names]
    machine = Machine("the command line", (Level("machine"),), fingerprint="any")
    with compose(machine, names if plugins is None else plugins.split(",")) as runtime:
        return given(runtime.composition.offered("collectives"))


def _network(hw: str | None, supernodes: int | None, ranks: int) -> Topology:
    """Return the network of the described machine, or swCaffe's network of ``supernodes``."""
    from demitasse import CompositionError, Tier, Topology, load_machine
    from demitasse_allreduce.choice import network_of

    if hw is not None:
        if supernodes is not None:
            raise CompositionError("--supernodes and --hw both describe the network; give one of them")
        return network_of(load_machine(hw))
    alpha, bandwidth = PAPER["alpha"], PAPER["bandwidth"]
    groups = supernodes or 1
    each = -(-ranks // groups)
    used = -(-ranks // each)
    if used < groups:
        raise CompositionError(
            f"--supernodes {groups}: {ranks} ranks, {each} in each, fill "
            f"{'only' if groups <= ranks else 'at most'} {used}; give {used}"
        )
    size = f"{'up to ' * (ranks % each > 0)}{each}"
    between = ", 4:1 between them" if groups > 1 else ""
    numbers = f"latency 1 us, bandwidth 12 GB/s{between} (paper)"
    told = f"{groups} supernode{'s' * (groups > 1)} of {size}: {numbers}"
    tiers = (
        Tier("supernode", groups, alpha, bandwidth, PAPER["oversubscription"]),
        Tier("node", each, alpha, bandwidth),
    )
    return Topology(tiers if groups > 1 else tiers[1:], (told,))


def _way(
    name: str,
    order: str,
    chunks: int | None,
    chain: int | None,
    network: Topology,
    ranks: int,
    size: int,
    goal: str,
    known: Mapping[str, Algorithm],
) -> tuple[Way, list[str]]:
    """Return the requested way and an empty table. If the algorithm or the rank map is "auto", return
    the cheapest way of that kind and the table of offers."""
    from demitasse import CompositionError, unknown
    from demitasse_allreduce.choice import AUTO, Chooser, Way

    if name != AUTO and name not in known:
        raise CompositionError(unknown("algorithm", name, (AUTO, *known)))
    table, asked = list[str](), (name, order)
    if AUTO in asked:
        only = () if name == AUTO else (name,)
        chooser = Chooser(network, ranks, only=only, order=order, known=known)
        best = chooser.best(size * 4, goal)
        table = chooser.table(size * 4, goal).splitlines()
        name, order = best.algorithm, best.ranks
        chunks = chunks or best.chunks or None
        chain = chain or best.group or None
    takes = known[name].options
    given = {"--map": order != "natural", "--chunks": bool(chunks), "--chain": bool(chain)}
    for option in () if AUTO in asked else given:
        if given[option] and not _takes(known[name], option):
            others = [each for each, made in known.items() if _takes(made, option)]
            raise CompositionError(
                f"{option} does not apply to {name} (valid with it: auto, {', '.join(others)})"
            )
    return (
        Way(
            name,
            "natural" if "groups" in takes else order,
            (chunks or 0) * ("chunks" in takes),
            (chain or 0) * ("groups" in takes),
        ),
        table,
    )


def _takes(algorithm: Algorithm, option: str) -> bool:
    takes = algorithm.options
    return {"--map": "groups" not in takes, "--chunks": "chunks" in takes}.get(option, "groups" in takes)


def _groups(network: Topology, ranks: int) -> Sequence[Sequence[int]]:
    """Return the ranks grouped by the sibling of the outermost tier that they are in; one group in a
    network of one tier."""
    return network.groups(ranks) if len(network.tiers) > 1 else [range(ranks)]


def _seconds(made: Schedule, network: Topology) -> dict[str, Any]:
    from dataclasses import asdict

    from demitasse import cost, rounds_of

    return asdict(cost(rounds_of(made), network, network.place(made.ranks)))


def _plain(proof: Proof) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(proof)


def _by_round(made: Schedule, network: Topology) -> list[dict[str, int]]:
    """Return the messages and elements of every round, and the elements that leave a group."""
    import numpy as np

    from demitasse import rounds_of

    group = np.zeros(made.ranks, int)
    for number, members in enumerate(_groups(network, made.ranks)):
        group[list(members)] = number
    return [
        {
            "messages": len(each.source),
            "elements": int(each.elements.sum()),
            "between_groups": int(each.elements[group[each.source] != group[each.target]].sum()),
        }
        for each in rounds_of(made)
    ]


def _moves(made: Schedule, rounds: list[dict[str, int]]) -> str:
    """Return every rank's moves as text, or a line for each round if there are many."""
    if 2 * sum(each["messages"] for each in rounds) <= MOST_MOVES:
        return str(made)
    lines = [f"{made.algorithm}: {made.goal} of {made.size:,} by {made.ranks:,}, in rounds"]
    lines += [
        f"{number:5}  {each['messages']:,} messages, {each['elements']:,} elements, "
        f"{each['between_groups']:,} of them between groups"
        for number, each in enumerate(rounds[:64])
    ]
    return "\n".join(lines + [f"       and {len(rounds) - 64:,} more"] * (len(rounds) > 64))
