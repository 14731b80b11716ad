"""Selection of the runs and environments to compare, and checks if a ranking of the sides is allowed.

A side is a group of runs. Sides must not be ranked if, for example, one of them has too few seeds.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from flows.compare.gather import Side
from flows.compare.records import NOT_FINITE, Record
from rlcore.config.run import RunConfig
from rlcore.config.schema import arguments
from rlcore.errors import UserError

FEWEST = 10  # minimal number of finished seeds of a side on an environment for a ranking
# States that are bad results, so excluding these runs would make their side look better.
WORST = {"failed": "that failed", NOT_FINITE: "with returns that are not finite"}
NOT_AGAIN = ("seed=", "group=", "run_name=", "run_dir=", "root_dir=")  # overrides of one run, not of its configuration
# Keys that do not affect learning but determine when a run ends or what its evaluations are.
DECIDING = ("stop", "evaluation.")
APART = frozenset(a.key for a in arguments(RunConfig) if not a.learning and not a.key.startswith(DECIDING)) | {"seed"}
WITHIN = tuple(f"{key}." for key in APART)  # prefixes of keys in mappings such as metric.logger.tags


@dataclass(frozen=True)
class Selection:
    """Selection of the compared runs.

    Attributes:
        tasks: environments on which every side (group of runs) has finished runs.
        counted: side -> environment -> compared runs, ordered by seed.
        left_out: name of the side, run, and reason, for each run that is not compared.
        notes: remarks for the reader of the report, as sentences.
        obstacles: reasons why the sides must not be ranked, as sentences; empty if they can be ranked.
        commands: command lines that remove the obstacles, for example by training more seeds.
    """

    tasks: list[str]
    counted: dict[str, dict[str, list[Record]]]
    left_out: list[tuple[str, Record, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    obstacles: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    def records(self, task: str) -> Iterator[Record]:
        """Yield the compared runs of all sides (groups of runs) on the environment `task`."""
        for side in self.counted.values():
            yield from side[task]


def select(sides: Sequence[Side]) -> Selection:
    """Select the runs to compare, and check if the sides (groups of runs) can be ranked.

    Raises UserError if nothing can be compared.
    """
    selection = Selection(_common_tasks(sides), {})
    for side in sides:
        selection.counted[side.name] = {task: _count(side, task, selection) for task in selection.tasks}
        _leave_out(side, selection)
    _look_at_configs(selection)
    unlike = _look_at_budgets(selection)
    renamed = [_look_at_seeds(side, selection, unlike) for side in sides]
    if any(renamed):
        names = [new or side.name for new, side in zip(renamed, sides, strict=True)]
        selection.commands.append(shlex.join(["shepherd", "compare", *names]))
    return selection


def differing(records: Iterable[Record]) -> dict[str, list[str]]:
    """Return the configuration keys in which runs differ: key -> its values, the most frequent first.

    Keys that do not affect learning are ignored.
    """
    runs = list(records)
    keys = {key for run in runs for key in run.config if key not in APART and not key.startswith(WITHIN)}
    values = {key: Counter(run.config.get(key, "not there") for run in runs) for key in sorted(keys)}
    return {key: [value for value, _ in counts.most_common()] for key, counts in values.items() if len(counts) > 1}


def _common_tasks(sides: Sequence[Side]) -> list[str]:
    tasks = {side.name: list(dict.fromkeys(r.task for r in side.records if r.done)) for side in sides}
    if empty := next((side for side in sides if not tasks[side.name]), None):
        states = ", ".join(f"{count} {state}" for state, count in Counter(r.status for r in empty.records).items())
        raise UserError(
            f"{empty.name}: none of its {len(empty.records)} runs is finished ({states}); finish runs with "
            "`shepherd resume RUN`"
        )
    common = [task for task in tasks[sides[0].name] if all(task in of for of in tasks.values())]
    if not common:
        each = "; ".join(f"{name} has {', '.join(of)}" for name, of in tasks.items())
        raise UserError(f"the sides have no environment in common: {each}")
    return common


def _count(side: Side, task: str, selection: Selection) -> list[Record]:
    """Return the finished runs of a side (group of runs) on the environment `task`, ordered by seed.

    If several runs have the same seed and configuration, only one of them is returned; the others are added to
    `selection.left_out`, and a remark to `selection.notes`.
    """
    runs: list[Record] = []
    again: list[Record] = []
    for record in sorted((r for r in side.records if r.done and r.task == task), key=lambda r: (r.seed, r.place)):
        known = any(record.seed == other.seed and not differing([record, other]) for other in runs)
        (again if known else runs).append(record)
    selection.left_out.extend((side.name, r, f"repeats seed {r.seed} of this configuration") for r in again)
    if again:
        selection.notes.append(f"{side.name}: {_runs(len(again))} excluded, because of a repeated seed.")
    return runs


def _leave_out(side: Side, selection: Selection) -> None:
    unfinished = [record for record in side.records if not record.done]
    selection.left_out.extend((side.name, record, record.status) for record in unfinished)
    elsewhere = [record for record in side.records if record.done and record.task not in selection.tasks]
    selection.left_out.extend((side.name, record, "not all sides have this environment") for record in elsewhere)
    for task in dict.fromkeys(record.task for record in elsewhere):
        selection.notes.append(
            f"{side.name} also has runs on {task}; they are excluded, because not all sides have runs on it."
        )
    for status, count in Counter(record.status for record in unfinished).items():
        if status not in WORST:
            selection.notes.append(f"{side.name}: {_runs(count)} excluded (state: {status}).")
    for status, words in WORST.items():
        if bad := [record.place for record in unfinished if record.status == status]:
            places = f"{', '.join(bad[:3])}{', …' if len(bad) > 3 else ''}"
            selection.obstacles.append(
                f"{side.name} has {_runs(len(bad))} {words} ({places}); excluding them would overrate this side."
            )
    resumable = [record for record in unfinished if record.status not in ("training", "dry_run", NOT_FINITE)]
    selection.commands.extend(f"shepherd resume {shlex.quote(record.place)}" for record in resumable[:FEWEST])


def _look_at_configs(selection: Selection) -> None:
    for name, tasks in selection.counted.items():
        for task, records in tasks.items():
            if mixed := {key: values for key, values in differing(records).items() if key != "algo.total_steps"}:
                selection.obstacles.append(
                    f"{name} has runs with different configurations on {task}: {_spell(mixed)}; compare each "
                    "configuration as a separate group."
                )
    every = [record for tasks in selection.counted.values() for records in tasks.values() for record in records]
    commits = {
        name: sorted({r.commit for rs in tasks.values() for r in rs}) for name, tasks in selection.counted.items()
    }
    if len({commit for of in commits.values() for commit in of}) > 1:
        each = "; ".join(f"{name}: {', '.join(of)}" for name, of in commits.items())
        selection.notes.append(
            f"Runs were trained with different versions of the code ({each}; + means changed files)."
        )
    if len(machines := {record.machine for record in every} - {""}) > 1:
        selection.notes.append(
            f"Runs were trained on different machines ({', '.join(sorted(machines))}), so times are not comparable."
        )


def _look_at_budgets(selection: Selection) -> set[str]:
    """Return the environments on which the runs have different budgets (planned policy steps, `algo.total_steps`).

    For each of them, a reason not to rank the groups of runs is added to `selection.obstacles`. Training more seeds
    would not remove this reason.
    """
    unlike: set[str] = set()
    for task in selection.tasks:
        budgets = {name: sorted({r.budget for r in tasks[task]}) for name, tasks in selection.counted.items()}
        if len({budget for of in budgets.values() for budget in of}) > 1:
            unlike.add(task)
            each = "; ".join(f"{name} {' and '.join(f'{b:,}' for b in of)}" for name, of in budgets.items())
            selection.obstacles.append(
                f"The budgets on {task} differ (algo.total_steps: {each}). The value of a run is measured after its "
                "own budget, so a larger budget is an advantage; compare runs with the same budget."
            )
    return unlike


def _look_at_seeds(side: Side, selection: Selection, unlike: Collection[str]) -> str:
    """Check that a side (group of runs) has at least `FEWEST` seeds on each environment, which a ranking requires.

    If seeds are missing, add a sentence to `selection.obstacles`, and a command that trains the missing seeds to
    `selection.commands`. The command prefers seeds of the other sides.

    Args:
        side: the side to check.
        selection: the selected runs of all sides.
        unlike: environments on which the runs have different budgets. For them no command is added, because more
            seeds would not make a ranking possible.

    Returns:
        "" if the runs that the commands train will belong to the side. Otherwise the name of a new group: it will
        contain these runs, and must be given instead of the side in the next comparison.
    """
    group, more, whole = _place(side)
    renamed = ""
    for task, records in selection.counted[side.name].items():
        seeds = {record.seed for record in records}
        missing = FEWEST - len(seeds)
        if missing <= 0:
            continue
        on = f" on {task}" if len(selection.tasks) > 1 else ""
        selection.obstacles.append(
            f"{side.name} has {len(seeds)} finished {'seed' if len(seeds) == 1 else 'seeds'}{on}; "
            f"a ranking needs {FEWEST}."
        )
        others = sorted(
            (of[task] for name, of in selection.counted.items() if name != side.name), key=len, reverse=True
        )
        theirs = [record.seed for of in others for record in of]
        waiting = {record.seed for record in side.records if not record.done}  # resumed, not trained again
        fresh = [s for s in dict.fromkeys([*theirs, *range(1000)]) if s not in seeds | waiting]
        typed = [word for word in records[0].typed if not word.startswith((*NOT_AGAIN, *more))]
        plain = records[0].typed and not any(word.startswith("-") for word in typed)
        if plain and missing > len(waiting) and task not in unlike:
            wanted = [*(seeds if whole else ()), *fresh[: missing - len(waiting)]]
            words = [*typed, f"seed={','.join(map(str, sorted(wanted)))}", f"group={group}", *more.values()]
            selection.commands.append(shlex.join(["shepherd", "train", *words]))
            renamed = group if whole else renamed
    return renamed


def _place(side: Side) -> tuple[str, dict[str, str], bool]:
    """Determine how to train more runs for a side.

    If the runs of the side have a group, new runs get this group. Otherwise new runs get a new group, and are written
    to the folder of the side. If the side has no folder (a glob or a search), the new runs cannot belong to it; the new
    group must then train all seeds again and replaces the side.

    Args:
        side: the side.

    Returns:
        The group of the new runs; further overrides for them, by their first characters (such as "log_root="); and
        True if the group must train all seeds again.
    """
    if side.group:
        return side.group, {}, False
    last = side.folder and side.folder.rstrip("/").rpartition("/")[2]
    group = re.sub(r"[^A-Za-z0-9_.-]+", "-", last or side.name).strip("-.") or "more"
    return group, {"log_root=": f"log_root={side.folder}"} if side.folder else {}, not side.folder


def _runs(count: int) -> str:
    return f"{count} run{'' if count == 1 else 's'}"


def _spell(mixed: Mapping[str, Sequence[str]]) -> str:
    named = [f"{key} is {' and '.join(values[:3])}" for key, values in mixed.items()]
    return ", ".join(named[:3]) + (f" and {len(named) - 3} keys more" if len(named) > 3 else "")
