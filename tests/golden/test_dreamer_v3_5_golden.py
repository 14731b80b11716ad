"""Dreamer V3.5 against losses and gradients of SheepRL (tests.golden.makers.dreamer_v3_5), and mutants."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcore.algorithms.dreamer.dreamer_v3_5 import learner as dreamer_v3_5
from rlcore.functional.noise import Drawn
from rlcore.types import Batch, Trajectory
from tests.golden.dreamers import compare_gradients, given_step, make_learner, near, noise_of, type_keys
from tests.golden.fixtures import arrays, part, settings, tensors
from tests.golden.mutants import Mutant, swap
from tests.soaking import always, heavy

pytestmark = heavy

SHEEPRL = settings("dreamer_v3_5")
VARIANTS: dict[str, dict[str, Any]] = SHEEPRL["variants"]
MLPS = {  # SheepRL's name of a stack of linear layers, norms and activations -> ours
    "encoder.mlp_encoder.model": "encoder.mlp",
    "rssm.recurrent_model.recurrent_projection": "rssm.core.cell.of_deter",
    "rssm.recurrent_model.stochastic_projection": "rssm.core.cell.of_stoch",
    "rssm.recurrent_model.action_projection": "rssm.core.cell.of_action",
    "rssm.transition_model": "rssm.prior",
    "observation_model.cnn_decoder.stochastic_projection": "decoder.cnn.of_stoch",
    "observation_model.mlp_decoder.model": "decoder.mlp",
    "reward_model": "reward",
    "continue_model": "continue_head",
}
OTHERS = {
    "rssm.recurrent_model.gates": "rssm.core.cell.gates",
    "rssm.representation_model.model.0": "rssm.core.norm.norm",
    "rssm.representation_model.model.2": "rssm.core.output",
    "observation_model.cnn_decoder.recurrent_projection": "decoder.cnn.of_deter",
    "observation_model.cnn_decoder.latent_projection": "decoder.cnn.of_state",
    "observation_model.cnn_decoder.projection_norm.0": "decoder.cnn.layers.0.norm",
    "observation_model.mlp_decoder.heads.0": "decoder.heads.of_state",
}


def layer(place: int, kind: str) -> str:
    """Map the place of a layer among (linear, norm, activation, …) to ours, which has norm and activation in one."""
    number, rest = divmod(place, 3)
    return f"{2 * number + rest}.{'norm.' if rest else ''}{kind}"


def in_world(name: str, tensor: Tensor, width: int) -> dict[str, Tensor]:
    """Return one of SheepRL's weights under our names; `width` is the size of h."""
    if name == "rssm.representation_model.input_layer.weight":
        return {"rssm.core.deter_proj.weight": tensor[:, :width], "rssm.feature_proj.weight": tensor[:, width:]}
    if name == "rssm.representation_model.input_layer.bias":
        return {"rssm.feature_proj.bias": tensor}
    place, _, kind = name.rpartition(".")
    if place in OTHERS:
        return {f"{OTHERS[place]}.{kind}": tensor}
    if found := re.fullmatch(r"encoder\.cnn_encoder\.model\.(\d+)", place):
        stage, rest = divmod(int(found[1]), 4)  # convolution, pooling, norm, activation
        return {f"encoder.cnn.layers.{3 * stage + rest}.{'norm.' if rest else ''}{kind}": tensor}
    if found := re.fullmatch(r"observation_model\.cnn_decoder\.model\.(\d+)", place):
        stage, rest = divmod(int(found[1]), 4)  # upsampling, convolution, norm, activation
        return {f"decoder.cnn.layers.{2 * stage + rest}.{'norm.' if rest == 2 else ''}{kind}": tensor}
    stack, _, number = place.rpartition(".")
    if stack == "rssm.recurrent_model.hidden":
        return {f"rssm.core.cell.hidden.{layer(int(number), kind)}": tensor}
    return {f"{MLPS[stack]}.hidden.{layer(int(number), kind)}": tensor}


def of(part_of: str, given: dict[str, np.ndarray], module: torch.nn.Module, width: int) -> dict[str, Tensor]:
    """Return weights or gradients of one part under the names of our module."""
    named: dict[str, Tensor] = {}
    for name, value in given.items():
        name, tensor = name.replace("module.", "").replace("_forward_", ""), torch.from_numpy(value).double()
        if part_of == "world":
            named |= in_world(name, tensor, width)
        elif part_of == "actor" and name.startswith("mlp_heads"):
            named[name.replace("mlp_heads", "heads")] = tensor
        else:
            number, kind = name.removeprefix("model.").split(".")
            named[f"{'hidden.' * (part_of == 'actor')}hidden.{layer(int(number), kind)}"] = tensor
    own = {name for name, _ in module.named_parameters()}

    def find(name: str) -> str:
        """Return the name of a last layer, which has no norm after it, in our module."""
        last = re.sub(r"decoder\.cnn\.layers\.\d+", "decoder.cnn.last", re.sub(r"hidden\.\d+", "output", name))
        return name if name in own else last

    return {find(name): value for name, value in named.items()}


def batch_of(content: dict[str, np.ndarray], nvec: tuple[int, ...]) -> Batch:
    """Return rows [L + 1, N] as the replay buffer gives them; only the first row has a stored state."""
    held = tensors(part(content, "batch/"))
    terminated, truncated, is_first = (held[key].squeeze(-1).bool() for key in ("terminated", "truncated", "is_first"))
    action = held["actions"].double()
    if nvec:
        action = torch.stack([choice.argmax(-1) for choice in action.split(nvec, -1)], -1)
    obs = {key: held[key] for key in ("rgb", "state")}
    steps = Trajectory(obs, action, held["rewards"].squeeze(-1).double(), terminated, truncated, is_first)
    states = {"deter": held["deter"].half(), "stoch": held["stoch"].to(torch.uint8)}
    steps.extras = {name: torch.stack([state] * len(is_first)) for name, state in states.items()}
    return Batch(steps, steps, 0)


@always
@pytest.mark.parametrize("variant", VARIANTS)
def test_dreamer_v3_5_losses_and_gradients_match_sheeprl(variant: str) -> None:
    """All losses, and the gradients of their sum, of one batch with stored states and SheepRL's samples."""
    content = part(arrays("dreamer_v3_5"), f"{variant}/")
    nvec = tuple(SHEEPRL["nvec"]) if "noise/choice0" in content else ()
    typed = ["exp=dreamer_v3_5", *type_keys(SHEEPRL["common"] | VARIANTS[variant])]
    learner = make_learner(dreamer_v3_5, typed, nvec, 16)
    behavior = learner.behavior
    behavior.moments.low, behavior.moments.high = map(torch.tensor, SHEEPRL["scales"][variant])
    parts = {"world": learner.agent.world, "actor": learner.agent.actor, "critic": behavior.critic}
    for name, module in (parts | {"target": behavior.target_critic}).items():
        module.load_state_dict(of(name, part(content, f"weights/{name}/"), module, 8))
    segment, tau = given_step(learner, batch_of(content, nvec))
    assert tau == learner.config.critic.tau
    noise = noise_of(content, nvec)
    found = learner.loss(segment, Drawn(iter([noise["observed"], noise["action"], noise["imagined"]])))
    steps: list[Any] = []
    behavior.actor_optimizer.minimize = steps.append
    behavior.train_actor({name: found[3][name] for name in behavior.imagined})
    policy = behavior.policy_loss(*steps)
    near("loss", found[0] / found[1] + policy[0] / policy[1], content["loss"])
    for name, module in parts.items():
        loss = policy if name == "actor" else found
        compare_gradients(name, module, loss, of(name, part(content, f"gradients/{name}/"), module, 8))
    metrics, logged = part(content, "metrics/"), found[2] | policy[2]
    assert logged.keys() == metrics.keys(), logged.keys() ^ metrics.keys()
    for name, expected in metrics.items():
        near(name, logged[name], expected)
    near("low", behavior.moments.low, content["low"])
    near("high", behavior.moments.high, content["high"])


DISCRETE, CONTINUOUS, DENSE = (
    partial(test_dreamer_v3_5_losses_and_gradients_match_sheeprl, variant) for variant in VARIANTS
)
RETURNS, REPLAYED = (f"behavior.Behavior.{name}" for name in ("imagine_returns", "replay_loss"))
WORLD, ALL, INPUT = (f"dreamer_v3_5.Learner.{name}" for name in ("model_terms", "loss", "head_input"))
MUTANTS: dict[str, Mutant] = {
    # Losses on replayed sequences.
    "last step in the replay loss": Mutant(REPLAYED, swap("torch.zeros_like(loss[:1])", "loss[-1:]"), DISCRETE),
    "replay loss bootstraps from the wrong start": Mutant(REPLAYED, swap("bootstrap[1:]", "bootstrap[:-1]"), DISCRETE),
    "replay returns pass the ends of episodes": Mutant(REPLAYED, swap("(~ends[1:])", "(ends[1:] >= 0)"), DISCRETE),
    "replay loss at the ends of episodes": Mutant(REPLAYED, swap("(~ends[:-1])", "(ends[:-1] >= 0)"), DISCRETE),
    "ends that do not terminate lose their value": Mutant(
        REPLAYED, swap("~batch.terminated[1:]", "~(batch.terminated[1:] | ends[1:])"), DISCRETE
    ),
    "mean of the replay loss over all rows": Mutant(REPLAYED, swap("A * (len(bootstrap) / len(loss))", "A"), DISCRETE),
    "replay loss does not train the states": Mutant(
        ALL, swap("A.replay_loss(B, feat, C, D)", "A.replay_loss(B, feat.detach(), C, D)"), DISCRETE
    ),
    "replay loss trains the states although it should not": Mutant(
        INPUT, swap("config.critic.replay_grad", "True"), CONTINUOUS
    ),
    # Imagination.
    "weights one step off": Mutant(RETURNS, swap("discount[:-1].cumprod(0)", "discount[1:].cumprod(0)"), DISCRETE),
    "discount twice": Mutant(RETURNS, swap("config.imagined_gamma * A", "config.gamma * A"), DISCRETE),
    "γ left in the first weight": Mutant(RETURNS, swap("A / config.imagined_gamma", "A"), CONTINUOUS),
    "no baseline": Mutant(RETURNS, swap("returns - value[:-1]", "returns"), DISCRETE),
    "advantages without scale": Mutant("behavior.Behavior.train_actor", swap("A / scale(B, C)", "A"), DISCRETE),
    "actor loss without its weight": Mutant(
        "behavior.Behavior.policy_loss", swap('config.scale("policy") * A', "A"), CONTINUOUS
    ),
    "critic without weights": Mutant(
        RETURNS, swap("weight * self.critic_loss(A, B, C, D)", "self.critic_loss(A, B, C, D)"), DISCRETE
    ),
    "regularizer without its weight": Mutant("behavior.Behavior.critic_loss", swap("A + B * C", "A + C"), CONTINUOUS),
    # World model.
    "continue head predicts 1": Mutant(WORLD, swap("self.config.gamma if A else 1.0", "1.0"), DISCRETE),
    "reward trains the states although it should not": Mutant(
        INPUT, swap("config.world_model.reward_grad", "True"), CONTINUOUS
    ),
    "KL weights exchanged": Mutant(
        WORLD,
        swap(
            'kl_loss(A, B, scale("dynamic"), scale("representation"), C)',
            'kl_loss(A, B, scale("representation"), scale("dynamic"), C)',
        ),
        DISCRETE,
    ),
    "update gate without its bias": Mutant("BlockGRU.forward", swap("update - 1", "update"), DISCRETE),
    "pixels without offset": Mutant("UpsamplingDecoder.forward", swap("A.sigmoid() - 0.5", "A.sigmoid()"), DENSE),
    "bins of symlog": Mutant("TwoHot.grid", swap('A == "symexp"', "False"), DISCRETE),
    "stored state ignored": Mutant("Agent.expand", swap('A["deter"].float()', '0 * A["deter"].float()'), DISCRETE),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_golden_check_detects_dreamer_v3_5_mutant(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.applied(), pytest.raises(AssertionError):
        mutant.check()
