"""Validation that the presets learn: trains each preset on five seeds and compares the returns with thresholds.

    make validate                                   every preset and variant; writes a page for each algorithm
    make validate ARGS="--only ppo_cartpole"        one preset; the stored results of the others are kept

The seeds of a preset are a group of runs in runs/validate. A group's name ends in a digest of rlcore's code and of the
part of the config that affects learning. Finished runs are reused and interrupted runs are resumed; if the digest
changes, all seeds are trained again. A threshold together with the quantity that must reach it is called a gate;
`MEASURES` defines the quantities. The results are stored in docs/results/learning.json, from which
`benchmarks/learning_pages.py` writes the pages.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from benchmarks.learning_pages import iqm, passes, verdict, write_pages
from flows.compare import curves, pictures
from flows.compare.records import Record, from_directory
from flows.config.compose import compose
from flows.report.figures import drawing
from flows.sweeps.group_runs import group_of
from rlcore.config.learning_half import learning_half
from rlcore.errors import RunError
from rlcore.evaluation.dream import record
from rlcore.evaluation.final import evaluate_checkpoint
from rlcore.evaluation.policy import load_policy, load_world_model
from rlcore.store import checkpoint
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory, write_json

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/results"
RUNS = "runs/validate"
KEPT, PEERS = RESULTS / "learning.json", RESULTS / "learning_peers.json"
EPISODES = 100
# Number of consecutive and of last training returns (one per episode, or per iteration with many games), evaluations.
IN_A_ROW, LAST_EPISODES, LAST = 10, 50, 3
LEAN = (
    "env.capture_video=false",
    "model_manager.disabled=true",
    "evaluation.baseline_episodes=10",
    "evaluation.dream=never",
    "metric.logger.name=none",
)


@dataclass(frozen=True)
class Case:
    """Preset, or a variant of exp=ppo, and the thresholds that its seeds must reach. None: no such threshold."""

    overrides: str
    mark: float | None  # threshold of the return at the end of a run
    about: str  # returns of peers; for a variant, its description
    earlier: tuple[tuple[int, float], ...] = ()  # (policy steps, threshold of the return)
    variant: bool = False
    below: bool = False  # `mark` is an upper limit, for an agent that lacks an ability
    within_s: float | None = None  # upper limit of the CPU seconds of a seed's training
    training: float | None = None  # threshold of the best mean return of ten consecutive training episodes
    evaluations: float | None = None  # threshold of each of the last three evaluations
    as_peer: str = ""  # key of `MEASURES`: the IQM over seeds must reach the peer's IQM in learning_peers.json
    gymnasium: float | None = None  # threshold of the return in Gymnasium's environment, for a batched one
    pictures: float | None = None  # upper limit of the reconstruction error, as a fraction of the mean image's error

    def gates(self, total_steps: int, peer: float = 0.0) -> list[tuple[str, int, dict[str, float]]]:
        """Return the thresholds that the seeds must reach.

        Args:
            total_steps: length of a run in policy steps.
            peer: interquartile mean over the seeds of another library; it is a threshold if `as_peer` is set.

        Returns:
            Tuples (quantity to measure: a key of `MEASURES`, policy steps at which it is measured, threshold). The
            threshold is a mapping with the key "at_least", "at_most" or "iqm_at_least".
        """
        marks = {"training": self.training, "evaluations": self.evaluations, "greedy": self.mark}
        marks |= {"gymnasium": self.gymnasium}
        low = [*(("greedy", *earlier) for earlier in self.earlier)]
        low += [(of, total_steps, mark) for of, mark in marks.items() if mark is not None]
        gates = [(of, steps, {"at_most" if self.below else "at_least": mark}) for of, steps, mark in low]
        gates += [(self.as_peer, total_steps, {"iqm_at_least": peer})] if self.as_peer else []
        return gates + ([] if self.pictures is None else [("pictures", total_steps, {"at_most": self.pictures})])


def iqm_of_peer(name: str) -> float:
    """Return the interquartile mean over the seeds of another library that was trained with a preset's settings.

    The interquartile mean is used because, with few seeds, one lucky seed would dominate the mean.

    Args:
        name: name of the preset.

    Returns:
        The interquartile mean of the returns.

    Raises:
        SystemExit: The library was not trained for this preset (`benchmarks.learning_peers`).
    """
    results = json.loads(PEERS.read_text())
    if name not in results:
        sys.exit(f"{name}: no results of a peer in {PEERS}; run python -m benchmarks.learning_peers --only {name}")
    return iqm(results[name]["values"])


NO_PEER = "none at these steps; random policy: 22"
POINT_MASS = "random policy: 2.6; spring-damper controller: 34"
CROSSHAIR = "random policy: 1.0; shortest path: 11.9"
CASES = {
    "ppo_cartpole": Case("exp=ppo", 475, "500 at 100 k (Zoo), 490 at 500 k (CleanRL)"),
    "a2c_cartpole": Case("exp=a2c", 450, "500 at 500 k (Zoo)"),
    "ppo_pendulum": Case("exp=ppo_pendulum", -250, "-172 at 100 k (Zoo, with gSDE)"),
    "ppo_acrobot": Case("exp=ppo_acrobot", -100, "-73.5 at 1 M (Zoo), -86 at 500 k (CleanRL)"),
    "a2c_acrobot": Case("exp=a2c_acrobot", -100, "-83 at 500 k (Zoo)"),
    "ppo_batched_cartpole": Case(
        "exp=ppo_batched_cartpole algo.compile=true", None, "500 at 100 k (Zoo)", gymnasium=475, within_s=15
    ),
    "ppo_batched_acrobot": Case("exp=ppo_batched_acrobot", None, "-73.5 at 1 M (Zoo)", gymnasium=-100),
    "ppo_batched_pendulum": Case("exp=ppo_batched_pendulum", None, "-172 at 100 k (Zoo, with gSDE)", gymnasium=-250),
    "ppo_inverted_double_pendulum": Case(
        "exp=ppo_inverted_double_pendulum", 7103, "7103 at 1 M (baselines, v2), 9231 at 1 M (Tianshou)"
    ),
    "ppo_half_cheetah": Case(
        "exp=ppo_half_cheetah", 3406, "3406 at 300 k (Zoo, v3, training), 1443 at 1 M (CleanRL, v4)"
    ),
    "ppo_lunar_lander": Case("exp=ppo_lunar_lander", 200, "242 at 1 M (Zoo, v2)", earlier=((500_000, 100),)),
    "sac_pendulum": Case("exp=sac_pendulum", -200, "-157 at 20 k (Zoo)"),
    "sac_lunar_lander": Case("exp=sac_lunar_lander", 200, "200 at 90 k (Zoo, v2, training)"),
    "sac_half_cheetah": Case(
        "exp=sac_half_cheetah algo.total_steps=50000", None, "Stable-Baselines3, see below", as_peer="greedy"
    ),
    "sac_hopper": Case(
        "exp=sac_hopper algo.total_steps=100000", None, "Stable-Baselines3, see below", as_peer="greedy"
    ),
    "droq_pendulum": Case("exp=droq_pendulum", -200, "none at these steps; SAC's threshold, at a fifth of its steps"),
    "simba_pendulum": Case("exp=simba_pendulum", -200, "none at these steps; SAC's threshold, after fewer steps"),
    "crossq_inverted_pendulum": Case("exp=crossq_inverted_pendulum", 900, "1000 at 1 M (SAC, Tianshou)", within_s=60),
    "dreamer_v1_cartpole": Case("exp=dreamer_v1_cartpole algo.compile=true", None, NO_PEER, training=100),
    "dreamer_v2_cartpole": Case("exp=dreamer_v2_cartpole algo.compile=true", None, NO_PEER, training=150),
    "dreamer_v3_cartpole": Case("exp=dreamer_v3_cartpole algo.compile=true", None, NO_PEER, training=150),
    "dreamer_v3_cartpole_long": Case(
        "exp=dreamer_v3_cartpole_long algo.compile=true",
        400,
        "450, the stop criterion of RLlib's example (size XS, one gradient step per action)",
        evaluations=350,
    ),
    "dreamer_v3_5_cartpole": Case("exp=dreamer_v3_5_cartpole algo.compile=true", None, NO_PEER, training=150),
    "dreamer_v3_5_cartpole_long": Case("exp=dreamer_v3_5_cartpole_long algo.compile=true", 400, NO_PEER),
    "dreamer_v1_point_mass": Case("exp=dreamer_v1_point_mass", 15, POINT_MASS),
    "sac_ae_point_mass": Case("exp=sac_ae_point_mass", 25, f"{POINT_MASS} with vector observations"),
    "dreamer_v3_point_mass": Case("exp=dreamer_v3_point_mass", 15, POINT_MASS),
    "dreamer_v3_5_point_mass": Case("exp=dreamer_v3_5_point_mass", 15, POINT_MASS),
    "dreamer_v1_pendulum": Case("exp=dreamer_v1_pendulum algo.compile=true", -700, "random policy: about -1,200"),
    "dreamer_v2_crosshair": Case("exp=dreamer_v2_crosshair algo.compile=true", 5, CROSSHAIR, pictures=1),
    "dreamer_v3_crosshair": Case("exp=dreamer_v3_crosshair algo.compile=true", 5, CROSSHAIR, pictures=1),
    "dreamer_v3_5_crosshair": Case("exp=dreamer_v3_5_crosshair algo.compile=true", 5, CROSSHAIR, pictures=1),
    "ppo_recurrent_cartpole": Case("exp=ppo_recurrent_cartpole", 450, "500 at 100 k (Zoo)"),
    "ppo_masked_cartpole": Case(
        "exp=ppo env.mask_velocities=true algo.total_steps=150000",
        250,
        "policy without memory: clearly below recurrent PPO",
        below=True,
    ),
    "ppo_recurrent_minigrid": Case("exp=ppo_recurrent_minigrid", 0.9, "shortest path: 0.98; guessing: 0.5"),
    "ppo_minigrid_memory": Case(
        "exp=ppo_minigrid env.id=MiniGrid-MemoryS7-v0 algo.total_steps=400000 algo.normalize_obs=true",
        0.65,
        "policy without memory: it can only guess",
        below=True,
    ),
    "ppo_minigrid": Case("exp=ppo_minigrid", 0.9, "shortest path: 0.96"),
    "ppo_pong": Case(
        "exp=ppo_atari algo.total_steps=800000", None, "Stable-Baselines3, see below", as_peer="last_training"
    ),
    "ppo_cartpole_pixels": Case("exp=ppo_cartpole_pixels", 100, "random policy: 22"),
    "sac_dmc_cartpole_balance": Case("exp=sac_dmc_cartpole_balance", 800, "random policy: about 350"),
    "ppo_compiled": Case("exp=ppo algo.compile=true", 475, "compiled", variant=True),
    "ppo_normalised": Case(
        "exp=ppo algo.normalize_obs=true algo.normalize_reward=true",
        475,
        "observations and rewards normalized",
        variant=True,
    ),
    "ppo_1_env": Case("exp=ppo env.num_envs=1 algo.rollout_steps=512", 475, "1 environment × 512 rows", variant=True),
    "ppo_8_envs": Case("exp=ppo env.num_envs=8 algo.rollout_steps=64", 475, "8 environments × 64 rows", variant=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds, at least 2")
    parser.add_argument(
        "--workers", type=int, default=None, help="number of concurrent trainings; default: one per CPU core"
    )
    options = parser.parse_args()
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds}: must be at least 2, because an interval needs two seeds")
    missed = []
    for name in options.only:
        figures = validate(name, CASES[name], range(options.seeds), options.workers)
        kept = (json.loads(KEPT.read_text()) if KEPT.exists() else {}) | {name: figures}
        write_json(KEPT, {known: kept[known] for known in CASES if known in kept})
        write_pages(RESULTS)
        print(f"{name}: {verdict(figures)}", flush=True)
        missed += [] if passes(figures) else [name]
    sys.exit(f"threshold not reached: {', '.join(missed)}" if missed else 0)


def validate(name: str, case: Case, seeds: Sequence[int], workers: int | None) -> dict[str, Any]:
    """Train the seeds of a preset that are not finished, evaluate all seeds, draw the learning curves.

    Args:
        name: name of the preset or variant.
        case: overrides and thresholds.
        seeds: seeds to train.
        workers: number of runs that are trained at the same time; None = the default of `shepherd train`.

    Returns:
        The results, as stored in learning.json.
    """
    words = [
        *case.overrides.split(),
        *LEAN,
        f"log_root={RUNS}",
        *(["checkpoint.keep_last=null"] if case.earlier else []),
    ]
    by_episode = case.training is not None or case.as_peer == "last_training"
    words += ["metric.log_every=1"] if by_episode else []
    config, _ = compose([*words, "seed=0"])
    gates = case.gates(config.algo.step_limit, iqm_of_peer(name) if case.as_peer else 0.0)
    key = digest(learning_half(config))
    words += [f"seed={','.join(map(str, seeds))}", f"group={name}-{key}"]
    command = [str(Path(sys.executable).with_name("shepherd")), "train", *words]
    subprocess.run([*command, *(["--workers", str(workers)] if workers else [])], cwd=ROOT, check=True)
    runs = [training.run for training in group_of(words).trainings]
    records = [from_directory(run) for run in runs]
    if not case.variant:
        draw(name, records)
    return {
        "algorithm": config.algo.name,
        "preset": case.overrides,
        "variant": case.variant,
        "about": case.about,
        "env": config.env.id,
        "command": shlex.join(["shepherd", "train", *case.overrides.split(), words[-2], f"group={name}"]),
        "gates": [
            {"of": of, "policy_steps": steps, "values": [MEASURES[of](run, steps) for run in runs]} | mark
            for of, steps, mark in gates
        ],
        "within_s": case.within_s,
        "chosen": [record.final for record in records],
        "while_training": [float(np.mean([value for _, value in record.evaluations])) for record in records],
        "cpu_s": float(np.median([record.effort["cpu_s"] for record in records])),
        "digest": key,
        "machine": records[0].machine,
        "day": time.strftime("%Y-%m-%d"),
    }


def digest(learned: dict[str, Any]) -> str:
    """Return a digest of rlcore's code and of the config keys that affect learning; the seed is not included."""
    hashed = hashlib.sha256(json.dumps(learned | {"seed": None}, sort_keys=True).encode())
    for file in sorted((ROOT / "rlcore").rglob("*.py")):
        hashed.update(file.read_bytes())
    return hashed.hexdigest()[:8]


def newest(run: RunDirectory, steps: int) -> Path:
    """Return the newest checkpoint that was written after at most `steps` policy steps."""
    path = next((path for path in checkpoint.newest_first(run.checkpoints) if int(path.name) <= steps), None)
    if path is None:
        raise RunError(f"{run.path}: no checkpoint of at most {steps:,} policy steps; remove the folder and retrain")
    return path


def greedy_return(run: RunDirectory, steps: int) -> float:
    """Evaluate the newest checkpoint of at most `steps` policy steps; return the mean greedy return of 100 episodes.

    The result is stored in the run directory and is not computed again.
    """
    path = newest(run, steps)
    written = run.evaluations / f"last-{path.name}-{EPISODES}.json"
    if not written.exists():
        write_json(written, {"greedy": evaluate_checkpoint(run, path, EPISODES)})
    return json.loads(written.read_text())["greedy"]["mean"]


def return_in_gymnasium(run: RunDirectory, steps: int) -> float:
    """Return the mean greedy return of 100 episodes in Gymnasium's environment with the id of a batched one."""
    policy, env_id = load_policy(newest(run, steps)), config_of(run).env.id.removeprefix("batched/")
    envs = [gymnasium.make(env_id) for _ in range(EPISODES)]
    obs = np.stack([env.reset(seed=seed)[0] for seed, env in enumerate(envs)]).astype(np.float32)
    returns, running = np.zeros(EPISODES), np.arange(EPISODES)
    while len(running):
        steps_taken = [envs[i].step(action) for i, action in zip(running, policy.predict(obs[running]), strict=True)]
        for i, (seen, reward, _, _, _) in zip(running, steps_taken, strict=True):
            obs[i], returns[i] = seen, returns[i] + float(reward)
        running = running[[not (terminated or truncated) for _, _, terminated, truncated, _ in steps_taken]]
    return float(returns.mean())


def best_of_training(run: RunDirectory, steps: int) -> float:
    """Return the best mean return of ten consecutive training episodes within the first `steps` policy steps."""
    return best_in_a_row([value for step, value in from_directory(run).training if step <= steps])


def best_in_a_row(returns: Sequence[float]) -> float:
    """Return the best mean of ten consecutive values; -inf if there are fewer."""
    return max((float(np.mean(returns[i : i + IN_A_ROW])) for i in range(len(returns) - IN_A_ROW + 1)), default=-np.inf)


def last_of_training(run: RunDirectory, steps: int) -> float:
    """Return the mean of the last 50 training returns within the first `steps` policy steps.

    The event log has one training return per iteration.
    """
    return float(np.mean([value for step, value in from_directory(run).training if step <= steps][-LAST_EPISODES:]))


def lowest_of_last(run: RunDirectory, steps: int) -> float:
    """Return the lowest mean return of the last three evaluations within the first `steps` policy steps."""
    return min([value for step, value in from_directory(run).evaluations if step <= steps][-LAST:])


def reconstruction(run: RunDirectory, steps: int) -> float:
    """Return the squared error of a world model's image reconstructions, divided by that of the mean image.

    The newest checkpoint of at most `steps` policy steps is used. It plays greedy episodes with seeds that are used for
    nothing else. From the images of these episodes the model computes posterior states, and decodes them to
    reconstructions. The mean image is the mean over all time steps.
    """
    path, config = newest(run, steps), config_of(run)
    model = load_world_model(path, config.seed)
    rows = record(model, config, run.read_card())
    obs = {key: rows[f"obs/{key}"] for key in model.keys}
    decoded = model.decode(model.observe(obs, rows["action"], rows["is_first"])).obs
    truth = {key: obs[key].astype(np.float64) for key in decoded if obs[key].dtype == np.uint8}
    error = sum(np.square(decoded[key] - images).sum() for key, images in truth.items())
    return float(error / sum(np.square(images - images.mean((0, 1))).sum() for images in truth.values()))


# Quantity of a gate -> function that measures it; `learning_pages.PHRASES` has the texts.
MEASURES: dict[str, Callable[[RunDirectory, int], float]] = {
    "greedy": greedy_return,
    "training": best_of_training,
    "last_training": last_of_training,
    "evaluations": lowest_of_last,
    "gymnasium": return_in_gymnasium,
    "pictures": reconstruction,
}


def draw(name: str, records: Sequence[Record]) -> None:
    """Draw return against policy steps: each run as a thin line, and the interquartile mean with a 95 % band."""
    both = {
        "greedy evaluations": [np.array(record.evaluations, dtype=float) for record in records],
        "training, sampled actions": [np.array(record.training, dtype=float) for record in records],
    }
    fitted = {what: curves.curve_of([[(x, y, False) for x, y in map(np.transpose, of)]]) for what, of in both.items()}
    drawn = {what: curve for what, curve in fitted.items() if curve is not None}
    with drawing():
        picture = pictures.curves_picture(drawn, name, records[0].task, "policy steps", "return")
    (RESULTS / f"{name}.png").write_bytes(picture.png)


if __name__ == "__main__":
    main()
