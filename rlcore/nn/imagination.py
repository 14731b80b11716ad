"""Imagination: episodes that a world model makes up, with the actions of an actor."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from rlcore.compiled.scan import scan
from rlcore.functional.noise import Noise
from rlcore.nn.rssm import RSSM, State


class Imagines(Protocol):
    """An actor in imagination, an `nn.Module`: [N, F] and noise -> an action and how the model takes it."""

    def __call__(self, feat: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Action [N, A], and laid flat as the model takes it [N, A'], with its gradient."""
        ...

    def noise(self, rng: Noise, *lead: int) -> Tensor:
        """What the actions [*lead, A] need."""
        ...


class Imagined(NamedTuple):
    """Trajectories: feat [H+1, N, F] of their states, and the H actions [H, N, A] between them."""

    feat: Tensor
    action: Tensor


def imagine(rssm: RSSM, actor: nn.Module, start: State, horizon: int, rng: Noise) -> Imagined:
    """Go H steps on from N states, each with an action that the actor takes in it.

    Gradients flow along states and actions; the actor sees states without theirs, so that an action depends on those
    before it through the model alone.

    Args:
        rssm: of the model.
        actor: as `Imagines`.
        start: [N, ...].
        horizon: H.
        rng: of actions and states.

    Returns:
        The trajectories.
    """
    count, drawing = len(start.deter), actor
    noise: Any = getattr(drawing, "noise")  # noqa: B009 - of an nn.Module, whose attributes no type tells
    xs = {"act": noise(rng, horizon, count), "state": rssm.noise(rng, horizon, count)}
    params = {"actor": dict(actor.named_parameters()), "rssm": dict(rssm.named_parameters())}

    def step(state: State, x: dict[str, Tensor], params: Any) -> tuple[State, Any]:
        action, taken = functional_call(actor, params["actor"], (state.feat.detach(), x["act"]))
        after = functional_call(rssm, params["rssm"], (state, taken, x["state"]))
        return after, (state.feat, action)

    last, (feat, action) = scan(step, start, xs, params)
    return Imagined(torch.cat([feat, last.feat.unsqueeze(0)]), action)
