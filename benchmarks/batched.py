"""Speed of PPO in batched environments compared with rl8 1.0.0, with equal settings.

    make bench-batched       # installs rl8 in .shepherd/rl8, writes docs/results/batched.md
    python -m benchmarks.batched --rl8 VENV/bin/python --examples FOLDER --only cartpole --repeats 3
    python -m benchmarks.batched --only steps       # without rl8

CPU seconds, wall seconds and peak memory are those of a whole process with one thread: our train stage, and a script
that builds rl8's algorithm and calls `collect` and `step`. The libraries run alternately. Our first run, which
compiles, is reported separately. Returns are means over greedy episodes as long as rl8's horizon.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import batched_steps
from benchmarks.peers import RESULTS, measure_command, ours, state
from benchmarks.protocols import Protocol
from rlcore.store.directory import write_json

# Train rl8. Arguments: name of the environment, recurrent, steps, seed, options; and the folder of rl8's examples.
SCRIPT = """
import importlib.util, json, sys, torch
from rl8 import AlgorithmConfig, RecurrentAlgorithmConfig
from rl8.env import ContinuousDummyEnv, DiscreteDummyEnv
torch.set_num_threads(1)
name, recurrent, steps, seed, options = json.loads(sys.argv[1])
torch.manual_seed(seed)
if name in ("discrete_dummy", "continuous_dummy"):
    env = ContinuousDummyEnv if name == "continuous_dummy" else DiscreteDummyEnv
else:
    spec = importlib.util.spec_from_file_location(name, f"{sys.argv[2]}/{name}/env.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    env = getattr(module, {"cartpole": "CartPole", "mountain_car": "MountainCar", "pendulum": "Pendulum"}[name])
config = (RecurrentAlgorithmConfig if recurrent else AlgorithmConfig)(device="cpu", **options)
algorithm = config.build(env)
for _ in range(steps // (options["num_envs"] * options["horizon"])):
    algorithm.collect()
    algorithm.step()
rollouts = options.get("horizons_per_env_reset", 1)  # of an episode
print(sum(algorithm.collect(deterministic=True)["returns/mean"] for _ in range(rollouts)))
"""
# rl8's defaults: the gradient is clipped at 5, gamma and lambda are 0.95, advantages and rewards are normalized over a
# rollout, and the value loss is smooth L1 of at most 5.
SAME = (
    "env=batched",
    "env.endless=true",
    "metric.log_level=0",
    "metric.disable_timer=true",
    "env.capture_video=false",
    "algo.compile=true",
    "algo.gamma=0.95",
    "algo.gae_lambda=0.95",
    "algo.vf_coef=1.0",
    "algo.max_grad_norm=5.0",
    "algo.normalize_advantages=true",
    "algo.advantage_scope=rollout",
    "algo.normalize_reward=true",
    "algo.reward_scale=rollout",
    "algo.reward_clip=1e30",
    "algo.value_loss=smooth_l1",
    "algo.value_loss_cap=5.0",
    "algo.clip_vloss=false",
    "algo.optimizer.name=adam",
    "algo.optimizer.lr=1e-3",
    "algo.optimizer.eps=1e-8",
    "algo.anneal_lr=false",
    "algo.ent_coef=0.0",
    "algo.layer_norm=false",
    "algo.actor.log_std_bound=1.0",
    "algo.update_epochs=4",
    "evaluation.num_envs=1024",  # at most: an evaluation has no more environments than episodes
)
TWO_NETS = ("algo.encoder.mlp_layers=0", "algo.actor.mlp_layers=2", "algo.critic.mlp_layers=2", "algo.dense_act=relu")


@dataclass(frozen=True)
class Task:
    """A task with settings that are equal for both libraries.

    Attributes:
        about: description.
        env: id of the environment.
        rl8_env: "discrete_dummy", "continuous_dummy", or the name of one of rl8's examples.
        num_envs: number of environments.
        rows: time steps of a rollout, rl8's horizon.
        steps: policy steps of the run.
        words: further settings of ours.
        options: further settings of rl8.
        goal: the ratio of CPU seconds that must be reached, and the one we aim for.
        recurrent: train recurrent PPO.
        horizons: number of rollouts between two resets of the environments.
    """

    about: str
    env: str
    rl8_env: str
    num_envs: int
    rows: int
    steps: int
    words: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    goal: str = ""
    recurrent: bool = False
    horizons: int = 1

    def protocol(self) -> Protocol:
        """Return the task as a protocol of `benchmarks.peers.ours`."""
        words = (f"exp=ppo{'_recurrent' * self.recurrent}", *SAME, *(() if self.recurrent else TWO_NETS), *self.words)
        words += (f"env.num_envs={self.num_envs}", f"env.max_episode_steps={self.rows * self.horizons}")
        words += (f"env.horizons_per_env_reset={self.horizons}",)
        words += (f"algo.rollout_steps={self.rows}", f"algo.total_steps={self.steps}")
        every = f"checkpoint.every={self.steps}", f"evaluation.every={self.steps}", f"metric.log_every={self.steps}"
        return Protocol(self.about, self.env, self.num_envs, self.steps, (*words, *every), None, ())


WHOLE = ("algo.per_rank_batch_size=65536",)
TASKS = {
    "cartpole": Task(
        "rl8's CartPole, 64 environments × 32 steps, networks 64-64, minibatch 256, 4 epochs, 262,144 steps",
        "batched/rl8-cartpole",
        "cartpole",
        64,
        32,
        262_144,
        ("algo.per_rank_batch_size=256", "algo.dense_units=64"),
        {"sgd_minibatch_size": 256, "model_config": {"hiddens": [64, 64]}},
        "half of rl8's time, aim a third",
    ),
    "default": Task(
        "rl8's CartPole with its default networks 256-256, 1,024 environments × 64 steps in one batch, 4 epochs, "
        "524,288 steps",
        "batched/rl8-cartpole",
        "cartpole",
        1024,
        64,
        524_288,
        (*WHOLE, "algo.dense_units=256"),
        {},
        "rl8's time, aim two thirds",
    ),
    "recurrent": Task(
        "rl8's CartPole, recurrent, LSTM of 256, 256 environments × 32 steps, sequences of 4 in one batch, 131,072 "
        "steps",
        "batched/rl8-cartpole",
        "cartpole",
        256,
        32,
        131_072,
        (
            "algo.rnn.lstm.hidden_size=256",
            "algo.per_rank_sequence_length=4",
            "algo.per_rank_num_batches=1",
            "algo.sequences_per_state_reset=8",
            "algo.reset_recurrent_state_on_done=false",
            "algo.encoder.mlp_layers=0",
            "algo.rnn.pre_rnn_mlp.apply=false",
            "algo.actor.mlp_layers=0",
            "algo.critic.mlp_layers=0",
        ),
        {},
        "rl8's time, aim two thirds",
        recurrent=True,
    ),
    "dummy": Task(
        "discrete dummy environment, 1,024 environments × 32 steps, networks 64-64, minibatch 8,192, 4 epochs, "
        "4,194,304 steps",
        "batched/rl8-discrete_dummy",
        "discrete_dummy",
        1024,
        32,
        4_194_304,
        ("algo.per_rank_batch_size=8192", "algo.dense_units=64"),
        {"sgd_minibatch_size": 8192, "model_config": {"hiddens": [64, 64]}},
        "half of rl8's time, aim a third",
    ),
}


def rl8(task: Task, seed: int, folder: Path, python: str, examples: str) -> dict[str, float]:
    """Measure rl8 in a task; return CPU seconds, wall seconds, peak memory [MB] and the mean return."""
    options = task.options | {"num_envs": task.num_envs, "horizon": task.rows}
    options |= {"horizons_per_env_reset": task.horizons}
    words = json.dumps([task.rl8_env, task.recurrent, task.steps, seed, options])
    figures = measure_command([python, "-W", "ignore", "rl8_train.py", words, examples], folder)
    return figures | {"return": float((folder / "output").read_text().split()[-1])}


def table(task: Task, figures: dict[str, Any]) -> list[str]:
    """Return the Markdown lines of the section about a task."""
    lines = [f"## {task.about}", "", f"Goal: {task.goal}.", ""]
    lines += ["|  | CPU s | wall s | peak MB | returns | ours / rl8, CPU |", "|---|---|---|---|---|---|"]
    median = {
        who: {key: statistics.median(row[key] for row in found) for key in found[0]}
        for who, found in figures["rows"].items()
    }
    for who, m in median.items():
        returns = ", ".join(f"{row['return']:.1f}" for row in figures["rows"][who])
        ratio = f"{m['cpu'] / median['rl8']['cpu']:.2f}" if "rl8" in median else ""
        lines.append(f"| {who} | {m['cpu']:.1f} | {m['wall']:.1f} | {m['memory']:.0f} | {returns} | {ratio} |")
    cold = figures["cold"]
    lines.append(f"| Shepherd, cold | {cold['cpu']:.1f} | {cold['wall']:.1f} | {cold['memory']:.0f} | | |")
    return [*lines, "", f"{figures['day']}: {len(figures['rows']['Shepherd'])} runs of each; {figures['state']}.", ""]


STEPS = "steps"  # the environment without an agent (`benchmarks.batched_steps`)
HEAD = """# Speed in batched environments, compared with rl8

Written by `make bench-batched`. Each number is the median over whole processes with one thread, with imports and exit;
the libraries alternate. `cold` is our first run, which compiles.
"""


def write(results: Path, key: str, figures: dict[str, Any]) -> None:
    """Add the measurements of a task to batched.json, and write batched.md."""
    kept, about = results / "batched.json", {"day": time.strftime("%Y-%m-%d"), "state": state()}
    every = (json.loads(kept.read_text()) if kept.exists() else {}) | {key: figures | about}
    write_json(kept, every)
    sections = [table(TASKS[each], every[each]) for each in TASKS if each in every]
    sections += [batched_steps.table(every[STEPS])] if STEPS in every else []
    (results / "batched.md").write_text("\n".join([HEAD, *map("\n".join, sections)]))


def main() -> None:
    """Measure the tasks, and write batched.json and batched.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rl8", type=os.path.abspath, help="Python of an environment with rl8")
    parser.add_argument("--examples", type=os.path.abspath, help="folder examples of rl8's source")
    every_task = [*TASKS, STEPS]
    parser.add_argument("--only", nargs="*", choices=every_task, default=every_task, help="tasks; other rows are kept")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of batched.json and batched.md")
    arguments = parser.parse_args()
    if {*arguments.only} - {STEPS} and None in (arguments.rl8, arguments.examples):
        parser.error(f"--rl8 and --examples are required, except with --only {STEPS}")
    with tempfile.TemporaryDirectory(prefix="shepherd-bench-") as name:
        folder = Path(name)
        (folder / "rl8_train.py").write_text(SCRIPT)
        for key in arguments.only:
            if key == STEPS:
                print(f"{STEPS}: the environment alone", flush=True)
                command = [sys.executable, "-m", "benchmarks.batched_steps"]
                found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                write(arguments.results, STEPS, {"rows": json.loads(found)})
                continue
            task = TASKS[key]
            print(f"{key}: {task.about}", flush=True)
            cold, rows = ours(task.protocol(), 0, folder), {"Shepherd": list[Any](), "rl8": list[Any]()}
            print("   ours, cold:", cold, flush=True)
            for seed in range(1, arguments.repeats + 1):
                rows["Shepherd"].append(ours(task.protocol(), seed, folder))
                rows["rl8"].append(rl8(task, seed, folder, arguments.rl8, arguments.examples))
                print("  ", {who: runs[-1] for who, runs in rows.items()}, flush=True)
            write(arguments.results, key, {"cold": cold, "rows": rows})


if __name__ == "__main__":
    main()
