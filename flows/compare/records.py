"""Data of a run that are needed to compare it with other runs.

They are read from the run's directory, or from MLflow if the directory is not on this machine.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.report.command_lines import short_path
from flows.tracking.mlflow_run import RUN_TAG, STATUS, flat
from flows.tracking.tags import tag_value
from rlcore.config.callbacks import may_log
from rlcore.config.values import spell
from rlcore.store import series
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from rlcore.store.history import History, history
from rlcore.store.series import CLOCKS, EPISODE_RETURN, Line, Quantity

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

DONE = ("finished", "stopped_early")
NOT_FINITE = "not finite"
# Prefixes of keys that change what returns mean; runs that differ in one of them have different tasks.
TASK = ("env.action_repeat", "env.mask_velocities", "env.max_episode_steps", "env.wrapper")


@dataclass(frozen=True)
class Record:
    """Data of a run that are needed to compare it with other runs.

    Attributes:
        place: the run's folder, relative to the current folder if possible, or `mlflow:<run id>`.
        run_id: the run's unique id.
        status: "training" if a process is training the run now, otherwise how the run ended: "finished",
            "stopped_early", "dry_run", "interrupted" or "failed". "broken off" if the log contains no final status;
            NOT_FINITE if the run is finished, but some of its logged values are not finite.
        config: all configuration keys with their full names (such as "env.id") and their values as text.
        commit: Git commit of the code that trained the run, followed by `+` if files had uncommitted changes.
        machine: name of the processor or GPU that trained the run, "" if unknown.
        lines: metric -> pairs of policy steps and logged value. Metrics that comparisons do not use are omitted.
        final: mean of `quantity` in the final evaluation with greedy actions; None if it is unknown.
        effort: cost of training: "updates" (gradient steps), "wall_s" (seconds) and "cpu_s" (processor seconds).
            Unknown quantities are omitted.
        typed: the `key=value` arguments of the command that created the run.
        quantity: quantity that ranks the run.
    """

    place: str
    run_id: str
    status: str
    config: Mapping[str, str]
    commit: str
    machine: str
    lines: Mapping[str, Line]
    final: float | None
    effort: Mapping[str, float]
    typed: tuple[str, ...] = ()
    quantity: Quantity = EPISODE_RETURN

    @property
    def done(self) -> bool:
        """True if the run finished its training or ended it by early stopping."""
        return self.status in DONE

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return int(self.config["seed"])

    @property
    def budget(self) -> int:
        """Planned policy steps, `algo.total_steps`; without a plan, the policy steps that were taken."""
        planned = self.config["algo.total_steps"]
        return self.policy_steps if planned == spell(None) else int(planned)

    @property
    def task(self) -> str:
        """Environment id of the run, followed by the settings that change the meaning of its returns."""
        return task_of(self.config)

    @property
    def policy_steps(self) -> int:
        """Number of policy steps at the last logged value of any metric; 0 if nothing was logged."""
        return max((line[-1][0] for line in self.lines.values() if line), default=0)

    @property
    def evaluations(self) -> Line:
        """Results of evaluations during training: policy steps and mean of `quantity` with greedy actions.

        If `quantity` is the metric of a callback, they are its logged values.
        """
        return self.lines.get(self.quantity.evaluation) or self.lines.get(self.quantity.name or "", Line())

    @property
    def training(self) -> Line:
        """Logged values of training episodes: policy steps and mean of `quantity`."""
        return self.lines.get(self.quantity.training, Line())

    def clock(self, name: str) -> Line:
        """Return pairs of policy steps and seconds of training until then.

        `name` is the metric of the seconds: "Time/wall_s" for wall time or "Time/cpu_s" for processor time.
        """
        return self.lines.get(name, Line())

    @property
    def baseline(self) -> float | None:
        """Mean of `quantity` with the random policy on the run's environment; None if it is unknown."""
        line = self.lines.get(self.quantity.baseline)
        return line[-1][1] if line else None


def task_of(config: Mapping[str, str]) -> str:
    """Return the environment id in a config, followed by the settings that change the meaning of returns.

    Runs whose results differ are not comparable. `config` maps dotted keys to values as text.
    """
    usual = {"env.action_repeat": "1", "env.mask_velocities": "false", "env.max_episode_steps": "null"}
    others = {key: value for key, value in config.items() if key.startswith(TASK) and value != usual.get(key, "{}")}
    settings = ", ".join(f"{key.removeprefix('env.')}={value}" for key, value in sorted(others.items()))
    return config["env.id"] + (f" ({settings})" if settings else "")


def from_directory(run: RunDirectory, quantity: Quantity = EPISODE_RETURN) -> Record:
    """Read the data of a run from its run directory."""
    log, identity, summary = history(run.events), run.read_identity(), run.read_summary()
    final = log.last("evaluation", final=True)
    mean = quantity.mean(final["greedy"]) if final else None
    kept = log.lines if quantity.name is None else series.lines(read_events(run.events), _metrics(quantity))
    lines = {name: kept[name] for name in _metrics(quantity) if name in kept}
    return Record(
        place=short_path(run.path),
        run_id=identity["run_id"],
        status=_final_status(_status(run, log), lines, mean),
        config=flat(run.read_config()),
        commit=_commit(spell(identity.get("commit", "unknown")), identity.get("dirty") is True),
        machine=_machine(summary),
        lines=lines,
        final=mean,
        effort=_effort(summary),
        typed=tuple(run.read_overrides()),
        quantity=quantity,
    )


def from_mlflow(client: MlflowClient, stored: Run, quantity: Quantity = EPISODE_RETURN) -> Record:
    """Read the data of a run from MLflow, or from its run directory if the directory exists on this machine."""
    folder = tag_value(stored.data.tags, "run_dir")
    if folder and RunDirectory(folder).config.exists():
        run = RunDirectory(folder)
        if run.read_identity()["run_id"] == stored.data.tags.get(RUN_TAG):
            return from_directory(run, quantity)
    tags, run_id = stored.data.tags, stored.info.run_id
    line = {
        name: Line(sorted((point.step, point.value) for point in client.get_metric_history(run_id, name)))
        for name in _metrics(quantity)
        if name in stored.data.metrics
    }
    summary = _summary(client, run_id)
    ended = [ours for ours, theirs in STATUS.items() if theirs == stored.info.status] or ["training"]
    final = stored.data.metrics.get(quantity.final)
    resumed = {key.removeprefix("resumed."): value for key, value in tags.items() if key.startswith("resumed.")}
    return Record(
        place=f"mlflow:{run_id}",
        run_id=tags.get(RUN_TAG, run_id),
        status=_final_status(summary["status"] if summary.get("status") in ended else ended[0], line, final),
        config={**stored.data.params, **resumed},
        commit=_commit(tag_value(tags, "commit") or "unknown", tag_value(tags, "dirty") == "true"),
        machine=_machine(summary),
        lines=line,
        final=final,
        effort=_effort(summary),
        quantity=quantity,
    )


def _metrics(quantity: Quantity) -> tuple[str, ...]:
    logged = (quantity.evaluation, quantity.final, quantity.training, quantity.baseline, *CLOCKS)
    return (*logged, quantity.name) if quantity.name is not None and may_log(quantity.name) else logged


def _status(run: RunDirectory, log: History) -> str:
    """Return the final status in the log of a run.

    If the log has no final status, return "training" if a process has locked the run, otherwise "broken off".
    """
    if log.ended:
        return log.ended["status"]
    return "training" if run.is_taken() else "broken off"


def _final_status(status: str, lines: Mapping[str, Line], final: float | None) -> str:
    """Return NOT_FINITE if the run is finished and has logged values that are not finite, otherwise `status`."""
    finite = all(math.isfinite(value) for line in lines.values() for _, value in line)
    return NOT_FINITE if status in DONE and not (finite and math.isfinite(final or 0.0)) else status


def _commit(commit: str, dirty: bool) -> str:
    return commit[:10] + ("+" if dirty else "")


def _machine(summary: Mapping[str, Any]) -> str:
    machine = (summary.get("fingerprint") or {}).get("machine") or {}
    return str(machine.get("device_name") or "")


def _effort(summary: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(summary[key]) for key in ("updates", "wall_s", "cpu_s") if summary.get(key) is not None}


def _summary(client: MlflowClient, run_id: str) -> dict[str, Any]:
    """Return the content of summary.json that MLflow stores with a run; {} if the run has not ended yet."""
    if not any(file.path == "summary.json" for file in client.list_artifacts(run_id)):
        return {}
    with tempfile.TemporaryDirectory() as folder:
        return json.loads(Path(client.download_artifacts(run_id, "summary.json", folder)).read_text())
