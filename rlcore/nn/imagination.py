"""Imagination: episodes that a world model makes up, with the actions of an actor."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from rlcore.compiled.scan import scan
from rlcore.functional.noise import Noise
from rlcore.nn.latent_actor import LatentActor
from rlcore.nn.rssm import RSSM, ModelState


class Imagined(NamedTuple):
    """Trajectories: feat [H+1, N, F] of their states, and the H actions [H, N, A] between them."""

    feat: Tensor
    action: Tensor


def imagine(rssm: RSSM, actor: LatentActor, start: ModelState, horizon: int, rng: Noise) -> Imagined:
    """Go H steps on from N states, each with an action that the actor takes in it.

    Gradients flow along states and actions, and to the actor, not to the model; the actor sees states without theirs,
    so that an action depends on those before it through the model alone.

    Args:
        rssm: of the model.
        actor: who acts in them.
        start: [N, ...].
        horizon: H.
        rng: of actions and states.

    Returns:
        The trajectories.
    """
    count = len(start.deter)
    xs = {"act": actor.noise(rng, horizon, count), "state": rssm.noise(rng, horizon, count)}
    params = {
        "actor": dict(actor.named_parameters()),
        "rssm": {name: p.detach() for name, p in rssm.named_parameters()},
    }

    def step(state: ModelState, x: dict[str, Tensor], params: Any) -> tuple[ModelState, Any]:
        action, taken = functional_call(actor, params["actor"], (state.feat.detach(), x["act"]))
        after = functional_call(rssm, params["rssm"], (state, taken, x["state"]))
        return after, (state.feat, action)

    last, (feat, action) = scan(step, start, xs, params)
    return Imagined(torch.cat([feat, last.feat.unsqueeze(0)]), action)
