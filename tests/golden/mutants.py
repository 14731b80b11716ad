"""Wrong versions of PPO: one replaced piece of source each, with the check that has to notice it."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

# In the order of import: whatever comes after the changed module is executed anew, so that it uses the change.
CHAIN = (
    "rlcore.functional.returns",
    "rlcore.functional.stats",
    "rlcore.functional.distributions",
    "rlcore.data.steps",
    "rlcore.data.rollout",
    "rlcore.data.reward_scale",
    "rlcore.optim.optimizer",
    "rlcore.nn.encoder",
    "rlcore.nn.policy_head",
    "rlcore.algorithms.on_policy",
    "rlcore.algorithms.ppo",
)
PPO, RETURNS, STATS, DISTRIBUTIONS, STEPS, MINIBATCHES, OPTIM = (
    CHAIN[-1],
    CHAIN[0],
    CHAIN[1],
    CHAIN[2],
    CHAIN[3],
    CHAIN[4],
    CHAIN[6],
)


@dataclass(frozen=True)
class Mutant:
    """One wrong version.

    Attributes:
        name: what is wrong.
        module: where.
        right: source that is there exactly once.
        wrong: what takes its place.
        check: name of the check in `oracle`, with its arguments, that must fail.
    """

    name: str
    module: str
    right: str
    wrong: str
    check: tuple[str, ...]


BASE = ("check_update", "discrete", "base")
NORMAL = ("check_update", "continuous", "base")
PARTS = ("check_update", "multi_discrete", "base")
RAW = ("check_update", "discrete", "raw_advantages")
VALUE_CLIP = ("check_update", "discrete", "clip_vloss")
DUAL_CLIP = ("check_update", "discrete", "dual_clip")
KL_STOP = ("check_update", "discrete", "target_kl")
SUMMED = ("check_update", "discrete", "accumulate")
GAE = ("check_advantages",)
ROLLOUT = ("check_rollout",)
ANNEALING = ("check_annealing",)

MUTANTS = (
    # The surrogate.
    Mutant("maximum instead of minimum", PPO, "surrogate = torch.minimum(", "surrogate = torch.maximum(", BASE),
    Mutant("no clip", PPO, "ratio.clamp(1 - clip_coef, 1 + clip_coef) * advantage", "ratio * advantage", BASE),
    Mutant(
        "clipped from above only",
        PPO,
        "ratio.clamp(1 - clip_coef, 1 + clip_coef)",
        "ratio.clamp(max=1 + clip_coef)",
        BASE,
    ),
    Mutant(
        "clipped from below only",
        PPO,
        "ratio.clamp(1 - clip_coef, 1 + clip_coef)",
        "ratio.clamp(min=1 - clip_coef)",
        BASE,
    ),
    Mutant("advantage of the wrong sign", PPO, "return -surrogate", "return surrogate", BASE),
    Mutant("ratio upside down", PPO, "ratio = log_ratio.exp()", "ratio = (-log_ratio).exp()", BASE),
    Mutant(
        "dual clip where the advantage is positive",
        PPO,
        "torch.where(advantage < 0, torch.maximum",
        "torch.where(advantage > 0, torch.maximum",
        DUAL_CLIP,
    ),
    Mutant(
        "dual clip the wrong way",
        PPO,
        "torch.maximum(surrogate, dual_clip * advantage)",
        "torch.minimum(surrogate, dual_clip * advantage)",
        DUAL_CLIP,
    ),
    Mutant("dual clip ignored", PPO, "if dual_clip is not None", "if False", DUAL_CLIP),
    # Advantage normalisation.
    Mutant(
        "advantages not normalised", PPO, "if normalize else samples.advantage", "if False else samples.advantage", BASE
    ),
    Mutant(
        "advantages always normalised",
        PPO,
        "if normalize else samples.advantage",
        "if True else samples.advantage",
        RAW,
    ),
    Mutant("biased std", STATS, "/ (count - 1).clamp(min=1)", "/ count", BASE),
    Mutant("padding in the mean", STATS, "mean = (x * weight).sum() / count", "mean = x.mean()", BASE),
    Mutant(
        "a single advantage is wiped out",
        STATS,
        "return torch.where(count > 1, (x - mean) / (variance.sqrt() + eps), x)",
        "return (x - mean) / (variance.sqrt() + eps)",
        ("check_update", "discrete", "one_sample_minibatch"),
    ),
    # The value loss.
    Mutant(
        "½ in the value loss", PPO, "loss = (value - returns).square()", "loss = 0.5 * (value - returns).square()", BASE
    ),
    Mutant(
        "(N, 1) against (N,)",
        PPO,
        "loss = (value - returns).square()",
        "loss = (value.unsqueeze(-1) - returns).square().mean(-1)",
        BASE,
    ),
    Mutant(
        "value clip missing", PPO, "return torch.maximum(loss, (clipped - returns).square())", "return loss", VALUE_CLIP
    ),
    Mutant(
        "value clip alone",
        PPO,
        "return torch.maximum(loss, (clipped - returns).square())",
        "return (clipped - returns).square()",
        VALUE_CLIP,
    ),
    Mutant(
        "value clip by the smaller loss",
        PPO,
        "return torch.maximum(loss, (clipped",
        "return torch.minimum(loss, (clipped",
        VALUE_CLIP,
    ),
    Mutant("value clipped unasked", PPO, "clip_coef if config.clip_vloss else None", "clip_coef", BASE),
    Mutant("vf_coef dropped", PPO, "config.vf_coef * sums[1]", "sums[1]", BASE),
    Mutant(
        "returns are the advantages",
        PPO,
        "advantage, advantage + value, step.weight",
        "advantage, advantage, step.weight",
        GAE,
    ),
    # Entropy and log-probability.
    Mutant("entropy of the wrong sign", PPO, "-policy.entropy(),", "policy.entropy(),", BASE),
    Mutant("ent_coef dropped", PPO, " + ent_coef * sums[2]", "", BASE),
    Mutant(
        "entropy of one sub-action",
        DISTRIBUTIONS,
        "[-(p.exp() * p).sum(-1) for p in self.parts], -1).sum(-1)",
        "[-(p.exp() * p).sum(-1) for p in self.parts], -1).mean(-1)",
        PARTS,
    ),
    Mutant(
        "log-probability averaged over sub-actions",
        DISTRIBUTIONS,
        "torch.stack(columns, -1).sum(-1)",
        "torch.stack(columns, -1).mean(-1)",
        PARTS,
    ),
    Mutant(
        "log-probability without the std",
        DISTRIBUTIONS,
        "-0.5 * z.square() - self.log_std",
        "-0.5 * z.square()",
        NORMAL,
    ),
    Mutant(
        "entropy of a normal without the std",
        DISTRIBUTIONS,
        "(self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)",
        "(0 * self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)",
        NORMAL,
    ),
    # Means, minibatches, the optimizer.
    Mutant("padding counted in the losses", PPO, "sums = objective @ samples.weight", "sums = objective.sum(-1)", BASE),
    Mutant("sum instead of mean", PPO, 'config.loss_reduction == "sum"', 'config.loss_reduction == "mean"', RAW),
    Mutant("one epoch only", MINIBATCHES, "in range(epochs)", "in range(1)", BASE),
    Mutant(
        "rest of an epoch thrown away",
        MINIBATCHES,
        "fill = math.ceil(len(rows) / size) * size - len(rows)",
        "rows = rows[: len(rows) // size * size]; fill = 0",
        BASE,
    ),
    Mutant(
        "every minibatch of a group weighs alike",
        PPO,
        "total / total_weight",
        "total / samples.weight.sum() / 2",
        SUMMED,
    ),
    Mutant("one step a minibatch although summed", PPO, "config.accumulate_minibatches)", "1)", SUMMED),
    Mutant("gradient not clipped", OPTIM, 'max_norm=self.max_grad_norm or float("inf")', 'max_norm=float("inf")', BASE),
    Mutant("gradient clipped elsewhere", OPTIM, 'max_norm=self.max_grad_norm or float("inf")', "max_norm=1.0", BASE),
    Mutant(
        "gradients never forgotten",
        OPTIM,
        "self.torch_optimizer.step()\n        self.torch_optimizer.zero_grad()",
        "self.torch_optimizer.step()",
        BASE,
    ),
    Mutant("Adam with torch's ε", OPTIM, '"amsgrad", "eps")', '"amsgrad")', BASE),
    Mutant(
        "decoupled weight decay",
        OPTIM,
        '"adam": torch.optim.Adam,',
        '"adam": torch.optim.AdamW,',
        ("check_weight_decay",),
    ),
    # The KL stop.
    Mutant("KL stop ignored", PPO, "> 1.5 * config.target_kl", "> 1e9", KL_STOP),
    Mutant("KL stop without its 1.5", PPO, "> 1.5 * config.target_kl", "> config.target_kl", KL_STOP),
    Mutant(
        "KL stop ends the epoch only after stepping", PPO, "self.optimizer.drop()", "self.optimizer.apply()", KL_STOP
    ),
    Mutant(
        "KL by the first-order estimate", PPO, "clipped = (ratio - 1) - log_ratio,", "clipped = -log_ratio,", KL_STOP
    ),
    # Advantages and the time alignment.
    Mutant(
        "trace not cut at an episode's end",
        PPO,
        "trace = config.gae_lambda * (~step.done).float()",
        "trace = config.gae_lambda * torch.ones_like(step.reward)",
        GAE,
    ),
    Mutant(
        "truncation as termination",
        PPO,
        "discount = config.gamma * (~step.terminated).float()",
        "discount = config.gamma * (~step.done).float()",
        GAE,
    ),
    Mutant(
        "termination as truncation",
        PPO,
        "discount = config.gamma * (~step.terminated).float()",
        "discount = config.gamma * torch.ones_like(step.reward)",
        GAE,
    ),
    Mutant("λ dropped", PPO, "trace = config.gae_lambda *", "trace = 1.0 *", GAE),
    Mutant(
        "no bootstrap after the last row",
        PPO,
        "shifted(value, last_value)",
        "shifted(value, torch.zeros_like(last_value))",
        GAE,
    ),
    Mutant(
        "value of the same observation as the next",
        RETURNS,
        "discount * next_value - value",
        "discount * value - value",
        GAE,
    ),
    Mutant(
        "γ missing from the trace",
        RETURNS,
        "return discounted_sum(delta, discount * trace)",
        "return discounted_sum(delta, trace)",
        GAE,
    ),
    Mutant(
        "log_scan one round short",
        RETURNS,
        "while width < length",
        "while 2 * width < length",
        ("check_advantages", "log_scan"),
    ),
    Mutant(
        "reward one row late", STEPS, "Transitions(shifted(steps.reward, last.reward)", "Transitions(steps.reward", GAE
    ),
    Mutant(
        "termination one row late",
        STEPS,
        "terminated = shifted(steps.terminated, last.terminated)",
        "terminated = steps.terminated",
        GAE,
    ),
    Mutant("truncation one row late", STEPS, "shifted(steps.truncated, last.truncated)", "steps.truncated", GAE),
    Mutant("reset rows counted", STEPS, "(~reset).float()", "torch.ones_like(reset).float()", ROLLOUT),
    # Annealing.
    Mutant(
        "learning rate not annealed",
        PPO,
        'self.optimizer.set_lr(coefs["lr"])',
        "self.optimizer.set_lr(config.optimizer.lr)",
        ANNEALING,
    ),
    Mutant(
        "clip not annealed",
        PPO,
        'rows, weight, coefs["clip_coef"]',
        "rows, weight, config.clip_coef",
        ANNEALING,
    ),
    Mutant(
        "entropy bonus not annealed",
        PPO,
        'coefs["ent_coef"], total_weight,',
        "config.ent_coef, total_weight,",
        ANNEALING,
    ),
)


@contextmanager
def executed(module: str | None = None, right: str = "", wrong: str = "") -> Iterator[ModuleType]:
    """The PPO module executed anew from source, with one piece of the chain's source replaced.

    Args:
        module: where to replace; None replaces nothing.
        right: what must be there exactly once.
        wrong: what takes its place.

    Yields:
        The module, in force until the block ends.
    """
    originals = {name: importlib.import_module(name) for name in CHAIN}
    try:
        for name in CHAIN:
            source = inspect.getsource(originals[name])
            if name == module:
                assert source.count(right) == 1, f"{name} holds {source.count(right)} times: {right}"
                source = source.replace(right, wrong)
            anew = ModuleType(name)
            anew.__file__ = originals[name].__file__
            sys.modules[name] = anew
            exec(compile(source, f"<{name}, mutated>", "exec"), anew.__dict__)
        yield sys.modules[CHAIN[-1]]
    finally:
        sys.modules.update(originals)
