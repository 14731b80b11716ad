"""Dreamer V1 against losses and gradients of SheepRL (tests.golden.makers.dreamer_v1), and mutants."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcore.algorithms.dreamer.dreamer_v1 import learner as dreamer_v1
from tests.golden.dreamers import Case, Names, make_case, make_learner, of_all, type_keys
from tests.golden.fixtures import arrays, part, settings
from tests.golden.mutants import Mutant, returned, swap
from tests.soaking import always, heavy

pytestmark = heavy

SHEEPRL = settings("dreamer_v1")
VARIANTS: dict[str, dict[str, Any]] = SHEEPRL["variants"]
GRU = {"ih": "rssm.core.cell.of_input", "hh": "rssm.core.cell.of_state"}  # names of torch's weights -> ours


def ours(names: Names, part_of: str, given: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Return weights, or gradients, of one part under our names; the cell of V1 and its input layer are torch's."""
    cell, others = dict[str, Tensor](), dict[str, np.ndarray]()
    for name, value in given.items():
        if found := re.search(r"recurrent_model\..*rnn\.(weight|bias)_(ih|hh)_l0", name):
            cell[f"{GRU[found[2]]}.{found[1]}"] = torch.from_numpy(value).double()
        else:
            others[re.sub(r"recurrent_model\.(.*)mlp\.0", r"recurrent_model.\1mlp._model.0", name)] = value
    return cell | names.of(part_of, others)


def case_of(variant: str, *more: str) -> Case:
    """Return one batch with SheepRL's samples; `more` are further keys."""
    content, nvec = part(arrays("dreamer_v1"), f"{variant}/"), tuple(SHEEPRL["choices"].get(variant, ()))
    typed = ["exp=dreamer_v1", *type_keys(SHEEPRL["common"] | VARIANTS[variant]), *more]
    learner = make_learner(dreamer_v1, typed, nvec, 64)
    names = Names(learner.config.critic.mlp_layers, False, learner.agent.world.rssm.sizes[0])
    return make_case(learner, content, nvec, partial(ours, names))


@always
@pytest.mark.parametrize("variant", VARIANTS)
def test_dreamer_v1_losses_and_gradients_match_sheeprl(variant: str) -> None:
    """Every loss, λ-return, weight and gradient of one batch, with SheepRL's samples."""
    case_of(variant).check_losses()


def test_dreamer_v1_update_logs_metrics_of_sheeprl() -> None:
    """The exploration noise has decayed by one and a half half-lives."""
    keys = ["algo.actor.expl_amount=0.4", "algo.actor.expl_decay=100", "algo.actor.expl_min=0.05"]
    case_of("ends", *keys).check_update(150, 0.4 * 0.5**1.5)


# Mutants --------------------------------------------------------------------------------------------------------------

DISCRETE, PICTURES, CONTINUOUS, ENDS, CLAMPED, NORMAL = (
    partial(test_dreamer_v1_losses_and_gradients_match_sheeprl, variant)
    for variant in ("discrete", "multi_discrete", "continuous", "ends", "clamped", "normal")
)
UPDATE = test_dreamer_v1_update_logs_metrics_of_sheeprl

MODEL, ACTOR = "dreamer_v1.Learner.model_loss", "dreamer_v1.Behavior.actor_objective"
REWARD = "dreamer_v1.Behavior.predicted_reward"
CRITIC = "DreamerBehavior.critic_objective"
OF = "GaussianLatent.of"
MUTANTS: dict[str, Mutant] = {
    **of_all(MODEL, DISCRETE, PICTURES, UPDATE),
    # KL divergence.
    "KL sides swapped": Mutant(MODEL, swap("normal_kl(posterior, prior)", "normal_kl(prior, posterior)"), DISCRETE),
    "no free nats": Mutant("mean_free_nats", returned("kl"), CLAMPED),
    "clamp of each row in place of the mean": Mutant("mean_free_nats", returned("kl.clamp(min=nats)"), DISCRETE),
    "clamp of each latent": Mutant("normal_kl", swap("0.5 * A.sum(-1)", "(0.5 * A).clamp(0.1).sum(-1)"), DISCRETE),
    "free nats of the wrong sign": Mutant("mean_free_nats", swap("mean > nats", "mean < nats"), CLAMPED),
    "kl_regularizer dropped": Mutant(MODEL, swap("config.kl_regularizer * kl", "kl"), PICTURES),
    "entropy of one latent": Mutant("normal_entropy", swap("A.sum(-1)", "A.mean(-1)"), DISCRETE),
    # State.
    "std of an exponential": Mutant(OF, swap("F.softplus(A)", "A.exp()"), DISCRETE),
    "no lowest std": Mutant(OF, swap("A + self.min_std", "A"), CONTINUOUS),
    "no gradient to the std": Mutant(
        "GaussianLatent.sample", swap("distribution.std", "distribution.std.detach()"), DISCRETE
    ),
    "gates of a cell exchanged": Mutant(
        "PlainGRU.forward", swap("torch.lerp(A, B, C)", "torch.lerp(B, A, C)"), DISCRETE
    ),
    "no reset gate": Mutant("PlainGRU.forward", swap("reset * kept[2]", "kept[2]"), DISCRETE),
    # Predictions from the state, and their time step.
    "vectors in symlog space": Mutant("KeyEncoder.preprocess", swap("self.symlog", "True"), DISCRETE),
    "squares without their half": Mutant("unit_normal_loss", swap("0.5 * A", "A"), PICTURES),
    "γ left out of what ends learn": Mutant(MODEL, swap("self.config.gamma * A", "A"), PICTURES),
    "continue_scale_factor dropped": Mutant(MODEL, swap("config.continue_scale_factor * A", "A"), ENDS),
    # λ-returns and their weights.
    "imagination from the last row, not the first": Mutant(ACTOR, swap("part[:-1]", "part[1:]"), ENDS),
    "returns of the states that imagination begins with": Mutant(
        ACTOR, swap("Imagined(feat[1:], action[1:], A)", "Imagined(feat[:-1], action[:-1], A)"), DISCRETE
    ),
    "reward of the state stepped to": Mutant(REWARD, swap("imagined.feat[:-1]", "imagined.feat[1:]"), DISCRETE),
    "value of the state that is left": Mutant(ACTOR, swap("value[1:]", "value[:-1]"), DISCRETE),
    "discount one step off": Mutant(ACTOR, swap("A.predict_continue(feat[:-1])", "A.predict_continue(feat[1:])"), ENDS),
    "γ twice": Mutant(ACTOR, swap("A.sigmoid()", "config.gamma * A.sigmoid()"), ENDS),
    "discount without a gradient": Mutant(ACTOR, swap("A.sigmoid()", "A.sigmoid().detach()"), ENDS),
    "weights one step off": Mutant(ACTOR, swap("torch.cat([A, discount[:-1]])", "discount"), DISCRETE),
    "weights with a gradient": Mutant(ACTOR, swap("A.detach().cumprod(0)", "A.cumprod(0)"), ENDS),
    # Actor and critic.
    "actor's input not detached": Mutant("imagine", swap("state.feat.detach()", "state.feat"), CONTINUOUS),
    "no gradient through discrete actions": Mutant("LatentActor.forward", swap("taken + A", "taken"), DISCRETE),
    "actor without weights": Mutant("dreamer_v1.actor_loss", swap("-weight * returns", "-returns"), DISCRETE),
    "actor's returns of the wrong sign": Mutant("dreamer_v1.actor_loss", returned("-it"), DISCRETE),
    "critic without weights": Mutant(CRITIC, swap("weight * A", "A"), DISCRETE),
    "targets of the critic not detached": Mutant(ACTOR, swap("returns.detach()", "returns"), DISCRETE),
    "std of actions without its offset": Mutant("squashed_normal", swap("spread + A", "spread"), ENDS),
    "init_std added before the softplus": Mutant(
        "dreamer_v1.ActorConfig.policy", swap('kind == "tanh_normal"', "False"), ENDS
    ),
    "mean not held within five": Mutant("squashed_normal", swap("5 * torch.tanh(mean / 5)", "mean"), CONTINUOUS),
    "lowest std of actions dropped": Mutant("squashed_normal", swap("A + form.min_std", "A"), CLAMPED),
    "as much noise as at the start": Mutant("DreamerLearner.update", swap("batch.policy_steps", "0"), UPDATE),
    "std of a normal as it is": Mutant("plain_normal", swap("F.softplus(A)", "A.exp()"), NORMAL),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_golden_check_detects_dreamer_v1_mutant(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.applied(), pytest.raises(AssertionError):
        mutant.check()
