"""Setup of a training: checks of the config, the environment and the resources, and creation of the environments."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.config.run import RunConfig
from rlcore.envs.card import refuse_without_action
from rlcore.envs.vector.choose import check_batched_options, make_vector_env
from rlcore.errors import UserError
from rlcore.protocols import VectorEnv
from rlcore.spec import EnvSpec
from rlcore.train.buffer_placement import place_buffer
from rlcore.train.counting import count, gpu_memory
from rlcore.train.resource_check import check_resources
from rlcore.types import Ranks

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


def check_own_environment(config: RunConfig, card: Mapping[str, Any], command: bool) -> None:
    """Check a training in the config's environment, as `check_training`, and its keys and action masks.

    Nothing else is checked if the environment card (the result of make-env) contains no spec.
    """
    check_batched_options(config)
    if stored := card.get("spec"):
        check_training(config, EnvSpec.from_json(stored), command, card)


def check_training(config: RunConfig, spec: EnvSpec, command: bool, card: Mapping[str, Any] | None = None) -> None:
    """Raise a UserError if the algorithm does not support the environment, or if the resources are insufficient.

    Args:
        config: config of the training.
        spec: spec of its environments.
        command: True if a Shepherd command started this process (see `check_resources`).
        card: environment card of the config's environment; None if other environments are used.
    """
    config.algo.check_spec(spec)
    if card is not None:
        refuse_without_action(config.algo, card)
    for notice in config.algo.env_notices(spec):
        log.warning("%s", notice)
    check_resources(config, spec, Path(config.run_dir), begun=True, command=command)


def place_replay_buffer(config: RunConfig, envs: VectorEnv, device: torch.device) -> RunConfig:
    """Return the config with the decision whether the replay buffer is on the GPU (`buffer.on_device`)."""
    if config.buffer.on_device is not None or device.type != "cuda" or envs.device is None:
        return place_buffer(config, envs.spec, None, None)
    return place_buffer(config, envs.spec, count(config, envs.spec), gpu_memory(device.index or 0))


def make_envs(config: RunConfig, card: Mapping[str, Any], ranks: Ranks, device: torch.device) -> VectorEnv:
    """Create the environments of this rank.

    Args:
        config: config of the training.
        card: environment card of the config's environment.
        ranks: the processes that train together.
        device: device of the agent.

    Returns:
        The vectorized environment, not yet reset.
    """
    return make_vector_env(
        config.env,
        num_envs=config.env.num_envs,
        seed=config.seed,
        rank=ranks.rank,
        tier=card["tier"],
        fresh_instance=card["fresh_instance"],
        device=device,
        rollout_steps=config.algo.collect_length,
    )


def refuse_other_environment(config: RunConfig, spec: EnvSpec, card: Mapping[str, Any]) -> None:
    """Raise a UserError if the training environments are not those of the config, in which the agent is evaluated.

    Args:
        config: config of the training.
        spec: spec of the training environments.
        card: environment card of the config's environment.

    Raises:
        UserError: The specs differ.
    """
    stored = card.get("spec")
    ours = EnvSpec.from_json(stored) if stored else dataclasses.replace(spec, id=config.env.id)
    if spec == ours:
        return
    other = f"{spec.id}" if spec.id != ours.id else f"{spec.id} with other spaces"
    raise UserError(
        f"evaluate() uses env.id={ours.id} of the config, but training uses {other} (argument envs); set env.id to "
        f"the environment of envs, or, if they are the same environment, set envs.spec to the spec of {ours.id}"
    )
