"""Overhead that environment wrappers and vector environments add to an Atari emulator.

The first table measures the wrappers of one game in one process. The second measures eight games in subprocesses.

    python -m benchmarks.games --peers VENV/bin/python      # writes docs/results/games.md; two minutes, extra `atari`

Each row of a table is measured `--repeats` times, each time in a new process and after all other rows. The best value
is reported, because other programs on the machine can only add time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/results/games.md"
GAME, SIDE, SKIP = "PongNoFrameskip-v4", 84, 4
STEPS, WARM = 2000, 100  # of one game
GAMES, ROUNDS = 8, 400

ONE = {
    "emulator": "emulator: four frames and one grayscale screen",
    "picture": "emulator and image: also a second screen, maximum of both, area resize to 84 × 84 (OpenCV)",
    "gymnasium": "Gymnasium's AtariPreprocessing",
    "chain": "complete wrapper chain (`rlcore.envs.make`)",
    "vector": "complete chain in a vector environment of size 1, with seeds, episodes, checks and arrays",
}
EIGHT = {
    "ours": "Shepherd, `env.sync_env=false`",
    "gymnasium_8": "Gymnasium's AsyncVectorEnv, shared memory",
    "sb3": "Stable-Baselines3's SubprocVecEnv",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=os.path.abspath, help="Python of an environment with Stable-Baselines3")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--measure", choices=[*ONE, *EIGHT], help="measure one row in this process")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(globals()[f"measure_{arguments.measure}"]()))
        return
    rows: dict[str, list[list[float]]] = {name: [] for name in [*ONE, *EIGHT] if name != "sb3" or arguments.peers}
    for _ in range(arguments.repeats):
        for name, values in rows.items():
            values.append(measure_in_process(name, arguments.peers if name == "sb3" else sys.executable))
            print(name, values[-1], flush=True)
    PAGE.write_text(page(rows, arguments.repeats))


def measure_in_process(name: str, python: str) -> list[float]:
    """Measure one row of a table in a new process."""
    command = [python, "-m", "benchmarks.games", "--measure", name]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])


def page(rows: dict[str, list[list[float]]], repeats: int) -> str:
    least = {name: min(values)[0] for name, values in rows.items() if name in ONE}
    lines = [
        "# Overhead around an Atari emulator",
        "",
        f"Written by `python -m benchmarks.games` on {time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPU cores, load "
        f"{os.getloadavg()[2]:.0f}. {GAME}, four frames per step, grayscale, {SIDE} × {SIDE}, random actions. Each row "
        f"is measured in a separate process, {repeats} times, and the rows alternate. Values are the best of each, "
        "because other load only adds time; medians are in parentheses.",
        "",
        "| one game | CPU µs per step | relative to emulator | relative to emulator and image |",
        "|---|---|---|---|",
    ]
    for name, text in ONE.items():
        over = [f"{100 * (least[name] / least[base] - 1):+.0f} %" for base in ("emulator", "picture")]
        median = statistics.median(values[0] for values in rows[name])
        lines.append(f"| {text} | {least[name]:.0f} ({median:.0f}) | {' | '.join(over)} |")
    lines += ["", f"| {GAMES} games in subprocesses | steps/s of all games (wall time) | CPU µs per step |"]
    lines.append("|---" * 3 + "|")
    for name in (name for name in rows if name in EIGHT):
        speeds, costs = ([values[column] for values in rows[name]] for column in (0, 1))
        speed = f"{max(speeds):,.0f} ({statistics.median(speeds):,.0f})"
        lines.append(f"| {EIGHT[name]} | {speed} | {min(costs):.0f} ({statistics.median(costs):.0f}) |")
    lines += [
        "",
        "The preprocessing needs the work of the row `emulator and image`: without the second screen and the mean "
        "over areas, the observations would differ. The goal of at most 15 % over the emulator is below the cost of "
        "the image alone. Steps per second also depend on other load on the machine.",
    ]
    return "\n".join([*lines, ""])


# One game


def per_step(step: Callable[[int], Any], episode: Callable[[], Any]) -> list[float]:
    """Return the CPU microseconds per call of `step`: ten segments of 200 calls are timed, and the fastest counts.

    `episode` starts a new episode before each segment.
    """
    buttons, pieces = np.random.default_rng(0).integers(6, size=STEPS), []
    for piece in np.split(buttons, 10):
        episode()
        begin = time.process_time()
        for button in piece.tolist():
            step(button)
        pieces.append((time.process_time() - begin) / len(piece))
    return [1e6 * min(pieces)]


def game() -> Any:
    import ale_py

    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    env: Any = gymnasium.make(GAME, disable_env_checker=True).unwrapped
    env.reset(seed=0)
    return env


def measure_emulator() -> list[float]:
    env, screen = game(), np.empty((210, 160), np.uint8)

    def step(button: int) -> None:
        for _ in range(SKIP):
            env.ale.act(env._action_set[button], 1.0)
        env.ale.getScreenGrayscale(screen)

    return per_step(step, env.ale.reset_game)


def measure_picture() -> list[float]:
    import cv2

    env, screens = game(), np.empty((2, 210, 160), np.uint8)

    def step(button: int) -> None:
        for frame in range(SKIP):
            env.ale.act(env._action_set[button], 1.0)
            if frame >= SKIP - 2:
                env.ale.getScreenGrayscale(screens[SKIP - 1 - frame])
        np.maximum(screens[0], screens[1], out=screens[0])
        cv2.resize(screens[0], (SIDE, SIDE), interpolation=cv2.INTER_AREA)

    cv2.setNumThreads(1)
    return per_step(step, env.ale.reset_game)


def make_preprocessed() -> gymnasium.Env:
    """Return the Atari game with Gymnasium's wrapper AtariPreprocessing."""
    import cv2

    cv2.setNumThreads(1)
    game()
    env = gymnasium.make(GAME, disable_env_checker=True)
    return gymnasium.wrappers.AtariPreprocessing(env, grayscale_newaxis=True)


def measure_gymnasium() -> list[float]:
    env = make_preprocessed()
    return per_step(env.step, lambda: env.reset(seed=0))


def settings() -> Any:
    from rlcore.config.groups import EnvConfig

    return EnvConfig(id=GAME, action_repeat=SKIP, screen_size=SIDE, grayscale=True, frame_stack=4, sync_env=False)


def measure_chain() -> list[float]:
    from rlcore.envs.make import make

    env = make(settings())
    return per_step(env.step, lambda: env.reset(seed=0))


def measure_vector() -> list[float]:
    from rlcore.envs.make import EnvSettings
    from rlcore.envs.vector.choose import make_vector_env

    envs = make_vector_env(EnvSettings.of(settings()), num_envs=1, seed=0)
    envs.reset()
    return per_step(lambda button: envs.step(np.array([button])), lambda: None)


# Eight games


def in_turn(step: Callable[[np.ndarray], Any]) -> list[float]:
    """Step eight games with random actions; return [env steps per second, CPU microseconds per env step].

    The steps of all games and the CPU time of all processes are added up.
    """
    buttons = np.random.default_rng(0).integers(6, size=(WARM + ROUNDS, GAMES))
    for row in buttons[:WARM]:
        step(row)
    begin, used = time.perf_counter(), processor(os.getpid())
    for row in buttons[WARM:]:
        step(row)
    steps = GAMES * ROUNDS
    return [steps / (time.perf_counter() - begin), 1e6 * (processor(os.getpid()) - used) / steps]


def processor(pid: int) -> float:
    """Return the CPU seconds of a process and of its running descendants."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = [
        child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return own + sum(processor(int(child)) for child in children)


def measure_ours() -> list[float]:
    from rlcore.envs.vector.choose import make_vector_env

    with closing(make_vector_env(settings(), num_envs=GAMES, seed=0)) as envs:
        envs.reset()
        return in_turn(envs.step)


def measure_gymnasium_8() -> list[float]:
    envs = gymnasium.vector.AsyncVectorEnv([make_preprocessed] * GAMES, shared_memory=True, context="forkserver")
    with closing(envs):
        envs.reset(seed=0)
        return in_turn(envs.step)


def measure_sb3() -> list[float]:
    vectors: Any = importlib.import_module("stable_baselines3.common.vec_env")  # of the peers' environment
    with closing(vectors.SubprocVecEnv([make_preprocessed] * GAMES, start_method="forkserver")) as envs:
        envs.seed(0)
        envs.reset()
        return in_turn(envs.step)


if __name__ == "__main__":
    main()
