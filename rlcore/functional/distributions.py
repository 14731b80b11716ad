"""Action distributions of policies: sampling from given noise, modes, log-probabilities and entropies.

Noise is an argument of `sample`, because the caller owns the random stream. The classes do not use torch.distributions,
because the construction of such an object takes longer than the forward pass of a small network. Tests compare every
method with torch.distributions.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

# Limits of log std. Outside of them, the std is too small or too large to be useful, and exp() overflows in float16.
LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0

# Gauss-Hermite nodes for expectations over a standard normal: sum(weight * f(node)).
_NODES, _UNSCALED = np.polynomial.hermite_e.hermegauss(16)
_WEIGHTS = _UNSCALED / math.sqrt(2 * math.pi)


class Policy(Protocol):
    """Protocol of a policy: a distribution over actions [N, A] for N observations."""

    def sample(self, noise: Tensor) -> Tensor:
        """Sample actions [N, A] from noise [N, K]; the distribution determines K and the kind of noise."""
        ...

    def mode(self) -> Tensor:
        """Return the most likely actions [N, A]; for a squashed normal, the squashed mean."""
        ...

    def logprob(self, action: Tensor) -> Tensor:
        """Return the log-probability [N] of actions [N, A]."""
        ...

    def entropy(self) -> Tensor:
        """Return the entropy [N] in nats."""
        ...


class Categoricals:
    """Independent categorical distributions, one for each sub-action.

    The action space is MultiDiscrete, Discrete (one sub-action), or MultiBinary (two choices per sub-action).

    Args:
        logits: [N, sum(nvec)]; unnormalized log-probabilities of all choices.
        nvec: number of choices of each sub-action.
    """

    def __init__(self, logits: Tensor, nvec: tuple[int, ...]) -> None:
        self.parts = [F.log_softmax(part, -1) for part in logits.split(nvec, -1)]

    def sample(self, noise: Tensor) -> Tensor:
        """Sample actions [N, A] int64 by the Gumbel-max trick, from standard exponential noise [N, sum(nvec)]."""
        parts = noise.split([p.shape[-1] for p in self.parts], -1)
        return torch.stack([(p - e.log()).argmax(-1) for p, e in zip(self.parts, parts, strict=True)], -1)

    def mode(self) -> Tensor:
        """Return the most likely choices, [N, A] int64."""
        return torch.stack([p.argmax(-1) for p in self.parts], -1)

    def logprob(self, action: Tensor) -> Tensor:
        """Return the log-probability [N] of actions [N, A] int64, summed over sub-actions."""
        return _sum([p.gather(-1, action[..., i : i + 1]).squeeze(-1) for i, p in enumerate(self.parts)])

    def entropy(self) -> Tensor:
        """Return the entropy [N] in nats, summed over sub-actions."""
        return _sum([-(p.exp() * p).sum(-1) for p in self.parts])


class MaskedCategoricals(Categoricals):
    """Independent categorical distributions in which forbidden choices have probability 0.

    Probabilities, entropies and modes are those of the allowed choices (Huang and Ontañón 2020, arXiv:2006.14171).

    Args:
        logits: [N, sum(nvec)]; unnormalized log-probabilities of all choices.
        nvec: number of choices of each sub-action.
        allowed: [N, sum(nvec)] bool; True if a choice is allowed. Every sub-action has an allowed choice.
    """

    def __init__(self, logits: Tensor, nvec: tuple[int, ...], allowed: Tensor) -> None:
        super().__init__(mask_logits(logits, allowed), nvec)
        self.allowed = allowed

    def sample(self, noise: Tensor) -> Tensor:
        """Sample allowed actions [N, A] int64 from standard exponential noise [N, sum(nvec)]."""
        # Noise of 0, which float32 can have, would select a forbidden choice, because -log 0 is infinite.
        return super().sample(torch.where(self.allowed, noise, 1.0))


def mask_logits(logits: Tensor, allowed: Tensor) -> Tensor:
    """Replace the logits of forbidden choices, so that their probability is 0.

    The replacement is finite, because the product of probability and log-probability must be 0 in an entropy.
    """
    return logits.masked_fill(~allowed, torch.finfo(logits.dtype).min / 2)


class Normal:
    """Normal distribution with independent dimensions.

    Args:
        mean: [N, A]; means.
        log_std: [N, A] or [A]; logarithms of the standard deviations, clamped to [-20, 2].
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean = mean
        self.log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).expand_as(mean)
        self.std = self.log_std.exp()

    def sample(self, noise: Tensor) -> Tensor:
        """Return mean + std * noise, [N, A], with standard normal noise [N, A]."""
        return self.mean + self.std * noise

    def mode(self) -> Tensor:
        """Return the mean, [N, A]."""
        return self.mean

    def logprob(self, action: Tensor) -> Tensor:
        """Return the log-density [N] of actions [N, A]."""
        z = (action - self.mean) / self.std
        return (-0.5 * z.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        """Return the differential entropy [N] in nats; negative for small standard deviations."""
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


class TanhNormal(Normal):
    """Normal distribution squashed by tanh (Haarnoja et al. 2018, arXiv:1812.05905, app. C).

        log π(a|s) = log N(u) - Σ log(1 - tanh²u),    log(1 - tanh²u) = 2 (log 2 - u - softplus(-2u))

    Methods take and return u, the action *before* the tanh, and not a = tanh(u): the log-probability is then finite
    even if tanh(u) is rounded to ±1. The scale of the environment's Box is not included in the log-density, because it
    is a constant without gradient.
    """

    def logprob(self, action: Tensor) -> Tensor:
        """Return the log-density [N] of the squashed actions tanh(action); `action` [N, A] is before the tanh."""
        return super().logprob(action) - log_tanh_slope(action).sum(-1)

    def entropy(self) -> Tensor:
        """Return the entropy H(u) + E[log(1 - tanh²u)], [N] in nats; u is the action before the tanh.

        The expectation is computed by Gauss-Hermite quadrature with 16 points.
        """
        nodes = torch.as_tensor(_NODES, dtype=self.mean.dtype, device=self.mean.device)  # [K]
        weights = torch.as_tensor(_WEIGHTS, dtype=self.mean.dtype, device=self.mean.device)
        u = self.mean.unsqueeze(-1) + self.std.unsqueeze(-1) * nodes  # [N, A, K]
        return super().entropy() + (log_tanh_slope(u) * weights).sum(-1).sum(-1)


class SquashedNormal(TanhNormal):
    """Normal distribution squashed by tanh, for actions [N, A] in [-1, 1].

    Methods take and return actions *after* the tanh, because these are the inputs of a world model.
    """

    def sample(self, noise: Tensor) -> Tensor:
        """Sample actions [N, A] in [-1, 1] from standard normal noise [N, A]."""
        return super().sample(noise).tanh()

    def mode(self) -> Tensor:
        """Return tanh(mean), [N, A]."""
        return self.mean.tanh()

    def logprob(self, action: Tensor) -> Tensor:
        """Return the log-density [N] of actions [N, A] in [-1, 1].

        An action of exactly -1 or 1 is replaced by the nearest float32 inside the interval.
        """
        edge = 1 - torch.finfo(torch.float32).eps / 2
        return super().logprob(action.clamp(-edge, edge).atanh())


class TruncatedNormal:
    """Independent normal distributions, each truncated to [-1, 1].

    Burkardt 2014, "The truncated normal distribution", sections 2.3 to 2.5:

        p(x) = φ((x - μ) / σ) / (σ Z),    Z = Φ(b) - Φ(a),    a = (-1 - μ) / σ,    b = (1 - μ) / σ

    Args:
        mean: μ of the normal before truncation, [N, A] in [-1, 1].
        std: σ of the normal before truncation, [N, A].
    """

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        self.mean, self.std = mean, std
        self.low, self.high = (-1 - mean) / std, (1 - mean) / std
        self.below = _normal_cdf(self.low)
        self.inside = (_normal_cdf(self.high) - self.below).clamp(min=torch.finfo(mean.dtype).eps)  # Z

    def sample(self, noise: Tensor) -> Tensor:
        """Sample actions [N, A] from uniform noise [N, A] in [0, 1); they are differentiable in mean and std.

        The inverse cumulative distribution function is applied to the noise.
        """
        eps = torch.finfo(noise.dtype).eps
        share = self.below + noise.clamp(eps, 1 - eps) * self.inside
        return self.mean + self.std * (math.sqrt(2) * torch.erfinv(2 * share - 1))

    def mode(self) -> Tensor:
        """Return the mode, [N, A]. It is equal to the mean of the normal before truncation, which is in [-1, 1]."""
        return self.mean

    def logprob(self, action: Tensor) -> Tensor:
        """Return the log-density [N] of actions [N, A] in [-1, 1]."""
        z = (action - self.mean) / self.std
        return (-0.5 * z.square() - self.std.log() - self.inside.log() - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        """Return the differential entropy [N] in nats."""
        edges = self.high * _normal_density(self.high) - self.low * _normal_density(self.low)
        log_size = (self.std * self.inside).log() + 0.5 * math.log(2 * math.pi * math.e)
        return (log_size - 0.5 * edges / self.inside).sum(-1)


def _normal_cdf(x: Tensor) -> Tensor:
    return 0.5 * (1 + (x / math.sqrt(2)).erf())


def _normal_density(x: Tensor) -> Tensor:
    return (-0.5 * x.square()).exp() / math.sqrt(2 * math.pi)


def _sum(columns: list[Tensor]) -> Tensor:
    """Sum a list of tensors [N]; a single tensor, which is the usual case, is returned unchanged."""
    return columns[0] if len(columns) == 1 else torch.stack(columns, -1).sum(-1)


def log_tanh_slope(u: Tensor) -> Tensor:
    """Compute log(1 - tanh²u) elementwise, numerically stable for any u."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))
