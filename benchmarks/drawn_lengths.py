"""Returns at a pole length that was not trained: with drawn lengths, and with the fixed default length.

    python -m benchmarks.drawn_lengths --seeds 5      # writes docs/results/drawn_lengths.md

`make validate` runs this program.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.intervals import spell_mean
from flows.config.compose import compose
from rlcore.store.directory import write_json
from rlcore.train.trainer import Trainer

RESULTS = Path(__file__).resolve().parents[1] / "docs/results"
UNSEEN = 4.0  # half-length of the pole in m; the default is 0.5
EPISODES, GOAL = 50, 4  # episodes of an evaluation; seeds of 5 on which drawn lengths must be better
LENGTHS = {"fixed, 0.5 m": (), "drawn from 0.25 to 2.5 m": ("env.config.length={uniform: [0.25, 2.5]}",)}


def measure(words: tuple[str, ...], seed: int) -> float:
    """Train a policy with settings and a seed; return its mean return at the length `UNSEEN`."""
    preset = ["exp=ppo_batched_cartpole", f"seed={seed}", "algo.total_steps=122_880", "algo.compile=false"]
    trainer = Trainer(compose([*preset, *words])[0])
    trainer.run()
    return trainer.evaluate(EPISODES, env_config={"length": UNSEEN})["mean"]


def page(rows: dict[str, list[float]]) -> str:
    """Return the page as Markdown."""
    fixed, drawn = rows.values()
    better = sum(mine > theirs for mine, theirs in zip(drawn, fixed, strict=True))
    lines = "".join(
        f"| {name} | {spell_mean(returns)} | {', '.join(f'{x:.0f}' for x in returns)} |\n"
        for name, returns in rows.items()
    )
    return f"""# Drawn pole lengths

Written by `make validate` (`benchmarks/drawn_lengths.py`). PPO (`exp=ppo_batched_cartpole`, 122,880 policy steps) is
trained with the default half-length of the pole, or with a length that is drawn for each copy and episode
(`env.config.length`). Its last policy plays {EPISODES} greedy episodes with a half-length of {UNSEEN:g} m, which no
training contains. Returns are means over seeds, with the 95 % confidence interval (Student's t), and those of each
seed. The largest return is 500.

| half-length in training | return | of each seed |
|---|---|---|
{lines}
Drawn lengths are better on {better} of {len(fixed)} seeds; the goal is {GOAL} of 5.
"""


def main() -> None:
    """Train the policies, and write drawn_lengths.json and drawn_lengths.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, at least 2")
    options = parser.parse_args()
    rows: dict[str, list[float]] = {name: [] for name in LENGTHS}
    for seed in range(options.seeds):
        for name, words in LENGTHS.items():
            rows[name].append(measure(words, seed))
        print(json.dumps(rows), flush=True)
    write_json(RESULTS / "drawn_lengths.json", rows)
    (RESULTS / "drawn_lengths.md").write_text(page(rows))


if __name__ == "__main__":
    main()
