"""Speed of the train stage compared with Stable-Baselines3, sb3-contrib and SheepRL 0.8.4, with equal settings.

    make bench       # installs the libraries in .shepherd/peers, runs all protocols, writes docs/results/speed.md
    python -m benchmarks.peers --peers VENV/bin/python --only a c --repeats 3

The CPU seconds, wall seconds and peak memory of a training command and all its child processes are measured, including
imports and exit. Each process uses one thread, and the libraries run alternately. Our command is `shepherd stage train`
for a run that `shepherd stage make-env` has created. A protocol is a task with settings (`benchmarks/protocols.py`). In
each protocol, our first run starts with an empty cache of compiled code and is reported separately; medians are
computed over the later runs. Returns are means over greedy episodes with seeds that were not used for training.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.memory import PeakMemory
from benchmarks.peer_scripts import FILES
from benchmarks.protocols import CONTRIB, PROTOCOLS, Protocol
from benchmarks.speed_page import EPISODES, keep, table

ROOT = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
RESULTS = ROOT / "docs/results"
QUIET = ("metric.log_level=0", "checkpoint.save_last=True", "algo.run_test=False", "env.capture_video=False")
SILENT = (*QUIET, "checkpoint.every=1000000", "model_manager.disabled=True", "fabric.accelerator=cpu", "num_threads=1")


def environment(folder: Path) -> dict[str, str]:
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT}:{folder}",
        "MUJOCO_GL": os.environ.get("MUJOCO_GL") or "egl",  # the value that Shepherd selects automatically
        "SHEPHERD_HOME": str(folder),
        "SHEPHERD_CACHE": str(folder / "compiled"),
    }


def measure_command(command: Sequence[str], folder: Path) -> dict[str, float]:
    """Return the CPU seconds, wall seconds and peak memory [MB] of a command with all its descendants."""
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


def ours(protocol: Protocol, seed: int, folder: Path, episodes: int = EPISODES) -> dict[str, float]:
    run = f"runs/{seed}-{time.monotonic_ns()}"
    words = [*protocol.ours, *protocol.words(), f"env.id={protocol.env_id}", f"seed={seed}"]
    measure_command([str(BIN / "shepherd"), "stage", "make-env", run, *words], folder)
    plugins = [word for word in words if word.startswith("plugins=")]
    figures = measure_command([str(BIN / "shepherd"), "stage", "train", run, *plugins], folder)
    if protocol.evaluated:
        evaluate = [str(BIN / "shepherd"), "evaluate", run, "--checkpoint", "latest", "--episodes", str(episodes)]
        evaluate += ["--round", str(seed + 2)]  # each run has start states of its own
        measure_command(evaluate, folder)
        (written,) = (folder / run / "evaluations").glob(f"*-{episodes}.json")
        figures["return"] = json.loads(written.read_text())["greedy"]["mean"]
    return figures


def stable_baselines3(protocol: Protocol, seed: int, folder: Path, python: str) -> dict[str, float]:
    assert protocol.sb3 is not None
    (name, options), saved = protocol.sb3, str(folder / f"sb3-{seed}.zip")
    module = "sb3_contrib" if name in CONTRIB else "stable_baselines3"
    how = [protocol.vector, protocol.normalize, options, saved]
    policy = "CnnPolicy" if protocol.vector == "pixels" else CONTRIB.get(name, "MlpPolicy")
    arguments = [module, name, policy, protocol.env_id, protocol.num_envs, protocol.steps, seed, *how]
    figures = measure_command([python, "sb3.py", json.dumps(arguments)], folder)
    if protocol.evaluated:
        how = [module, name, protocol.env_id, saved, protocol.normalize, EPISODES]
        figures["return"] = run_script(python, "sb3_evaluate.py", how, folder)
    return figures


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
    figures = measure_command([str(Path(python).with_name("sheeprl")), *words, f"log_root={logs}"], folder)
    if protocol.evaluated:
        figures["return"] = run_script(python, "sheeprl_evaluate.py", [str(logs), EPISODES], folder)
    return figures


def each(run: Callable[..., dict[str, float]], protocol: Protocol, *how: Any) -> dict[str, float]:
    """Measure a library in a protocol (task and settings); return CPU seconds, wall seconds and peak memory [MB].

    If the protocol has a second run with more steps (`Protocol.longer`), both runs are measured. The seconds are then
    seconds per unit, for example per gradient step: the difference of the two runs, divided by the additional units of
    the longer run (`Protocol.more`). This excludes the time of startup.
    """
    short = run(protocol, *how)
    if not protocol.longer:
        return short
    long = run(replace(protocol, steps=protocol.longer), *how)
    slope = {key: (long[key] - short[key]) / protocol.more for key in ("cpu", "wall")}
    return slope | {"memory": long["memory"]}


def run_script(python: str, script: str, words: Sequence[Any], folder: Path) -> float:
    """Run a script of `benchmarks/peer_scripts.py` and return the last number that it prints."""
    command = [python, script, json.dumps(words)]
    done = subprocess.run(command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.split()[-1])


def simulator(protocol: Protocol, folder: Path) -> float:
    """Return the CPU seconds of the simulator with random actions, for the number of steps of a protocol (task).

    Returns 0 if the protocol does not subtract the simulator's time (`Protocol.without_simulator`).
    """
    if not protocol.without_simulator:
        return 0.0
    return run_script(sys.executable, "simulator.py", [protocol.env_id, protocol.steps], folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    # Absolute, because it is started in another folder; not resolved, because the link selects the virtual environment.
    parser.add_argument("--peers", required=True, type=os.path.abspath, help="Python of an environment with the peers")
    parser.add_argument(
        "--only",
        nargs="*",
        choices=PROTOCOLS,
        default=list(PROTOCOLS),
        help="protocols to measure; other rows are kept",
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of speed.json and speed.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shepherd-bench-") as name:
        folder = Path(name)
        write_scripts(folder)
        for letter in arguments.only:
            print(f"{letter}: {PROTOCOLS[letter].about}", flush=True)
            figures = alternate(PROTOCOLS[letter], arguments.repeats, folder, arguments.peers)
            figures |= {"day": time.strftime("%Y-%m-%d"), "state": state()}
            print("\n".join(table(letter, figures)), flush=True)
            keep(arguments.results, letter, figures)


def state() -> str:
    """Return a description of the machine: CPU, Python version, and load average of the last five minutes.

    The benchmark adds 1 to the load, because it is a running process.
    """
    processor = next(
        (line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    python, load = platform.python_version(), os.getloadavg()[1]
    return f"{os.cpu_count()} × {processor}, Python {python}, load {load:.1f} (the benchmark itself is 1)"


def write_scripts(folder: Path) -> None:
    """Write the scripts of the peers to the folder in which `measure_command` starts them."""
    for script, text in FILES.items():
        (folder / f"{script}.py").write_text(text)


def alternate(protocol: Protocol, repeats: int, folder: Path, peers: str) -> dict[str, Any]:
    """Measure all libraries in a protocol (task and settings), in alternation.

    The first run is ours with an empty cache ("cold"). Then each library trains once with each of `repeats` seeds.

    Args:
        protocol: the settings.
        repeats: number of seeds.
        folder: folder in which the commands run.
        peers: Python of the environment in which the other libraries are installed.

    Returns:
        "cold" -> measurement of our first run; "rows" -> library -> measurements of its runs; "alone" -> CPU seconds
        of the simulator alone, one per seed.
    """
    cold = ours(protocol, 0, folder)
    print("   ours, cold:", cold, flush=True)
    baselines = "sb3-contrib" if protocol.sb3 and protocol.sb3[0] in CONTRIB else "Stable-Baselines3"
    rows: dict[str, list[dict[str, float]]] = {"Shepherd": [], baselines: [], "SheepRL": []}
    alone = []
    for seed in range(1, repeats + 1):
        alone.append(simulator(protocol, folder))
        rows["Shepherd"].append(each(ours, protocol, seed, folder))
        if protocol.sb3:
            rows[baselines].append(stable_baselines3(protocol, seed, folder, peers))
        if protocol.sheeprl:
            rows["SheepRL"].append(each(sheeprl, protocol, seed, folder, peers))
        print("  ", {who: runs[-1] for who, runs in rows.items() if runs}, flush=True)
    return {"cold": cold, "rows": {who: runs for who, runs in rows.items() if runs}, "alone": alone}


if __name__ == "__main__":
    main()
