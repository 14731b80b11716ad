"""The train stage beside Stable-Baselines3, sb3-contrib and SheepRL 0.8.4: alike settings, alternating, as processes.

    make bench                                    peers in .shepherd/peers, all protocols, docs/results/speed.md
    python -m benchmarks.peers --peers VENV/bin/python --only a c --repeats 3

Counted: processor and wall seconds and peak memory of every process of the stage, imports and exit included, one
thread. Ours: `shepherd stage train` on a run that make-env has prepared. The first of our runs of each finds an empty
cache and is shown apart; the medians are of those after it. Returns: greedy episodes on seeds that nobody trained on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.memory import PeakMemory
from benchmarks.peer_scripts import FILES

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
EPISODES = 20  # greedy, for the returns beside the times
QUIET = ("metric.log_level=0", "checkpoint.save_last=True", "algo.run_test=False", "env.capture_video=False")
SILENT = (*QUIET, "checkpoint.every=1000000", "model_manager.disabled=True", "fabric.accelerator=cpu", "num_threads=1")


@dataclass(frozen=True)
class Protocol:
    about: str
    env_id: str
    num_envs: int
    steps: int
    ours: tuple[str, ...]
    sb3: tuple[str, dict[str, Any]] | None
    sheeprl: tuple[str, ...]
    vector: str = "serial"
    goal: str = ""
    normalize: bool = False  # observations and rewards
    judged: bool = True  # greedy returns are shown
    beside: bool = False  # the simulator's own time is measured, and ratios are outside of it
    longer: int = 0  # steps of a second run, longer by `more` of `unit`: figures are of one of these
    more: int = 1
    unit: str = ""

    def words(self) -> list[str]:
        """Words that the steps are typed with, where there are two lengths of them."""
        return [f"algo.total_steps={self.steps}"] if self.longer else []


PPO_64 = {"n_steps": 32, "batch_size": 256, "n_epochs": 4, "learning_rate": 1e-3, "vf_coef": 0.5, "max_grad_norm": 0.5}
WIDE = (
    "env.num_envs=64",
    "algo.rollout_steps=32",
    "algo.per_rank_batch_size=256",
    "algo.update_epochs=4",
    "algo.optimizer.lr=1e-3",
    # Two networks of two layers, as Stable-Baselines3 has them: with one trunk none learns CartPole at these numbers.
    "algo.encoder.mlp_layers=0",
    "algo.actor.mlp_layers=2",
    "algo.critic.mlp_layers=2",
)
QUIETLY = (
    "checkpoint.every=70000",
    "evaluation.every=70000",
    "metric.log_level=0",
    "metric.log_every=70000",
    "metric.disable_timer=true",
    "env.capture_video=false",
)
SLOW_OPTIONS = {"n_steps": 64, "batch_size": 128, "n_epochs": 4, "learning_rate": 3e-4}
PONG = ("env.num_envs=4", "algo.rollout_steps=128", "algo.per_rank_batch_size=256", "algo.update_epochs=4")
PONG_OPTIONS = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "learning_rate": 2.5e-4, "clip_range": 0.1}
SAC_OPTIONS = {"batch_size": 256, "buffer_size": 65_537, "learning_rate": 3e-4, "learning_starts": 100}
SAC_OPTIONS |= {"train_freq": 1, "gradient_steps": 1}
CROSSQ_OPTIONS = {"buffer_size": 65_537, "learning_starts": 250, "policy_kwargs": {"net_arch": [256, 256]}}
# Steps of a world model begin when there are sequences of 64 rows.
DREAMING = ("algo.learning_starts=128", "algo.per_rank_pretrain_steps=0", "buffer.size=4096")
NUMBERS = ("algo.cnn_keys.encoder=[]", "algo.cnn_keys.decoder=[]", "algo.mlp_keys.encoder=[vector]")
EACH, RARELY = ("algo.replay_ratio=1",), ("algo.replay_ratio=0.002",)
PIXELS = ("algo.cnn_keys.encoder=[rgb]", "algo.mlp_keys.encoder=[]")
DECODED = ("algo.cnn_keys.decoder=[rgb]", "algo.mlp_keys.decoder=[]")
AT_ONCE = ("algo.learning_starts=16", "algo.per_rank_pretrain_steps=0", "buffer.size=4096")
BALANCE = (
    "env=dmc",
    "env.wrapper.domain_name=cartpole",
    "env.wrapper.task_name=balance",
    "env.wrapper.from_vectors=false",
)
RECURRENT_OPTIONS: dict[str, Any] = {"n_steps": 128, "batch_size": 64, "n_epochs": 10, "learning_rate": 3e-4}
# One LSTM for actor and critic, as the other two have it.
RECURRENT_OPTIONS["policy_kwargs"] = {
    "net_arch": [64],
    "lstm_hidden_size": 64,
    "shared_lstm": True,
    "enable_critic_lstm": False,
}
CONTRIB = {"CrossQ": "MlpPolicy", "RecurrentPPO": "MlpLstmPolicy"}  # classes of sb3-contrib -> their policy
PROTOCOLS = {
    "a": Protocol(
        "PPO, CartPole-v1, 65,536 steps, 1 environment, rollout 128, minibatch 64, 10 epochs",
        "CartPole-v1",
        1,
        65_536,
        ("exp=ppo_benchmarks", "algo.compile=true"),
        ("PPO", {"n_steps": 128, "batch_size": 64, "n_epochs": 10, "learning_rate": 3e-4, "vf_coef": 0.5}),
        ("exp=ppo_benchmarks",),
        goal="a sixth",
    ),
    "b": Protocol(
        "PPO, CartPole-v1, 262,144 steps, 64 environments, rollout 32, minibatch 256, 4 epochs",
        "CartPole-v1",
        64,
        262_144,
        ("exp=ppo_benchmarks", *WIDE, "algo.total_steps=262144", "checkpoint.every=1000000", "algo.compile=true"),
        ("PPO", PPO_64),
        ("exp=ppo_benchmarks", *WIDE, "algo.total_steps=262144"),
        goal="a quarter",
    ),
    "c": Protocol(
        "A2C, CartPole-v1, 65,536 steps, 1 environment, rollout 5",
        "CartPole-v1",
        1,
        65_536,
        ("exp=a2c_benchmarks", "algo.compile=true"),
        ("A2C", {"n_steps": 5, "learning_rate": 7e-4}),
        ("exp=a2c_benchmarks",),
        goal="a sixth",
    ),
    "d": Protocol(
        "PPO, HalfCheetah-v5, 32,768 steps, 1 environment, rollout 2048, minibatch 64, 10 epochs, normalised",
        "HalfCheetah-v5",
        1,
        32_768,
        ("exp=ppo_mujoco", *QUIETLY, "algo.total_steps=32768", "algo.compile=true"),
        ("PPO", {"n_steps": 2048, "batch_size": 64, "n_epochs": 10, "learning_rate": 3e-4, "vf_coef": 0.5}),
        ("exp=ppo_mujoco", "algo.total_steps=32768"),
        goal="half, outside the simulator's own time,",
        normalize=True,
        beside=True,
    ),
    "e": Protocol(
        "PPO, 8 subprocess environments whose step takes 1 ms, 8,192 steps (wall seconds count)",
        "Slow-v0",
        8,
        8_192,
        (
            "exp=ppo_benchmarks",
            "plugins=[benchmarks_slow]",
            "env.sync_env=false",
            "env.num_envs=8",
            "algo.rollout_steps=64",
            "algo.per_rank_batch_size=128",
            "algo.update_epochs=4",
            "algo.total_steps=8192",
        ),
        ("PPO", SLOW_OPTIONS),
        (),
        vector="subprocess",
        goal="the wall time of Stable-Baselines3, instead",
        judged=False,
    ),
    "f": Protocol(
        "SAC, LunarLanderContinuous-v3, 16,384 steps, 4 environments, batch 256, a gradient step a row",
        "LunarLanderContinuous-v3",
        4,
        16_384,
        ("exp=sac_benchmarks", "algo.total_steps=16384", "algo.compile=true"),
        ("SAC", SAC_OPTIONS),
        ("exp=sac_benchmarks", "env.num_envs=4", "algo.total_steps=16384"),
        goal="half",
        judged=False,
    ),
    "g": Protocol(
        "CrossQ 256 units wide, InvertedPendulum-v5, 4,096 steps, 1 environment, batch 256, a gradient step a row",
        "InvertedPendulum-v5",
        1,
        4_096,
        ("exp=crossq_inverted_pendulum", *QUIETLY, "algo.total_steps=4096", "algo.compile=true"),
        ("CrossQ", CROSSQ_OPTIONS),
        (),
        goal="half",
    ),
    "h": Protocol(
        "DroQ, LunarLanderContinuous-v3, 512 steps, 4 environments, batch 256, 20 gradient steps a row",
        "LunarLanderContinuous-v3",
        4,
        512,
        ("exp=droq", *QUIETLY, "algo.total_steps=512", "algo.compile=true"),
        None,
        ("exp=droq", "algo.total_steps=512", "env.num_envs=4", "buffer.memmap=False", "buffer.checkpoint=False"),
        goal="half",
        judged=False,
    ),
    "i": Protocol(
        "Recurrent PPO, CartPole-v1, 65,536 steps, 1 environment, rollout 128, LSTM of 64, 4 sequences of 16 rows a "
        "minibatch, 10 epochs",
        "CartPole-v1",
        1,
        65_536,
        ("exp=ppo_recurrent_benchmarks", "algo.compile=true"),
        ("RecurrentPPO", RECURRENT_OPTIONS),
        (
            "exp=ppo_recurrent",
            "algo.total_steps=65536",
            "env.num_envs=1",
            "algo.rollout_steps=128",
            "algo.update_epochs=10",
            "algo.per_rank_num_batches=2",
        ),
        goal="a third",
        judged=False,
    ),
    "j": Protocol(
        "PPO, PongNoFrameskip-v4 from pixels, 4 grey frames of 84 × 84, 16,384 steps, 4 environments, rollout 128, "
        "minibatch 256, 4 epochs",
        "PongNoFrameskip-v4",
        4,
        16_384,
        ("exp=ppo_atari", *QUIETLY, *PONG, "algo.total_steps=16384"),
        ("PPO", PONG_OPTIONS),
        ("exp=ppo_atari", "env.grayscale=True", *PONG, "algo.total_steps=16384"),
        vector="pixels",
        goal="half, outside the emulator's own time,",
        judged=False,
        beside=True,
    ),
    "k": Protocol(
        "Dreamer V3, networks of `dreamer_v3_benchmarks`, pixels of 64 × 64, 16 sequences of 64 rows: a gradient step",
        "discrete_dummy",
        1,
        136,
        ("exp=dreamer_v3_benchmarks", "env=dummy", *DREAMING, *EACH, "algo.compile=true"),
        None,
        ("exp=dreamer_v3_benchmarks", "env=dummy", *DREAMING, *EACH),
        goal="0.7 of the CPU time",
        judged=False,
        longer=160,
        more=24,
        unit="gradient step",
    ),
    "l": Protocol(
        "Dreamer V3, the same networks on CartPole's numbers: a gradient step",
        "CartPole-v1",
        1,
        168,
        ("exp=dreamer_v3_benchmarks", "env=gym", *DREAMING, *NUMBERS, *EACH, "algo.compile=true"),
        None,
        ("exp=dreamer_v3_benchmarks", "env=gym", *DREAMING, *NUMBERS, *EACH),
        goal="a third",
        judged=False,
        longer=328,
        more=160,
        unit="gradient step",
    ),
    "m": Protocol(
        "Dreamer V3, the same networks on CartPole's numbers: an action, of one environment",
        "CartPole-v1",
        1,
        500,
        ("exp=dreamer_v3_benchmarks", "env=gym", *DREAMING, *NUMBERS, *RARELY, "algo.compile=true"),
        None,
        ("exp=dreamer_v3_benchmarks", "env=gym", *DREAMING, *NUMBERS, *RARELY),
        goal="a third",
        judged=False,
        longer=2_500,
        more=2_000,
        unit="action",
    ),
    "n": Protocol(
        "Dreamer V1, networks of `dreamer_v1_benchmarks`, pixels of 64 × 64, 50 sequences of 50 rows: a gradient step",
        "discrete_dummy",
        1,
        132,
        ("exp=dreamer_v1_benchmarks", "env=dummy", *DREAMING, *EACH, "algo.compile=true"),
        None,
        ("exp=dreamer_v1_benchmarks", "env=dummy", *DREAMING, *EACH),
        goal="0.7 of the CPU time",
        judged=False,
        longer=144,
        more=12,
        unit="gradient step",
    ),
    "o": Protocol(
        "Dreamer V2, networks of `dreamer_v2_benchmarks`, pixels of 64 × 64, 16 sequences of 50 rows: a gradient step",
        "discrete_dummy",
        1,
        136,
        ("exp=dreamer_v2_benchmarks", "env=dummy", *DREAMING, *EACH, "algo.compile=true"),
        None,
        ("exp=dreamer_v2_benchmarks", "env=dummy", *DREAMING, *EACH),
        goal="0.7 of the CPU time",
        judged=False,
        longer=160,
        more=24,
        unit="gradient step",
    ),
    "p": Protocol(
        "SAC-AE, CarRacing-v3, 3 frames of 84 × 84, batch 128: a gradient step",
        "CarRacing-v3",
        1,
        20,
        ("exp=sac_ae", "env=gym", "env.num_envs=1", *QUIETLY, *PIXELS, *AT_ONCE, *EACH),
        None,
        ("exp=sac_ae", "env=gym", "env.num_envs=1", *PIXELS, *DECODED, *AT_ONCE, *EACH),
        goal="two thirds of the CPU time",
        judged=False,
        longer=44,
        more=24,
        unit="gradient step",
    ),
    "q": Protocol(
        "PPO, DeepMind Control's cartpole_balance from pixels of 64 × 64, 4,096 steps, 4 environments, rollout 128, "
        "minibatch 256, 4 epochs",
        "cartpole_balance",
        4,
        4_096,
        ("exp=ppo", *BALANCE, *QUIETLY, *PIXELS, *PONG, "algo.total_steps=4096"),
        None,
        ("exp=ppo", *BALANCE, *PIXELS, *PONG, "algo.total_steps=4096"),
        goal="two thirds of the CPU time",
        judged=False,
    ),
}


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}:{folder}",
        "MUJOCO_GL": os.environ.get("MUJOCO_GL") or "egl",  # which Shepherd finds by itself
        "SHEPHERD_HOME": str(folder),
        "SHEPHERD_CACHE": str(folder / "compiled"),
    }


def measured(command: Sequence[str], folder: Path) -> dict[str, float]:
    """Processor and wall seconds and peak memory [MB] of a command with all that it starts."""
    began = time.perf_counter()
    with open(folder / "output", "w+") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=output, stderr=output)
        peak = PeakMemory(process.pid)
        _, status, used = os.wait4(process.pid, 0)
        wall, memory = time.perf_counter() - began, peak.stop()
        output.seek(0)
        if status:
            sys.exit(f"{' '.join(command)}: failed\n{output.read()[-3000:]}")
    cpu = used.ru_utime + used.ru_stime
    return {"cpu": cpu, "wall": wall, "memory": memory}


def ours(protocol: Protocol, seed: int, folder: Path) -> dict[str, float]:
    run = f"runs/{seed}-{time.monotonic_ns()}"
    words = [*protocol.ours, *protocol.words(), f"env.id={protocol.env_id}", f"seed={seed}"]
    measured([str(BIN / "shepherd"), "stage", "make-env", run, *words], folder)
    plugins = [word for word in words if word.startswith("plugins=")]
    found = measured([str(BIN / "shepherd"), "stage", "train", run, *plugins], folder)
    if protocol.judged:
        judge = [str(BIN / "shepherd"), "evaluate", run, "--checkpoint", "latest", "--episodes", str(EPISODES)]
        measured(judge, folder)
        (written,) = (folder / run / "evaluations").glob(f"*-{EPISODES}.json")
        found["return"] = json.loads(written.read_text())["greedy"]["mean"]
    return found


def stable_baselines3(protocol: Protocol, seed: int, folder: Path, python: str) -> dict[str, float]:
    assert protocol.sb3 is not None
    (name, options), saved = protocol.sb3, str(folder / f"sb3-{seed}.zip")
    module = "sb3_contrib" if name in CONTRIB else "stable_baselines3"
    how = [protocol.vector, protocol.normalize, options, saved]
    policy = "CnnPolicy" if protocol.vector == "pixels" else CONTRIB.get(name, "MlpPolicy")
    asked = [module, name, policy, protocol.env_id, protocol.num_envs, protocol.steps, seed, *how]
    found = measured([python, "sb3.py", json.dumps(asked)], folder)
    if protocol.judged:
        how = [module, name, protocol.env_id, saved, protocol.normalize, EPISODES]
        found["return"] = asked_of(python, "sb3_judge.py", how, folder)
    return found


def sheeprl(protocol: Protocol, seed: int, folder: Path, python: str) -> dict[str, float]:
    words = [
        *protocol.sheeprl,
        *protocol.words(),
        f"env.id={protocol.env_id}",
        "env.sync_env=True",
        *SILENT,
        f"seed={seed}",
    ]
    logs = folder / f"sheeprl-{time.monotonic_ns()}"
    found = measured([str(Path(python).with_name("sheeprl")), *words, f"log_root={logs}"], folder)
    if protocol.judged:
        found["return"] = asked_of(python, "sheeprl_judge.py", [str(logs), EPISODES], folder)
    return found


def each(run: Callable[..., dict[str, float]], protocol: Protocol, *how: Any) -> dict[str, float]:
    """Figures of a run; where a protocol has two lengths, what the second takes longer for each `unit` that it adds."""
    short = run(protocol, *how)
    if not protocol.longer:
        return short
    long = run(replace(protocol, steps=protocol.longer), *how)
    slope = {key: (long[key] - short[key]) / protocol.more for key in ("cpu", "wall")}
    return slope | {"memory": long["memory"]}


def asked_of(python: str, script: str, words: Sequence[Any], folder: Path) -> float:
    """The number that one of the scripts prints last."""
    command = [python, script, json.dumps(words)]
    done = subprocess.run(command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


def simulator(protocol: Protocol, folder: Path) -> float:
    """Processor seconds of a protocol's steps with random actions and nothing else; 0 where they are not wanted."""
    if not protocol.beside:
        return 0.0
    return asked_of(sys.executable, "simulator.py", [protocol.env_id, protocol.steps], folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # Absolute, for it is started in another folder; not resolved, for a link is what makes it that environment's.
    parser.add_argument("--peers", required=True, type=os.path.abspath, help="Python of an environment with the peers")
    parser.add_argument("--only", nargs="*", choices=PROTOCOLS, default=list(PROTOCOLS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the table there, as Markdown")
    arguments = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory(prefix="shepherd-bench-") as name:
        folder = Path(name)
        for script, text in FILES.items():
            (folder / f"{script}.py").write_text(text)
        for letter in arguments.only:
            protocol = PROTOCOLS[letter]
            cold = ours(protocol, 0, folder)
            print(f"{letter}: {protocol.about}\n   ours, cold: {cold}", flush=True)
            baselines = "sb3-contrib" if protocol.sb3 and protocol.sb3[0] in CONTRIB else "Stable-Baselines3"
            rows: dict[str, list[dict[str, float]]] = {"Shepherd": [], baselines: [], "SheepRL": []}
            alone = []
            for seed in range(1, arguments.repeats + 1):
                alone.append(simulator(protocol, folder))
                rows["Shepherd"].append(each(ours, protocol, seed, folder))
                if protocol.sb3:
                    rows[baselines].append(stable_baselines3(protocol, seed, folder, arguments.peers))
                if protocol.sheeprl:
                    rows["SheepRL"].append(each(sheeprl, protocol, seed, folder, arguments.peers))
                print("  ", {who: found[-1] for who, found in rows.items() if found}, flush=True)
            found = {who: found for who, found in rows.items() if found}
            lines += table(letter, protocol, cold, found, statistics.median(alone))
            text = "\n".join([*head(arguments.repeats), *lines])
            print(text)
            if arguments.out:
                arguments.out.write_text(text + "\n")


def head(repeats: int) -> list[str]:
    processor = next(
        (line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    return [
        "# Speed beside the peers",
        "",
        f"Made by `make bench` on {time.strftime('%Y-%m-%d')}: {os.cpu_count()} × {processor}, Python "
        f"{platform.python_version()}. The train stage as whole processes, imports and exit included, one thread, "
        f"alternating; medians of {repeats}. `cold` is our first run, which compiles what the others find. Memory is "
        "that of a stage with all its processes, pages that they share once, looked at ten times a second.",
        "",
        f"Returns are of {EPISODES} greedy episodes for each seed, on seeds that nobody trained on. In a, the "
        "preset of SheepRL's benchmark has one trunk for actor and critic, Stable-Baselines3 two networks, which learn "
        "CartPole more surely at these numbers; in b all have two.",
        "",
    ]


Rows = dict[str, list[dict[str, float]]]


def table(letter: str, protocol: Protocol, cold: dict[str, float], rows: Rows, alone: float) -> list[str]:
    times = (f"CPU ms a {protocol.unit}", f"wall ms a {protocol.unit}") if protocol.longer else ("CPU s", "wall s")
    columns = ("", *times, "peak MB", "returns", "their CPU / ours", "their wall / ours")
    scale = 1e3 if protocol.longer else 1
    lines = [f"## {letter}. {protocol.about}", "", f"To reach: {protocol.goal} of each peer.", ""]
    if alone:
        lines += [f"The simulator alone takes {alone:.1f} s of each; the ratios of processor time are without it.", ""]
    lines += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    median = {
        who: {key: statistics.median(row[key] for row in found) for key in found[0]} for who, found in rows.items()
    }
    for who, m in median.items():
        returns = ", ".join(f"{row['return']:.0f}" for row in rows[who]) if "return" in m else ""
        ratio = (m["cpu"] - alone) / (median["Shepherd"]["cpu"] - alone)
        ratios = f"{ratio:.1f} | {m['wall'] / median['Shepherd']['wall']:.1f}"
        lines.append(
            f"| {who} | {scale * m['cpu']:.1f} | {scale * m['wall']:.1f} | {m['memory']:.0f} | {returns} | {ratios} |"
        )
    of_run = " (whole run, s)" if protocol.longer else ""
    lines.append(f"| Shepherd, cold{of_run} | {cold['cpu']:.1f} | {cold['wall']:.1f} | {cold['memory']:.0f} | | | |")
    return [*lines, ""]


if __name__ == "__main__":
    main()
