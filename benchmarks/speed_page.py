"""Figures of `benchmarks/peers.py`: kept row by row in speed.json, and the page speed.md that is written from them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.protocols import PROTOCOLS
from rlcore.store.directory import write_json

EPISODES = 20  # greedy, for the returns beside the times
HEAD = f"""# Speed beside the peers

Made by `make bench`, each row on the day that stands below it. The train stage as whole processes, imports and exit
included, one thread, alternating; medians. `cold` is our first run, which compiles what the others find. Memory is that
of a stage with all its processes, pages that they share once, looked at ten times a second.

Returns are of {EPISODES} greedy episodes for each seed, on seeds that nobody trained on. In a, the preset of SheepRL's
benchmark has one trunk for actor and critic, Stable-Baselines3 two networks, which learn CartPole more surely at these
numbers; in b all have two.
"""


def keep(folder: Path, letter: str, figures: dict[str, Any]) -> None:
    """Put a row into speed.json, in the place of the one before, and write speed.md."""
    kept = folder / "speed.json"
    rows = (json.loads(kept.read_text()) if kept.exists() else {}) | {letter: figures}
    rows = {known: rows[known] for known in PROTOCOLS if known in rows}
    write_json(kept, rows)
    tables = ["\n".join(table(known, figures)) for known, figures in rows.items()]
    (folder / "speed.md").write_text("\n".join([HEAD, *tables]) + "\n")


def table(letter: str, figures: dict[str, Any]) -> list[str]:
    """Lines of a protocol's table."""
    protocol, alone = PROTOCOLS[letter], statistics.median(figures["alone"])
    times = (f"CPU ms a {protocol.unit}", f"wall ms a {protocol.unit}") if protocol.longer else ("CPU s", "wall s")
    columns = ("", *times, "peak MB", "returns", "their CPU / ours", "their wall / ours")
    scale, digits = (1e3, 2) if protocol.longer else (1, 1)
    lines = [f"## {letter}. {protocol.about}", "", f"To reach: {protocol.goal} of each peer.", ""]
    if alone:
        lines += [f"The simulator alone takes {alone:.1f} s of each; the ratios of processor time are without it.", ""]
    lines += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    median = {
        who: {key: statistics.median(row[key] for row in found) for key in found[0]}
        for who, found in figures["rows"].items()
    }
    for who, m in median.items():
        returns = ", ".join(f"{row['return']:.0f}" for row in figures["rows"][who]) if "return" in m else ""
        ratio = (m["cpu"] - alone) / (median["Shepherd"]["cpu"] - alone)
        ratios = f"{ratio:.2f} | {m['wall'] / median['Shepherd']['wall']:.2f}"
        lines.append(
            f"| {who} | {scale * m['cpu']:.{digits}f} | {scale * m['wall']:.{digits}f} | {m['memory']:.0f} "
            f"| {returns} | {ratios} |"
        )
    of_run, cold = " (whole run, s)" if protocol.longer else "", figures["cold"]
    lines.append(f"| Shepherd, cold{of_run} | {cold['cpu']:.1f} | {cold['wall']:.1f} | {cold['memory']:.0f} | | | |")
    count = len(figures["alone"])
    return [*lines, "", f"{figures['day']}: {count} run{'s' if count > 1 else ''} of each; {figures['state']}.", ""]
