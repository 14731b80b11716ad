"""Reports of a sweep: results as JSON, the HTML page with pictures, and the results in MLflow and Prefect."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from flows.compare.gather import Side
from flows.compare.page import sections
from flows.compare.records import from_directory
from flows.compare.report import write
from flows.report.command_lines import short_path
from flows.report.figures import Picture, save
from flows.runs.lineage import UNKNOWN
from flows.sweeps import trial_pictures
from flows.sweeps.driving import Sweep
from flows.sweeps.folder import SweepFolder
from flows.sweeps.masked_trials import DEFAULT
from flows.sweeps.mlflow_parent import mirror_sweep
from flows.sweeps.plan import SweepConfig, SweepPlan
from flows.sweeps.preset import train_command
from flows.sweeps.refusals import describe_outside, first_config
from flows.sweeps.study import Study, params_of
from flows.sweeps.sweep_page import markdown, page
from flows.sweeps.trial import TrialRun
from flows.workers.artifacts import show_sweep
from rlcore.config.values import plain
from rlcore.errors import RunError, UserError, first_line
from rlcore.store.directory import RunDirectory, write_text
from rlcore.store.run_files import read_mapping
from rlcore.system.secrets import redact

log = logging.getLogger(__name__)
ENDED = ("complete", "pruned", "fail")


def status(folder: SweepFolder) -> dict[str, Any]:
    """Return the current results of a sweep. Nothing is written. This works while another process runs the sweep.

    The keys of the result:

    - name: name of the sweep.
    - about: facts as text: environment, algorithm, budget, sampler, seed, commit.
    - wanted: planned number of trials.
    - trials: list of {number, state, params, value, policy_steps}.
    - saved: number of policy steps that were not trained because trials were pruned.
    - best: element of `trials` with the highest value; None if no trial is complete.
    - confirmed: result of the comparison of the best trial with the default configuration on new seeds, as
      `flows.sweeps.confirm` stores it; None if they were not compared.
    - trial_0: reason why trial 0 does not have the default configuration; "" if all default values are in the space.
    - lost: if Optuna's study is missing although folders of trials exist, a sentence that says so; otherwise None.
    - go_on: command that resumes the sweep; None if the sweep is finished or a process is running it.
    """
    plan = folder.read()
    study = Study.there(plan, folder.storage(plan), folder.study_name(plan))
    found = _status(folder, plan, study)
    ended = sum(trial["state"] in ENDED for trial in found["trials"]) == found["wanted"]
    over = ended and (found["best"] is None or not plan.config.confirm_seeds or found["confirmed"] is not None)
    return found | {"go_on": None if over or folder.is_driven else folder.resume_command}


def report(sweep: Sweep) -> dict[str, Any]:
    """Report a finished sweep: write the page, log the results to MLflow and Prefect.

    Returns the result of the sweep's flow: its keys are name, result (a sentence), best and confirmed. Raises RunError
    if no trial was completed.
    """
    folder = sweep.folder
    found = write_page(sweep, whole=True)
    trials, best = found["trials"], found["best"]
    note = markdown(found, definition(sweep.config), train_command(folder))
    rows = [{**trial, "params": json.dumps(trial["params"])} for trial in trials]
    show_sweep(folder.name, rows, note)
    try:
        mirror_sweep(folder, plain(first_config(sweep.plan)), found, plain(sweep.config), note)
    except Exception as error:  # errors of an unreachable store have many types; the results are stored locally
        log.warning(
            "the results of the sweep could not be written to MLflow: %s: %s", type(error).__name__, first_line(error)
        )
    if best is None:
        sentences = [trial["sentence"] for trial in trials if "sentence" in trial]
        raise RunError(f"sweep {folder.name}: no trial was completed; {(sentences or ['all were pruned'])[0]}")
    result = f"best of {len(trials)} trials: trial {best['number']} with value {best['value']:.6g}"
    if found["confirmed"]:
        result += f"; {found['confirmed']['words']}"
    return {"name": folder.name, "result": result, "best": best, "confirmed": found["confirmed"]}


def write_page(
    sweep: Sweep, whole: bool, broken: bool = False, drawn: Sequence[Picture] | None = None
) -> dict[str, Any]:
    """Write the current results of a sweep to its page report.html and to report.json.

    Args:
        sweep: the sweep.
        whole: True if the sweep is finished. Pictures are then also written to files. If the best trial was compared
            with the default configuration on new seeds, the page contains this comparison, too.
        broken: True if the sweep was interrupted; the page then contains the command that resumes it.
        drawn: pictures of the page; None = draw them now.

    Returns:
        The current results, with the keys of `status`.
    """
    folder, plan, study = sweep.folder, sweep.plan, sweep.study
    with sweep.page:
        found: dict[str, Any] = _status(folder, plan, study) | {"go_on": folder.resume_command if broken else None}
        if sweep.is_reported and not (whole or broken):  # late call of the thread that updates the page
            return found
        sweep.is_reported = whole
        if drawn is None:
            drawn = draw_pictures(folder, plan, study, study.importance() if whole else {})
        if whole:
            save(drawn, folder.pictures)
        confirmation = _confirmation(folder, found["confirmed"]) if whole and found["confirmed"] else ""
        _write(folder, plan, found, drawn, confirmation)
    return found


def refresh_page(folder: SweepFolder, found: Mapping[str, Any]) -> None:
    """Write the page of an unfinished sweep that no process is running, if the page does not show its current results.

    The page is out of date if the process that ran the sweep was killed.

    Args:
        folder: folders of the sweep.
        found: current results, from `status`.
    """
    if not found["go_on"] or found["lost"]:
        return
    try:
        if not folder.figures.exists() or json.loads(folder.figures.read_text()) != json.loads(json.dumps(found)):
            plan = folder.read()
            study = Study.there(plan, folder.storage(plan), folder.study_name(plan))
            _write(folder, plan, found, draw_pictures(folder, plan, study))
    except OSError as error:  # the file may belong to another user
        log.warning("%s: the page could not be updated (%s)", short_path(folder.report), error.strerror)


def draw_pictures(
    folder: SweepFolder, plan: SweepPlan, study: Study | None, importance: Mapping[str, float] | None = None
) -> list[Picture]:
    """Draw the pictures of a sweep's trials from their current results.

    Args:
        folder: folders of the sweep.
        plan: plan of the sweep.
        study: Optuna study with the trials; None if it does not exist.
        importance: varied key -> its share of the variance of the trials' values; without it, this picture is omitted.

    Returns:
        The pictures.
    """
    trials = _trials(folder, plan, study)
    lines = {t["number"]: [r.evaluations for r in _runs(folder, t["number"])] for t in trials}
    return trial_pictures.draw(trials, lines, plan.space, importance or {})


def _write(
    folder: SweepFolder,
    plan: SweepPlan,
    found: Mapping[str, Any],
    drawn: Sequence[Picture],
    confirmation: str = "",
) -> None:
    command = train_command(folder) if folder.preset.exists() else ""  # the preset is written when the sweep is done
    write_text(folder.report, page(dict(found), definition(plan.config), command, drawn, confirmation))
    write_text(folder.figures, json.dumps(found, indent=2) + "\n")


def _confirmation(folder: SweepFolder, confirmed: Mapping[str, Any]) -> str:
    """Write the comparison of a sweep's best trial with the default configuration, and return its HTML.

    Args:
        folder: folders of the sweep.
        confirmed: stored result of the comparison, with the keys `trial` and `seeds`.

    Returns:
        HTML without a title; "" if the runs cannot be compared.
    """
    places = {"winner": folder.runs / f"winner_{confirmed['trial']:04d}", "default": folder.runs / "default"}
    sides = [
        Side(
            side,
            f"folder {place}",
            f"{folder.name}-{side}",
            [from_directory(RunDirectory(place / f"seed_{seed}")) for seed in confirmed["seeds"]],
        )
        for side, place in places.items()
    ]
    try:
        result = write(sides, folder.comparison)
    except UserError as error:
        log.warning("the winner and the default configuration could not be compared: %s", error)
        return ""
    return sections(result.comparison, result.verdict, result.pictures)


def definition(config: SweepConfig) -> str:
    """Return a sentence that explains how the value of a trial is computed with these settings of a sweep."""
    of_run = "the mean return of the greedy policy in "
    of_run += {
        "last": f"the evaluations of the last {config.last} × evaluation.every policy steps",
        "all": "all evaluations during training",
        "final": "the final evaluation",
    }[config.objective]
    if config.seeds == 1:
        return f"The value of a run is {of_run}. A trial has one run (one training seed)."
    return (
        f"The value of a run is {of_run}. The value of a trial is the interquartile mean over its {config.seeds} runs "
        "(training seeds)."
    )


def _runs(folder: SweepFolder, number: int) -> list[TrialRun]:
    """Return the existing runs of a trial."""
    return [TrialRun(place, ()) for place in sorted(folder.trial(number).glob("seed_*"))]


def _so_far(folder: SweepFolder, number: int) -> int:
    """Return the number of policy steps that all runs of a trial have taken up to now."""
    return sum(training.policy_steps for training in _runs(folder, number))


def _about(folder: SweepFolder, plan: SweepPlan) -> dict[str, str]:
    """Return facts about a sweep as text: environment, algorithm, budget, sampler, seed and commit of the code."""
    config = plan.config
    runs = [run for place in folder.trials for run in RunDirectory.below(place)]
    identities = [run.read_identity() for run in runs]
    names = (("environment", "env_id"), ("algorithm", "algo"))
    found = {name: _distinct(one[key] for one in identities) for name, key in names}
    if runs:
        budget = runs[0].read_config()["algo"].get("total_steps")
        if not isinstance(budget, int):
            raise UserError(f"{runs[0].config}: damaged, algo.total_steps is not a number; restore it from a copy")
        seeds = f"{config.seeds} {'seed' if config.seeds == 1 else 'seeds'}"
        found["budget"] = f"{budget:,} policy steps per run, {seeds} per trial"
    how = f"{config.sampler}, {config.pruner} pruner, {config.mode} mode"
    code = _distinct(
        f"{one.get('commit', UNKNOWN)[:10]}{'+' if one.get('dirty') is True else ''}" for one in identities
    )
    found |= {"sampler": how, "sweep.seed": str(config.seed), "commit": code}
    return {name: said for name, said in found.items() if said}


def _distinct(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def _trials(folder: SweepFolder, plan: SweepPlan, study: Study | None) -> list[dict[str, Any]]:
    """Return the trials of a sweep as mappings with number, state, values of the varied keys, and results."""
    return [
        {
            "number": trial.number,
            "state": trial.state.name.lower(),
            "params": params_of(plan.space, trial),
            "value": trial.value,
            "policy_steps": trial.user_attrs.get("policy_steps") or _so_far(folder, trial.number),
            **{name: trial.user_attrs[name] for name in ("sentence", DEFAULT) if name in trial.user_attrs},
        }
        for trial in (study.trials if study else ())
    ]


def _status(folder: SweepFolder, plan: SweepPlan, study: Study | None) -> dict[str, Any]:
    rows = _trials(folder, plan, study)
    best = study and study.best()
    confirmed = _read_confirmed(folder) if os.path.lexists(folder.confirmed) else None
    if confirmed and (best is None or confirmed["trial"] != best.number):
        confirmed = None  # the confirmation of an earlier winner
    whole = [row["policy_steps"] for row in rows if row["state"] == "complete"]
    pruned = [row["policy_steps"] for row in rows if row["state"] == "pruned"]
    return {
        "name": folder.name,
        "about": _about(folder, plan),
        "wanted": plan.size,
        "trials": rows,
        # Compared with the mean number of policy steps of completed trials.
        "saved": sum(max(0, round(fmean(whole)) - steps) for steps in pruned) if whole else 0,
        "best": best and rows[best.number],
        "confirmed": confirmed,
        "trial_0": describe_outside(plan),
        "lost": None if study else _describe_rest(folder, plan),
    }


def _read_confirmed(folder: SweepFolder) -> dict[str, Any]:
    """Read confirmed.json, the result of the confirmation runs; raise UserError if it is damaged."""
    fix = f"remove it and run `shepherd sweep resume {folder.name}` to repeat the confirmation"
    confirmed = read_mapping(folder.confirmed, fix, ("trial", "seeds", "words"))
    for key, expected in (("trial", int), ("seeds", list), ("words", str)):
        if not isinstance(confirmed[key], expected):
            raise UserError(f"{folder.confirmed}: damaged, {key} has a wrong type; {fix}")
    return confirmed


def _describe_rest(folder: SweepFolder, plan: SweepPlan) -> str | None:
    """Return a sentence about a sweep whose Optuna study is missing, although folders of its trials exist.

    Returns None if there are no such folders.
    """
    there = len(folder.trials)
    if not there:
        return None
    again = "are the same as before" if plan.config.mode == "batch" else "may differ from before (sweep.mode=async)"
    return (
        f"not found in {redact(folder.storage(plan))}, but {short_path(folder.runs)} contains {there} trial folders. "
        f"{folder.resume_command} creates a new study, whose trials {again}, and reuses a folder if it was trained "
        "with the values of its trial"
    )
