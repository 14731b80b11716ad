"""Policies' distributions: parameters in, samples from given noise, log-probabilities and entropies out.

Noise is an argument: the caller owns the stream it comes from, so the same run draws the same noise on CPU and CUDA.
Plain tensor code rather than torch.distributions, whose construction costs more than a small network's forward pass;
the tests hold every method against torch.distributions.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

LOG_STD_MIN, LOG_STD_MAX = -20.0, 2.0  # exp of anything outside is useless and overflows in half precision

# Gauss-Hermite nodes for expectations over a standard normal: sum(weight * f(node)).
_NODES, _UNSCALED = np.polynomial.hermite_e.hermegauss(16)
_WEIGHTS = _UNSCALED / math.sqrt(2 * math.pi)


class Policy(Protocol):
    """Protocol of a policy everywhere in rlcore: a distribution over actions [N, A] for N observations."""

    def sample(self, noise: Tensor) -> Tensor:
        """Actions [N, A] from noise [N, K]."""
        ...

    def mode(self) -> Tensor:
        """The most likely actions [N, A] (of a squashed normal: the squashed mean)."""
        ...

    def logprob(self, action: Tensor) -> Tensor:
        """Log-probability [N] of actions [N, A]."""
        ...

    def entropy(self) -> Tensor:
        """Entropy [N], nats."""
        ...


class Categoricals:
    """Independent categorical sub-actions, one after the other (MultiDiscrete; Discrete is one; MultiBinary all of 2).

    Args:
        logits: [N, sum(nvec)], unnormalised.
        nvec: choices of each sub-action.
    """

    def __init__(self, logits: Tensor, nvec: tuple[int, ...]) -> None:
        self.parts = [F.log_softmax(part, -1) for part in logits.split(nvec, -1)]

    def sample(self, noise: Tensor) -> Tensor:
        """Gumbel-max from standard exponential noise [N, sum(nvec)]: argmax(log p - log noise) -> [N, A] int64."""
        parts = noise.split([p.shape[-1] for p in self.parts], -1)
        return torch.stack([(p - e.log()).argmax(-1) for p, e in zip(self.parts, parts, strict=True)], -1)

    def mode(self) -> Tensor:
        """[N, A] int64."""
        return torch.stack([p.argmax(-1) for p in self.parts], -1)

    def logprob(self, action: Tensor) -> Tensor:
        """Sum over sub-actions. action [N, A] int64 -> [N]."""
        return _sum([p.gather(-1, action[..., i : i + 1]).squeeze(-1) for i, p in enumerate(self.parts)])

    def entropy(self) -> Tensor:
        """Sum over sub-actions, [N]."""
        return _sum([-(p.exp() * p).sum(-1) for p in self.parts])


class Normal:
    """Independent normal dimensions.

    Args:
        mean: [N, A].
        log_std: [N, A] or [A]; clamped to a range in which its exponential is usable.
    """

    def __init__(self, mean: Tensor, log_std: Tensor) -> None:
        self.mean = mean
        self.log_std = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX).expand_as(mean)
        self.std = self.log_std.exp()

    def sample(self, noise: Tensor) -> Tensor:
        """Mean + std * noise, standard normal noise [N, A] -> [N, A]."""
        return self.mean + self.std * noise

    def mode(self) -> Tensor:
        """[N, A]."""
        return self.mean

    def logprob(self, action: Tensor) -> Tensor:
        """action [N, A] -> [N]."""
        z = (action - self.mean) / self.std
        return (-0.5 * z.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        """[N], nats; negative for narrow ones."""
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


class TanhNormal(Normal):
    """Normal squashed by tanh (Haarnoja et al. 2018, arXiv:1812.05905, app. C). Actions are kept *before* the tanh.

        log π(a|s) = log N(u) - Σ log(1 - tanh²u),    log(1 - tanh²u) = 2 (log 2 - u - softplus(-2u))

    Keeping u makes the log-probability finite where tanh saturates. The range of the environment's Box is left out:
    a constant that moves no gradient.
    """

    def logprob(self, action: Tensor) -> Tensor:
        """Log-density at tanh(action); action [N, A] before the tanh -> [N]."""
        return super().logprob(action) - log_tanh_slope(action).sum(-1)

    def entropy(self) -> Tensor:
        """H(u) + E[log(1 - tanh²u)], the expectation by 16-point Gauss-Hermite quadrature; [N], nats."""
        nodes = torch.as_tensor(_NODES, dtype=self.mean.dtype, device=self.mean.device)  # [K]
        weights = torch.as_tensor(_WEIGHTS, dtype=self.mean.dtype, device=self.mean.device)
        u = self.mean.unsqueeze(-1) + self.std.unsqueeze(-1) * nodes  # [N, A, K]
        return super().entropy() + (log_tanh_slope(u) * weights).sum(-1).sum(-1)


class SquashedNormal(TanhNormal):
    """Normal squashed by tanh, whose actions are kept *behind* the tanh, as a world model is given them."""

    def sample(self, noise: Tensor) -> Tensor:
        """Standard normal noise [N, A] -> [N, A] in -1 to 1."""
        return super().sample(noise).tanh()

    def mode(self) -> Tensor:
        """The squashed mean, [N, A]."""
        return self.mean.tanh()

    def logprob(self, action: Tensor) -> Tensor:
        """action [N, A] in -1 to 1 -> [N]; one on the edge counts as the nearest that float32 tells from it."""
        edge = 1 - torch.finfo(torch.float32).eps / 2
        return super().logprob(action.clamp(-edge, edge).atanh())


class TruncatedNormal:
    """Independent normal dimensions cut off at -1 and 1 (Burkardt 2014, "The truncated normal distribution", 2.3-2.5).

        p(x) = φ((x - μ) / σ) / (σ Z),    Z = Φ(b) - Φ(a),    a = (-1 - μ) / σ,    b = (1 - μ) / σ

    Args:
        mean: μ of the uncut normal, [N, A] in -1 to 1.
        std: σ of the uncut normal, [N, A].
    """

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        self.mean, self.std = mean, std
        self.low, self.high = (-1 - mean) / std, (1 - mean) / std
        self.below = _normal_cdf(self.low)
        self.inside = (_normal_cdf(self.high) - self.below).clamp(min=torch.finfo(mean.dtype).eps)  # Z

    def sample(self, noise: Tensor) -> Tensor:
        """Uniform noise [N, A] in [0, 1) -> [N, A], by the inverse of the distribution function, with its gradient."""
        eps = torch.finfo(noise.dtype).eps
        share = self.below + noise.clamp(eps, 1 - eps) * self.inside
        return self.mean + self.std * (math.sqrt(2) * torch.erfinv(2 * share - 1))

    def mode(self) -> Tensor:
        """[N, A]."""
        return self.mean

    def logprob(self, action: Tensor) -> Tensor:
        """action [N, A] in -1 to 1 -> [N]."""
        z = (action - self.mean) / self.std
        return (-0.5 * z.square() - self.std.log() - self.inside.log() - 0.5 * math.log(2 * math.pi)).sum(-1)

    def entropy(self) -> Tensor:
        """[N], nats."""
        edges = self.high * _normal_density(self.high) - self.low * _normal_density(self.low)
        log_size = (self.std * self.inside).log() + 0.5 * math.log(2 * math.pi * math.e)
        return (log_size - 0.5 * edges / self.inside).sum(-1)


def _normal_cdf(x: Tensor) -> Tensor:
    return 0.5 * (1 + (x / math.sqrt(2)).erf())


def _normal_density(x: Tensor) -> Tensor:
    return (-0.5 * x.square()).exp() / math.sqrt(2 * math.pi)


def _sum(columns: list[Tensor]) -> Tensor:
    """Sum of columns [N]; most often there is one."""
    return columns[0] if len(columns) == 1 else torch.stack(columns, -1).sum(-1)


def log_tanh_slope(u: Tensor) -> Tensor:
    """log(1 - tanh²u) elementwise, stable for any u."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))
