"""Collection of the runs that are compared.

A side of a comparison is a group of runs. The user selects it by the name of a group, a folder, a glob, or a search in
MLflow. The name of a sweep selects the runs in which its best hyperparameters were trained again with new seeds.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from flows.compare.records import Record, from_directory, from_mlflow
from flows.runs.run_list import read_group
from flows.settings import tracking_uri
from flows.tracking.mlflow_store import pages, reachable_store
from rlcore.config.values import nearest
from rlcore.errors import UserError, first_line
from rlcore.store.directory import RunDirectory
from rlcore.store.run_files import read_mapping
from rlcore.store.series import EPISODE_RETURN, Quantity

Read = Callable[[], Record]
Tell = Callable[[str], None]
MLFLOW = "mlflow:"
log = logging.getLogger(__name__)
SEARCH = f"{MLFLOW}EXPERIMENT?FILTER"
CONFIRMED = ("winner", "default")  # the confirmation of sweep NAME is in the groups NAME-winner and NAME-default


@dataclass(frozen=True)
class Side:
    """Side of a comparison: a group of runs that is compared with other groups.

    Attributes:
        name: the command-line argument that selects the side, such as "ppo" or "runs/ppo*".
        source: text that describes where the runs come from, such as "folder runs/ppo".
        group: value of the config key `group` in the side's runs; None if they have no group or different ones. New
            runs with this value would belong to the side.
        records: the data of the side's runs.
        folder: the folder if the side is selected by a folder; new runs in it would belong to the side. None for a
            single run, a glob or a search.
    """

    name: str
    source: str
    group: str | None
    records: list[Record] = field(default_factory=list)
    folder: str | None = None


def gather(
    words: Sequence[str], root: str, tell: Tell = lambda done: None, quantity: Quantity = EPISODE_RETURN
) -> list[Side]:
    """Collect the runs of the sides of a comparison.

    Args:
        words: one argument for each side: a group, a sweep, a folder, a glob or a search. If the only argument is a
            sweep, the two sides are the runs that retrained its winner and those that retrained the default
            configuration.
        root: folder that is searched for groups.
        tell: called with progress messages about the number of runs read.
        quantity: quantity by which the runs are compared.

    Returns:
        Two or more sides with different names, none of them empty.

    Raises:
        UserError: If a side is unknown or empty, a run belongs to two sides, or there is only one side.
    """
    groups = _Groups(root)
    if len(words) == 1 and all(f"{words[0]}-{part}" in groups.names for part in CONFIRMED):
        words = [f"{words[0]}-{part}" for part in CONFIRMED]
    if unconfirmed := next((word for word in words if groups.is_unconfirmed(word)), None):
        raise UserError(
            f"{unconfirmed}: the winner of this sweep is not confirmed, and trials of a sweep cannot be compared as a "
            f"group; confirm it first: `shepherd sweep resume {unconfirmed} sweep.confirm_seeds=10`"
        )
    if len(words) < 2:
        raise UserError(f"{' '.join(words)}: a comparison needs at least two sides; add another group, folder or glob")
    if twice := next((word for word in words if list(words).count(word) > 1), None):
        raise UserError(f"{twice}: given twice; each argument must select different runs")
    single = [word for word in words if RunDirectory(word).config.exists()]
    if len(single) > 2:
        raise UserError(
            f"{single[0]} …: {len(single)} single runs, each of which would be compared as a separate group; put a "
            "glob in quotes, e.g. 'runs/ppo*', to compare its runs as one group"
        )
    sides = [_side(word, groups, quantity) for word in words]  # reports mistakes before any run is read
    total, owner = sum(len(readers) for _, readers in sides), {}
    for side, readers in sides:
        refused = None
        for read in readers:
            try:
                record = read()
            except UserError as error:  # a damaged run does not hide the others
                log.warning("run excluded: %s", error)
                refused = error
                continue
            side.records.append(record)
            if record.run_id in owner:
                raise UserError(f"{owner[record.run_id]} and {side.name}: run {record.place} belongs to both sides")
            owner[record.run_id] = side.name
            tell(f"{len(owner)} of {total} runs read")
        if refused is not None and not side.records:
            raise refused
    return [side for side, _ in sides]


class _Groups:
    """Mapping from each value of the config key `group` to the runs with this value, for all runs below a root folder.

    The folders are read once, when the mapping is first needed.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._runs: dict[str, list[RunDirectory]] | None = None

    @property
    def names(self) -> dict[str, list[RunDirectory]]:
        if self._runs is None:
            self._runs = {}
            for run in RunDirectory.below(Path(self.root)):
                if (group := read_group(run)) and not _of_earlier_winner(run):
                    self._runs.setdefault(group, []).append(run)
        return self._runs

    def is_unconfirmed(self, word: str) -> bool:
        """Return True if a word is the name of a sweep whose winner has not been retrained on new seeds."""
        return (Path(self.root, "sweeps", word) / "sweep.json").exists() and f"{word}-{CONFIRMED[0]}" not in self.names


def _of_earlier_winner(run: RunDirectory) -> bool:
    """Return True if a run retrained a sweep's winner, but another trial has become the winner since then."""
    place = run.path.parent
    report = place.parent / "report.json"
    if not re.fullmatch(r"winner_\d+", place.name) or not report.exists():
        return False
    fix = "remove it and run `shepherd sweep status`, which writes it again"
    best = read_mapping(report, fix).get("best")
    if best is None:
        return False
    if not isinstance(best, dict) or not isinstance(best.get("number"), int):
        raise UserError(f"{report}: damaged; its field 'best' does not contain a trial with a number; {fix}")
    return place.name != f"winner_{best['number']:04d}"


def _side(word: str, groups: _Groups, quantity: Quantity) -> tuple[Side, list[Read]]:
    """Return the side (group of runs) that a command-line argument selects, and a function for each run that reads it.

    The side contains no data yet. Raises UserError if the argument selects no run.
    """
    if word.startswith(MLFLOW):
        return Side(word, "a search in MLflow", None), _search(word, quantity)
    if os.sep not in word and not glob.has_magic(word):
        for group, source in ((f"{word}-{CONFIRMED[0]}", f"the winner of sweep {word}"), (word, f"group {word}")):
            if group in groups.names:
                return Side(word, source, group), [
                    partial(from_directory, run, quantity) for run in groups.names[group]
                ]
    typed = os.path.expanduser(word)
    folders = [Path(place) for place in (sorted(glob.glob(typed)) if glob.has_magic(typed) else [typed])]
    runs = [run for folder in folders for run in RunDirectory.below(folder)]
    if not runs:
        there = any(folder.is_dir() for folder in folders)
        what = "this folder contains no run" if there else f"no such group in {groups.root}, sweep or folder"
        raise UserError(f"{word}: {what}{nearest(word, groups.names) or _list_names(sorted(groups.names))}")
    among = {group for run in runs if (group := read_group(run))}
    own = among.pop() if len(among) == 1 else None
    whole = None if glob.has_magic(typed) or RunDirectory(typed).config.exists() else typed
    return Side(word, f"folder {word}", own, folder=whole), [partial(from_directory, run, quantity) for run in runs]


def _list_names(groups: Sequence[str]) -> str:
    if not groups:
        return "; `shepherd train … group=NAME` trains runs of a group"
    return f"; existing groups: {', '.join(groups[:10])}{', …' if len(groups) > 10 else ''}"


def _search(word: str, quantity: Quantity) -> list[Read]:
    """Search for runs in MLflow; return for each of them a function that reads its data.

    `word` is `mlflow:EXPERIMENT?FILTER`. FILTER is a filter string of MLflow's `search_runs`; it is optional. Raises
    UserError if the experiment does not exist, the filter is invalid or no run matches.
    """
    name, _, condition = word.removeprefix(MLFLOW).partition("?")
    client = reachable_store(tracking_uri())
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        names = [one.name for page in pages(client.search_experiments) for one in page]
        hint = nearest(name, names) or (f"; experiments: {', '.join(sorted(names)[:10])}" if names else "")
        raise UserError(f"{word}: no MLflow experiment {name!r}{hint}")
    try:
        found = [run for page in pages(client.search_runs, [experiment.experiment_id], condition) for run in page]
    except MlflowException as error:
        if error.error_code != "INVALID_PARAMETER_VALUE":
            raise
        raise UserError(f"{word}: MLflow rejects the filter {condition!r} ({first_line(error)})") from error
    ours = [run for run in found if "algo.total_steps" in run.data.params and "seed" in run.data.params]
    if not ours:
        raise UserError(
            f"{word}: no run of Shepherd matches; the form of a search is {SEARCH}, e.g. mlflow:ppo?tags.group = 'a'"
        )
    return [partial(from_mlflow, client, run, quantity) for run in ours]
