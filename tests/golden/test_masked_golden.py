"""Action masks against MaskablePPO of sb3-contrib (tests.golden.makers.masked_ppo), and mutants.

The tests do not need sb3-contrib.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.functional.distributions import MaskedCategoricals
from tests.golden import on_policy
from tests.golden.fixtures import arrays, check_numbers, part, settings, tensors
from tests.golden.mutants import Change, Mutant, swap
from tests.golden.on_policy import KnownOrder, check_parameters, injected
from tests.golden.test_ppo_golden import config_values
from tests.learning.assembly import assemble
from tests.rlcore.envs import probe_envs as probe_envs  # registers Probe/Masked-v0

FIXTURES = settings("masked_ppo")
KINDS = ("discrete", "multi_discrete")


def make_learner(kind: str) -> Any:
    initial = part(arrays(f"masked_ppo_{kind}"), "initial/")
    return on_policy.make_learner(ppo, config_values(FIXTURES["common"], 200), kind, initial, "64-true", masked=True)


def check_policy(kind: str) -> None:
    """Compare log-probabilities, entropies and values of 200 samples in float64."""
    content, learner = arrays(f"masked_ppo_{kind}"), make_learner(kind)
    samples, found = tensors(part(content, "samples/")), tensors(part(content, "found/"))
    policy, value = learner.agent({"state": samples["features"], "mask": samples["mask"]})
    ours = {"value": value, "logprob": policy.logprob(samples["action"]), "entropy": policy.entropy()}
    for name, expected in found.items():
        torch.testing.assert_close(ours[name], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_masked_policy_matches_sb3_contrib(kind: str) -> None:
    check_policy(kind)


def check_update(kind: str) -> None:
    """Compare weights, logged losses and gradient norm of one update in float64."""
    content, learner = arrays(f"masked_ppo_{kind}"), make_learner(kind)
    batch = injected(ppo.PPOSamples, learner, part(content, "samples/"))
    metrics = learner.update(batch, KnownOrder(content["orders"]))
    check_parameters(learner, part(content, "final/"), 1e-11)
    logged = part(content, "logged/")
    assert learner.updates == logged.pop("steps")
    check_numbers(metrics, {"Info/clip_fraction": logged.pop("clip_fraction")}, 1e-7)  # SB3 counts in float32
    expected = {f"Info/{name}" if name == "grad_norm" else f"Loss/{name}": value for name, value in logged.items()}
    check_numbers(metrics, expected, 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_masked_ppo_update_matches_sb3_contrib(kind: str) -> None:
    check_update(kind)


def check_zero_noise() -> None:
    """Check samples from noise of exactly 0, which float32 noise sometimes is."""
    allowed = torch.tensor([[False, True, False], [False, False, True]])
    policy = MaskedCategoricals(torch.zeros(2, 3), (3,), allowed)
    assert policy.sample(torch.zeros(2, 3)).tolist() == [[1], [2]]


def check_taken(greedy: bool) -> None:
    """Check that an untrained agent plays complete episodes; the environment raises an error at a forbidden action."""
    training = assemble("Probe/Masked-v0", {"name": "ppo", "total_steps": 1, "mlp_keys": {"encoder": ["x"]}})
    try:
        result = training.evaluate(4, greedy=greedy)
    except Exception as error:
        raise AssertionError(str(error)) from error
    finally:
        training.close()
    assert result["mean_length"] == 25


@pytest.mark.parametrize("greedy", [True, False])
def test_evaluation_takes_only_allowed_actions(greedy: bool) -> None:
    check_taken(greedy)


def forgotten(method: str) -> Change:
    """Use the policy without masks for one method of the masked policy."""
    free = f"setattr(self, '{method}', Categoricals(logits, B).{method})"
    return swap("super().__init__(A, B)", f"(super().__init__(A, B), {free})")


INIT, MODE = "MaskedCategoricals.__init__", "self.head.policy(A, B) if C else D"
DISTRIBUTION, UPDATE = (partial(check, "multi_discrete") for check in (check_policy, check_update))
MUTANTS = {
    "mask forgotten in the loss": Mutant(INIT, forgotten("logprob"), UPDATE),
    "mask forgotten in the entropy": Mutant(INIT, forgotten("entropy"), UPDATE),
    "mask forgotten in greedy evaluation": Mutant(INIT, forgotten("mode"), partial(check_taken, True)),
    "mask forgotten in sampling": Mutant(INIT, forgotten("sample"), partial(check_taken, False)),
    "mask forgotten by the agent": Mutant("ActorCritic.policy", swap(MODE, "D"), DISTRIBUTION),
    "mask upside down": Mutant("mask_logits", swap("~allowed", "allowed"), DISTRIBUTION),
    "forbidden choices only unlikely": Mutant("mask_logits", swap("torch.finfo(A).min / 2", "-3.0"), DISTRIBUTION),
    "masks of sub-actions in another order": Mutant(
        "allowed_choices", swap("torch.cat(allowed, -1)", "torch.cat(allowed[::-1], -1)"), DISTRIBUTION
    ),
    "mask before the noise": Mutant(
        "MaskedCategoricals.sample", swap("torch.where(A, noise, 1.0)", "noise"), check_zero_noise
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_golden_check_detects_mask_mutant(name: str) -> None:
    mutant = MUTANTS[name]
    with mutant.applied(), pytest.raises(AssertionError):
        mutant.check()
