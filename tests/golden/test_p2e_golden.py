"""Plan2Explore against losses and gradients of SheepRL (tests.golden.makers.p2e and p2e_older), and mutants."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from rlcore.algorithms.dreamer.imagination import Imagined
from rlcore.algorithms.dreamer.plan2explore import learner as plan2explore
from rlcore.algorithms.dreamer.plan2explore.ensemble import disagreement
from tests.golden.dreamers import make_learner
from tests.golden.mutants import Mutant, swap
from tests.golden.p2e import VARIANTS, check_losses, make_case, typed_keys
from tests.soaking import always, heavy

pytestmark = heavy


@always
@pytest.mark.parametrize(("version", "variant"), VARIANTS)
def test_p2e_losses_and_gradients_match_sheeprl(version: int, variant: str) -> None:
    check_losses(version, variant)


def check_reward(version: int) -> None:
    """The reward of a step is the disagreement about its own outcome: V(s, a) over members, mean over the state."""
    case = make_case(version, "multi_discrete")
    learner = case.learner
    feat = torch.randn(4, 5, learner.agent.world.feat_size, generator=torch.Generator().manual_seed(0)).double()
    taken = torch.eye(5, dtype=torch.float64).expand(3, 5, 5)
    reward = learner.behaviors[1].critics[0].reward(Imagined(feat, taken.argmax(-1, keepdim=True), taken))
    predictions = np.stack([m(torch.cat([feat[:-1], taken], -1)).detach().numpy() for m in learner.ensembles.members])
    np.testing.assert_allclose(reward.detach().numpy(), 20 * predictions.var(0, ddof=1).mean(-1), rtol=1e-6)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_intrinsic_reward_is_disagreement_about_own_step(version: int) -> None:
    check_reward(version)


def check_members(version: int) -> None:
    """New members differ, so they disagree before any training."""
    learner = make_learner(plan2explore, typed_keys(version, ""), (), 16 if version == 3 else 64)
    feat, action = torch.zeros(1, learner.agent.world.feat_size).double(), torch.ones(1, 2).double()
    learner.ensembles.double()
    assert disagreement(learner.ensembles(feat, action)).detach().item() > 0


@pytest.mark.parametrize("version", [1, 2, 3])
def test_new_members_differ(version: int) -> None:
    check_members(version)


def check_detached(version: int) -> None:
    """The ensemble does not train the world model: its inputs have no gradient."""
    states = make_case(version, "multi_discrete").states()
    assert not states.feat.requires_grad


@pytest.mark.parametrize("version", [1, 2, 3])
def test_ensemble_input_has_no_gradient(version: int) -> None:
    check_detached(version)


LOSS, REWARD = "ExplorationLearner.ensemble_loss", "ExplorationLearner.intrinsic_reward"
V3_ACTOR = "dreamer_v3.Behavior.actor_objective"


def mutants(version: int) -> dict[str, Mutant]:
    """Return the mutants of the parts that all Dreamers share; each is detected with every Dreamer."""
    step, reward = partial(check_losses, version, "multi_discrete"), partial(check_reward, version)
    return {
        "members alike": Mutant(
            "Ensemble.__init__",
            swap("make_mlp(A, B, C, D, E)", "make_mlp(A, B, torch.Generator().manual_seed(0), D, E)"),
            partial(check_members, version),
        ),
        "input of the ensemble not detached": Mutant(
            "DreamerLearner.reduce_model_loss", swap("state.detach()", "state"), partial(check_detached, version)
        ),
        "target of the same row": Mutant(LOSS, swap("targets[1:]", "targets[:-1]"), step),
        "state after the step": Mutant(LOSS, swap("states.feat[:-1]", "states.feat[1:]"), step),
        "action before the state": Mutant(LOSS, swap("before[1:]", "before[:-1]"), step),
        "mean over members": Mutant(LOSS, swap("A.sum(0)", "A.mean(0)"), step),
        "intrinsic reward one step off": Mutant(REWARD, swap("imagined.feat[:-1]", "imagined.feat[1:]"), reward),
        "multiplier dropped": Mutant(REWARD, swap("A * disagreement(B)", "disagreement(B)"), reward),
        "biased variance": Mutant(
            "disagreement", swap("predictions.var(0)", "predictions.var(0, correction=0)"), reward
        ),
        "task reward reaches the world model": Mutant(
            "DreamerLearner.head_input", swap("state.feat.detach()", "state.feat"), step
        ),
    }


STEP, PICTURES = partial(check_losses, 3, "multi_discrete"), partial(check_losses, 1, "multi_discrete")
MUTANTS = {f"V{version}: {name}": mutant for version in (1, 2, 3) for name, mutant in mutants(version).items()}
MUTANTS |= {
    "V1: the loss of V3": Mutant(LOSS, swap("type(self).distance(A, B, C)", "(A - B).square().sum(-1)"), PICTURES),
    "V1: features of the target exchanged": Mutant(
        "ExplorationV1.targets", swap("encoder(A)", "encoder(A).roll(1, -1)"), PICTURES
    ),
    "V3: weights of critics ignored": Mutant(V3_ACTOR, swap("A * critic.weight", "A"), STEP),
    "V3: one scale for all critics": Mutant(
        V3_ACTOR, swap("scale(returns, self.ranks)", "self.scales[0](returns, self.ranks)"), STEP
    ),
    "V3: second critic learns the returns of the first": Mutant(
        "dreamer_v3.Behavior.critic_objective",
        swap("imagined[critic.returns]", "imagined[self.critics[0].returns]"),
        STEP,
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_golden_check_detects_p2e_mutant(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.applied(), pytest.raises(AssertionError):
        mutant.check()
