"""Config keys of the libraries SheepRL and rl8 that this project does not have.

If a config has such a key, the error message explains what to use instead. For other unknown keys, the message suggests
keys with a similar spelling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import RunConfig
from rlcore.config.schema import REQUIRED, arguments
from rlcore.config.values import at, spell
from rlcore.errors import Mistakes, UserError

# Families of SheepRL's algorithms -> their keys; subkeys are included.
KEYS: dict[tuple[str, ...], str] = {
    ("sac", "droq", "sac_ae", "dreamer", "p2e"): """
        algo.replay_ratio algo.learning_starts algo.per_rank_pretrain_steps
        algo.cnn_keys.decoder algo.mlp_keys.decoder algo.actor.optimizer algo.critic.optimizer""",
    ("sac", "droq", "sac_ae"): """
        algo.tau algo.hidden_size algo.alpha algo.actor.hidden_size algo.critic.hidden_size algo.critic.n
        algo.critic.target_network_frequency""",
    ("droq",): "algo.critic.dropout",
    ("sac_ae",): """
        algo.decoder algo.encoder.tau algo.encoder.features_dim algo.encoder.optimizer
        algo.actor.per_rank_update_freq""",
    ("sac_ae", "dreamer"): "algo.cnn_channels_multiplier algo.encoder.cnn_channels_multiplier",
    ("ppo_recurrent",): "algo.rnn algo.reset_recurrent_state_on_done algo.per_rank_num_batches",
    ("ppo_recurrent", "dreamer", "p2e"): "algo.per_rank_sequence_length",
    ("dreamer", "p2e"): """
        algo.world_model algo.horizon algo.lmbda algo.unimix algo.hafner_initialization algo.cnn_act algo.cnn_layer_norm
        algo.mlp_layer_norm algo.normalize_actions algo.replay_context algo.loss_scales algo.norm_eps algo.cnn_stages
        algo.cnn_kernel_size algo.train_every algo.optimizer.agc algo.optimizer.agc_pmin
        algo.actor.cls algo.actor.ent_coef algo.actor.objective_mix algo.actor.min_std
        algo.actor.max_std algo.actor.init_std algo.actor.clip_gradients algo.actor.unimix algo.actor.action_clip
        algo.actor.moments algo.actor.outscale algo.actor.expl_amount algo.actor.expl_min algo.actor.expl_decay
        algo.actor.max_step_expl_decay algo.critic.tau algo.critic.bins algo.critic.clip_gradients algo.critic.outscale
        algo.critic.per_rank_target_network_update_freq algo.critic.slow_regularizer algo.critic.replay_loss
        algo.critic.replay_grad""",
    ("p2e",): """
        algo.ensembles algo.intrinsic_reward_multiplier algo.critics_exploration algo.actor_exploration
        algo.critic_exploration buffer.load_from_exploration checkpoint.exploration_ckpt_path""",
}


# Keys of SheepRL and rl8 that no algorithm here has -> the message, with the replacement if there is one.
WHOSE = {
    "algo.per_rank_gradient_steps": "SheepRL's key of 2023; use algo.replay_ratio, the gradient steps for each policy "
    "step (algo.per_rank_gradient_steps / algo.train_every)",
    "algo.shuffle": "rl8's key (shuffle_minibatches), not supported yet; minibatches are always shuffled",
    "algo.shuffle_minibatches": "rl8's key, not supported yet; minibatches are always shuffled",
    "algo.model": "rl8's key, not supported yet; use algo.encoder, algo.actor and algo.critic",
    "algo.model_cls": "rl8's key, not supported yet; use algo.encoder, algo.actor and algo.critic",
    "algo.model_config": "rl8's key, not supported yet; use algo.encoder, algo.actor and algo.critic",
    "algo.distribution_cls": "rl8's key; use distribution.type",
    "algo.optimizer_cls": "rl8's key; choose the optimizer by optim=adam",
    "algo.optimizer_config": "rl8's key; use algo.optimizer.lr and the other keys of algo.optimizer",
    "algo.enable_amp": "rl8's key; use fabric.precision=bf16-mixed",
    "algo.device": "rl8's key; use fabric.accelerator=cuda",
    "algo.vf_clip_param": "rl8's key, not supported yet; algo.clip_vloss clips the value loss by algo.clip_coef",
    "algo.horizons_per_env_reset": "rl8's key, not supported yet; an environment is reset when its episode ends",
    "algo.seq_len": "rl8's key of recurrent PPO; use algo.per_rank_sequence_length with exp=ppo_recurrent",
    "algo.seqs_per_state_reset": "rl8's key of recurrent PPO, not supported yet",
}


def refuse_absent_keys(tree: dict[str, Any]) -> None:
    """Remove the keys of SheepRL and rl8 that this project does not support from a config, and report them as errors.

    Args:
        tree: the config as nested dicts without interpolations; modified in place.

    Raises:
        UserError: the config had such keys; the message names all of them.
    """
    name, mistakes = at(tree, "algo.name"), Mistakes()
    if not isinstance(name, str) or name not in ALGORITHMS:
        return  # reported when the config is built
    there = [argument.key for argument in (*arguments(RunConfig), *arguments(ALGORITHMS[name].Config, "algo."))]
    absent = {key: _whose(families, name) for families, theirs in KEYS.items() for key in theirs.split()} | WHOSE
    for key, whose in absent.items():
        value = at(tree, key, REQUIRED)
        if value is REQUIRED or any(f"{mine}.".startswith(f"{_leaf(key, value)[0]}.") for mine in there):
            continue
        typed, value = _leaf(key, value)
        mistakes.note(UserError(f"{typed}={spell(value)}: {whose}"))
        group, _, last = key.rpartition(".")
        del at(tree, group)[last]
    mistakes.raise_collected()


def _whose(families: tuple[str, ...], name: str) -> str:
    there = any(known.startswith(families) for known in ALGORITHMS)
    return f"SheepRL's key of {', '.join(families)}{'' if there else ', not supported yet'}; {name} has no such key"


def _leaf(key: str, value: Any) -> tuple[str, Any]:
    """Return a dotted key and its value; if the value is a mapping, return its first nested key that has no mapping."""
    while isinstance(value, Mapping) and value:
        part, value = next(iter(value.items()))
        key = f"{key}.{part}"
    return key, value
