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

NOT_SAVED = "its class declares that its state cannot be saved"
COPIES, STEPS, FEW_STEPS = 6, 600, 60  # FEW_STEPS if the environment is not capturable: its steps can be slow
Create = Callable[[int, str], BatchedVectorEnv]  # number of copies, device


def check_batched(create: Create, place: str) -> TierReport:
    """Play random actions in a batched environment and check it.

    The checks are:

    - `reset` and `step` return and store finite tensors of the declared shapes and dtypes on the environment's device,
      do not change earlier tensors, and do not draw from a global random generator;
    - no tensor's value is read, which is tried on torch's device "meta", whose tensors have no values. This is not
      checked if the environment declares that it is not capturable (`BatchedEnv.capturable`);
    - the same seed and actions give the same bits;
    - a saved state continues with the same bits;
    - the bits of a copy do not depend on the other copies: half of the copies, and the copies in another order. This is
      not checked if the environment declares the tier "boundary" (`BatchedEnv.tier`).

    Args:
        create: function (number of copies, device) -> new vectorized environment with fixed seeds.
        place: config key and value that select the environment, for messages.

    Returns:
        The report of the environment card.

    Raises:
        EnvironmentFault: A check failed.
    """
    copies = min(COPIES, create(1, "cpu").env.max_num_envs or COPIES)
    envs, rng = _checked(create, copies, "cpu", place), streams.generator(0, "probe")
    count = STEPS if envs.capturable else FEW_STEPS
    steps, actions = [envs.reset()], list[Tensor]()
    for index in range(count):
        actions.append(_random_actions(envs.spec, rng, steps[-1]))
        steps.append(envs.step(actions[-1]))
        if index == 0 and envs.capturable:
            _refuse_reads(create, actions[0], place)
        if index == count // 2:
            steps[-1] = envs.boundary() or steps[-1]
            saved, tensors = envs.state_dict(), envs.tensors()
    episodes = envs.pop_episodes()
    rest, later = actions[count // 2 + 1 :], steps[count // 2 + 2 :]
    again = _play(create(copies, "cpu"), actions)
    _compare(again, steps, f"{place}: the same seed and actions give other results")
    restored = create(copies, "cpu")
    restored.load_state_dict(saved)
    _compare([*map(restored.step, rest)], later, f"{place}: a saved state does not continue exactly")
    if envs.env.tier == "snapshot":
        if half := copies // 2:
            alone = _play(create(half, "cpu"), [action[:half] for action in actions])
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
        envs.env.tier,
        fresh_instance=False,
        deterministic=True,
        reason="" if envs.env.tier == "snapshot" else NOT_SAVED,
        episodes=len(episodes),
        steps=count * copies,
        capped="steps",
        longest=max(lengths, default=0),
        truncated_at=limits,
        reward=(float(rewards.min()), float(rewards.max())),
        without_action=sum(count_without_action(envs.spec, step) for step in steps),
    )


def check_first_steps(create: Create, place: str) -> None:
    """Check `reset` and two steps of a batched environment, as `check_batched` does in its first check.

    Args:
        create: function (number of copies, device) -> new vectorized environment.
        place: config key and value that select the environment, for messages.

    Raises:
        EnvironmentFault: The check failed.
    """
    envs, rng = _checked(create, 1, "cpu", place), streams.generator(0, "probe")
    step = envs.reset()
    for _ in range(2):  # the second step starts from a state that `step` has set
        step = envs.step(_random_actions(envs.spec, rng, step))


def _play(envs: BatchedVectorEnv, actions: list[Tensor]) -> list[TimeStep]:
    """Return the first time step and that of each action; the state could be saved in the middle."""
    steps = [envs.reset()]
    for index, action in enumerate(actions):
        steps.append(envs.step(action))
        if index == len(actions) // 2:
            steps[-1] = envs.boundary() or steps[-1]
    return steps


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
