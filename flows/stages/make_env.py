"""make-env: hold the config against a real instance of the environment and write its card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlcore.envs.card import environment_card, readable_card, warn_of_boundary
from rlcore.errors import EnvironmentFault, UserError
from rlcore.run.config import RunConfig
from rlcore.run.directory import RunDirectory, write_json
from rlcore.types import EnvSpec


def check(config: RunConfig) -> None:
    """Refuse in seconds what cannot run: an unknown environment, keys it lacks, an action no policy fits, no device.

    What would fail at the very end, a name that no model can have, is refused here too.

    Args:
        config: composed and checked by itself.

    Raises:
        UserError: names the key and the fix.
    """
    from flows.registry import agent_settings, model_name
    from rlcore.envs.make import make
    from rlcore.envs.spec import spec_of
    from rlcore.nn.encoder import check_keys
    from rlcore.nn.policy_head import kind_of
    from rlcore.run.compilation import check_compiler
    from rlcore.run.fabric import check_device

    check_device(config.fabric)
    check_compiler(config)
    env = make(config.env)
    try:
        spec: EnvSpec = spec_of(env)
    finally:
        env.close()
    if not config.model_manager.disabled:
        model_name(config)
        agent_settings(config)
    check_keys(spec, config.algo.mlp_keys.encoder, config.algo.cnn_keys.encoder)
    kind_of(spec.action, config.distribution.type)
    _check_sources(config, spec)


def _check_sources(config: RunConfig, spec: EnvSpec) -> None:
    """Hold what the run is to start from, if anything, against what it needs."""
    import torch

    from rlcore.algorithms import ALGORITHMS
    from rlcore.run import checkpoint
    from rlcore.run.policy import check_fits, load_policy

    if config.init_from:
        agent = ALGORITHMS[config.algo.name].Agent(config.algo, spec, config.distribution.type, torch.Generator())
        check_fits(load_policy(config.init_from), agent, config.init_from)
    if config.checkpoint.resume_from:
        wrong = checkpoint.damage(Path(config.checkpoint.resume_from))
        if wrong:
            raise UserError(f"checkpoint.resume_from={config.checkpoint.resume_from}: no good checkpoint ({wrong})")


def make_env(config: RunConfig, run: RunDirectory) -> Path:
    """Measure the environment and write env_card.json and env_card.md.

    Args:
        config: of the run.
        run: where.

    Returns:
        The card's path.

    Raises:
        UserError: the environment misbehaves; nothing has been trained on it yet.
    """
    try:
        card = environment_card(config.env, config.seed)
    except EnvironmentFault as error:
        raise UserError(f"env.id={config.env.id}: {error}") from error
    return write_card(run, card)


def write_card(run: RunDirectory, card: dict[str, Any]) -> Path:
    """Write env_card.json and env_card.md, and say what a user must know of it.

    Args:
        run: where.
        card: measured now, or earlier from the same content (`rlcore.envs.card.card_key`).

    Returns:
        The card's path.
    """
    warn_of_boundary(card)
    (run.path / "env_card.md").write_text(readable_card(card))
    write_json(run.card, card)
    return run.card
