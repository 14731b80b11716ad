"""What is refused before anything is made: a config that cannot run here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig
    from rlcore.spec import EnvSpec


def check(config: RunConfig) -> None:
    """Refuse in seconds what cannot run: an unknown environment, keys it lacks, an action no policy fits, no device.

    What would fail at the very end, a name that no model can have, is refused here too. The `UserError` names the key
    and the fix.
    """
    from flows.registry.models import agent_settings, model_name
    from rlcore.envs.make import make
    from rlcore.envs.spaces import spec_of
    from rlcore.nn.encoder import check_keys
    from rlcore.nn.policy_head import kind_of
    from rlcore.optim.when_to_compile import check_compiler
    from rlcore.train.fabric import check_device

    check_device(config.fabric)
    check_compiler(config)
    env = make(config.env)
    try:
        spec = spec_of(env)
    finally:
        env.close()
    if not config.model_manager.disabled:
        model_name(config)
        agent_settings(config)
    check_keys(spec, config.algo.mlp_keys.encoder, config.algo.cnn_keys.encoder)
    kind_of(spec.action, config.distribution.type)
    if config.init_from:
        _check_weights(config, config.init_from, spec)
    if config.checkpoint.resume_from:
        _check_resumable(config, Path(config.checkpoint.resume_from))


def _check_weights(config: RunConfig, source: str, spec: EnvSpec) -> None:
    """Hold the weights that the run is to start from against the agent that is to take them."""
    import torch

    from rlcore.algorithms import ALGORITHMS
    from rlcore.judge.policy import check_fits, load_policy

    agent = ALGORITHMS[config.algo.name].Agent(config.algo, spec, config.distribution.type, torch.Generator())
    check_fits(load_policy(source), agent, source)


def _check_resumable(config: RunConfig, source: Path) -> None:
    """Hold the checkpoint that the run is to go on from against what the run would learn, as its trainer will."""
    from rlcore.optim.when_to_compile import decide
    from rlcore.store import checkpoint
    from rlcore.store.fingerprint import what_is_learned
    from rlcore.store.resume_rules import refuse_other_learning
    from rlcore.train.resume import ResumePoint

    key = f"checkpoint.resume_from={source}"
    if RunDirectory(source).config.exists():
        newest = checkpoint.newest_good(RunDirectory(source).checkpoints)
        into = f"another run from it: checkpoint.resume_from={newest}" if newest else "it has no good checkpoint yet"
        raise UserError(f"{key}: this is a run, not a checkpoint; to go on with it: shepherd resume {source}; {into}")
    if not source.is_dir():
        raise UserError(f"{key}: no checkpoint there; give its folder, as runs/a/checkpoints/8192")
    wrong = checkpoint.damage(source)
    if wrong:
        raise UserError(f"{key}: no good checkpoint ({wrong})")
    before = ResumePoint.at(source).fingerprint
    # The environment has not been measured; its tier follows from `env`, in which the two must not differ anyway.
    tier = before["learning"]["tier"]
    now = what_is_learned(config, tier, decide(config, before))
    refuse_other_learning(before["learning"], now, config, source)


def prepared(
    config: RunConfig, values: Mapping[str, Any]
) -> tuple[RunConfig, Mapping[str, Any], dict[str, Any] | None]:
    """Check a composed config against the world, and find what it starts from; nothing is written.

    Gives config and values with `init_from`, which may be a models:/ URI, as a local folder, and what is kept of where
    the weights come from, for `create_run`.
    """
    source = None
    if config.init_from:
        source, path = _source(config.init_from)
        config, values = dataclasses.replace(config, init_from=path), {**values, "init_from": path}
    check(config)
    return config, values, source


def _source(uri: str) -> tuple[dict[str, Any], str]:
    """What is kept of where weights come from, and the folder they lie in: an alias may point elsewhere tomorrow."""
    from flows.registry.models import resolve_uri
    from rlcore.judge.policy import load_policy
    from rlcore.store.checkpoint import chosen

    registered = uri.startswith("models:/")
    try:
        path = str(resolve_uri(uri)) if registered else uri
        if RunDirectory(path).config.exists():
            # One checkpoint of it: tomorrow another one may be its best, and this run may have to start again.
            path = str(chosen(RunDirectory(path)).absolute())
        digest = load_policy(path).description["digest"]
    except UserError as error:
        raise UserError(f"init_from={uri}: {str(error).removeprefix(f'{uri}: ')}") from None
    return {"given": uri, "uri": uri if registered else None, "path": path, "digest": digest}, path
