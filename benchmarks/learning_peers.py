"""SheepRL 0.8.4 trained with the numbers of a preset of ours: what its episodes of training return.

    python -m benchmarks.learning_peers --peers .shepherd/peers/bin/python     three seeds: a quarter of an hour

`make bench` makes the peers' environment. The keys of the preset's file are SheepRL's too, and are what it is started
with. Figures are kept in docs/results/learning_peers.json; the pages of `benchmarks/learning_pages.py` show them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.learning_pages import write_pages
from benchmarks.peers import ROOT, SILENT, measured
from benchmarks.validate import RESULTS, best_in_a_row
from rlcore.store.directory import write_json
from rlcore.train.fingerprint import processor_name

KEPT = RESULTS / "learning_peers.json"
PRESETS = {"dreamer_v3_cartpole": "exp=dreamer_v3"}  # of ours -> theirs, which it changes
SPOKEN = ("metric.log_level=1", "metric.log_every=1000000")  # so that it prints what episodes return
RETURN = re.compile(r"policy_step=(\d+), reward_env_0=\[?([-\d.e+]+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True, type=os.path.abspath, help="Python of an environment with the peers")
    parser.add_argument("--only", nargs="*", choices=PRESETS, default=list(PRESETS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for name in options.only:
        words, runs = [PRESETS[name], *words_of(name)], []
        for seed in range(options.seeds):
            runs.append(train(options.peers, [*words, f"seed={seed}"]))
            print(f"{name}, seed {seed}: {runs[-1]}", flush=True)
        figures = {
            "who": "SheepRL 0.8.4",
            "command": " ".join(["sheeprl", *words]),
            "values": [run["best"] for run in runs],
            "cpu_s": float(np.median([run["cpu_s"] for run in runs])),
            "machine": processor_name(),
            "day": time.strftime("%Y-%m-%d"),
        }
        write_json(KEPT, (json.loads(KEPT.read_text()) if KEPT.exists() else {}) | {name: figures})
        write_pages(RESULTS)


def words_of(preset: str) -> list[str]:
    """Keys of a preset's file as overrides of SheepRL, which calls the numbers of an environment `vector`."""
    file = yaml.safe_load((ROOT / f"conf/exp/{preset}.yaml").read_text())
    words = [f"{key}={value}" for group in ("env", "algo", "buffer") for key, value in flat(file[group], group)]
    return ["env=gym", "env.id=CartPole-v1", *(word.replace("[state]", "[vector]") for word in words)]


def flat(group: dict[str, Any], place: str) -> Iterator[tuple[str, str]]:
    """Dotted keys and values of a group, as they are typed; a decoder's keys are those of its encoder."""
    for key, value in group.items():
        if isinstance(value, dict):
            yield from flat(value, f"{place}.{key}")
            continue
        typed = str(value).replace("'", "")
        yield f"{place}.{key}", typed
        if place.endswith("_keys"):
            yield f"{place}.decoder", typed


def train(python: str, words: list[str]) -> dict[str, float]:
    """Processor seconds of a run, and its best mean of ten episodes of training in a row."""
    with tempfile.TemporaryDirectory(prefix="shepherd-peer-") as name:
        folder = Path(name)
        silent = [word for word in SILENT if not word.startswith("metric.log_level")]
        command = [str(Path(python).with_name("sheeprl")), *words, *silent, *SPOKEN, f"log_root={folder / 'logs'}"]
        used = measured(command, folder)
        returns = [float(value) for _, value in RETURN.findall((folder / "output").read_text())]
    return {"best": best_in_a_row(returns), "cpu_s": used["cpu"]}


if __name__ == "__main__":
    main()
