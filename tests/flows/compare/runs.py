"""Finished runs with synthetic returns, written with the functions of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.events import EventLog
from tests.flows.synthetic_runs import synthetic_run

WHOLE = 4096  # policy steps


def finished_run(
    folder: Path,
    group: str | None,
    seed: int,
    value: float,
    *,
    env: str = "CartPole-v1",
    final: bool = True,
    status: str | None = "finished",
    steps: int = WHOLE,
    random: float = 20.0,
    info: str | None = None,
    **changes: Any,
) -> RunDirectory:
    """Write a run with four evaluations that rise linearly from `random` to `value`, at 1,000 steps per second.

    Args:
        folder: run directory.
        group: key `group` of the config.
        seed: seed of the run.
        value: greedy mean return at the end.
        env: env.id.
        final: whether the run has a final evaluation.
        status: status of the `end` event. None writes no such event.
        steps: algo.total_steps, at which the run ends.
        random: mean return of the random policy.
        info: name of a number in info. Its value is the return divided by -100, so it ranks runs the other way round.
        **changes: top-level keys of the config. Keys of `algo`, and of `env` as `settings`, are merged.

    Returns:
        The run directory.
    """
    algo = {"name": "ppo", "total_steps": steps, "optimizer": {"lr": 1e-3}} | changes.pop("algo", {})
    settings = {"id": env, "num_envs": 4, "wrapper": {}} | changes.pop("settings", {})
    tree = {"group": group, "seed": seed, "algo": algo, "env": settings}
    run = synthetic_run(folder, f"{folder.name}-{env}", **tree | changes)
    run.overrides.write_text(f"exp=ppo\nenv.id={env}\nseed={seed}\nrun_dir={folder}\n")
    log = EventLog(run.events)
    log.append("baseline", **result(random, 2, 100, info))
    for stage in range(1, 5):
        at, mean = steps * stage // 4, random + (value - random) * stage / 4
        clock = {"wall_s": at / 1000, "cpu_s": at / 900}
        numbers = {"Rewards/rew_avg": mean - 5} | ({f"Game/{info}": -mean / 100} if info else {})
        log.append("metrics", policy_steps=at, values=numbers, **clock)
        log.append("evaluation", policy_steps=at, final=False, greedy=result(mean, 2, 10, info), **clock)
    if final:
        greedy = result(value, 1, 100, info)
        log.append("evaluation", policy_steps=steps, final=True, greedy=greedy, checkpoint=f"checkpoints/{steps}")
    if status is not None:
        log.append("end", policy_steps=steps, status=status, reason=None)
        machine = {"machine": {"device_name": "a processor"}}
        effort = {"updates": 640, "wall_s": steps / 1000, "cpu_s": steps / 900}
        write_json(run.summary, {"status": status, "fingerprint": machine} | effort)
    return run


def result(mean: float, half: float, episodes: int, info: str | None = None) -> dict[str, Any]:
    """Return the result of an evaluation with an interval of `half` on each side."""
    own = {"mean": mean, "std": 3.0, "ci95": [mean - half, mean + half], "episodes": episodes}
    return own | ({"info": {info: result(-mean / 100, half / 100, episodes)}} if info else {})


def group_of(root: Path, group: str, values: list[float], first_seed: int = 0, **options: Any) -> list[RunDirectory]:
    """Write one finished run per value, with seeds from `first_seed` on."""
    env = options.get("env", "CartPole-v1")
    return [
        finished_run(root / f"{group}_{env}_{seed}", group, seed, value, **options)
        for seed, value in enumerate(values, first_seed)
    ]
