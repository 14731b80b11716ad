"""Checks of a batched environment: the values that it returns, and what a run needs to be exact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rlcore import streams
from rlcore.envs.batched.checks import CheckedCalls, reorder
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

    The checks are:

    - `reset` and `step` return and store finite tensors of the declared shapes and dtypes on the environment's device,
      do not change earlier tensors, and do not draw from a global random generator;
    - no tensor's value is read, which is tried on torch's device "meta", whose tensors have no values;
    - the same seed and actions give the same bits;
    - a saved state continues with the same bits;
    - the bits of a copy do not depend on the other copies: half of the copies, and the copies in another order.

    Args:
        create: function (number of copies, device) -> new vectorized environment with fixed seeds.
        place: config key and value that select the environment, for messages.

    Returns:
        The report of the environment card; its tier is "snapshot".

    Raises:
        EnvironmentFault: A check failed.
    """
    copies = min(COPIES, create(1, "cpu").env.max_num_envs or COPIES)
    envs, rng = _checked(create, copies, "cpu", place), streams.generator(0, "probe")
    steps, actions = [envs.reset()], list[Tensor]()
    for index in range(STEPS):
        actions.append(_random_actions(envs.spec, rng, steps[-1]))
        steps.append(envs.step(actions[-1]))
        if index == 0:
            _refuse_reads(create, actions[0], place)
        if index == STEPS // 2:
            saved, tensors = envs.state_dict(), envs.tensors()
    episodes = envs.pop_episodes()
    again, rest = create(copies, "cpu"), actions[STEPS // 2 + 1 :]
    _compare(
        [again.reset(), *map(again.step, actions)], steps, f"{place}: the same seed and actions give other results"
    )
    restored, later = create(copies, "cpu"), steps[STEPS // 2 + 2 :]
    restored.load_state_dict(saved)
    _compare([*map(restored.step, rest)], later, f"{place}: a saved state does not continue exactly")
    if half := copies // 2:
        few = create(half, "cpu")
        alone = [few.reset(), *(few.step(action[:half]) for action in actions)]
        expected = [_select(step, slice(half)) for step in steps]
        _compare(alone, expected, f"{place}: a copy depends on the number of copies")
    order = torch.arange(copies).roll(1)
    permuted = create(copies, "cpu")
    permuted.reset()
    permuted.take(reorder(tensors, order))
    moved = [permuted.step(action[order]) for action in rest]
    _compare(moved, [_select(step, order) for step in later], f"{place}: a copy depends on the order of the copies")
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
        steps=STEPS * copies,
        capped="steps",
        longest=max(lengths, default=0),
        truncated_at=limits,
        reward=(float(rewards.min()), float(rewards.max())),
        without_action=sum(count_without_action(envs.spec, step) for step in steps),
    )


def _checked(create: Create, copies: int, device: str, place: str) -> BatchedVectorEnv:
    envs = create(copies, device)
    CheckedCalls(envs.env, place)
    return envs


def _random_actions(spec: EnvSpec, rng: np.random.Generator, step: TimeStep) -> Tensor:
    """Draw random actions that the action masks allow, in the environment's format, [B, *shape]."""
    masks = [{key: step.obs[key][copy].numpy() for key in spec.mask_keys} for copy in range(len(step.reward))]
    return torch.from_numpy(np.stack([np.asarray(random_action(spec, rng, obs)) for obs in masks]))


def _refuse_reads(create: Create, action: Tensor, place: str) -> None:
    try:
        envs = _checked(create, len(action), "meta", place)
        envs.reset()
        envs.step(action.to("meta"))
    except (RuntimeError, NotImplementedError) as error:
        raise EnvironmentFault(
            f"{place}: reset or step reads the value of a tensor, or uses a tensor of another device than self.device, "
            f"which would make a GPU wait ({str(error).splitlines()[0]}); use torch.where and tensors on self.device"
        ) from error


def _select(step: TimeStep, rows: Tensor | slice) -> TimeStep:
    """Return the time step of some of the copies."""
    obs = {key: value[rows] for key, value in step.obs.items()}
    return TimeStep(obs, step.reward[rows], step.terminated[rows], step.truncated[rows], step.is_first[rows])


def _compare(found: list[TimeStep], expected: list[TimeStep], message: str) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        pairs = [(mine.obs[key], theirs.obs[key]) for key in theirs.obs]
        pairs += [(mine.reward, theirs.reward), (mine.terminated, theirs.terminated), (mine.is_first, theirs.is_first)]
        if not all(torch.equal(first, second) for first, second in pairs):
            raise EnvironmentFault(message)
