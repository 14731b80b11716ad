"""The same learning on a GPU. Skipped, with the reason, where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcore import streams
from rlcore.algorithms import ppo
from rlcore.config.groups import FabricConfig
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.train.fabric import make_fabric
from rlcore.types import Batch, Steps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device on this machine")

SPEC = EnvSpec(
    "probe",
    {"state": ArraySpec((4,), "float32")},
    ActionSpec("Box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0)),
)
CONFIG = ppo.Config(total_steps=1000, normalize_obs=True, normalize_reward=True, max_grad_norm=0.5)


def learner_on(accelerator: str, precision: str = "32-true") -> ppo.Learner:
    fabric = make_fabric(FabricConfig(accelerator=accelerator, precision=precision))
    return ppo.build(CONFIG, "auto", SPEC, fabric, seed=0)[0]


def rollout(learner: ppo.Learner, length: int = 32, envs: int = 4) -> Batch:
    rng, device = streams.generator(0, "policy"), learner.fabric.device
    obs = torch.from_numpy(np.random.default_rng(1).standard_normal((length + 1, envs, 4), dtype=np.float32)).to(device)
    said = []
    with torch.no_grad(), learner.fabric.autocast():
        for t in range(length):
            _, action, extras = learner.agent.act((), {"state": obs[t]}, torch.zeros(envs), rng)
            said.append((action, extras))
    flags = torch.zeros(length + 1, envs, dtype=torch.bool, device=device)
    flags[10, 0] = True
    reward = obs[..., 0]
    extras = {key: torch.stack([e[key] for _, e in said]) for key in ("logprob", "value")}
    action = torch.stack([a for a, _ in said])
    none = torch.zeros_like(flags)
    steps = Steps({"state": obs[:-1]}, action, reward[:-1], flags[:-1], none[:-1], none[:-1], extras)
    last = Steps({"state": obs[-1]}, action[-1], reward[-1], flags[-1], none[-1], none[-1])
    return Batch(steps, last, 0)


def updated(learner: ppo.Learner) -> dict[str, float]:
    return learner.update(rollout(learner), streams.generator(0, "minibatch"))


def test_first_weights_and_noise_are_those_of_the_cpu() -> None:
    cpu, cuda = learner_on("cpu"), learner_on("cuda")
    for name, parameter in cpu.agent.named_parameters():
        assert torch.equal(parameter, cuda.agent.get_parameter(name).cpu()), name
    torch.testing.assert_close(rollout(cpu).steps.action, rollout(cuda).steps.action.cpu(), rtol=1e-4, atol=1e-4)


def test_update_agrees_with_the_cpu() -> None:
    cpu, cuda = updated(learner_on("cpu")), updated(learner_on("cuda"))
    for name in ("Loss/policy_loss", "Loss/value_loss", "Loss/entropy_loss", "Info/grad_norm"):
        assert cuda[name] == pytest.approx(cpu[name], rel=2e-2, abs=2e-3), name


def test_update_twice_gives_the_same_bits() -> None:
    first, second = learner_on("cuda"), learner_on("cuda")
    updated(first)
    updated(second)
    for name, parameter in first.agent.named_parameters():
        assert torch.equal(parameter, second.agent.get_parameter(name)), name


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-mixed"])
def test_reduced_precision_trains(precision: str) -> None:
    learner = learner_on("cuda", precision)
    before = [p.clone() for p in learner.agent.parameters()]
    metrics = updated(learner)
    assert all(np.isfinite(v) for v in metrics.values())
    assert any(not torch.equal(a, b) for a, b in zip(before, learner.agent.parameters(), strict=True))
    learner.load_state_dict(learner.state_dict())
