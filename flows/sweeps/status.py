"""Current results of a sweep, read from its Optuna study and the event logs of its runs, and tables of results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from flows.report.command_lines import short_path
from flows.report.sentences import number
from flows.report.terminal import table
from flows.runs.lineage import UNKNOWN
from flows.sweeps.creating import describe_outside
from flows.sweeps.folder import SweepFolder
from flows.sweeps.jobs import TrialRun, iqm
from flows.sweeps.plan import SweepPlan
from flows.sweeps.strategies import DEFAULT
from flows.sweeps.study import Study, params_of
from rlcore.config.values import spell
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from rlcore.store.run_files import read_mapping
from rlcore.system.secrets import redact

ENDED = ("complete", "pruned", "fail")
BEST = 10  # number of trials in the table
Row = Mapping[str, Any]  # a trial in the result of `status`


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
      `flows.sweeps.winner` stores it; None if they were not compared.
    - trial_0: reason why trial 0 does not have the default configuration; "" if all default values are in the space.
    - lost: if Optuna's study is missing although folders of trials exist, a sentence that says so; otherwise None.
    - go_on: command that resumes the sweep; None if the sweep is finished or a process is running it.
    """
    plan = folder.read()
    study = Study.there(plan, folder.storage(plan), folder.study_name(plan))
    found = read_results(folder, plan, study)
    ended = sum(trial["state"] in ENDED for trial in found["trials"]) == found["wanted"]
    over = ended and (found["best"] is None or not plan.config.confirm_seeds or found["confirmed"] is not None)
    return found | {"go_on": None if over or folder.is_driven else folder.resume_command}


def read_results(folder: SweepFolder, plan: SweepPlan, study: Study | None) -> dict[str, Any]:
    """Return the current results of a sweep, with the keys of `status` except `go_on`."""
    rows = trials_of(folder, plan, study)
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


def trials_of(folder: SweepFolder, plan: SweepPlan, study: Study | None) -> list[dict[str, Any]]:
    """Return the trials of a sweep as mappings with number, state, values of the varied keys, and results."""
    return [
        {
            "number": trial.number,
            "state": trial.state.name.lower(),
            "params": params_of(plan.space, trial),
            "value": trial.value,
            "policy_steps": trial.user_attrs.get("policy_steps")
            or sum(run.policy_steps for run in runs_of(folder, trial.number)),
            **{name: trial.user_attrs[name] for name in ("sentence", DEFAULT) if name in trial.user_attrs},
        }
        for trial in (study.trials if study else ())
    ]


def runs_of(folder: SweepFolder, number: int) -> list[TrialRun]:
    """Return the existing runs of a trial."""
    return [TrialRun(place, ()) for place in sorted(folder.trial(number).glob("seed_*"))]


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


def status_table(status: Mapping[str, Any]) -> Group:
    """Return a table of a sweep's best trials, followed by facts such as the number of failed trials.

    `status` is the state of the sweep, as `shepherd sweep status --json` prints it.
    """
    trials = status["trials"]
    complete = sorted((t for t in trials if t["state"] == "complete"), key=lambda t: (-t["value"], t["number"]))
    keys = list(dict.fromkeys(key for trial in trials for key in trial["params"]))
    head = ("trial", "value", "policy steps", *short_names(keys).values())
    rows = [
        (
            str(trial["number"]),
            number(trial["value"]),
            f"{trial['policy_steps']:,}",
            *(short_value(trial["params"][key]) if key in trial["params"] else "-" for key in keys),
        )
        for trial in complete[:BEST]
    ]
    parts: list[RenderableType] = ["", Text(f"sweep {status['name']}", "bold"), ""]
    if rows:
        parts += [Padding.indent(table(head, rows, numbers=head, rule=True), 2), ""]
    parts += [Text.assemble((f"  {name:<14} ", "dim"), text) for name, text in facts(status)]
    return Group(*parts)


def group_table(name: str, runs: Sequence[RunDirectory], next_commands: Sequence[str] = ()) -> Group:
    """Return a table of the runs of a group with their results, followed by the interquartile mean of their returns.

    The commands in `next_commands` are printed at the end.
    """
    head, rows, means = ("run", "status", "policy steps", "greedy mean", "model"), [], []
    for run in runs:
        summary = run.read_summary()
        greedy, model = (summary.get("eval") or {}).get("greedy"), summary.get("model")
        means += [greedy["mean"]] if greedy else []
        steps = f"{summary['policy_steps']:,}" if summary else "-"
        version = f"version {model['version']}" if model and model["version"] else "-"
        mean = number(greedy["mean"]) if greedy else "-"
        rows.append((run.path.name, summary.get("status", "-"), steps, mean, version))
    made = Padding.indent(table(head, rows, numbers=("policy steps", "greedy mean"), rule=True), 2)
    said = f"  interquartile mean of {len(means)} runs: {number(iqm(means))}" if means else "  no run was evaluated"
    where = f"  in {short_path(runs[0].path.parent)}"
    commands = [Text(f"  {command}", "cyan") for command in next_commands]
    following = ["", Text("next", "bold"), *commands] if commands else []
    return Group("", Text(f"group {name}", "bold"), "", made, "", said, where, *following)


def facts(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return facts about a sweep as pairs of a name and a text.

    They are the settings, the number of trials in each state, the policy steps saved by pruning, the first failure, the
    result of retraining the winner, and the command that resumes the sweep. Facts that do not apply are omitted.
    """
    trials = status["trials"]
    counts = {state: sum(t["state"] == state for t in trials) for state in ("complete", "pruned", "fail", "running")}
    counts_text = ", ".join(f"{count} {state_words(state, status)}" for state, count in counts.items() if count)
    items = [
        *status.get("about", {}).items(),
        ("trials", f"{len(trials)} of {status['wanted']}{f': {counts_text}' if counts_text else ''}"),
    ]
    if status.get("trial_0"):
        items.append(("trial 0", status["trial_0"]))
    if saved := status["saved"]:
        share = saved / (saved + sum(trial["policy_steps"] for trial in trials))
        items.append(("pruning saved", f"{saved:,} policy steps, {share:.0%} of the total without pruning"))
    if failed := next((t for t in trials if t["state"] == "fail"), None):
        items.append(("first failure", f"trial {failed['number']}: {failed.get('sentence', '')}"))
    if status["lost"]:
        items.append(("study", status["lost"]))
    if status["confirmed"]:
        items.append(("confirmation", status["confirmed"]["words"]))
    if status.get("go_on"):
        items.append(("interrupted", f"resume with {status['go_on']}"))
    return items


def state_words(state: str, status: Mapping[str, Any]) -> str:
    """Return the word that is printed for the state of a trial, such as "failed" for "fail".

    A trial in the state "running" is "stopped" if no process is running the sweep.
    """
    return {"fail": "failed", "running": "stopped" if status.get("go_on") else "running"}.get(state, state)


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return dotted key -> shortest suffix that no other key has: "lr" for "algo.optimizer.lr" if it is unique."""
    short: dict[str, str] = {}
    for key in keys:
        words = key.split(".")
        ends = (".".join(words[-count:]) for count in range(1, len(words) + 1))
        others = [other for other in keys if other != key]
        short[key] = next((end for end in ends if not any(f".{other}".endswith(f".{end}") for other in others)), key)
    return short


def short_value(value: Any) -> str:
    """Format the value of a config key for a table; a float gets four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else spell(value)
