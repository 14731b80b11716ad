"""Learner of a Dreamer on given states instead of imagined ones, with linear predictions."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from rlcore.algorithms.dreamer.imagination import Imagined
from rlcore.algorithms.dreamer.latents import unimix
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.functional.distributions import Categoricals
from rlcore.functional.noise import Noise
from rlcore.functional.scalars import ScalarHead
from rlcore.types import SingleProcess


@dataclass
class Heads:
    """Weights of linear predictions from states [..., F].

    Attributes:
        number: form of reward and value.
        reward, critic, slow: [F, K], of a number.
        ends: [F], of the continue logit.
        actor: [F, A], of a discrete action.
        bell: [K], added to the K outputs of a number.
        unimix: share of the uniform distribution.
    """

    number: ScalarHead
    reward: Tensor
    critic: Tensor
    slow: Tensor
    ends: Tensor
    actor: Tensor
    bell: Tensor
    unimix: float = 0.0

    def predict_reward(self, feat: Tensor) -> Tensor:
        """Return the reward [...]."""
        return self.number.mean(feat @ self.reward + self.bell)

    def predict_continue(self, feat: Tensor) -> Tensor:
        """Return the continue logits [...]."""
        return feat @ self.ends

    def policy(self, feat: Tensor) -> Categoricals:
        """Return the policy."""
        return Categoricals(unimix(feat @ self.actor, self.unimix), (self.actor.shape[1],))


def objectives(
    module: ModuleType, config: Any, heads: Heads, feat: Tensor, action: Tensor, terminated: Tensor, **more: Any
) -> tuple[Any, Any]:
    """Return the results of `Behavior.actor_objective` and `Behavior.critic_objective`.

    Args:
        module: the algorithm.
        config: its config.
        heads: weights of the predictions.
        feat: [H + 1, N, F], as if imagined from N states of one row.
        action: [H, N], the actions between them.
        terminated: [N] bool, whether that row ended its episode.
        **more: further attributes of the behavior.
    """
    world = SimpleNamespace(
        rssm=None, continue_head=True, predict_reward=heads.predict_reward, predict_continue=heads.predict_continue
    )
    behavior = SimpleNamespace(
        world=world,
        actor=heads,
        config=config,
        number=heads.number,
        critic=lambda feat: feat @ heads.critic + heads.bell,
        target_critic=lambda feat: feat @ heads.slow + heads.bell,
        ranks=SingleProcess(),
        **more,
    )
    behavior.reward = lambda imagined: module.Behavior.predicted_reward(behavior, imagined)
    behavior.measure = lambda *given: {}
    critic = SimpleNamespace(network=behavior.critic, target_network=behavior.target_critic, reward=behavior.reward)
    behavior.critics = [SimpleNamespace(**vars(critic), weight=1.0, returns="returns")]
    behavior.scales = [more.get("moments")]
    nothing = torch.zeros(2, feat.shape[1], 1)  # V1 leaves out the last row
    imagined = Imagined(feat, action.unsqueeze(-1), torch.nn.functional.one_hot(action).to(feat))
    with mock.patch.object(module, "imagine", lambda *given: imagined):
        policy = module.Behavior.actor_objective(
            behavior, ModelState(nothing, nothing), terminated.unsqueeze(0), Noise(0, "probe")
        )
    return policy, module.Behavior.critic_objective(behavior, policy[3])
