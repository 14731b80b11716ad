"""Statistics of one rollout and of one update, for programs that call `Trainer.collect` and `Trainer.update`."""

from __future__ import annotations

import resource
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rlcore.config.info_keys import GAME
from rlcore.store.series import info_means
from rlcore.types import Episode, Episodes, Trajectory


def rollout_statistics(
    steps: Trajectory, last: Trajectory, episodes: Sequence[Episode], seconds: float
) -> dict[str, float]:
    """Return the statistics of a rollout of T steps in B environments.

    Args:
        steps: rows of the rollout, [T, B].
        last: the time step after them, [B].
        episodes: episodes that ended in the rollout.
        seconds: wall-clock time of the rollout.

    Returns:
        `Rewards/rew_avg`, `rew_min`, `rew_max` and `rew_std` of the returns of the episodes and `Game/ep_len_avg`, if
        an episode ended; `Rewards/step_avg`, `step_min`, `step_max` and `step_std` of the rewards of single steps;
        `Game/NAME` for each number that `env.info_keys` selects, the mean over the episodes that have it;
        `Game/episodes`, the number of episodes that ended; `Game/resets`, the number of rows in `steps` that open an
        episode, such as all of row 0 in the first rollout (a reset at `last` counts in the next rollout);
        `Game/steps`, the number of actions; and `Time/collect_s`. A standard deviation has the divisor N.
    """
    counts = ~torch.cat([steps.is_first[1:], last.is_first[None]])  # a row that opens an episode has no reward
    reward = torch.cat([steps.reward[1:], last.reward[None]])[counts]
    ended = Episodes.of(episodes)
    found = _spread("Rewards/rew", torch.tensor(ended.ret, dtype=torch.float64))
    if ended:
        found["Game/ep_len_avg"] = sum(ended.length) / len(ended)
    for name, values in ended.info.items():
        if known := [value for value in values if value is not None]:
            found[f"{GAME}{name}"] = sum(known) / len(known)
    return {
        **found,
        **_spread("Rewards/step", reward.double()),
        "Game/episodes": float(len(episodes)),
        "Game/resets": float(steps.is_first.sum()),
        "Game/steps": float(len(reward)),
        "Time/collect_s": seconds,
    }


def episode_statistics(evaluated: Mapping[str, Any]) -> dict[str, float]:
    """Return the statistics of the episodes of an evaluation, with the names of `rollout_statistics`.

    `evaluated` is the result of `rlcore.evaluation.evaluation.evaluate_agent`.
    """
    returns = torch.tensor(evaluated["returns"], dtype=torch.float64)
    counts = {"Game/ep_len_avg": float(evaluated["mean_length"]), "Game/episodes": float(len(returns))}
    info = {f"{GAME}{name}": mean for name, mean in info_means(evaluated).items()}
    return _spread("Rewards/rew", returns) | info | counts


def _spread(name: str, values: torch.Tensor) -> dict[str, float]:
    if not len(values):
        return {}
    found = torch.stack([values.mean(), values.min(), values.max(), values.std(correction=0)]).tolist()
    return {f"{name}_{part}": value for part, value in zip(("avg", "min", "max", "std"), found, strict=True)}


def update_statistics(numbers: Mapping[str, Sequence[float]], steps: int, seconds: float) -> dict[str, float]:
    """Return the statistics of an update.

    Args:
        numbers: metric -> its values in the update, such as losses, KL divergence and coefficients.
        steps: number of gradient steps.
        seconds: wall-clock time of the update.

    Returns:
        The mean of each metric; `Params/gradient_steps`; `Time/update_s`; and `Memory/peak_gb`, the largest memory of
        torch on the GPU, or of this process if no GPU is used, so far, in 10⁹ bytes.
    """
    means = {name: sum(values) / len(values) for name, values in numbers.items()}
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    peak = torch.cuda.max_memory_reserved() if on_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return means | {"Params/gradient_steps": float(steps), "Time/update_s": seconds, "Memory/peak_gb": peak / 1e9}
