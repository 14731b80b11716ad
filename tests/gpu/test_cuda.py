"""Learning on a GPU, compared with the CPU. Skipped without a GPU."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from rlcore import streams
from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.compiler import Compiler
from rlcore.config.groups import EnvConfig, FabricConfig
from rlcore.config.run import RunConfig
from rlcore.data.replay import Replay
from rlcore.data.samplers import Transitions
from rlcore.functional.noise import Noise
from rlcore.functional.tree import map_leaves
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.train.fabric import FabricRanks, make_fabric
from rlcore.types import Batch, Context, Trajectory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device on this machine")

SPEC = EnvSpec(
    "probe",
    {"state": ArraySpec((4,), "float32")},
    ActionSpec("Box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0)),
)
CONFIG = ppo.Config(total_steps=1000, normalize_obs=True, normalize_reward=True, max_grad_norm=0.5)


def learner_on(accelerator: str, precision: str = "32-true", records: bool = False) -> ppo.Learner:
    fabric = make_fabric(FabricConfig(accelerator=accelerator, precision=precision))
    run = RunConfig(algo=CONFIG, env=EnvConfig(id="probe"), seed=0)
    compiler = Compiler(run, SPEC, (4, 1), records=True) if records else None
    return ppo.build(Context(run, SPEC, fabric, FabricRanks(fabric), 4, compiler))[0]


def rollout(length: int = 32, envs: int = 4) -> Batch:
    """Return a rollout with random observations and actions of the learner on the CPU."""
    learner, rng = learner_on("cpu"), Noise(0, "policy")
    obs = torch.from_numpy(np.random.default_rng(1).standard_normal((length + 1, envs, 4), dtype=np.float32))
    with torch.no_grad():
        outputs = [learner.agent.act((), {"state": obs[t]}, torch.zeros(envs), rng)[1:] for t in range(length)]
    flags = torch.zeros(length + 1, envs, dtype=torch.bool)
    flags[10, 0] = True
    reward = obs[..., 0]
    extras = {key: torch.stack([e[key] for _, e in outputs]) for key in ("logprob", "value")}
    action = torch.stack([a for a, _ in outputs])
    none = torch.zeros_like(flags)
    steps = Trajectory({"state": obs[:-1]}, action, reward[:-1], flags[:-1], none[:-1], none[:-1], extras)
    last = Trajectory({"state": obs[-1]}, action[-1], reward[-1], flags[-1], none[-1], none[-1])
    return Batch(steps, last, 0)


def update(learner: ppo.Learner) -> dict[str, float]:
    device, batch = next(learner.agent.parameters()).device, rollout()
    steps, last = (to_device(part, device) for part in (batch.steps, batch.last))
    metrics = learner.update(Batch(steps, last, 0), streams.generator(0, "minibatch"))
    return {name: float(value) for name, value in metrics.items()}


def to_device(steps: Trajectory, device: torch.device) -> Trajectory:
    return map_leaves(lambda t: t.to(device), steps)


def test_initial_weights_on_gpu_equal_cpu() -> None:
    cpu, cuda = learner_on("cpu"), learner_on("cuda")
    for name, parameter in cpu.agent.named_parameters():
        assert torch.equal(parameter, cuda.agent.get_parameter(name).cpu()), name


def test_noise_on_gpu_is_reproducible_and_resumes() -> None:
    first, second = Noise(0, "policy", device="cuda"), Noise(0, "policy", device="cuda")
    assert first.normal(5).device.type == "cuda"
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.exponential(3, 2), second.exponential(3, 2))
    assert not torch.equal(Noise(1, "policy", device="cuda").uniform(9), Noise(0, "policy", device="cuda").uniform(9))


def test_update_on_gpu_matches_cpu() -> None:
    cpu, cuda = update(learner_on("cpu")), update(learner_on("cuda"))
    for name in ("Loss/policy_loss", "Loss/value_loss", "Loss/entropy_loss", "Info/grad_norm"):
        assert cuda[name] == pytest.approx(cpu[name], rel=2e-2, abs=2e-3), name


def test_update_on_gpu_is_deterministic() -> None:
    first, second = learner_on("cuda"), learner_on("cuda")
    update(first)
    update(second)
    for name, parameter in first.agent.named_parameters():
        assert torch.equal(parameter, second.agent.get_parameter(name)), name


def test_recorded_update_matches_eager_and_resumes() -> None:
    eager, whole, first, second = (learner_on("cuda", records=n > 0) for n in range(4))
    for each in (eager, whole, first):
        update(each)
    second.load_state_dict(first.state_dict())
    for each in (eager, whole, second):
        update(each)
    assert whole.step.compiled and second.step.compiled
    for one, other, third in zip(*(each.agent.parameters() for each in (eager, whole, second)), strict=True):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)
        assert torch.equal(other, third)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "16-mixed"])
def test_reduced_precision_update_is_finite(precision: str) -> None:
    learner = learner_on("cuda", precision)
    before = [p.clone() for p in learner.agent.parameters()]
    metrics = update(learner)
    if precision == "16-mixed":
        del metrics["Info/grad_norm"]  # the initial loss scale overflows, and such steps are skipped
    assert all(np.isfinite(list(metrics.values())))
    assert any(not torch.equal(a, b) for a, b in zip(before, learner.agent.parameters(), strict=True))
    learner.load_state_dict(learner.state_dict())


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("device", ["cuda", "cpu"], ids=["rows on the GPU", "rows on the host"])
@pytest.mark.parametrize("length", [1, 3])
def test_replay_batches_are_drawn_without_synchronization(device: str, length: int) -> None:
    fabric = make_fabric(FabricConfig(accelerator="cuda"))
    run = RunConfig(algo=CONFIG, env=EnvConfig(id="probe"), seed=0)
    context = Context(run, SPEC, fabric, FabricRanks(fabric), num_envs=4)
    replay, plain = (Replay(context, Transitions(length), size=20, batch_size=64, device=d) for d in (device, "cpu"))
    batch = rollout()
    for each in (replay, plain):
        each.extend(batch.steps, batch.last)
    batches = replay.batches(0)
    next(batches)  # pinned memory is allocated once
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        taken = [next(batches) for _ in range(5)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    wanted = list(itertools.islice(plain.batches(0), 6))[1:]
    for one, other in zip(taken, wanted, strict=True):
        assert torch.equal(one.steps.obs["state"].cpu(), other.steps.obs["state"].cpu())
