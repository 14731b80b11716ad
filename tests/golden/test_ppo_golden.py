"""PPO against the results of Stable-Baselines3 (tests.golden.makers.ppo; SB3 itself is not installed), and mutants."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.functional.returns import gae
from tests.golden import on_policy
from tests.golden.fixtures import arrays, check_numbers, part
from tests.golden.mutants import Mutant, given, returned, swap
from tests.golden.on_policy import ACTIONS, PPO, KnownOrder, aligned, check_parameters, injected, rollout_batch

COMMON: dict[str, Any] = PPO["common"]
VARIANTS: dict[str, dict[str, Any]] = PPO["variants"]


def config_values(setting: dict[str, Any], rollout_steps: int) -> dict[str, Any]:
    """Return the values of PPO's config for SB3's setting."""
    same = ("clip_coef", "vf_coef", "ent_coef", "max_grad_norm", "normalize_advantages", "target_kl", "clip_vloss")
    return {key: setting[key] for key in (*same, "dual_clip")} | {
        "name": "ppo",
        "total_steps": 100_000,
        "rollout_steps": rollout_steps,
        "per_rank_batch_size": setting["batch_size"],
        "update_epochs": PPO["epochs"],
        "accumulate_minibatches": setting["accumulate"],
        "loss_reduction": setting["reduction"],
        "encoder": {"mlp_layers": 0},
        "actor": on_policy.NETWORKS | {"state_dependent_std": False},
        "critic": on_policy.NETWORKS,
        "optimizer": {"name": "adam", "lr": setting["lr"], "eps": setting["eps"]},
    }


def make_learner(setting: dict[str, Any], kind: str = "discrete", **more: Any) -> Any:
    """Return a learner in float64 with the initial weights of the updates; `more` are further values of its config."""
    initial = part(arrays(f"ppo_{kind}"), "initial/")
    return on_policy.make_learner(ppo, config_values(setting, 200) | more, kind, initial, "64-true")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ACTIONS)
def test_ppo_update_matches_sb3_in_float64(kind: str, variant: str) -> None:
    """Weights, logged losses and gradient norms of one update."""
    content, learner = arrays(f"ppo_{kind}"), make_learner(COMMON | VARIANTS[variant], kind)
    batch = injected(ppo.PPOSamples, learner, part(content, "samples/"))
    metrics = learner.update(batch, KnownOrder(content["orders"]))
    check_parameters(learner, part(content, f"final/{variant}/"), 1e-11)
    logged = part(content, f"logged/{variant}/")
    assert learner.updates == logged.pop("steps")
    clipped = {"Info/clip_fraction": logged.pop("clip_fraction")}
    check_numbers(metrics, clipped, 1e-7)  # SB3 counts clipped samples in float32
    expected = {f"Info/{name}" if name == "grad_norm" else f"Loss/{name}": value for name, value in logged.items()}
    check_numbers(metrics, expected, 1e-10)


class KnownValue(torch.nn.Module):
    """Agent that only knows the value of the observation after the rollout."""

    def __init__(self, last_value: np.ndarray) -> None:
        super().__init__()
        self.last_value = torch.from_numpy(last_value).float()
        self.keys, self.history = ("state",), {}

    def forward(self, obs: dict[str, Tensor]) -> tuple[None, Tensor]:
        return None, self.last_value


@pytest.mark.parametrize("method", ["loop", "log_scan"])
def test_ppo_advantages_with_reset_rows_match_sb3(method: str) -> None:
    """Advantages and returns over ended, truncated and open episodes, for three pairs (γ, λ)."""
    data = arrays("gae")
    rows, place = aligned({}, data)
    batch = rollout_batch(rows, np.zeros((4, 4), np.float32))
    for i, (gamma, gae_lambda) in enumerate(data["pairs"]):
        values = config_values(COMMON, len(rows["reward"]) - 1)
        values |= {"gamma": float(gamma), "gae_lambda": float(gae_lambda), "gae_method": method}
        initial = part(arrays("ppo_discrete"), "initial/")
        learner = on_policy.make_learner(ppo, values, "discrete", initial, "32-true")
        learner.agent = KnownValue(data["last_value"])
        samples = learner.samples(batch)
        shape = batch.steps.reward.shape
        found = {k: getattr(samples, k).reshape(shape).numpy() for k in ("advantage", "returns", "weight")}
        taken = {name: np.take_along_axis(value, place, 0) for name, value in found.items()}
        expected = data[f"advantage/{i}"]
        # Values are around 5, float32.
        np.testing.assert_allclose(taken["advantage"], expected, rtol=0, atol=5e-6)
        np.testing.assert_allclose(taken["returns"], expected + data["value"], rtol=0, atol=5e-6)
        # Every transition counts once, every reset row not at all.
        assert (taken["weight"] == 1).all() and found["weight"].sum() == place.size


def test_ppo_update_from_raw_rewards_matches_sb3() -> None:
    """The update from raw rewards, with episode ends inside the rollout, in float32."""
    data, setting = arrays("ppo_rollout"), PPO["rollout"]
    envs = data["reward"].shape[1]
    rows, place = aligned({name: data[name] for name in ("features", "action", "old_logprob")}, data)
    values = config_values(COMMON | {"batch_size": setting["batch_size"]}, len(rows["reward"]) - 1)
    values |= {key: setting[key] for key in ("gamma", "gae_lambda")}
    learner = on_policy.make_learner(ppo, values, "discrete", part(data, "initial/"), "32-true")
    # SB3 numbers its samples t·B + b; ours are numbered by their position among the rows that count.
    numbers = np.argsort(np.argsort((place * envs + np.arange(envs)).reshape(-1)))
    learner.update(rollout_batch(rows, data["last_obs"]), KnownOrder([numbers[order] for order in data["orders"]]))
    # Measured 3e-7; the weakest mutant that only this check detects moves parameters by more than 1e-4.
    check_parameters(learner, part(data, "final/"), 3e-6)


def test_ppo_update_uses_annealed_coefficients() -> None:
    half = {key: COMMON[key] / 2 for key in ("clip_coef", "ent_coef")}
    half["optimizer"] = {"name": "adam", "lr": COMMON["lr"] / 2, "eps": COMMON["eps"]}
    annealed = {"anneal_lr": True, "anneal_clip_coef": True, "anneal_ent_coef": True}
    orders = arrays("ppo_discrete")["orders"]
    on_policy.check_annealing(partial(make_learner, COMMON), ppo.PPOSamples, annealed, half, lambda: KnownOrder(orders))


def test_ppo_adam_weight_decay_is_loss_penalty() -> None:
    """The weight decay of "adam" is an L2 penalty on the loss, which passes through Adam's moments."""
    content, setting = arrays("ppo_discrete"), COMMON | VARIANTS["raw_advantages"]
    penalty, states = 0.1, []
    for decay in (penalty, 0.0):
        optimizer = {"name": "adam", "lr": setting["lr"], "eps": setting["eps"], "weight_decay": decay}
        learner = make_learner(setting, optimizer=optimizer)
        batch = injected(ppo.PPOSamples, learner, part(content, "samples/"))
        if not decay:
            plain = learner.loss

            def penalised(
                *arguments: Any, plain: Any = plain, agent: Any = learner.agent
            ) -> tuple[Tensor, Tensor, Any]:
                loss, weight, means = plain(*arguments)
                return loss + weight * penalty / 2 * sum(p.square().sum() for p in agent.parameters()), weight, means

            learner.optimizer.loss = penalised
        learner.update(batch, KnownOrder(content["orders"]))
        states.append(learner.agent.state_dict())
    for name, value in states[0].items():
        np.testing.assert_allclose(value.numpy(), states[1][name].numpy(), rtol=0, atol=1e-12)


def test_gae_matches_sb3_in_float64() -> None:
    data = arrays("gae")
    done = data["terminated"] | data["truncated"]
    # Row t is the step t → t+1: the value after the last row of an episode is its final value, not the next episode's.
    following = np.concatenate([data["value"][1:], data["last_value"][None]])
    following[:-1] = np.where(done[:-1], data["final_value"][:-1], following[:-1])
    for i, (gamma, gae_lambda) in enumerate(data["pairs"]):
        columns = (data["reward"], gamma * ~data["terminated"], data["value"], following, gae_lambda * ~done)
        found = gae(*map(torch.from_numpy, columns))
        np.testing.assert_allclose(found.numpy(), data[f"advantage/{i}"], rtol=0, atol=1e-12)


# Mutants --------------------------------------------------------------------------------------------------------------

BASE = partial(test_ppo_update_matches_sb3_in_float64, "discrete", "base")
NORMAL = partial(test_ppo_update_matches_sb3_in_float64, "continuous", "base")
PARTS = partial(test_ppo_update_matches_sb3_in_float64, "multi_discrete", "base")
RAW = partial(test_ppo_update_matches_sb3_in_float64, "discrete", "raw_advantages")
ALONE = partial(test_ppo_update_matches_sb3_in_float64, "discrete", "one_sample_minibatch")
VALUE_CLIP = partial(test_ppo_update_matches_sb3_in_float64, "discrete", "clip_vloss")
DUAL_CLIP = partial(test_ppo_update_matches_sb3_in_float64, "discrete", "dual_clip")
KL_STOP = partial(test_ppo_update_matches_sb3_in_float64, "discrete", "target_kl")
SUMMED = partial(test_ppo_update_matches_sb3_in_float64, "discrete", "accumulate")
GAE = partial(test_ppo_advantages_with_reset_rows_match_sb3, "loop")
SCAN = partial(test_ppo_advantages_with_reset_rows_match_sb3, "log_scan")
ROLLOUT = test_ppo_update_from_raw_rewards_matches_sb3
ANNEALING = test_ppo_update_uses_annealed_coefficients
DECAY = test_ppo_adam_weight_decay_is_loss_penalty

LOSS, UPDATE, STEP = "ppo.objective", "ppo.Learner.update", "ppo.Learner.gradient_step"
OPTIMIZE = "ppo.Learner.optimize"
SAMPLES, ADVANTAGES, VALUE, POLICY = "ppo.Learner.samples", "advantages", "ppo.value_loss", "ppo.policy_loss"
ENTROPY = "ppo.entropy_loss"
MUTANTS: dict[str, Mutant] = {
    # The surrogate.
    "maximum instead of minimum": Mutant(POLICY, swap("torch.minimum(A, B)", "torch.maximum(A, B)"), BASE),
    "no clip": Mutant(POLICY, swap("A.clamp(B, C)", "A"), BASE),
    "clipped from above only": Mutant(POLICY, swap("A.clamp(B, C)", "A.clamp(None, C)"), BASE),
    "clipped from below only": Mutant(POLICY, swap("A.clamp(B, C)", "A.clamp(B, None)"), BASE),
    "advantage of the wrong sign": Mutant(POLICY, returned("-it"), BASE),
    "ratio upside down": Mutant(LOSS, swap("A.exp()", "(-A).exp()"), BASE),
    "dual clip where the advantage is positive": Mutant(POLICY, swap("A < 0", "A > 0"), DUAL_CLIP),
    "dual clip the wrong way": Mutant(POLICY, swap("torch.maximum(A, B)", "torch.minimum(A, B)"), DUAL_CLIP),
    "dual clip ignored": Mutant(POLICY, given(dual_clip="None"), DUAL_CLIP),
    # Advantage normalization.
    "advantages not normalised": Mutant(OPTIMIZE, swap("A.normalize_advantages", "False"), BASE),
    "advantages always normalised": Mutant(OPTIMIZE, swap("A.normalize_advantages", "True"), RAW),
    "biased std": Mutant("standardize", swap("(A - 1).clamp(min=1)", "A"), BASE),
    "padding in the mean": Mutant(
        "standardize", swap("(x * weight).sum(-1, keepdim=True)", "x.sum(-1, keepdim=True)"), BASE
    ),
    "a single advantage is wiped out": Mutant("standardize", swap("torch.where(A, B, C)", "B"), ALONE),
    # Value loss.
    "½ in the value loss": Mutant(VALUE, returned("0.5 * it"), BASE),
    "(N, 1) against (N,)": Mutant(
        "value_error", swap("(A - B).square()", "(value.unsqueeze(-1) - returns).square().mean(-1)"), BASE
    ),
    "value clip missing": Mutant(VALUE, given(clip_coef="None"), VALUE_CLIP),
    "value clip alone": Mutant(VALUE, swap("torch.maximum(A, B)", "B"), VALUE_CLIP),
    "value clip to the smaller loss": Mutant(VALUE, swap("torch.maximum(A, B)", "torch.minimum(A, B)"), VALUE_CLIP),
    "value clipped unasked": Mutant(LOSS, swap("A.clip_vloss", "True"), BASE),
    "vf_coef dropped": Mutant(LOSS, swap("A.vf_coef", "1"), BASE),
    "returns are the advantages": Mutant(SAMPLES, swap("advantage + value", "advantage"), GAE),
    # Entropy and log-probability.
    "entropy of the wrong sign": Mutant(ENTROPY, returned("-it"), BASE),
    "ent_coef dropped": Mutant(LOSS, swap('coefs["ent_coef"]', "0"), BASE),
    "entropy of one sub-action": Mutant("distributions.Categoricals.entropy", returned("it / len(self.parts)"), PARTS),
    "log-probability of one sub-action": Mutant("Categoricals.logprob", returned("it / len(self.parts)"), PARTS),
    "log-probability without the std": Mutant("Normal.logprob", swap("self.log_std", "0"), NORMAL),
    "entropy of a normal without the std": Mutant("Normal.entropy", swap("self.log_std", "0 * self.log_std"), NORMAL),
    # Means, minibatches and the optimizer.
    "padding counted in the losses": Mutant("reduce_loss", swap("loss.dot(weight)", "loss.sum()"), BASE),
    "padding counted in the mean": Mutant("reduce_loss", swap("weight.sum()", "weight.new_tensor(len(loss))"), BASE),
    "sum instead of mean": Mutant("Optimizer.take_step", swap('A == "mean"', 'A == "sum"'), RAW),
    "one epoch only": Mutant("minibatches", given(epochs="1"), BASE),
    "rest of an epoch thrown away": Mutant(
        "minibatches", swap("counts.to(A)", "(counts & counts[:, -1:]).to(A)"), BASE
    ),
    "every minibatch of a group weighs alike": Mutant("Gradient._begin", given(weight="weight * 0 + 128"), SUMMED),
    "the last gradient of a group alone": Mutant(
        "Gradient.add_loss", swap("self._begin(weight)", "(self.clear(), self._begin(weight))"), SUMMED
    ),
    "gradient not clipped": Mutant("clip_factors", swap("A.clamp(max=1.0)", "1.0"), BASE),
    "gradient clipped elsewhere": Mutant("clip_factors", swap("max_norm / A", "1.0 / A"), BASE),
    "gradients never forgotten": Mutant("Optimizer.drop", swap("self.gradient.clear()", "None"), BASE),
    "Adam's ε forgotten": Mutant("_fused_adam", swap('config["eps"]', "1e-20"), BASE),
    "Adam without its corrections": Mutant("_fused_adam", swap("A.to(B, torch.float32)", "torch.tensor(1e9)"), BASE),
    "decoupled weight decay": Mutant("_fused_adam", swap("A.decoupled", "True"), DECAY),
    # Early stop by KL.
    "KL stop ignored": Mutant(STEP, swap("1.5", "1e9"), KL_STOP),
    "KL stop without its 1.5": Mutant(STEP, swap("1.5", "1.0"), KL_STOP),
    "KL stop ends the epoch only after stepping": Mutant(STEP, swap("A.apply(unless=B)", "A.apply()"), KL_STOP),
    "KL by the first-order estimate": Mutant("approximate_kl", swap("A - 1 - B", "-B"), KL_STOP),
    # Advantages and time alignment.
    "trace not cut at an episode's end": Mutant(
        ADVANTAGES, swap("gae_lambda * B", "gae_lambda * torch.ones_like(B)"), GAE
    ),
    "truncation as termination": Mutant(ADVANTAGES, swap("A.terminated", "A.done"), GAE),
    "termination as truncation": Mutant(ADVANTAGES, swap("gamma * B", "gamma * torch.ones_like(B)"), GAE),
    "λ dropped": Mutant(ADVANTAGES, given(gae_lambda="1.0"), GAE),
    "no bootstrap after the last row": Mutant(ADVANTAGES, given(last_value="torch.zeros_like(last_value)"), GAE),
    "value of the same observation as the next": Mutant("gae", given(next_value="value"), GAE),
    "γ missing from the trace": Mutant("gae", swap("discounted_sum(A, B * C)", "discounted_sum(A, C)"), GAE),
    "log_scan one round short": Mutant("discounted_scan", swap("A < B", "2 * A < B"), SCAN),
    "reward one row late": Mutant("transitions", swap("shift(A.reward, B)", "A.reward"), GAE),
    "termination one row late": Mutant("transitions", swap("shift(A.terminated, B)", "A.terminated"), GAE),
    "end of an episode one row late": Mutant("transitions", swap("shift(reset, B)", "reset"), GAE),
    "reset rows counted": Mutant("transitions", swap("(~A).float()", "torch.ones_like(A).float()"), ROLLOUT),
    # Annealing.
    "learning rate not annealed": Mutant(UPDATE, swap("A.set_lr(B)", "None"), ANNEALING),
    "clip not annealed": Mutant(LOSS, swap('A["clip_coef"]', "config.clip_coef"), ANNEALING),
    "entropy bonus not annealed": Mutant(LOSS, swap('A["ent_coef"]', "config.ent_coef"), ANNEALING),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_golden_check_detects_ppo_mutant(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.applied(), pytest.raises(AssertionError):
        mutant.check()
