"""Latent variables of world models: distributions, sampling with gradients, entropies and KL divergences."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.functional.noise import Noise
from rlcore.functional.precision import to_float32
from rlcore.types import Ranks


def unimix(logits: Tensor, share: float) -> Tensor:
    """Mix a categorical distribution with the uniform distribution (arXiv:2301.04104v1, "Unimix categoricals").

    Args:
        logits: [..., K]; logits of K classes.
        share: weight of the uniform distribution; no probability is below share / K.

    Returns:
        Log-probabilities of (1 - share) softmax(logits) + share / K, [..., K].
    """
    logprob = F.log_softmax(to_float32(logits), -1)
    if not share:
        return logprob
    return torch.log((1 - share) * logprob.exp() + share / logits.shape[-1])


def one_hot(index: Tensor, classes: int) -> Tensor:
    """Convert indices [...] int64 to one-hot vectors [..., classes] float32.

    Use this function instead of `torch.nn.functional.one_hot`, which copies values to the CPU to check them. A traced
    graph or a CUDA graph cannot contain such a copy.
    """
    return (index.unsqueeze(-1) == torch.arange(classes, device=index.device)).float()


def sample_one_hot(logprob: Tensor, uniform: Tensor) -> Tensor:
    """Draw one-hot samples with the straight-through gradient (Bengio et al. 2013, arXiv:1308.3432).

    Args:
        logprob: log-probabilities of the classes, shape [..., K], normalized.
        uniform: uniform random numbers in [0, 1), shape [...]; each one is mapped to a class by the inverse of the
            cumulative distribution.

    Returns:
        one_hot + p - stop_gradient(p), [..., K]; one_hot is the sample, and p = exp(logprob).
    """
    p = logprob.exp()
    index = (p.detach().cumsum(-1)[..., :-1] <= uniform.unsqueeze(-1)).sum(-1)
    return one_hot(index, p.shape[-1]).to(p) + (p - p.detach())


def categorical_entropy(logprob: Tensor) -> Tensor:
    """Compute the total entropy in nats, [...], of S independent categorical variables with K classes.

    `logprob` contains the log-probabilities, [..., S, K].
    """
    return -(logprob.exp() * logprob).sum((-2, -1))


def categorical_kl(p: Tensor, q: Tensor) -> Tensor:
    """Compute KL[p ‖ q] in nats, [...], summed over S independent categorical variables with K classes.

    `p` and `q` are log-probabilities, [..., S, K].
    """
    assert p.shape == q.shape, (p.shape, q.shape)
    return (p.exp() * (p - q)).sum((-2, -1))


def categorical_measures(posterior: Tensor, prior: Tensor) -> dict[str, Tensor]:
    """Compute three quantities to log: KL[posterior ‖ prior], entropy of the posterior, and entropy of the prior.

    The arguments are log-probabilities [..., S, K]. The result maps names to values [...] in nats.
    """
    entropies = {"post_entropy": categorical_entropy(posterior), "prior_entropy": categorical_entropy(prior)}
    return {"kl": categorical_kl(posterior, prior)} | entropies


def normal_entropy(std: Tensor) -> Tensor:
    """Compute the total entropy in nats, [...], of S independent normals with standard deviations `std` [..., S]."""
    return (std.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


def normal_kl(p: tuple[Tensor, Tensor], q: tuple[Tensor, Tensor]) -> Tensor:
    """Compute KL[p ‖ q] in nats, [...], summed over S independent normal variables.

    `p` and `q` are pairs of means and standard deviations, [..., S] each.
    """
    (mean, std), (other, spread) = p, q
    assert mean.shape == other.shape, (mean.shape, other.shape)
    ratio = (std / spread).square()
    return 0.5 * (ratio + ((mean - other) / spread).square() - 1 - ratio.log()).sum(-1)


def normal_measures(posterior: tuple[Tensor, Tensor], prior: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Compute three quantities to log: KL[posterior ‖ prior], entropy of the posterior, and entropy of the prior.

    The arguments are pairs of means and standard deviations, [..., S] each. The result maps names to values [...] in
    nats.
    """
    entropies = {"post_entropy": normal_entropy(posterior[1]), "prior_entropy": normal_entropy(prior[1])}
    return {"kl": normal_kl(posterior, prior)} | entropies


def free_nats(kl: Tensor, nats: float) -> Tensor:
    """Compute max(nats, kl) elementwise, so that a KL [...] below `nats` has no gradient.

    Each element of `kl` is a KL divergence that was summed over all latent variables.
    """
    return kl.clamp(min=nats)


def mean_free_nats(kl: Tensor, nats: float, ranks: Ranks) -> Tensor:
    """Apply free nats to the mean KL over all ranks (authors' code of arXiv:1912.01603 and arXiv:2010.02193).

    If the mean of the KLs [...] is above `nats`, the KLs are returned unchanged; otherwise every element of the result
    is `nats`, without gradient. The mean of the result is therefore max(nats, mean KL).
    """
    mean = ranks.sum(kl.detach().mean()) / ranks.size
    return torch.where(mean > nats, kl, torch.full_like(kl, nats))


class Gaussian(NamedTuple):
    """S independent normal distributions: means and standard deviations, [..., S] each."""

    mean: Tensor
    std: Tensor


Distribution = Tensor | Gaussian  # distribution of z: log-probabilities [..., S, K], or normals


class Latent(Protocol):
    """Protocol of the distribution of z, the stochastic part of the model state."""

    size: int  # Z; size of z
    parameters: int  # P; network outputs for one distribution

    def of(self, parameters: Tensor, /) -> Distribution:
        """Convert network outputs [..., P] to a distribution with the same leading dimensions."""
        ...

    def noise(self, rng: Noise, /, *lead: int) -> Tensor:
        """Draw the noise for one call of `sample`: [*lead, S], one number for each of the S stochastic variables."""
        ...

    def sample(self, distribution: Distribution, noise: Tensor, /) -> Tensor:
        """Sample z [..., Z] with noise [..., S]; gradients pass from z to the distribution."""
        ...

    def mode(self, distribution: Distribution, /) -> Tensor:
        """Return the most likely value of z, [..., Z]."""
        ...


class GaussianLatent:
    """Stochastic part z of the model state as S independent normal variables (code of arXiv:1912.01603).

    The std is softplus(s) + σ_min, with a network output s.

    Args:
        variables: S; number of variables.
        min_std: σ_min, the lower limit of the std.
    """

    def __init__(self, variables: int, min_std: float) -> None:
        self.size, self.parameters, self.min_std = variables, 2 * variables, min_std

    def of(self, parameters: Tensor) -> Gaussian:
        """Convert network outputs [..., 2 S] (first the S means, then S numbers that define the stds) to normals."""
        mean, spread = parameters.chunk(2, -1)
        return Gaussian(mean, F.softplus(spread) + self.min_std)

    def noise(self, rng: Noise, *lead: int) -> Tensor:
        """Draw standard normal noise [*lead, S] for one call of `sample`."""
        return rng.normal(*lead, self.size)

    def sample(self, distribution: Distribution, noise: Tensor) -> Tensor:
        """Sample z [..., S] with noise [..., S]; gradients pass from z to mean and std."""
        assert isinstance(distribution, Gaussian)
        return torch.addcmul(distribution.mean, distribution.std, noise)

    def mode(self, distribution: Distribution) -> Tensor:
        """Return the most likely value of z, which is the mean, [..., S]."""
        assert isinstance(distribution, Gaussian)
        return distribution.mean


class CategoricalLatent:
    """Stochastic part z of the model state as S independent categorical variables with K classes.

    z is one-hot, flattened to [..., S·K]. A distribution is a tensor of log-probabilities, [..., S, K].

    Args:
        variables: S; number of variables.
        classes: K; number of classes.
        unimix: weight of the uniform distribution in the mixture with the distribution of each variable; 0: no mixture.
    """

    def __init__(self, variables: int, classes: int, unimix: float) -> None:
        self.variables, self.classes, self.unimix = variables, classes, unimix
        self.size = self.parameters = variables * classes

    def of(self, parameters: Tensor) -> Tensor:
        """Convert network outputs [..., S·K] to log-probabilities [..., S, K]."""
        return unimix(parameters.unflatten(-1, (self.variables, self.classes)), self.unimix)

    def noise(self, rng: Noise, *lead: int) -> Tensor:
        """Draw noise for one call of `sample`: [*lead, S], uniform in [0, 1)."""
        return rng.uniform(*lead, self.variables)

    def sample(self, distribution: Distribution, noise: Tensor) -> Tensor:
        """Sample one-hot z [..., S·K] with noise [..., S].

        Gradients pass from z to the probabilities as if z were the probabilities (straight-through gradient).
        """
        assert isinstance(distribution, Tensor)
        return sample_one_hot(distribution, noise).flatten(-2)

    def mode(self, distribution: Distribution) -> Tensor:
        """Return the most likely one-hot z [..., S·K], without gradient."""
        assert isinstance(distribution, Tensor)
        return one_hot(distribution.argmax(-1), self.classes).flatten(-2)
