"""Returns of the trading example: with memory, without memory, and of holding the asset on the same episodes.

    python -m benchmarks.trading --seeds 5      # writes docs/results/trading.md

Each preset of examples/algotrading is trained on several seeds. Its last policy plays greedy episodes on seeds that
were not used for training, and `Holding` plays the same episodes. Their prices are the same, because no price depends
on an action. `make validate` runs this program.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.intervals import spell_mean
from flows.config.compose import compose
from rlcore.evaluation.evaluation import evaluate_agent
from rlcore.functional.noise import Noise
from rlcore.store.directory import write_json
from rlcore.train.trainer import Trainer

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE, RESULTS = ROOT / "examples/algotrading", ROOT / "docs/results"
WAIT, BUY = 0, 1
EPISODES = 200
STEPS = "algo.total_steps=400_000"
PRESETS = {
    "ppo_trading": "no memory",
    "ppo_trading_window": "MLP over 16 price changes",
    "ppo_trading_transformer": "transformer over 16 price changes",
    "ppo_trading_lstm": "LSTM",
}


class Holding:
    """Agent that buys the asset at the first step of an episode and never sells it."""

    def initial(self, batch_size: int) -> tuple[()]:
        """Return an empty carry, because this agent has no recurrent state."""
        return ()

    def act(
        self, carry: tuple[()], obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False
    ) -> tuple[tuple[()], Tensor, dict[str, Tensor]]:
        """Buy if the action mask allows it, which is the case if the agent does not hold the asset."""
        return (), torch.where(obs["action_mask"][:, BUY] != 0, BUY, WAIT).unsqueeze(1), {}

    def to_env(self, action: Tensor) -> Tensor:
        """Convert actions [B, 1] to the environment's format [B]."""
        return action.squeeze(1)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert actions of the environment [B] to this agent's format [B, 1]."""
        return action.unsqueeze(1)


def hold(trainer: Trainer, episodes: int) -> dict[str, Any]:
    """Return the result of holding the asset in the episodes of `trainer.evaluate(episodes)`."""
    return evaluate_agent(Holding(), trainer.config, trainer.card, episodes)


def measure(preset: str, seed: int) -> dict[str, Any]:
    """Train a preset with a seed; return its mean return, that of holding, and the CPU seconds of training."""
    began = time.process_time()
    trainer = Trainer(compose([f"exp={preset}", "plugins=[algotrading]", STEPS, f"seed={seed}"])[0])
    trainer.run()
    cpu = time.process_time() - began
    return {"policy": trainer.evaluate(EPISODES)["mean"], "holding": hold(trainer, EPISODES)["mean"], "cpu": cpu}


HEAD = f"""# Returns of the trading example

Written by `make validate` (`benchmarks/trading.py`). Each preset of
[examples/algotrading](../../examples/algotrading/algotrading.py) is trained for 400,000 policy steps. Its last policy
plays {EPISODES} greedy episodes on seeds that were not used for training. *Holding* buys the asset at the first step
of the same episodes. Returns are in percent: mean over seeds, with the 95 % confidence interval (Student's t). The
last interval is that of the difference on the same episodes.

| preset | agent | seeds | return | holding | return - holding | CPU s |
|---|---|---|---|---|---|---|
"""


def table(rows: dict[str, list[dict[str, Any]]]) -> str:
    """Return the page as Markdown."""
    lines: list[str] = []
    for preset, runs in rows.items():
        ours, holding = ([run[key] for run in runs] for key in ("policy", "holding"))
        more = [mine - theirs for mine, theirs in zip(ours, holding, strict=True)]
        cpu = statistics.median(run["cpu"] for run in runs)
        cells = (
            preset,
            PRESETS[preset],
            len(runs),
            spell_mean(ours),
            spell_mean(holding),
            spell_mean(more),
            f"{cpu:.0f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |\n")
    return HEAD + "".join(lines)


def main() -> None:
    """Train the presets, and write trading.json and trading.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=PRESETS, default=list(PRESETS), help="presets; others are kept")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, at least 2")
    options = parser.parse_args()
    kept = RESULTS / "trading.json"
    os.environ["SHEPHERD_SEARCH_PATH"] = "conf"
    os.chdir(EXAMPLE)
    sys.dont_write_bytecode = True
    for preset in options.only:
        runs = [measure(preset, seed) for seed in range(options.seeds)]
        rows = (json.loads(kept.read_text()) if kept.exists() else {}) | {preset: runs}
        rows = {known: rows[known] for known in PRESETS if known in rows}
        write_json(kept, rows)
        (RESULTS / "trading.md").write_text(table(rows))
        print(f"{preset}: {spell_mean([run['policy'] for run in runs])}", flush=True)


if __name__ == "__main__":
    main()
