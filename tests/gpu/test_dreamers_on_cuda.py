"""Dreamers on a GPU, compared with the CPU. Skipped without a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcore import streams
from rlcore.algorithms import ALGORITHMS
from rlcore.compiler import Compiler
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig, FabricConfig
from rlcore.config.run import RunConfig
from rlcore.functional.noise import Noise
from rlcore.functional.tree import map_leaves
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.train.fabric import FabricRanks, make_fabric
from rlcore.types import Batch, Context, Trajectory
from tests.runs import SMALL_DREAMER, SMALL_DREAMER_V1, SMALL_DREAMER_V2, SMALL_DREAMER_V3_5

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device on this machine")

LENGTH, COUNT = 6, 4
OBS = {"rgb": ArraySpec((16, 16, 3), "uint8", kind="image"), "state": ArraySpec((4,), "float32")}
BOX = ActionSpec("Box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0))
CHOICE = ActionSpec("Discrete", (), "int64", nvec=(3,), start=(0,))
SIZES = {
    "dreamer_v1": SMALL_DREAMER_V1,
    "dreamer_v2": SMALL_DREAMER_V2,
    "dreamer_v3": SMALL_DREAMER,
    "dreamer_v3_5": SMALL_DREAMER_V3_5,
}
CASES = [
    ("dreamer_v1", BOX),
    ("dreamer_v2", CHOICE),
    ("dreamer_v3", CHOICE),
    ("dreamer_v3", BOX),
    ("dreamer_v3_5", CHOICE),
]
EVERY = pytest.mark.parametrize(("algo", "action"), CASES, ids=lambda x: getattr(x, "space", x))


class FromHost(Noise):
    """Noise stream that is drawn on the CPU and moved to a device, with the numbers of the CPU."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(0, "probe")
        self.to = device

    def normal(self, *shape: int) -> Tensor:
        """Standard normal."""
        return super().normal(*shape).to(self.to)

    def exponential(self, *shape: int) -> Tensor:
        """Standard exponential."""
        return super().exponential(*shape).to(self.to)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform in [0, 1)."""
        return super().uniform(*shape).to(self.to)


@pytest.fixture(autouse=True)
def switches(switches_put_back: None) -> None:
    """Use deterministic convolutions like a run, and no TF32, whose three digits could change a sampled class."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True


def learner_on(accelerator: str, algo: str, action: ActionSpec, records: bool = False) -> Any:
    fabric = make_fabric(FabricConfig(accelerator=accelerator))
    keys = {"horizon": 3, "dense_units": 8, "total_steps": 10_000} | SIZES[algo]
    # V1 and V2 accept only images of 64 × 64.
    keys |= {
        "cnn_keys": {"encoder": ["rgb"] if algo.startswith("dreamer_v3") else []},
        "mlp_keys": {"encoder": ["state"]},
    }
    run = RunConfig(algo=build(ALGORITHMS[algo].Config, keys, "algo."), env=EnvConfig(id="probe"), seed=0)
    spec = EnvSpec("probe", OBS, action)
    compiler = Compiler(run, spec, (COUNT, 1), records=True) if records else None
    return ALGORITHMS[algo].build(Context(run, spec, fabric, FabricRanks(fabric), COUNT, compiler))[0]


def update(learner: Any, n: int) -> dict[str, float]:
    """Take the n-th gradient step on its own rows."""
    rng, device = np.random.default_rng(n), next(learner.agent.parameters()).device
    action = torch.from_numpy(rng.integers(3, size=(LENGTH, COUNT, 1)))
    if learner.agent.actor.action.continuous:
        action = torch.from_numpy(rng.uniform(-1, 1, (LENGTH, COUNT, 2)).astype(np.float32))
    obs = {
        "rgb": torch.from_numpy(rng.integers(256, size=(LENGTH, COUNT, 16, 16, 3)).astype(np.uint8)),
        "state": torch.from_numpy(rng.standard_normal((LENGTH, COUNT, 4), dtype=np.float32)),
    }
    reward = torch.from_numpy(rng.standard_normal((LENGTH, COUNT), dtype=np.float32))
    ended, first, none = (torch.zeros(LENGTH, COUNT, dtype=torch.bool) for _ in range(3))
    ended[2, 1] = first[3, 1] = True
    steps = map_leaves(lambda t: t.to(device), Trajectory(obs, action, reward, ended, none, first))
    metrics = learner.update(Batch(steps, steps, 0), streams.generator(0, "minibatch"))
    return {name: float(value) for name, value in metrics.items()}


def parameters(learner: Any) -> list[Tensor]:
    """Return the parameters of agent, critic and target critic."""
    slow = [] if learner.behavior.target is None else [*learner.behavior.target_critic.parameters()]
    return [*learner.agent.parameters(), *learner.behavior.critic.parameters(), *slow]


@EVERY
def test_dreamer_update_on_gpu_matches_cpu(algo: str, action: ActionSpec) -> None:
    found = list[dict[str, float]]()
    for accelerator in ("cpu", "cuda"):
        learner = learner_on(accelerator, algo, action)
        learner.noise = FromHost(next(learner.agent.parameters()).device)
        found.append(update(learner, 0))
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        assert found[1][name] == pytest.approx(value, rel=2e-3, abs=2e-4), name


@EVERY
@pytest.mark.parametrize("records", [False, True], ids=["as it is written", "recorded"])
def test_dreamer_updates_on_gpu_resume_to_same_bits(algo: str, action: ActionSpec, records: bool) -> None:
    whole, first, second = (learner_on("cuda", algo, action, records) for _ in range(3))
    for n in range(4):
        update(whole, n)
    for n in range(2):
        update(first, n)
    second.load_state_dict(first.state_dict())
    for n in (2, 3):
        update(second, n)
    assert whole.step.compiled == second.step.compiled == records
    for one, other in zip(parameters(whole), parameters(second), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(whole.noise.uniform(9), second.noise.uniform(9))


@EVERY
def test_recorded_dreamer_updates_match_eager(algo: str, action: ActionSpec) -> None:
    eager, recorded = (learner_on("cuda", algo, action, records) for records in (False, True))
    for n in range(3):
        expected, found = update(eager, n), update(recorded, n)
        assert expected.keys() == found.keys()
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-2, abs=1e-3), (n, name)
