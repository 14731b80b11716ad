"""Checks of Plan2Explore against SheepRL: learners with its weights, its batch and its samples, on every Dreamer.

SheepRL's intrinsic reward and ensemble differ from ours (docs/algorithms/p2e.md). The checks give our learner the same
inputs, so that all other parts can be compared:

    V1, V2    a state is paired with the action before it, in the ensemble's loss and in the intrinsic reward
    V1        with a continue head, imagination starts from the last row of a sequence too
    V2        ε of LayerNorm is 1e-5 in ensemble and task critic, and 1e-3, as in Keras, in all other networks
    V3        the intrinsic reward of a step is the disagreement at the state after it, for one more action
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from rlcore.algorithms.dreamer.dreamer_v1 import learner as dreamer_v1
from rlcore.algorithms.dreamer.imagination import Imagined
from rlcore.algorithms.dreamer.plan2explore import learner as plan2explore
from rlcore.algorithms.dreamer.plan2explore.ensemble import disagreement
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import Segment
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
from tests.golden.test_dreamer_v1_golden import ours as ours_v1

FILES = {1: "p2e_dv1", 2: "p2e_dv2", 3: "p2e"}
SHEEPRL: dict[int, dict[str, Any]] = {version: settings(name) for version, name in FILES.items()}
VARIANTS: list[tuple[int, str]] = [(version, name) for version in FILES for name in SHEEPRL[version]["variants"]]


class Case(NamedTuple):
    """Learner with SheepRL's weights, one batch, and SheepRL's results.

    Attributes:
        version: version of the Dreamer.
        learner: with SheepRL's weights.
        ours: function that returns weights or gradients of one part under our names.
        segment: input of a gradient step.
        nvec: choices of the actions; () for continuous ones.
        content: the golden values of the variant.
    """

    version: int
    learner: Any
    ours: Callable[..., dict[str, Tensor]]
    segment: Segment
    nvec: tuple[int, ...]
    content: dict[str, np.ndarray]

    def weights(self, ours: str, theirs: str, prefix: str) -> dict[str, Tensor]:
        """Return SheepRL's weights or gradients of one network under our names."""
        given = part(self.content, f"{prefix}/{theirs}/")
        if ours != "ensembles":
            return self.ours(ours, given)
        parts = [part(given, f"{i}.") for i in range(len(self.learner.ensembles.members))]
        named = [self.ours("critic", each) for each in parts]
        return {f"members.{i}.{key}": value for i, each in enumerate(named) for key, value in each.items()}

    def noise(self, behavior: str) -> tuple[Tensor, Tensor]:
        """Return the noise of the actions (V3: one more) and of the states that a behavior imagines."""
        drawn = part(self.content, f"noise/{behavior}/")
        horizon, count = drawn["imagined"].shape[:2]
        content = {f"noise/{key}": value for key, value in drawn.items()}
        acts = noise_of_actions(content, self.nvec, horizon + (self.version == 3), count)
        return acts, torch.from_numpy(drawn["imagined"]).view(horizon, count, -1)

    def observed(self) -> Drawn:
        """Return the noise of the model's states."""
        return Drawn(iter([torch.from_numpy(self.content["noise/observed"])]))

    def states(self) -> ModelState:
        return ModelState(**self.learner.model_loss(self.segment, self.observed())[3])

    def check(self, name: str, module: torch.nn.Module, loss: Any, ours: str) -> None:
        """Compare a loss and its gradients with SheepRL's."""
        near(name, loss[0] / loss[1], self.content[f"losses/{name}"])
        compare_gradients(name, module, loss, self.weights(ours, name, "gradients"))


def typed_keys(version: int, variant: str) -> list[str]:
    """Return the overrides of a variant."""
    changes = SHEEPRL[version]["common"] | SHEEPRL[version]["variants"].get(variant, {})
    return [f"exp=p2e_dv{version}_exploration", *type_keys(changes)]


def make_case(version: int, variant: str) -> Case:
    """Load SheepRL's weights into a learner and return the case of one variant."""
    content, facts = part(arrays(FILES[version]), f"{variant}/"), SHEEPRL[version]
    discrete = "noise/task/choice0" in content
    nvec = tuple(facts["nvec"] if version == 3 else facts["choices"][variant]) if discrete else ()
    learner = make_learner(plan2explore, typed_keys(version, variant), nvec, 16 if version == 3 else 64)
    normed = version == 3 or (version == 2 and learner.config.layer_norm)
    names = Names(learner.config.critic.mlp_layers, normed, learner.agent.world.rssm.sizes[0])
    rows = part(content, "batch/")
    if version < 3:
        rows["actions"] = np.roll(rows["actions"], -1, 0)  # SheepRL stores actions with the observation they led to
    segment = given_step(learner, batch_of(rows, nvec))[0]
    case = Case(version, learner, partial(ours_v1, names) if version == 1 else names.of, segment, nvec, content)
    task, exploring = learner.behaviors
    modules: list[tuple[Any, str, str]] = [
        (learner.agent.world, "world", "world"),
        (learner.ensembles, "ensembles", "ensembles"),
        (task.actor, "actor", "actor_task"),
        (exploring.actor, "actor", "actor_exploration"),
    ]
    for name, behavior in (("task", task), ("exploration", exploring)):
        for critic in behavior.critics:
            modules.append((critic.network, "critic", f"critic_{critic.key or name}"))
            modules += [(target, "target", f"target_{critic.key or name}") for target in critic.target_networks]
    for module, ours, theirs in modules:
        module.load_state_dict(case.weights(ours, theirs, "weights"))
    if version == 2:
        for norm in (m for part in (learner.ensembles, task.critic, task.target_critic) for m in part.modules()):
            if isinstance(norm, torch.nn.LayerNorm):
                norm.eps = 1e-5
    if version == 3:
        for scales, keys in ((exploring.scales, [critic.key for critic in exploring.critics]), (task.scales, ["task"])):
            for scale, key in zip(scales, keys, strict=True):
                scale.low, scale.high = map(torch.tensor, facts["scales"][key])
    return case


# SheepRL's reward and pairs -------------------------------------------------------------------------------------------


def follow_reward(case: Case) -> Callable[..., Any]:
    """Give the exploration actor SheepRL's intrinsic reward; return a replacement of V1's `imagine`."""
    learner, (_, exploring) = case.learner, case.learner.behaviors
    first: list[Tensor] = []  # actions before those that V1's reward is given

    def imagine(*inputs: Any) -> Imagined:
        imagined = IMAGINE(*inputs)
        first[:] = [imagined.taken[:1]]
        return imagined

    def reward(imagined: Imagined) -> Tensor:
        feat, taken = imagined.feat[:-1], imagined.taken
        if case.version == 1:
            actions = torch.cat([first[0], taken])[: len(feat)]
        elif case.version == 2:
            actions = torch.cat([torch.zeros_like(taken[:1]), taken[:-1]])
        else:
            feat = imagined.feat[1:]
            _, more = exploring.actor(imagined.feat[-1].detach(), case.noise("exploration")[0][-1])
            actions = torch.cat([taken[1:], more.unsqueeze(0)])
        return learner.config.intrinsic_reward_multiplier * disagreement(learner.ensembles(feat, actions))

    for critic in exploring.critics:
        critic.reward = reward if critic.metric else critic.reward
    exploring.reward = exploring.critics[0].reward
    return imagine


IMAGINE = dreamer_v1.imagine


def paired_actions(case: Case) -> Tensor:
    """Return previous actions with which our loss of the ensemble learns SheepRL's pairs of state and action."""
    if case.version == 3:
        return case.segment.before
    actions = torch.from_numpy(case.content["batch/actions"]).double()
    return torch.cat([torch.zeros_like(actions[:1]), actions[:-1]])


def starts(case: Case, states: ModelState) -> ModelState:
    """Return the states from which SheepRL imagines, for an actor loss that leaves out the last row."""
    if case.version > 1 or case.learner.agent.world.continue_head is None:
        return states
    return ModelState(*(torch.cat([part, part[-1:]]) for part in states))


def check_losses(version: int, variant: str) -> None:
    """Every loss and gradient of one training step, with SheepRL's samples."""
    case = make_case(version, variant)
    learner, content = case.learner, case.content
    model = learner.model_loss(case.segment, case.observed())
    case.check("world", learner.agent.world, model, "world")
    states = ModelState(**model[3])
    targets = learner.targets(states, case.segment)
    ensemble = learner.ensemble_loss(states, paired_actions(case), case.segment.is_first, targets)
    case.check("ensembles", learner.ensembles, ensemble, "ensembles")
    task, exploring = learner.behaviors
    logged, imagine = {**model[2], **ensemble[2]}, follow_reward(case)
    for behavior, name in ((exploring, "exploration"), (task, "task")):
        acts, imagined = case.noise(name)
        noise = Drawn(iter([acts[: len(imagined)], imagined]))
        with mock.patch.object(dreamer_v1, "imagine", imagine):
            policy = behavior.actor_objective(starts(case, states), case.segment.terminated, noise)
        case.check(f"actor_{name}", behavior.actor, policy, "actor")
        logged |= behavior.suffixed(policy[2])
        for critic in behavior.critics:
            value = behavior.critic_objective(policy[3], critic)
            case.check(f"critic_{critic.key or name}", critic.network, value, "critic")
            logged |= behavior.suffixed(value[2], critic)
    if version == 3:
        for critic, scale in zip(exploring.critics, exploring.scales, strict=True):
            near("percentiles", torch.stack([scale.low, scale.high]), content[f"percentiles/{critic.key}"])
    # SheepRL's mean of intrinsic rewards includes one more state.
    expected = {name: value for name, value in part(content, "metrics/").items() if "/intrinsic" not in name}
    for name, value in expected.items():
        near(name, logged[name], value)
    assert {name for name in logged if "/intrinsic" not in name} == expected.keys()
