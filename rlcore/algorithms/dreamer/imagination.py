"""Trajectories that a world model imagines, with the actions of an actor."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from rlcore.algorithms.dreamer.latent_actor import LatentActor
from rlcore.algorithms.dreamer.rssm import RSSM, ModelState
from rlcore.functional.noise import Noise
from rlcore.functional.scan import scan


class Imagined(NamedTuple):
    """N imagined trajectories of H steps: features [H+1, N, F] of the states, and actions [H, N, A].

    Action t is taken in state t and leads to state t + 1. `taken` [H, N, A'] contains the actions as the world model
    reads them: as vectors, limited by `LatentActor.clip`. Gradients pass through them to the actor. If the steps were
    recorded instead of imagined (Dreamer V3.5), `action` contains the vectors too.
    """

    feat: Tensor
    action: Tensor
    taken: Tensor


def imagine(rssm: RSSM, actor: LatentActor, start: ModelState, horizon: int, rng: Noise) -> Imagined:
    """Imagine trajectories of H steps that start in N model states.

    Gradients pass through states and actions to the parameters of the actor, but not to the parameters of the model.
    The actor's input is detached, so a gradient reaches an earlier action only through the states that the model
    predicts.

    Args:
        rssm: recurrent state-space model, which predicts the next state.
        actor: actor that selects the actions.
        start: initial states, [N, ...].
        horizon: H; number of steps.
        rng: noise for actions and states.

    Returns:
        Imagined trajectories.
    """
    count = len(start.deter)
    xs = {"act": actor.noise(rng, horizon, count), "state": rssm.noise(rng, horizon, count)}
    params = {
        "actor": dict(actor.named_parameters()),
        "rssm": {name: p.detach() for name, p in rssm.named_parameters()},
    }

    def step(
        state: ModelState, x: dict[str, Tensor], params: dict[str, dict[str, Tensor]]
    ) -> tuple[ModelState, tuple[Tensor, Tensor, Tensor]]:
        action, taken = functional_call(actor, params["actor"], (state.feat.detach(), x["act"]))
        after = functional_call(rssm, params["rssm"], (state, taken, x["state"]))
        return after, (state.feat, action, taken)

    last, (feat, action, taken) = scan(step, start, xs, params)
    return Imagined(torch.cat([feat, last.feat.unsqueeze(0)]), action, taken)
