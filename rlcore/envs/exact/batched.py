"""Checks of a batched environment: the values that it returns, and what a run needs to be exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rlcore import streams
from rlcore.envs.batched.vector import BatchedVectorEnv
from rlcore.envs.exact.recording import random_action
from rlcore.envs.exact.tier import TierReport
from rlcore.envs.masks import count_without_action
from rlcore.errors import EnvironmentFault
from rlcore.spec import EnvSpec
from rlcore.types import TimeStep

COPIES, STEPS = 6, 600
Create = Callable[[int, str], BatchedVectorEnv]  # number of copies, device


def check_batched(create: Create, place: str) -> TierReport:
    """Play random actions in a batched environment and check it.

    The checks are: shapes, dtypes and finite values; the same seed and actions give the same bits; a saved state
    continues with the same bits; the bits of a copy do not depend on the other copies; and no tensor's value is read,
    which is tried on torch's device "meta", whose tensors have no values.

    Args:
        create: function (number of copies, device) -> new vectorized environment with fixed seeds.
        place: config key and value that select the environment, for messages.

    Returns:
        The report of the environment card; its tier is "snapshot".

    Raises:
        EnvironmentFault: A check failed.
    """
    envs = create(COPIES, "cpu")
    rng = streams.generator(0, "probe")
    steps, actions = [envs.reset()], list[Tensor]()
    _check_values(steps[0], envs, place)
    for index in range(STEPS):
        actions.append(_random_actions(envs.spec, rng, steps[-1]))
        if index == 0:
            _refuse_reads(create, actions[0], place)
        steps.append(envs.step(actions[-1]))
        _check_values(steps[-1], envs, place)
        if index == STEPS // 2:
            saved = envs.state_dict()
    episodes = envs.pop_episodes()
    again = create(COPIES, "cpu")
    _compare(
        [again.reset(), *map(again.step, actions)], steps, f"{place}: the same seed and actions give other results"
    )
    restored = create(COPIES, "cpu")
    restored.load_state_dict(saved)
    rest = actions[STEPS // 2 + 1 :]
    _compare([*map(restored.step, rest)], steps[STEPS // 2 + 2 :], f"{place}: a saved state does not continue exactly")
    half = COPIES // 2
    few = create(half, "cpu")
    alone = [few.reset(), *(few.step(action[:half]) for action in actions)]
    _compare(alone, [_first(step, half) for step in steps], f"{place}: a copy depends on the other copies")
    rewards = torch.stack([step.reward for step in steps[1:]])
    lengths = [episode.length for episode in episodes]
    cut = torch.stack([step.truncated for step in steps]).any()
    limits = (max(lengths),) if bool(cut) else ()
    return TierReport(
        "snapshot",
        fresh_instance=False,
        deterministic=True,
        reason="",
        episodes=len(episodes),
        steps=STEPS * COPIES,
        capped="steps",
        longest=max(lengths, default=0),
        truncated_at=limits,
        reward=(float(rewards.min()), float(rewards.max())),
        without_action=sum(count_without_action(envs.spec, step) for step in steps),
    )


def _random_actions(spec: EnvSpec, rng: np.random.Generator, step: TimeStep) -> Tensor:
    """Draw random actions that the action masks allow, in the environment's format, [COPIES, *shape]."""
    masks = [{key: step.obs[key][copy].numpy() for key in spec.mask_keys} for copy in range(COPIES)]
    return torch.from_numpy(np.stack([np.asarray(random_action(spec, rng, obs)) for obs in masks]))


def _refuse_reads(create: Create, action: Tensor, place: str) -> None:
    try:
        envs = create(len(action), "meta")
        envs.reset()
        envs.step(action.to("meta"))
    except (RuntimeError, NotImplementedError) as error:
        raise EnvironmentFault(
            f"{place}: reset or step reads the value of a tensor, or uses a tensor of another device than self.device, "
            f"which would make a GPU wait ({str(error).splitlines()[0]}); use torch.where and tensors on self.device"
        ) from error


def _check_values(step: TimeStep, envs: BatchedVectorEnv, place: str) -> None:
    for key, part in envs.spec.obs.items():
        shape, dtype = (envs.num_envs, *part.shape), getattr(torch, part.dtype)
        _refuse_unlike(f"{place}: observation {key!r}", step.obs[key], shape, dtype)
    _refuse_unlike(f"{place}: the reward", step.reward, (envs.num_envs,), torch.float32)
    _refuse_unlike(f"{place}: terminated", step.terminated, (envs.num_envs,), torch.bool)


def _refuse_unlike(what: str, value: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(value.shape) != shape or value.dtype != dtype:
        raise EnvironmentFault(
            f"{what} has shape {list(value.shape)} and dtype {value.dtype}, expected {list(shape)} and {dtype}"
        )
    if value.is_floating_point() and not bool(value.isfinite().all()):
        raise EnvironmentFault(f"{what} is not finite")


def _first(step: TimeStep, count: int) -> TimeStep:
    obs = {key: value[:count] for key, value in step.obs.items()}
    return TimeStep(obs, step.reward[:count], step.terminated[:count], step.truncated[:count], step.is_first[:count])


def _compare(found: list[TimeStep], expected: list[TimeStep], message: str) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        pairs = [(mine.obs[key], theirs.obs[key]) for key in theirs.obs]
        pairs += [(mine.reward, theirs.reward), (mine.terminated, theirs.terminated), (mine.is_first, theirs.is_first)]
        if not all(torch.equal(first, second) for first, second in pairs):
            raise EnvironmentFault(message)
