"""A2C against the results of Stable-Baselines3 (tests.golden.makers.a2c), and against PPO where both are equal."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms.on_policy.a2c import learner as a2c
from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.types import Batch
from tests.golden import on_policy
from tests.golden.fixtures import arrays, check_numbers, part, settings
from tests.golden.mutants import Mutant, given, returned, swap
from tests.golden.on_policy import ACTIONS, aligned, check_parameters, injected, rollout_batch
from tests.learning.assembly import Trainer, assemble, context

A2C = settings("a2c")
VARIANTS: dict[str, dict[str, Any]] = A2C["variants"]
ENVS = {"discrete": "CartPole-v1", "continuous": "Pendulum-v1"}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "rmsprop_tf": {"name": "rmsprop_tf", "lr": 7e-4, "alpha": 0.99, "eps": 1e-5, "betas": None},
    "sgd": {"name": "sgd", "lr": 1e-2, "eps": None, "betas": None},
}


def config_values(setting: dict[str, Any], rollout_steps: int) -> dict[str, Any]:
    """Return the values of A2C's config for SB3's setting."""
    return setting | {
        "name": "a2c",
        "total_steps": 100_000,
        "rollout_steps": rollout_steps,
        "loss_reduction": "mean",
        "encoder": {"mlp_layers": 0},
        "actor": on_policy.NETWORKS | {"state_dependent_std": False},
        "critic": on_policy.NETWORKS,
        "optimizer": {"eps": None, "betas": [0.9, 0.999]} | setting["optimizer"],
    }


def make_learner(setting: dict[str, Any], kind: str = "discrete", **more: Any) -> Any:
    """Return a learner in float64 with the initial weights of PPO's updates; `more` are values of its config."""
    initial = part(arrays(f"ppo_{kind}"), "initial/")
    return on_policy.make_learner(a2c, config_values(setting, 200) | more, kind, initial, "64-true")


def check_update(kind: str, variant: str, batch_size: int | None = None) -> None:
    """Check weights after several updates in float64, and losses and gradient norm of the last; also in parts."""
    learner = make_learner(A2C["common"] | VARIANTS[variant], kind, per_rank_batch_size=batch_size)
    batch = injected(a2c.A2CSamples, learner, part(arrays(f"ppo_{kind}"), "samples/"))
    metrics = [learner.update(batch, np.random.default_rng(0)) for _ in range(A2C["steps"])][-1]
    content = arrays(f"a2c_{kind}")
    check_parameters(learner, part(content, f"final/{variant}/"), 1e-11)
    logged = part(content, f"logged/{variant}/")
    expected = {f"Info/{name}" if name == "grad_norm" else f"Loss/{name}": value for name, value in logged.items()}
    check_numbers(metrics, expected, 1e-11)
    assert learner.updates == A2C["steps"]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ACTIONS)
def test_a2c_update_matches_sb3_in_float64(kind: str, variant: str) -> None:
    check_update(kind, variant)


@pytest.mark.parametrize("batch_size", [199, 64, 1])
def test_a2c_update_in_parts_matches_sb3(batch_size: int) -> None:
    check_update("discrete", "base", batch_size)


def test_a2c_update_from_raw_rewards_matches_sb3() -> None:
    """The update from raw rewards, with episode ends inside the rollout and λ = 1, in float32."""
    data = arrays("ppo_rollout")
    rows, _ = aligned({name: data[name] for name in ("features", "action", "old_logprob")}, data)
    values = config_values(A2C["common"], len(rows["reward"]) - 1) | A2C["rollout"]
    learner = on_policy.make_learner(a2c, values, "discrete", part(data, "initial/"), "32-true")
    learner.update(rollout_batch(rows, data["last_obs"]), np.random.default_rng(0))
    check_parameters(learner, part(arrays("a2c_rollout"), "final/"), 1e-6)  # measured 1e-7


def test_a2c_update_uses_annealed_coefficients() -> None:
    common = A2C["common"]
    half = {"ent_coef": common["ent_coef"] / 2}
    half["optimizer"] = {"eps": None, "betas": [0.9, 0.999]} | common["optimizer"] | {"lr": 1.5e-3}
    annealed = {"anneal_lr": True, "anneal_ent_coef": True}
    on_policy.check_annealing(
        partial(make_learner, common), a2c.A2CSamples, annealed, half, lambda: np.random.default_rng(0)
    )


def rollouts(env_id: str, **changes: Any) -> Trainer:
    """Return a trainer of A2C on environments whose episodes of at most 12 steps end inside every rollout."""
    values = {
        "name": "a2c",
        "total_steps": 10_000,
        "rollout_steps": 20,
        "gae_lambda": 1.0,
        "ent_coef": 0.01,
        "dense_units": 16,
    }
    return assemble(env_id, values | changes, num_envs=3, max_episode_steps=12)


def check_is_ppo(kind: str, optimizer: str, reduction: str, normalize: bool = False) -> None:
    """Check that PPO with one epoch of one minibatch is A2C (Huang et al. 2022, arXiv:2205.09123) in 10 updates.

    Both start with the same weights and get the same rollouts, collected by the agent of A2C.
    """
    same = {
        "optimizer": OPTIMIZERS[optimizer],
        "loss_reduction": reduction,
        "normalize_advantages": normalize,
        "max_grad_norm": 0.5,
        "vf_coef": 0.5,
    }
    training = rollouts(ENVS[kind], **same)
    config = training.learner.config
    shared = ("total_steps", "rollout_steps", "gae_lambda", "ent_coef", "dense_units")
    values = {key: getattr(config, key) for key in shared} | same
    values |= {"name": "ppo", "per_rank_batch_size": 20 * 3, "update_epochs": 1}
    other, _, _ = ppo.build(context(values, training.collector.envs.spec, 3))
    other.agent.load_state_dict(training.learner.agent.state_dict())
    before = training.weights()
    resets = 0
    for _ in range(10):
        batch = Batch(*training.collector.collect(20), policy_steps=training.collector.env_steps)
        resets += int((batch.steps.terminated | batch.steps.truncated).sum())
        metrics = [learner.update(batch, np.random.default_rng(1)) for learner in (training.learner, other)]
        for name, value in metrics[0].items():
            if name != "Loss/policy_loss":  # PPO has the ratio instead of the log-probability
                torch.testing.assert_close(torch.as_tensor(metrics[1][name]), torch.as_tensor(value), msg=name)
    assert resets > 5, "hardly a row that resets"
    theirs = {name: p.detach().numpy() for name, p in other.agent.named_parameters()}
    # Measured 3e-6 of the movement, in float32.
    gap = max(np.abs(value - theirs[name]).max() for name, value in training.weights().items())
    movement = max(np.abs(value - before[name]).max() for name, value in training.weights().items())
    assert gap < 3e-5 * movement, f"parameters differ by {gap:.1e}, after moving by {movement:.1e}"


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ENVS)
def test_a2c_equals_ppo_with_one_minibatch(kind: str, optimizer: str, reduction: str) -> None:
    check_is_ppo(kind, optimizer, reduction)


def test_a2c_equals_ppo_with_normalized_advantages() -> None:
    check_is_ppo("discrete", "sgd", "mean", normalize=True)


# Mutants --------------------------------------------------------------------------------------------------------------

BASE = partial(check_update, "discrete", "base")
PARTS = partial(check_update, "multi_discrete", "base")
NORMALIZED = partial(check_update, "discrete", "normalize_advantages")
CLIPPED = partial(check_update, "discrete", "small_max_grad_norm")
TENSORFLOW = partial(check_update, "continuous", "rmsprop_tf")
MOMENTUM = partial(check_update, "continuous", "rmsprop_tf_momentum")
PLAIN = partial(check_update, "discrete", "sgd")
CHUNKS = partial(check_update, "discrete", "base", 64)  # 200 samples in four parts
ROLLOUT = test_a2c_update_from_raw_rewards_matches_sb3
ANNEALING = test_a2c_update_uses_annealed_coefficients
PPO = partial(check_is_ppo, "discrete", "sgd", "mean")
PPO_NORMALIZED = partial(check_is_ppo, "discrete", "sgd", "mean", normalize=True)

LOSS, UPDATE, STEP, IN_PARTS = (
    f"a2c.{name}" for name in ("Learner.loss", "Learner.update", "Learner.gradient_step", "A2CSamples.in_parts")
)
POLICY, ENTROPY, VALUE, ADVANTAGES = "a2c.policy_loss", "a2c.entropy_loss", "a2c.value_loss", "advantages"
MUTANTS: dict[str, Mutant] = {
    # Policy gradient.
    "advantage of the wrong sign": Mutant(POLICY, returned("-it"), BASE),
    "value gradient through the advantage": Mutant(LOSS, swap("batch.advantage", "batch.returns - value"), PPO),
    "returns in place of advantages": Mutant(LOSS, swap("batch.advantage", "batch.returns"), BASE),
    "probability in place of its logarithm": Mutant(LOSS, swap("A.logprob(B)", "A.logprob(B).exp()"), BASE),
    "log-probability of one sub-action": Mutant("Categoricals.logprob", returned("it / len(self.parts)"), PARTS),
    # Advantage normalization.
    "advantages not normalised": Mutant(STEP, swap("A.normalize_advantages", "False"), NORMALIZED),
    "advantages always normalised": Mutant(STEP, swap("A.normalize_advantages", "True"), BASE),
    "biased std": Mutant("standardize", swap("(A - 1).clamp(min=1)", "A"), NORMALIZED),
    "reset rows in the normalisation": Mutant(
        STEP, swap("standardize(A, B, C)", "standardize(A, B * 0 + 1, C)"), PPO_NORMALIZED
    ),
    # Critic loss.
    "value loss of the wrong sign": Mutant(VALUE, swap("value - returns", "value + returns"), BASE),
    "½ in the value loss": Mutant(VALUE, returned("0.5 * it"), BASE),
    "vf_coef dropped": Mutant(LOSS, swap("A.vf_coef", "1"), BASE),
    "value fitted to the advantage": Mutant(LOSS, swap("batch.returns", "batch.advantage"), BASE),
    "(N, 1) against (N,)": Mutant(
        VALUE, swap("(value - A).square()", "(value.unsqueeze(-1) - A).square().mean(-1)"), BASE
    ),
    # Entropy bonus.
    "entropy of the wrong sign": Mutant(ENTROPY, returned("-it"), BASE),
    "ent_coef dropped": Mutant(LOSS, swap('A["ent_coef"]', "0"), BASE),
    # Rows that count, and their weights.
    "reset rows counted": Mutant("transitions", swap("(~A).float()", "torch.ones_like(A).float()"), ROLLOUT),
    "reset rows counted in the loss": Mutant("reduce_loss", swap("loss.dot(weight)", "loss.sum()"), ROLLOUT),
    "sum in place of the mean": Mutant("Optimizer.take_step", swap('A == "mean"', 'A == "sum"'), PLAIN),
    "one part of the rollout only": Mutant(IN_PARTS, returned("it[:1]"), CHUNKS),
    "the last part's gradient alone": Mutant(
        "Gradient.add_loss", swap("self._begin(weight)", "(self.clear(), self._begin(weight))"), CHUNKS
    ),
    "means of the parts summed": Mutant("Gradient._begin", swap("before + weight", "weight"), CHUNKS),
    "gradients never forgotten": Mutant("Optimizer.drop", swap("self.gradient.clear()", "None"), BASE),
    # Clipping and the optimizer.
    "gradient not clipped": Mutant("clip_factors", swap("A.clamp(max=1.0)", "1.0"), CLIPPED),
    "gradient clipped elsewhere": Mutant("clip_factors", swap("max_norm / A", "1.0 / A"), CLIPPED),
    "ε outside the root": Mutant("_rmsprop", swap("(A + B).sqrt()", "A.sqrt() + B"), TENSORFLOW),
    "an average that begins at 0": Mutant("rules.slots", swap("rule.start.get(A, 0.0)", "0.0"), TENSORFLOW),
    "TensorFlow's ε in torch's RMSprop": Mutant("_rmsprop", swap('A == "rmsprop_tf"', "True"), BASE),
    "TensorFlow's average in torch's RMSprop": Mutant("rules.slots", swap("rule.start.get(A, 0.0)", "1.0"), BASE),
    "momentum dropped": Mutant("_rmsprop", swap('config["momentum"] * A', "0 * A"), MOMENTUM),
    "not centred": Mutant("_rmsprop", swap("variance - A", "variance"), MOMENTUM),
    # Advantages and time alignment.
    "one-step advantages": Mutant(ADVANTAGES, given(gae_lambda="0.0"), ROLLOUT),
    "truncation as termination": Mutant(ADVANTAGES, swap("A.terminated", "A.done"), ROLLOUT),
    "termination as truncation": Mutant(ADVANTAGES, swap("gamma * B", "gamma * torch.ones_like(B)"), ROLLOUT),
    "no bootstrap after the last row": Mutant(ADVANTAGES, given(last_value="0 * last_value"), ROLLOUT),
    "reward one row late": Mutant("transitions", swap("shift(A.reward, B)", "A.reward"), ROLLOUT),
    # Annealing.
    "learning rate not annealed": Mutant(UPDATE, swap("A.set_lr(B)", "None"), ANNEALING),
    "entropy bonus not annealed": Mutant(LOSS, swap('A["ent_coef"]', "self.config.ent_coef"), ANNEALING),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_golden_check_detects_a2c_mutant(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.applied(), pytest.raises(AssertionError):
        mutant.check()
