"""Measurement of the returns that SheepRL 0.8.4 or Stable-Baselines3 reach with the hyperparameters of our presets.

    python -m benchmarks.learning_peers --peers .shepherd/peers/bin/python --only sac_hopper      three seeds: an hour

`make bench` creates the peers' Python environment. The results are written to docs/results/learning_peers.json when all
seeds have finished, and appear in the pages of `benchmarks/learning_pages.py`. If the command is interrupted, running
it again continues after the last finished seed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks import peers
from benchmarks.learning_pages import write_pages
from benchmarks.peers import ROOT, SILENT, measure_command, write_scripts
from benchmarks.protocols import PONG_OPTIONS, Protocol
from benchmarks.validate import CASES, LAST_EPISODES, PEERS, RESULTS, best_in_a_row
from rlcore.store.directory import write_json
from rlcore.train.fingerprint import processor_name

Train = Callable[[str, int, Path], dict[str, float]]  # Python, seed and an empty folder -> "return" and "cpu"
PRESETS = {"dreamer_v3_cartpole": "exp=dreamer_v3"}  # our preset -> SheepRL's, to which all keys of ours are applied
# Our preset -> environment, number of environments, steps, and class and arguments of Stable-Baselines3. The
# hyperparameters are those of the SAC paper, and of RL Baselines3 Zoo for Atari.
SAC = {"batch_size": 256, "buffer_size": 1_000_000, "learning_rate": 3e-4, "learning_starts": 10_000}
SAC |= {"train_freq": 1, "gradient_steps": 1}
PONG = PONG_OPTIONS | {"learning_rate": [2.5e-4], "clip_range": [0.1]}
PONG |= {"ent_coef": 0.01, "vf_coef": 0.5, "stats_window_size": LAST_EPISODES}
BASELINES: dict[str, tuple[str, int, int, tuple[str, dict[str, Any]]]] = {
    "sac_half_cheetah": ("HalfCheetah-v5", 1, 50_000, ("SAC", SAC)),
    "sac_hopper": ("Hopper-v5", 1, 100_000, ("SAC", SAC)),
    "ppo_pong": ("PongNoFrameskip-v4", 8, 800_000, ("PPO", PONG)),
}
SEEDS_DONE = ROOT / "runs/peers"
PRINTING = ("metric.log_level=1", "metric.log_every=1000000")  # so that SheepRL prints the returns of episodes
RETURN = re.compile(r"policy_step=(\d+), reward_env_0=\[?([-\d.e+]+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True, type=os.path.abspath, help="Python of an environment with the peers")
    parser.add_argument("--only", nargs="*", choices=[*PRESETS, *BASELINES], default=[*PRESETS, *BASELINES])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    for name in options.only:
        who, command, train = sheeprl(name) if name in PRESETS else stable_baselines3(name)
        about = {"who": who, "command": command, "machine": processor_name()}
        done = SEEDS_DONE / f"{name}.json"  # finished seeds of an interrupted command
        before = json.loads(done.read_text()) if done.exists() else {}
        runs = before["runs"] if before.get("about") == about else []
        for seed in range(len(runs), options.seeds):
            with tempfile.TemporaryDirectory(prefix="shepherd-peer-") as folder:
                runs.append(train(options.peers, seed, Path(folder)))
            print(f"{name}, seed {seed}: {runs[-1]}", flush=True)
            done.parent.mkdir(parents=True, exist_ok=True)
            write_json(done, {"about": about, "runs": runs})
        values, cpu = ([run[of] for run in runs] for of in ("return", "cpu"))
        figures = about | {"values": values, "cpu_s": float(np.median(cpu)), "day": time.strftime("%Y-%m-%d")}
        write_json(PEERS, (json.loads(PEERS.read_text()) if PEERS.exists() else {}) | {name: figures})
        write_pages(RESULTS)
        done.unlink(missing_ok=True)


def stable_baselines3(name: str) -> tuple[str, str, Train]:
    """Return (name of the library, its call as text, function that trains with it) for one of our presets.

    The function returns measurements, among them CPU seconds and the return. The return is the quantity that
    `benchmarks.validate` measures for the preset: the mean over greedy episodes of the last policy, or the mean over
    the last training episodes.
    """
    env_id, count, steps, (algorithm, options) = BASELINES[name]
    evaluated, vector = CASES[name].as_peer == "greedy", "pixels" if env_id.startswith("Pong") else "serial"
    protocol = Protocol(name, env_id, count, steps, (), (algorithm, options), (), vector=vector, evaluated=evaluated)

    def train(python: str, seed: int, folder: Path) -> dict[str, float]:
        write_scripts(folder)
        figures = peers.stable_baselines3(protocol, seed, folder, python)
        if evaluated:
            return figures
        (mean,) = re.findall(r"last episodes: (\S+)", (folder / "output").read_text())
        return figures | {"return": float(mean)}

    policy = "CnnPolicy" if vector == "pixels" else "MlpPolicy"
    numbers = ", ".join(f"{key}={value}" for key, value in options.items())
    return "Stable-Baselines3", f'{algorithm}("{policy}", "{env_id}", {numbers}).learn({steps})', train


def sheeprl(name: str) -> tuple[str, str, Train]:
    """Return (name of the library, its command as text, function that trains with it) for one of our presets.

    The function returns measurements, among them CPU seconds and the return: the best mean of ten consecutive training
    episodes.
    """
    words = [PRESETS[name], *words_of(name)]
    silent = [word for word in SILENT if not word.startswith("metric.log_level")]

    def train(python: str, seed: int, folder: Path) -> dict[str, float]:
        command = [str(Path(python).with_name("sheeprl")), *words, f"seed={seed}", *silent, *PRINTING]
        used = measure_command([*command, f"log_root={folder / 'logs'}"], folder)
        returns = [float(value) for _, value in RETURN.findall((folder / "output").read_text())]
        return used | {"return": best_in_a_row(returns)}

    return "SheepRL 0.8.4", " ".join(["sheeprl", *words]), train


def words_of(preset: str) -> list[str]:
    """Convert the keys in a preset's file to overrides for SheepRL.

    Vector observations have the key `state` in our configs and `vector` in SheepRL's.
    """
    file = yaml.safe_load((ROOT / f"conf/exp/{preset}.yaml").read_text())
    words = [f"{key}={value}" for group in ("env", "algo", "buffer") for key, value in flat(file[group], group)]
    return ["env=gym", "env.id=CartPole-v1", *(word.replace("[state]", "[vector]") for word in words)]


def flat(group: dict[str, Any], place: str) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, value as text) for all keys of a config group.

    For the observation keys of an encoder, the same keys are yielded for the decoder, too: SheepRL requires both.
    """
    for key, value in group.items():
        if isinstance(value, dict):
            yield from flat(value, f"{place}.{key}")
            continue
        typed = str(value).replace("'", "")
        yield f"{place}.{key}", typed
        if place.endswith("_keys"):
            yield f"{place}.decoder", typed


if __name__ == "__main__":
    main()
