"""Trainer of an algorithm in an environment class, without a config file.

    from rlcore.algorithms.on_policy import ppo
    from rlcore.train.build import build
    from rlcore.train.stopping import UpperBound

    trainer = build(ppo.Config(total_steps=None, rollout_steps=64), CartPole, num_envs=1024)
    print(trainer.collect(env_config={"length": 0.7}), trainer.update())  # one iteration
    trainer.run(stop=[UpperBound("Rewards/rew_avg", 475)], evaluate_every=5)
    trainer.save("policy")

`CartPole` is a subclass of `rlcore.envs.batched.env.BatchedEnv`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import nn

from rlcore.config.run import AlgorithmConfig
from rlcore.config.values import plain
from rlcore.envs.suites.own import give
from rlcore.errors import UserError
from rlcore.run_config import build_config
from rlcore.train.initial_weights import load_initial_weights, require_source
from rlcore.train.trainer import Trainer


def build(
    algo: AlgorithmConfig,
    env: str | type | Callable[..., Any],
    *,
    num_envs: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    config: Mapping[str, Any] | None = None,
) -> Trainer:
    """Create the trainer of an algorithm in an environment, and check the environment.

    Args:
        algo: config of the algorithm. If `total_steps` is None, training ends only with a stop condition, which is an
            argument of `Trainer.run`.
        env: environment: an id, such as `batched/CartPole-v1`; a subclass of BatchedEnv or gymnasium.Env; or a
            function or `functools.partial` that is called as `env(num_envs, device)` and returns a BatchedEnv.
        num_envs: number of environments that are stepped together; None: the default of `env.num_envs`.
        seed: seed of all random numbers.
        device: cpu, cuda or auto (cuda if there is a GPU).
        config: further keys and groups of the config, for example
            `{"evaluation": {"episodes": 20}, "env": {"max_episode_steps": 100}}`. Training starts from the weights of
            `init_from` and the rows of `buffer.load_from`, if they are set.

    Returns:
        The trainer.

    Raises:
        UserError: A value of the config is invalid, or the algorithm does not support the environment, or it starts
            from the networks of another run, and `init_from` names none that fits.
        EnvironmentFault: The environment fails a check, for example because it returns a tensor of a wrong shape.
    """
    groups, place = dict(config or {}), _select(env)
    own = {"num_envs": num_envs} if num_envs is not None else {}
    for group, values in {"env": place | own, "fabric": {"accelerator": device}}.items():
        groups[group] = values | dict(groups.get(group, {}))
    if "wrapper" in place:
        groups["env"]["wrapper"] = {**groups["env"]["wrapper"], **place["wrapper"]}
    built = build_config({"algo": plain(algo), "seed": seed, **groups}, may_be_endless=True)
    if isinstance(model := getattr(algo, "model", None), nn.Module):  # `plain` converts it to a text
        built = dataclasses.replace(built, algo=dataclasses.replace(cast("Any", built.algo), model=model))
    require_source(built)
    trainer = Trainer(built)
    load_initial_weights(trainer)
    return trainer


def _select(env: str | type | Callable[..., Any]) -> dict[str, Any]:
    """Return the keys of the group `env` that select an environment."""
    if isinstance(env, str):
        return {"id": env}
    if not callable(env):
        raise UserError(
            f"build(env={env!r}): must be an id, a subclass of BatchedEnv or gymnasium.Env, or a function that returns "
            "a BatchedEnv"
        )
    target = give(env)
    return {"id": target.rpartition(".")[2], "wrapper": {"_target_": target}}
