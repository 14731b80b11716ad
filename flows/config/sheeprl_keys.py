"""Keys that are SheepRL's, but not of the algorithm that was chosen: told by whose they are, not by a nearest match."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import RunConfig
from rlcore.config.schema import REQUIRED, arguments, at, spell
from rlcore.errors import UserError

# Families of SheepRL's algorithms -> their keys; what stands below a key is theirs too.
KEYS: dict[tuple[str, ...], str] = {
    ("sac", "droq", "sac_ae", "dreamer", "p2e"): """
        algo.replay_ratio algo.learning_starts algo.per_rank_pretrain_steps algo.per_rank_gradient_steps
        algo.cnn_keys.decoder algo.mlp_keys.decoder algo.actor.optimizer algo.critic.optimizer""",
    ("sac", "droq", "sac_ae"): """
        algo.tau algo.hidden_size algo.alpha algo.actor.hidden_size algo.critic.hidden_size algo.critic.n
        algo.critic.target_network_frequency buffer.sample_next_obs""",
    ("droq",): "algo.critic.dropout",
    ("sac_ae",): """
        algo.decoder algo.encoder.tau algo.encoder.features_dim algo.encoder.optimizer algo.actor.network_frequency""",
    ("sac_ae", "dreamer"): "algo.cnn_channels_multiplier algo.encoder.cnn_channels_multiplier",
    ("ppo_recurrent",): "algo.rnn algo.reset_recurrent_state_on_done algo.per_rank_num_batches",
    ("ppo_recurrent", "dreamer", "p2e"): "algo.per_rank_sequence_length",
    ("dreamer", "p2e"): """
        algo.world_model algo.horizon algo.lmbda algo.unimix algo.hafner_initialization algo.cnn_act algo.cnn_layer_norm
        algo.mlp_layer_norm algo.normalize_actions algo.replay_context algo.loss_scales algo.norm_eps algo.cnn_stages
        algo.cnn_kernel_size algo.player algo.train_every algo.optimizer.agc algo.optimizer.agc_pmin
        algo.optimizer.warmup algo.actor.cls algo.actor.ent_coef algo.actor.objective_mix algo.actor.min_std
        algo.actor.max_std algo.actor.init_std algo.actor.clip_gradients algo.actor.unimix algo.actor.action_clip
        algo.actor.moments algo.actor.outscale algo.actor.expl_amount algo.actor.expl_min algo.actor.expl_decay
        algo.actor.max_step_expl_decay algo.critic.tau algo.critic.bins algo.critic.clip_gradients algo.critic.outscale
        algo.critic.per_rank_target_network_update_freq algo.critic.slow_regularizer algo.critic.replay_loss
        algo.critic.replay_grad buffer.type buffer.prioritize_ends""",
    ("p2e",): """
        algo.ensembles algo.intrinsic_reward_multiplier algo.critics_exploration algo.actor_exploration
        algo.critic_exploration buffer.load_from_exploration checkpoint.exploration_ckpt_path""",
}


def refuse_other_algorithms(tree: Mapping[str, Any]) -> None:
    """Refuse keys of SheepRL's other algorithms.

    Args:
        tree: the composed and resolved config, as plain values.

    Raises:
        UserError: names the key, its value, and whose it is.
    """
    name = at(tree, "algo.name")
    if name not in ALGORITHMS:
        return  # that is told when the config is built
    for families, theirs in KEYS.items():
        for key, value in ((key, value) for place in theirs.split() for key, value in _below(tree, place)):
            own = [a.key for a in (*arguments(RunConfig), *arguments(ALGORITHMS[name].Config, "algo."))]
            if any(f"{mine}.".startswith(f"{key}.") for mine in own):
                continue
            there = any(known.startswith(families) for known in ALGORITHMS)
            raise UserError(
                f"{key}={spell(value)}: SheepRL's key of {', '.join(families)}"
                f"{'' if there else ', not there yet'}; {name} has no such key"
            )


def _below(tree: Mapping[str, Any], place: str) -> Iterator[tuple[str, Any]]:
    """The first key at or below a place in a tree, with its value; nothing where the tree has no such place."""
    value = at(tree, place, REQUIRED)
    if value is REQUIRED:
        return
    while isinstance(value, Mapping) and value:
        part, value = next(iter(value.items()))
        place = f"{place}.{part}"
    yield place, value
