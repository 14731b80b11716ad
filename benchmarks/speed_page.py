"""Storage of the results of `benchmarks/peers.py` in speed.json, and generation of the page speed.md from them."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.protocols import PROTOCOLS
from rlcore.store.directory import write_json

EPISODES = 20  # greedy episodes per seed, for the returns in the table
HEAD = f"""# Speed compared with other libraries

Written by `make bench`; the date of each measurement is below its table. Each number is the median over whole
processes of the train stage, with imports and exit. Each process has one thread, and the libraries alternate. `cold`
is our first run, which compiles; the other runs load the compiled code. Memory is that of all processes of the stage.
It is sampled ten times a second, and pages that several processes share count once.

Returns are means over {EPISODES} greedy episodes per seed, on seeds that were not used for training. In protocol a, the
preset of SheepRL's benchmark shares one trunk between actor and critic. Stable-Baselines3 uses two networks, which
learn CartPole more reliably with these hyperparameters. In protocol b, all libraries use two networks.
"""


def keep(folder: Path, letter: str, figures: dict[str, Any]) -> None:
    """Store the results of the benchmark `letter` (a key of `PROTOCOLS`) in speed.json, and write speed.md.

    Earlier results of the benchmark are replaced.
    """
    kept = folder / "speed.json"
    rows = (json.loads(kept.read_text()) if kept.exists() else {}) | {letter: figures}
    rows = {known: rows[known] for known in PROTOCOLS if known in rows}
    write_json(kept, rows)
    tables = ["\n".join(table(known, figures)) for known, figures in rows.items()]
    (folder / "speed.md").write_text("\n".join([HEAD, *tables]) + "\n")


def table(letter: str, figures: dict[str, Any]) -> list[str]:
    """Return the Markdown lines of the section in speed.md about the benchmark `letter` (a key of `PROTOCOLS`)."""
    protocol, alone = PROTOCOLS[letter], statistics.median(figures["alone"])
    times = (f"CPU ms a {protocol.unit}", f"wall ms a {protocol.unit}") if protocol.longer else ("CPU s", "wall s")
    columns = ("", *times, "peak MB", "returns", "their CPU / ours", "their wall / ours")
    scale, digits = (1e3, 2) if protocol.longer else (1, 1)
    lines = [f"## {letter}. {protocol.about}", "", f"Goal: {protocol.goal}.", ""]
    if alone:
        lines += [f"The simulator alone takes {alone:.1f} s of each; the ratios of CPU time exclude it.", ""]
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
