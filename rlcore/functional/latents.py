"""Latents: vectors of categorical or normal variables, sampled with a gradient, and how far two of them are apart."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from rlcore.functional.precision import widen
from rlcore.types import Ranks


def unimix(logits: Tensor, share: float) -> Tensor:
    """Log-probabilities of (1 - share) softmax(logits) + share / K (arXiv:2301.04104v1, "Unimix categoricals").

    The mixture is of probabilities, not of logits: none is below share / K. logits [..., K] -> [..., K].
    """
    logprob = F.log_softmax(widen(logits), -1)
    if not share:
        return logprob
    return torch.log((1 - share) * logprob.exp() + share / logits.shape[-1])


def one_hot(index: Tensor, classes: int) -> Tensor:
    """Index [...] int64 -> [..., classes] float32; torch's own looks at the values, which no graph can."""
    return (index.unsqueeze(-1) == torch.arange(classes, device=index.device)).float()


def sample_one_hot(logprob: Tensor, uniform: Tensor) -> Tensor:
    """One-hot samples with the gradient of the probabilities (Bengio et al. 2013, arXiv:1308.3432: straight through).

    Args:
        logprob: [..., K], normalised.
        uniform: [...] in [0, 1): of the class in whose share of the probability, laid end to end, it falls.

    Returns:
        [..., K]: one_hot + p - sg(p).
    """
    p = logprob.exp()
    index = (p.detach().cumsum(-1)[..., :-1] <= uniform.unsqueeze(-1)).sum(-1)
    return one_hot(index, p.shape[-1]).to(p) + (p - p.detach())


def categorical_entropy(logprob: Tensor) -> Tensor:
    """Entropy of S independent categorical variables, nats. logprob [..., S, K] -> [...]."""
    return -(logprob.exp() * logprob).sum((-2, -1))


def categorical_kl(p: Tensor, q: Tensor) -> Tensor:
    """KL[p ‖ q] of S independent categorical variables, nats: their sum. Log-probabilities [..., S, K] -> [...]."""
    assert p.shape == q.shape, (p.shape, q.shape)
    return (p.exp() * (p - q)).sum((-2, -1))


def categorical_measures(posterior: Tensor, prior: Tensor) -> dict[str, Tensor]:
    """Figures for the log, nats [...]: KL[q ‖ p] and both entropies. Log-probabilities [..., S, K]."""
    entropies = {"post_entropy": categorical_entropy(posterior), "prior_entropy": categorical_entropy(prior)}
    return {"kl": categorical_kl(posterior, prior)} | entropies


def normal_entropy(std: Tensor) -> Tensor:
    """Entropy of independent normals, nats. Stds [..., S] -> [...]."""
    return (std.log() + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)


def normal_kl(p: tuple[Tensor, Tensor], q: tuple[Tensor, Tensor]) -> Tensor:
    """KL[p ‖ q] of independent normals, nats. Means and stds [..., S] each -> [...]."""
    (mean, std), (other, spread) = p, q
    assert mean.shape == other.shape, (mean.shape, other.shape)
    ratio = (std / spread).square()
    return 0.5 * (ratio + ((mean - other) / spread).square() - 1 - ratio.log()).sum(-1)


def normal_measures(posterior: tuple[Tensor, Tensor], prior: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Figures for the log, nats [...]: KL[q ‖ p] and both entropies. Means and stds [..., S] each."""
    entropies = {"post_entropy": normal_entropy(posterior[1]), "prior_entropy": normal_entropy(prior[1])}
    return {"kl": normal_kl(posterior, prior)} | entropies


def free_nats(kl: Tensor, nats: float) -> Tensor:
    """max(nats, kl) elementwise: below, no gradient. The sum over the variables of a step is clipped, not each."""
    return kl.clamp(min=nats)


def mean_free_nats(kl: Tensor, nats: float, ranks: Ranks) -> Tensor:
    """Each KL [...] where their mean over all ranks is above `nats`, and `nats` in place of each where it is not.

    The mean of the result is max(nats, mean KL), with its gradient (arXiv:1912.01603's and arXiv:2010.02193's code).
    """
    mean = ranks.sum(kl.detach().mean()) / ranks.size
    return torch.where(mean > nats, kl, torch.full_like(kl, nats))
