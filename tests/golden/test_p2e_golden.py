"""Plan2Explore on Dreamer V3 against losses and gradients of SheepRL (tests.golden.makers.p2e), and mutants."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcore.algorithms.dreamer.critic import Imagined
from rlcore.algorithms.dreamer.learner import Segment
from rlcore.algorithms.dreamer.plan2explore import learner as plan2explore
from rlcore.algorithms.dreamer.plan2explore.ensemble import disagreement
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.functional.noise import Drawn
from tests.golden.dreamers import (
    Names,
    batch_of,
    compare_gradients,
    given_step,
    make_learner,
    near,
    noise_of_actions,
    type_keys,
)
from tests.golden.fixtures import arrays, part, settings
from tests.golden.mutants import Mutant, swap
from tests.soaking import always, heavy

pytestmark = heavy

SHEEPRL = settings("p2e")
VARIANTS: dict[str, dict[str, Any]] = SHEEPRL["variants"]


class Case(NamedTuple):
    """Learner with SheepRL's weights, one batch, and SheepRL's results."""

    learner: Any
    names: Names
    segment: Segment
    nvec: tuple[int, ...]
    content: dict[str, np.ndarray]

    def weights(self, ours: str, theirs: str, prefix: str) -> dict[str, Tensor]:
        """Return SheepRL's weights or gradients of one network under our names."""
        given = part(self.content, f"{prefix}/{theirs}/")
        if ours != "ensembles":
            return self.names.of(ours, given)
        parts = [part(given, f"{i}.") for i in range(len(self.learner.ensembles.members))]
        named = [self.names.of("critic", each) for each in parts]
        return {f"members.{i}.{key}": value for i, each in enumerate(named) for key, value in each.items()}

    def noise(self, behavior: str) -> tuple[Tensor, Tensor]:
        """Return the noise of H + 1 actions and H states that a behavior imagines."""
        drawn = part(self.content, f"noise/{behavior}/")
        horizon, count = drawn["imagined"].shape[:2]
        content = {f"noise/{key}": value for key, value in drawn.items()}
        acts = noise_of_actions(content, self.nvec, horizon + 1, count)
        return acts, torch.from_numpy(drawn["imagined"]).view(horizon, count, -1)

    def states(self) -> ModelState:
        observed = Drawn(iter([torch.from_numpy(self.content["noise/observed"])]))
        return ModelState(**self.learner.model_loss(self.segment, observed)[3])

    def check(self, name: str, module: torch.nn.Module, loss: Any, ours: str) -> None:
        """Compare a loss and its gradients with SheepRL's."""
        near(name, loss[0] / loss[1], self.content[f"losses/{name}"])
        compare_gradients(name, module, loss, self.weights(ours, name, "gradients"))


def make_case(variant: str) -> Case:
    content = part(arrays("p2e"), f"{variant}/")
    nvec = tuple(SHEEPRL["nvec"]) if "noise/task/choice0" in content else ()
    typed = ["exp=p2e_dv3_exploration", *type_keys(SHEEPRL["common"] | VARIANTS[variant])]
    learner = make_learner(plan2explore, typed, nvec, 16)
    names = Names(learner.config.critic.mlp_layers, True, learner.agent.world.rssm.sizes[0])
    rows = part(content, "batch/")
    segment = given_step(learner, batch_of(rows, nvec))[0]
    case = Case(learner, names, segment, nvec, content)
    task, exploring = learner.behaviors
    modules: list[tuple[Any, str, str]] = [
        (learner.agent.world, "world", "world"),
        (learner.ensembles, "ensembles", "ensembles"),
        (task.actor, "actor", "actor_task"),
        (task.critic, "critic", "critic_task"),
        (task.target_critic, "target", "target_task"),
        (exploring.actor, "actor", "actor_exploration"),
    ]
    for critic in exploring.critics:
        modules += [(critic.network, "critic", f"critic_{critic.key}")]
        modules += [(critic.target_network, "target", f"target_{critic.key}")]
    for module, ours, theirs in modules:
        module.load_state_dict(case.weights(ours, theirs, "weights"))
    for critic, scale in zip(exploring.critics, exploring.scales, strict=True):
        scale.low, scale.high = map(torch.tensor, SHEEPRL["scales"][critic.key])
    task.moments.low, task.moments.high = map(torch.tensor, SHEEPRL["scales"]["task"])
    return case


def follow_sheeprl(case: Case) -> None:
    """Give the exploration actor SheepRL's intrinsic reward: the disagreement at the state after each step.

    It needs one more action, which the actor selects in the last state.
    """
    exploring, learner = case.learner.behaviors[1], case.learner
    last = case.noise("exploration")[0][-1]

    def reward(imagined: Imagined) -> Tensor:
        _, taken = exploring.actor(imagined.feat[-1].detach(), last)
        actions = torch.cat([imagined.taken[1:], taken.unsqueeze(0)])
        return learner.config.intrinsic_reward_multiplier * disagreement(learner.ensembles(imagined.feat[1:], actions))

    for critic in exploring.critics:
        critic.reward = reward if critic.metric else critic.reward


def check_losses(variant: str) -> None:
    """Every loss and gradient of one training step, with SheepRL's samples."""
    case = make_case(variant)
    learner, content = case.learner, case.content
    observed = Drawn(iter([torch.from_numpy(content["noise/observed"])]))
    model = learner.model_loss(case.segment, observed)
    case.check("world", learner.agent.world, model, "world")
    states = ModelState(**model[3])
    targets = learner.targets(states, case.segment)
    ensemble = learner.ensemble_loss(states, case.segment.before, case.segment.is_first, targets)
    case.check("ensembles", learner.ensembles, ensemble, "ensembles")
    follow_sheeprl(case)
    task, exploring = learner.behaviors
    logged = {**model[2], **ensemble[2]}
    for behavior, name in ((exploring, "exploration"), (task, "task")):
        acts, imagined = case.noise(name)
        noise = Drawn(iter([acts[:-1], imagined]))
        policy = behavior.actor_objective(states, case.segment.terminated, noise)
        case.check(f"actor_{name}", behavior.actor, policy, "actor")
        logged |= behavior.suffixed(policy[2])
        for critic in behavior.critics:
            value = behavior.critic_objective(policy[3], critic)
            case.check(f"critic_{critic.key or 'task'}", critic.network, value, "critic")
            logged |= behavior.suffixed(value[2], critic)
    for critic, scale in zip(exploring.critics, exploring.scales, strict=True):
        near("percentiles", torch.stack([scale.low, scale.high]), content[f"percentiles/{critic.key}"])
    # SheepRL's means of intrinsic rewards include the first imagined state.
    expected = {name: value for name, value in part(content, "metrics/").items() if "/intrinsic" not in name}
    for name, value in expected.items():
        near(name, logged[name], value)
    assert logged.keys() - {"Rewards/intrinsic_intrinsic"} == expected.keys()


@always
@pytest.mark.parametrize("variant", VARIANTS)
def test_p2e_losses_and_gradients_match_sheeprl(variant: str) -> None:
    check_losses(variant)


def check_reward() -> None:
    """The reward of a step is the disagreement about its own outcome: V(s, a) over members, mean over the state."""
    case = make_case("multi_discrete")
    learner = case.learner
    feat = torch.randn(4, 5, learner.agent.world.feat_size, generator=torch.Generator().manual_seed(0)).double()
    taken = torch.eye(5, dtype=torch.float64).expand(3, 5, 5)
    reward = learner.behaviors[1].critics[0].reward(Imagined(feat, taken.argmax(-1, keepdim=True), taken))
    predictions = np.stack([m(torch.cat([feat[:-1], taken], -1)).detach().numpy() for m in learner.ensembles.members])
    np.testing.assert_allclose(reward.detach().numpy(), 20 * predictions.var(0, ddof=1).mean(-1), rtol=1e-6)


def test_intrinsic_reward_is_disagreement_about_own_step() -> None:
    check_reward()


def check_members() -> None:
    """New members differ, so they disagree before any training."""
    learner = make_learner(plan2explore, ["exp=p2e_dv3_exploration", *type_keys(SHEEPRL["common"])], (), 16)
    feat, action = torch.zeros(1, learner.agent.world.feat_size).double(), torch.ones(1, 2).double()
    learner.ensembles.double()
    assert disagreement(learner.ensembles(feat, action)).detach().item() > 0


def test_new_members_differ() -> None:
    check_members()


def check_detached() -> None:
    """The ensemble does not train the world model: its inputs have no gradient."""
    case = make_case("multi_discrete")
    states = case.states()
    assert not states.feat.requires_grad


def test_ensemble_input_has_no_gradient() -> None:
    check_detached()


LOSS, REWARD = "Exploration.ensemble_loss", "Exploration.intrinsic_reward"
STEP = partial(check_losses, "multi_discrete")
MUTANTS = {
    "members alike": Mutant(
        "Ensemble.__init__",
        swap("Dense(A, B, C, D, E)", "Dense(A, B, torch.Generator().manual_seed(0), D, E)"),
        check_members,
    ),
    "input of the ensemble not detached": Mutant(
        "DreamerLearner.reduce_model_loss", swap("state.detach()", "state"), check_detached
    ),
    "target of the same row": Mutant(LOSS, swap("targets[1:]", "targets[:-1]"), STEP),
    "state after the step": Mutant(LOSS, swap("states.feat[:-1]", "states.feat[1:]"), STEP),
    "action before the state": Mutant(LOSS, swap("before[1:]", "before[:-1]"), STEP),
    "mean over members": Mutant(LOSS, swap("A.sum(0)", "A.mean(0)"), STEP),
    "intrinsic reward one step off": Mutant(REWARD, swap("imagined.feat[:-1]", "imagined.feat[1:]"), check_reward),
    "multiplier dropped": Mutant(REWARD, swap("A * disagreement(B)", "disagreement(B)"), check_reward),
    "biased variance": Mutant(
        "disagreement", swap("predictions.var(0)", "predictions.var(0, correction=0)"), check_reward
    ),
    "task reward reaches the world model": Mutant(
        "DreamerLearner.head_input", swap("state.feat.detach()", "state.feat"), STEP
    ),
    "weights of critics ignored": Mutant("dreamer_v3.Behavior.actor_objective", swap("A * critic.weight", "A"), STEP),
    "one scale for all critics": Mutant(
        "dreamer_v3.Behavior.actor_objective",
        swap("scale(returns, self.ranks)", "self.scales[0](returns, self.ranks)"),
        STEP,
    ),
    "second critic learns the returns of the first": Mutant(
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
