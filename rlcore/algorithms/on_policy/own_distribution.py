"""Action distribution of the user, selected by `distribution.type=package.module:Dist`.

    class Dist:
        noise = "uniform"                                  # or normal, exponential
        def noise_size(action_spec) -> int                 # K, static method
        def parameter_size(action_spec) -> int             # P, static method, optional

        def __init__(self, features, model, action_spec, allowed=None)   # features [N, P] or [N, F]
        def sample(self, noise) -> action [N, A]           # noise [N, K] of the declared kind
        def mode(self) -> action [N, A]
        def logprob(self, action) -> [N]
        def entropy(self) -> [N]

If the class has `parameter_size`, a linear layer converts the F features of the network to P parameters. Otherwise the
distribution gets the features themselves, and has its layers in `model`: the network of `algo.model`, or the agent if
that key is not set. Actions are in the agent's format (`rlcore.spec.ActionSpec`). If the environment returns action
masks, the argument `allowed` [N, sum(nvec)] bool is True for allowed choices; without masks, it is not passed.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from rlcore import plugins
from rlcore.errors import UserError
from rlcore.functional.distributions import Policy
from rlcore.functional.noise import Noise
from rlcore.functional.own_code import explaining
from rlcore.nn.action_masks import Masks, allowed_choices
from rlcore.nn.mlp import linear
from rlcore.nn.network_keys import ActorConfig
from rlcore.nn.policy_head import ActionForm
from rlcore.spec import ActionSpec, EnvSpec

KEY = "distribution.type"
NOISE = ("normal", "uniform", "exponential")  # kinds of noise, methods of `Noise`
NEEDED = ("noise", "noise_size", "sample", "mode", "logprob", "entropy")


def accepts(function: Any, name: str) -> bool:
    """Return True if a function, or the constructor of a class, has an argument with this name."""
    parameters = inspect.signature(function).parameters.values()
    return any(p.name == name or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


class OwnHead(nn.Module):
    """Policy head (`rlcore.nn.policy_head.ActionHead`) with an action distribution of the user.

    Args:
        inputs: number of features that the network returns.
        action: action space of the environment.
        distribution: config key `distribution.type`, `package.module:Dist`.
        config: initialization of the linear layer, if there is one.
        rng: CPU generator for the initialization.
        model: module that the distribution receives; it is not registered as a part of the head.
        masked_by: spec of an environment whose action masks apply; None if there are no masks.

    Raises:
        UserError: The class cannot be imported, lacks a method or the argument `allowed`, or returns a wrong shape or
            dtype; or the action is composite.
    """

    def __init__(
        self,
        inputs: int,
        action: ActionSpec,
        distribution: str,
        config: ActorConfig,
        rng: torch.Generator,
        model: nn.Module,
        masked_by: EnvSpec | None = None,
    ) -> None:
        super().__init__()
        self.action, self.place = action, f"{KEY}={distribution}"
        if action.parts:
            raise UserError(f"{self.place}: not available for a Dict or Tuple action; set distribution.type=auto")
        self.kind = "normal" if action.continuous else "discrete"
        self.form = ActionForm(action, self.kind)
        self.own: Any = plugins.member(KEY, distribution)
        self._model = (model,)  # in a tuple, so that it is not registered as a part of this head
        if missing := [name for name in NEEDED if not hasattr(self.own, name)]:
            raise UserError(f"{self.place}: the class has no {missing[0]}; it needs {', '.join(NEEDED)}")
        if self.own.noise not in NOISE:
            raise UserError(f"{self.place}: noise={self.own.noise!r} must be one of {', '.join(NOISE)}")
        self.masked = masked_by is not None
        if masked_by is not None:
            self._check_masks(masked_by)
        self.noise_size = int(self.own.noise_size(action))
        self.linear = None
        if hasattr(self.own, "parameter_size"):
            size, gain = int(self.own.parameter_size(action)), 0.01 if config.ortho_init else None
            self.linear = linear(inputs, size, rng, gain)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features [N, P] that the distribution receives, for features x [N, F] of the network."""
        return x if self.linear is None else self.linear(x.to(self.linear.weight.dtype)).to(x.dtype)

    def policy(self, parameters: Tensor, masks: Masks | None = None) -> Policy:
        """Return the distribution over actions for the output of `forward`, with the choices that `masks` allow."""
        return self._create(parameters, None if masks is None else allowed_choices(masks.spec, parameters, masks.obs))

    def _create(self, parameters: Tensor, allowed: Tensor | None) -> Policy:
        masks = {} if allowed is None else {"allowed": allowed}
        return self.own(parameters, self._model[0], self.action, **masks)

    def _check_masks(self, spec: EnvSpec) -> None:
        """Raise UserError if the class does not receive action masks, or if a mask depends on another choice."""
        keys, off = ", ".join(spec.mask_keys), "set algo.action_masks=false or distribution.type=auto"
        if not accepts(self.own, "allowed"):
            raise UserError(
                f"{self.place}: the class does not receive the action masks ({keys}) of {spec.id}; give its "
                f"constructor the argument `allowed`, or {off}"
            )
        if any(spec.conditions(part) for part in range(self.action.size)):
            raise UserError(
                f"{self.place}: not available for the action masks ({keys}) of {spec.id}, because a mask depends on "
                f"the choice of another sub-action; {off}"
            )

    def noise(self, batch: int, rng: Noise | None) -> Tensor:
        """Draw the noise that the distribution declares, [batch, K] float32."""
        assert rng is not None, "sampling needs a stream; greedy actions do not"
        return getattr(rng, self.own.noise)(batch, self.noise_size)

    def to_env(self, action: Tensor) -> Tensor:
        """Convert the agent's actions [B, A] to environment actions [B, *shape]; Box actions are clipped."""
        return self.form.to_env(action)

    def from_env(self, action: Tensor) -> Tensor:
        """Convert environment actions [B, *shape] to the agent's actions [B, A]; the inverse of `to_env`."""
        return self.form.from_env(action)

    def check(self, features: Tensor) -> None:
        """Raise UserError if the distribution fails for features [N, F], or returns a wrong shape or dtype."""
        count, size = len(features), self.action.size
        dtype = torch.float32 if self.action.continuous else torch.int64
        fix, found, noise = "correct the class", dict[str, Any](), torch.full((count, self.noise_size), 0.5)
        with explaining(self.place, "the constructor failed", fix), torch.no_grad():
            allowed = torch.ones(count, sum(self.action.nvec), dtype=torch.bool) if self.masked else None
            policy: Any = self._create(self(features), allowed)
        for name in ("sample", "mode", "logprob", "entropy"):
            given = {"sample": (noise,), "logprob": (found.get("mode"),)}.get(name, ())
            with explaining(self.place, f"{name} failed", fix), torch.no_grad():
                found[name] = getattr(policy, name)(*given)
        for name, value in found.items():
            shape, of = ((count, size), dtype) if name in ("sample", "mode") else ((count,), torch.float32)
            if not isinstance(value, Tensor) or tuple(value.shape) != shape or value.dtype != of:
                got = f"{value.dtype} {[*value.shape]}" if isinstance(value, Tensor) else type(value).__name__
                raise UserError(
                    f"{self.place}: {name} must return {of} {[*shape]} for {count} observations, but returned {got}"
                )
