"""Workers killed in a sweep on a pool: in the seconds before a trial's flow run starts, and while it runs.

    python -m tests.kills.workers [--seed N] [--kills 20] [--only pending|running]

Each sweep of two trials loses the only worker of `make up` twice, once per trial, and must then end by itself with
each trial trained once. The result of a sweep is a line in `.shepherd/workers.jsonl`, keyed by the code: after an
interruption, the program continues with the next sweep.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from tests.flows.workers.site import Site
from tests.kills.soak import append, code_key, read
from tests.processes import ROOT, one, send, wait_for
from tests.retries import Patience

KINDS = ("pending", "running")
TRIALS = 2
SWEEPS = 3  # between two `make up`: after each short life a worker waits twice as long before it starts again
PATIENCE = 600.0  # seconds for a sweep, which takes a few dozen on a busy machine
TRIAL = [
    "exp=ppo",
    "env.num_envs=2",
    "env.capture_video=false",
    "algo.rollout_steps=32",
    "algo.per_rank_batch_size=32",
    "algo.update_epochs=1",
    "algo.total_steps=8192",
    "algo.compile=false",
    "checkpoint.every=512",
    "evaluation.every=2048",
    "evaluation.episodes=2",
    "evaluation.num_envs=2",
    "evaluation.baseline_episodes=2",
    "algo.gamma=interval(0.9,0.99)",
    "sweep.sampler=random",
    "sweep.pruner=none",
    "sweep.workers=1",
    "sweep.mode=async",
    "sweep.confirm_seeds=0",
    f"sweep.trials={TRIALS}",
]
# Delay of the kill after a trial's flow run has entered the state; from pending to running takes some seconds.
DELAYS = {"pending": 2.5, "running": 6.0}


def soak(kinds: list[str], kills: int, seed: int) -> list[dict[str, Any]]:
    """Run sweeps until there are enough kills of each kind, including earlier calls; return their results."""
    results, key = ROOT / ".shepherd/workers.jsonl", code_key()
    results.parent.mkdir(exist_ok=True)
    print(f"workers killed, code {key} · seed {seed} · results in {results}", flush=True)
    with tempfile.TemporaryDirectory(prefix="workers-") as name:
        site, swept = Site(Path(name)), 0
        try:
            for kind in kinds:
                while made(read(results, key), kind) < kills:
                    if swept % SWEEPS == 0:
                        site.servers("down")
                        site.servers("up")
                    number, swept = len([r for r in read(results, key) if r["mode"] == kind]), swept + 1
                    append(results, {"key": key, **killed(site, [kind] * TRIALS, seed, number)})
                    print(f"{kind}: {made(read(results, key), kind)} of {kills} kills", flush=True)
        finally:
            site.servers("down")
    return [record for record in read(results, key) if record["mode"] in kinds]


def made(records: list[dict[str, Any]], kind: str) -> int:
    """Return the number of kills of a kind."""
    return sum(record["states"].count(kind.upper()) for record in records)


def killed(site: Site, kinds: list[str], seed: int, number: int) -> dict[str, Any]:
    """Run one sweep whose worker is killed once for each trial, at a moment of the kind; return its result."""
    began = time.monotonic()
    rng = np.random.default_rng([seed, KINDS.index(kinds[0]), number])
    name = f"{kinds[0]}_{number}"
    flow_run = site.start("sweep-ppo/default", overrides=[*TRIAL, f"sweep.name={name}"])
    states = [kill(site, name, trial, kind, rng) for trial, kind in enumerate(kinds)]
    ended = wait_for_end(site, flow_run)
    record = {"mode": kinds[0], "sweep": name, "seed": seed, "states": states, "ended": ended}
    faults = wrong(site, name) if ended[0] == "COMPLETED" else [": ".join(ended)]
    return record | {"wrong": faults, "seconds": round(time.monotonic() - began, 1)}


def wait_for_end(site: Site, flow_run: str) -> tuple[str, str]:
    """Return the state of a sweep's flow run at its end or after a limit; it crashes with its worker and resumes."""
    over, patience = ("COMPLETED", "FAILED", "CANCELLED"), Patience(PATIENCE)
    while (state := site.state(flow_run))[0] not in over and not patience.over:
        time.sleep(0.5)
    return state


def kill(site: Site, name: str, trial: int, kind: str, rng: np.random.Generator) -> str:
    """Kill the worker some time after a trial's flow run has entered a state; return the type of its state then."""

    def find_flow_run() -> dict[str, Any] | None:
        of_trial = [run for run in trials_of(site, name) if run["name"].startswith(f"trial {trial}:")]
        return next((run for run in of_trial if run["state_type"] == kind.upper()), None)

    found = wait_for(find_flow_run, f"trial {trial} of {name} {kind}", PATIENCE, every=0.2)
    if rng.random() < 0.75:  # otherwise at once: the first state, named Pending, is over within 0.1 s
        time.sleep(float(rng.uniform(0.0, DELAYS[kind])))
    send(one(site.home, "worker"), signal.SIGKILL)
    return site.state(found["id"])[0]


def trials_of(site: Site, name: str) -> list[dict[str, Any]]:
    """Return the flow runs of a sweep's trials."""
    tagged = site.ask("flow_runs/filter", flow_runs={"tags": {"all_": [name]}})
    return [run for run in tagged if run["parent_task_run_id"]]


def wrong(site: Site, name: str) -> list[str]:
    """Return faults: every trial must be trained to its end, each part of it once, by one flow run."""
    found = []
    flow_runs = trials_of(site, name)
    if len(flow_runs) != TRIALS or {run["state_type"] for run in flow_runs} != {"COMPLETED"}:
        found.append(f"flow runs {[(run['name'], run['state_type']) for run in flow_runs]}")
    runs = [RunDirectory(path.parent) for path in sorted((site.home / "runs/sweeps" / name).rglob("run.json"))]
    if len(runs) != TRIALS:
        found.append(f"{len(runs)} runs")
    for run in runs:
        events = [*read_events(run.events)]
        evaluated = Counter(event["policy_steps"] for event in events if event["kind"] == "evaluation")
        saved = {(event["policy_steps"], event["digest"]) for event in events if event["kind"] == "checkpoint"}
        if run.read_summary()["status"] != "finished" or set(evaluated.values()) != {1} or len(evaluated) < 3:
            found.append(f"{run.path}: {run.read_summary()['status']}, evaluated {evaluated}")
        if len(saved) != len({steps for steps, _ in saved}):
            found.append(f"{run.path}: two checkpoints of one number of steps differ")
    return found


def main() -> int:
    """Run or continue the kills; return 1 if a sweep did not end by itself, or a trial was not trained once."""
    parser = argparse.ArgumentParser(prog="python -m tests.kills.workers", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)), help="draws the moments (random)")
    parser.add_argument("--kills", type=int, default=20, help="of each kind (20)")
    parser.add_argument("--only", choices=KINDS, action="append", help="one kind")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers end with it
    found = soak(options.only or list(KINDS), options.kills, options.seed)
    faulty = [record for record in found if record["wrong"]]
    for kind in options.only or KINDS:
        print(f"{kind}: {made(found, kind)} workers killed in {sum(r['mode'] == kind for r in found)} sweeps")
    print("\n".join(f"{record['sweep']}: {'; '.join(record['wrong'])}" for record in faulty) or "every trial once")
    return 1 if faulty else 0


if __name__ == "__main__":
    raise SystemExit(main())
