"""List of runs, read from their folders only: name, status, policy steps, return and age.

A list of 1,000 runs takes less than a second. Therefore config.yaml is not parsed, and of each event log only a few
lines are (`rlcore.store.last_events`).
"""

from __future__ import annotations

import datetime
import functools
import glob
import itertools
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flows.report.command_lines import short_path
from rlcore.config.values import nearest
from rlcore.errors import UserError, first_line
from rlcore.store.directory import RunDirectory
from rlcore.store.events import COMPLETE
from rlcore.store.last_events import LastEvents, Measured

GROUP = re.compile(r"^group: *(.*)$", re.MULTILINE)
BUDGET = re.compile(r"^  total_steps: *(\d+)$", re.MULTILINE)  # algo.total_steps
CREATED, TRAINING, DIED = "created", "training", "died"
STATUSES = (CREATED, TRAINING, DIED, *COMPLETE, "interrupted", "failed", "pruned")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ListedRun:
    """Facts about a run for a list.

    Attributes:
        run: directory of the run.
        name: path of the run in the folder that was searched, without the folders of algorithm and environment.
        run_id: unique id of the run.
        algo: name of the algorithm.
        env_id: id of the environment.
        seed: seed of the run.
        group: value of the config key `group`; None if the run has none.
        status: "created" before training, "training" while a process executes the run, otherwise how training ended
            (see the event `end` in docs/event_log.md). "died" if the process ended without writing that event.
        policy_steps: policy steps so far.
        total_steps: budget of the run, `algo.total_steps`; None if it has none.
        measured: last return and where it comes from; None if there is none.
        created: time at which the run was created, in seconds since 1970.
    """

    run: RunDirectory
    name: str
    run_id: str
    algo: str
    env_id: str
    seed: int
    group: str | None
    status: str
    policy_steps: int
    total_steps: int | None
    measured: Measured | None
    created: float

    def as_json(self, now: float) -> dict[str, Any]:
        """Return the facts as JSON values. `now`, in seconds since 1970, is the time at which the age is measured."""
        return {
            "name": self.name,
            "run_dir": str(self.run.path),
            "run_id": self.run_id,
            "algo": self.algo,
            "env_id": self.env_id,
            "seed": self.seed,
            "group": self.group,
            "status": self.status,
            "policy_steps": self.policy_steps,
            "total_steps": self.total_steps,
            "return": self.measured.value if self.measured else None,
            "return_from": self.measured.source if self.measured else None,
            "info": dict(self.measured.info) if self.measured else {},
            "created": datetime.datetime.fromtimestamp(self.created, datetime.UTC).isoformat(timespec="seconds"),
            "age_s": round(now - self.created),
        }

    def contains(self, word: str) -> bool:
        """Return True if name, algorithm, environment, group or status contains a word, in small or capital letters."""
        texts = (self.name, self.algo, self.env_id, self.group or "", self.status)
        return any(word.lower() in text.lower() for text in texts)


def list_runs(chosen: str, root: str) -> list[ListedRun]:
    """Return the runs that a filter selects, newest first. Runs with damaged files are left out with a warning.

    Args:
        chosen: the filter. It is the name of a group or a sweep, a folder of runs, a glob, or a word in the name,
            algorithm, environment, group or status of runs; "" selects all runs in `root`.
        root: folder that is searched for runs, groups and sweeps.

    Returns:
        The runs; [] if no run has the status `chosen`.

    Raises:
        UserError: If another filter selects no run.
    """
    if chosen.startswith("mlflow:"):
        raise UserError(f"{chosen}: only runs in folders can be listed; search runs in MLflow with `shepherd ui`")
    typed = os.path.expanduser(chosen)
    by_glob = glob.has_magic(typed)
    if by_glob or (os.sep in typed and os.path.isdir(typed)):
        return _read_folders(chosen, sorted(glob.glob(typed)) if by_glob else [typed])
    runs = _newest_first(_read_below(Path(root)))
    if not chosen:
        return runs
    sweep = Path(root, "sweeps", chosen).absolute()
    if exact := [one for one in runs if one.group == chosen or sweep in one.run.path.parents]:
        return exact
    folder = _newest_first(_read_below(Path(typed))) if os.path.isdir(typed) else []
    found = folder or [one for one in runs if one.contains(chosen)]
    if found or chosen.lower() in STATUSES:
        return found
    known = sorted({text for one in runs for text in (one.group, one.algo, one.env_id, one.status) if text})
    raise UserError(
        f"{chosen}: no such group, sweep or folder, and no run in {root} contains this word{nearest(chosen, known)}"
    )


def _read_folders(chosen: str, folders: Sequence[str]) -> list[ListedRun]:
    """Return the runs in some folders, newest first; raise UserError if there is none. `chosen` is the filter."""
    found = _newest_first(itertools.chain.from_iterable(_read_below(Path(folder)) for folder in folders))
    if not found:
        raise UserError(f"{chosen}: {'this folder contains no run' if folders else 'no folder matches'}")
    return found


def read_group(run: RunDirectory) -> str | None:
    """Return the value of the config key `group` of a run. If the config cannot be read, return None with a warning."""
    try:
        return _group_in(run.config.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:  # a damaged run does not hide the others
        log.warning("run excluded: %s: cannot be read (%s)", run.config, first_line(error))
        return None


def _group_in(config: str) -> str | None:
    """Return the value of the key `group` in the text of a config; parsing the whole text would be slow."""
    line = GROUP.search(config)
    return None if line is None or line[1] in ("null", "") else _parse_group(line[1])


@functools.lru_cache(maxsize=1024)  # many runs have the same group
def _parse_group(text: str) -> str | None:
    return yaml.safe_load(text)


def _newest_first(runs: Iterable[ListedRun]) -> list[ListedRun]:
    return sorted(runs, key=lambda one: (-one.created, str(one.run.path)))


def _read_below(folder: Path) -> Iterator[ListedRun]:
    for run in RunDirectory.below(folder):
        try:
            yield _read(run, folder)
        except (UserError, OSError, ValueError, yaml.YAMLError) as error:
            log.warning(
                "run left out: %s", error if isinstance(error, UserError) else f"{run.path}: {first_line(error)}"
            )


def _read(run: RunDirectory, folder: Path) -> ListedRun:
    identity, config = run.read_identity(), run.config.read_text()
    algo, env_id = str(identity.get("algo")), str(identity.get("env_id"))
    name = os.path.relpath(run.path, folder.absolute())
    budget = BUDGET.search(config)
    with LastEvents(run.events) as events:
        return ListedRun(
            run=run,
            name=short_path(run.path) if name == "." else name.removeprefix(f"{algo}/{env_id}/"),
            run_id=identity["run_id"],
            algo=algo,
            env_id=env_id,
            seed=int(identity.get("seed", 0)),
            group=_group_in(config),
            status=_status(run, events),
            policy_steps=events.policy_steps,
            total_steps=int(budget[1]) if budget else None,
            measured=events.measured,
            created=_created(run, identity.get("created")),
        )


def _status(run: RunDirectory, events: LastEvents) -> str:
    if (ended := events.ended) is not None:
        return str(ended["status"])
    if run.is_taken():
        return TRAINING
    return DIED if events.policy_steps or events.last("start") is not None else CREATED


def _created(run: RunDirectory, written: Any) -> float:
    """Return the time at which a run was created, in seconds since 1970: from run.json, or the age of that file."""
    try:
        return datetime.datetime.fromisoformat(written).timestamp()
    except (TypeError, ValueError):
        return run.identity.stat().st_mtime
