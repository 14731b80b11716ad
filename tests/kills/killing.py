"""Kill a training run repeatedly at random moments, resume it, and compare its end with an uninterrupted run.

Real commands in real processes. A moment is drawn from a seed: a time after the start, an event of the log, a
checkpoint being written or an evaluation; then a short random delay, so that everything between two events is hit.
The process tree is frozen and killed as a whole.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flows.settings import WARM
from rlcore.store import checkpoint, compare
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from tests.kills.cases import Case
from tests.kills.phases import phase_of_tree
from tests.processes import environment, kill_all, orphans, processes, send

# Kinds of events whose values must be equal. The log may have several equal events of callbacks.
RECORDED = ("metrics", "evaluation", "baseline", "callback")
WATCHED = Path(__file__).resolve().parent / "watched"
GAP = 0.05  # seconds; about two iterations of these runs
WRITING = 0.004  # seconds that one of their checkpoints takes
LOOK = 0.003  # seconds between two looks at a run, because looking takes processor time from it
CLOSE_LOOK = 0.0003  # for events that end within milliseconds


@dataclass
class Reference:
    """Uninterrupted run.

    Attributes:
        run: its directory.
        first: seconds until its first event.
        whole: seconds from start to end.
        last: seconds after its last evaluation.
        judged: whether the last evaluation was the final one of the whole flow.
    """

    run: RunDirectory
    first: float = 0.0
    whole: float = 0.0
    last: float = 0.0
    judged: bool = False

    def steps(self, kind: str) -> list[int]:
        """Return the environment steps of the events of one kind during training."""
        return [e["policy_steps"] for e in read_events(self.run.events) if e["kind"] == kind and not e.get("final")]


def run_to_end(run: RunDirectory, case: Case, home: Path) -> Reference:
    """Train a run of a case to its end and measure it."""
    began = time.monotonic()
    reference = Reference(run)
    run.path.parent.mkdir(parents=True, exist_ok=True)
    with open(run.path.with_suffix(".output"), "wb") as output:
        process = subprocess.Popen(
            case.command(run), env=environment(home, **case.variables), stdout=output, stderr=output
        )
        while process.poll() is None and not (run.events.exists() and run.events.stat().st_size):
            time.sleep(0.005)
        reference.first = time.monotonic() - began
        code = process.wait()
    assert code == 0, Path(output.name).read_text()[-3000:]
    assert reference.steps("metrics"), "nothing was trained"
    reference.whole = time.monotonic() - began
    last = [e for e in read_events(run.events) if e["kind"] == "evaluation"][-1]
    reference.last, reference.judged = time.time() - last["time"], last["final"]
    return reference


def kill_and_resume(
    run: RunDirectory, case: Case, reference: Reference, kills: int, rng: np.random.Generator, home: Path
) -> list[str]:
    """Kill a run the given number of times at random moments, then finish it: `kill`, then `finish`."""
    phases = kill(run, case, reference, kills, rng, home)
    finish(run, case, home)
    return phases


def finish(run: RunDirectory, case: Case, home: Path, **more: str) -> None:
    """Resume a run to its end, with `more` variables; if this process has a warm server, the trainer of a stage is
    forked."""
    warm = {WARM: os.environ[WARM]} if WARM in os.environ and "flow" not in case.mode else {}
    variables = environment(home, **case.variables, **warm, **more)
    done = subprocess.run(case.command(run), env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def kill(
    run: RunDirectory,
    case: Case,
    reference: Reference,
    kills: int,
    rng: np.random.Generator,
    home: Path,
    later: int = 0,
) -> list[str]:
    """Start a run and kill it, repeatedly.

    Args:
        run: prepared like the reference.
        case: gives the command that starts and resumes it.
        reference: the uninterrupted run.
        kills: number of kills.
        rng: generator of the moments.
        home: for the project's databases.
        later: number of kills after these, before the end of the run.

    Returns:
        Phases in which the kills happened; fewer than `kills` if the run ended first.
    """
    phases: list[str] = []
    folder = run.path.with_suffix(".stacks")
    folder.mkdir(exist_ok=True)
    variables = environment(home, PYTHONPATH=str(WATCHED), KILLS_FOLDER=str(folder), **case.variables)
    while len(phases) < kills:
        with open(run.path.with_suffix(".output"), "ab") as output:
            process = subprocess.Popen(
                case.command(run), env=variables, stdout=output, stderr=output, start_new_session=True
            )
            if not _wait_for_moment(process, run, reference, kills - len(phases) + later, rng):
                assert process.returncode == 0, Path(output.name).read_text()[-3000:]
                break
            phases.append(_kill(process, folder, home))
    return phases


def _wait_for_moment(
    process: subprocess.Popen[bytes], run: RunDirectory, reference: Reference, left: int, rng: np.random.Generator
) -> bool:
    """Wait for a random moment; return False if the process has ended before it."""
    reached = max((e["policy_steps"] for e in read_events(run.events) if "policy_steps" in e), default=0)
    if left == 1 and reference.judged and rng.random() < 0.6:
        return _until(process, lambda: _has(run, "evaluation", final=True)) and _sleep(
            process, rng.uniform(0, 0.8 * reference.last)
        )
    kind = rng.choice(["time", "progress", "checkpoint", "evaluation"], p=[0.25, 0.4, 0.2, 0.15])
    if kind == "time" or not (ahead := [s for s in reference.steps("metrics") if s > reached]):
        # A resumed run has less to do than a whole run.
        return _sleep(process, rng.uniform(0, reference.first if left > 1 or reached else reference.whole))
    # Each kill takes its share of the run, so that all of them come before the end.
    within = ahead[: max(1, round(len(ahead) * 1.5 / (left + 0.5)))]
    target = int(rng.choice(within))
    if kind == "evaluation" and (judged := [s for s in reference.steps("evaluation") if s in within]):
        return _until(process, lambda: _has(run, "checkpoint", policy_steps=judged[0])) and _sleep(
            process, rng.uniform(0, 2 * GAP)
        )
    if kind == "checkpoint" and (saved := [s for s in reference.steps("checkpoint") if s in within]):
        chosen = int(rng.choice(saved))
        before = max((s for s in reference.steps("metrics") if s < chosen), default=0)
        if before > reached and not _until(process, lambda: _has(run, "metrics", policy_steps=before)):
            return False
        writing = run.checkpoints / f".{chosen}.tmp-"
        return _until(
            process, lambda: _exists(writing) or _has(run, "checkpoint", policy_steps=chosen), CLOSE_LOOK
        ) and _sleep(process, rng.uniform(0, WRITING))
    return _until(process, lambda: _has(run, "metrics", policy_steps=target)) and _sleep(process, rng.uniform(0, GAP))


def _sleep(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def _until(process: subprocess.Popen[bytes], happened: Callable[[], bool], every: float = LOOK) -> bool:
    while process.poll() is None:
        if happened():
            return True
        time.sleep(every)
    return False


def _exists(prefix: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(name.startswith(prefix.name) for name in os.listdir(prefix.parent))
    return False


def _has(run: RunDirectory, kind: str, **fields: Any) -> bool:
    """Return whether the log has this event; reads only its end, because it is called thousands of times."""
    with contextlib.suppress(OSError), open(run.events, "rb") as handle:
        handle.seek(max(0, os.fstat(handle.fileno()).st_size - 20_000))
        for line in handle.read().split(b"\n")[-40:-1]:
            if kind.encode() not in line:
                continue
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event["kind"] == kind and fields.items() <= event.items():
                    return True
    return False


def _kill(process: subprocess.Popen[bytes], folder: Path, home: Path) -> str:
    """Make trainer and driver write their stacks, then kill all processes; return the phase."""
    members = {p.kind: p.pid for p in processes(home) if p.kind in ("cli", "trainer")}
    asked = {kind: folder / f"{pid}.stack" for kind, pid in members.items() if _ask(pid, folder)}
    kill_all(home)
    process.wait()
    assert not orphans(home)
    stacks = {kind: path.read_text() for kind, path in asked.items()}
    for path in folder.iterdir():
        path.unlink()
    return phase_of_tree(stacks)


def _ask(pid: int, folder: Path) -> bool:
    """Make a process write its stack; return False if it is not ready for that yet."""
    path = folder / f"{pid}.stack"
    if not path.exists():
        return False
    send(pid, signal.SIGUSR1)
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline and "Current thread" not in path.read_text():
        time.sleep(0.001)
    return True


def same_bits(first: RunDirectory, second: RunDirectory) -> bool:
    """Return whether two finished runs ended in the same checkpoint, compared like `shepherd diff`."""
    last = [checkpoint.resolve(run, "latest") for run in (first, second)]
    return last[0].name == last[1].name and not list(compare.differences(*last))


def callback_states(run: RunDirectory) -> Any:
    """Return the states of the callbacks in the last checkpoint, without times and paths; {} if there are none."""
    stored = checkpoint.load(checkpoint.resolve(run, "latest"))[1].get("callbacks", {}).get("states", {})
    return _without_times(json.loads(json.dumps(stored).replace(str(run.path), "RUN")))


def _without_times(state: Any) -> Any:
    if isinstance(state, dict):
        return {k: _without_times(v) for k, v in state.items() if k != "name" and not k.startswith("Time/")}
    return [_without_times(value) for value in state] if isinstance(state, list) else state


def same_record(first: RunDirectory, second: RunDirectory) -> bool:
    """Return whether two event logs have the same metric points and evaluations, except for times.

    A point that was written again after a kill must have the same values as before.
    """
    return _record(first) == _record(second)


def _record(run: RunDirectory) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for line in run.events.read_bytes().split(b"\n")[:-1]:
        with contextlib.suppress(ValueError):  # torn by a kill, and completed by the newline of the next writer
            event = json.loads(line)
            if event["kind"] not in RECORDED:
                continue
            point = json.dumps(
                [event["kind"], event.get("policy_steps", 0), bool(event.get("final")), event.get("method")]
            )
            said = _timeless(event)
            assert told.setdefault(point, said) == said, f"{point} was told twice, and differently"
    kinds = [kind for kind in RECORDED if kind != "callback"]
    once = [e for e in read_events(run.events) if e["kind"] in kinds]
    numbers = [point for point in told if json.loads(point)[0] in kinds]
    assert len(once) == len(numbers), "the log's reader tells a point twice, or leaves one out"
    return told


def _timeless(event: dict[str, Any]) -> dict[str, Any]:
    event = {key: value for key, value in event.items() if key not in ("time", "wall_s", "cpu_s")}
    if "values" in event:
        event["values"] = {k: v for k, v in event["values"].items() if not k.startswith("Time/")}
    return event
