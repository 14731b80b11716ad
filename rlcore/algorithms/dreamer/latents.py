"""Latent variables of world models: sampling with gradients, entropies and KL divergences."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.functional.precision import to_float32
from rlcore.types import Ranks


def unimix(logits: Tensor, share: float) -> Tensor:
    """Mix a categorical with the uniform distribution (arXiv:2301.04104v1, "Unimix categoricals").

    Args:
        logits: [..., K].
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

    Used instead of `torch.nn.functional.one_hot`, which reads the values on the CPU; a traced graph or a CUDA graph
    cannot do that.
    """
    return (index.unsqueeze(-1) == torch.arange(classes, device=index.device)).float()


def sample_one_hot(logprob: Tensor, uniform: Tensor) -> Tensor:
    """Draw one-hot samples with the straight-through gradient (Bengio et al. 2013, arXiv:1308.3432).

    Args:
        logprob: log-probabilities of the classes, shape [..., K], normalized.
        uniform: uniform random numbers in [0, 1), shape [...]; each one is mapped to a class by the inverse of the
            cumulative distribution.

    Returns:
        one_hot + p - stop_gradient(p), [..., K].
    """
    p = logprob.exp()
    index = (p.detach().cumsum(-1)[..., :-1] <= uniform.unsqueeze(-1)).sum(-1)
    return one_hot(index, p.shape[-1]).to(p) + (p - p.detach())


def categorical_entropy(logprob: Tensor) -> Tensor:
    """Compute the entropy of S independent categorical variables in nats. logprob [..., S, K] -> [...]."""
    return -(logprob.exp() * logprob).sum((-2, -1))


def categorical_kl(p: Tensor, q: Tensor) -> Tensor:
    """Compute KL[p ‖ q] in nats, summed over S independent categoricals. Log-probabilities [..., S, K] -> [...]."""
    assert p.shape == q.shape, (p.shape, q.shape)
    return (p.exp() * (p - q)).sum((-2, -1))


def categorical_measures(posterior: Tensor, prior: Tensor) -> dict[str, Tensor]:
    """Compute KL[posterior ‖ prior] and both entropies for the log: name -> [...] in nats.

    Arguments are log-probabilities [..., S, K].
    """
    entropies = {"post_entropy": categorical_entropy(posterior), "prior_entropy": categorical_entropy(prior)}
    return {"kl": categorical_kl(posterior, prior)} | entropies


def normal_entropy(std: Tensor) -> Tensor:
    """Compute the entropy of S independent normal variables in nats. Standard deviations [..., S] -> [...]."""
    return (std.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


def normal_kl(p: tuple[Tensor, Tensor], q: tuple[Tensor, Tensor]) -> Tensor:
    """Compute KL[p ‖ q] of S independent normal variables in nats. Means and stds [..., S] each -> [...]."""
    (mean, std), (other, spread) = p, q
    assert mean.shape == other.shape, (mean.shape, other.shape)
    ratio = (std / spread).square()
    return 0.5 * (ratio + ((mean - other) / spread).square() - 1 - ratio.log()).sum(-1)


def normal_measures(posterior: tuple[Tensor, Tensor], prior: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Compute KL[posterior ‖ prior] and both entropies for the log: name -> [...] in nats.

    Arguments are pairs of means and stds, [..., S] each.
    """
    entropies = {"post_entropy": normal_entropy(posterior[1]), "prior_entropy": normal_entropy(prior[1])}
    return {"kl": normal_kl(posterior, prior)} | entropies


def free_nats(kl: Tensor, nats: float) -> Tensor:
    """Compute max(nats, kl) elementwise; `kl` [...] is summed over variables, and has no gradient below `nats`."""
    return kl.clamp(min=nats)


def mean_free_nats(kl: Tensor, nats: float, ranks: Ranks) -> Tensor:
    """Apply free nats to the mean KL over all ranks, as the authors' code of Dreamer V1 and V2 does.

    Return the KLs [...] unchanged if their mean is above `nats`; otherwise return `nats` everywhere. The mean of the
    result is max(nats, mean KL), with its gradient (arXiv:1912.01603, arXiv:2010.02193).
    """
    mean = ranks.sum(kl.detach().mean()) / ranks.size
    return torch.where(mean > nats, kl, torch.full_like(kl, nats))
