"""Write more golden values of Dreamer V3: losses of TorchRL for given logits, states and actions.

torchrl_dreamer_v3.npz    `settings/`, `model/`, `imagined/`: the inputs; `expected/`: every loss, weight, λ-return
                          and gradient, in float64

DreamerV3ModelLoss gets logits of states, rewards and ends instead of a world model; DreamerV3ActorLoss and
DreamerV3ValueLoss get imagined states with linear reward, value, ends and policy. Where it has the formulas of
arXiv:2301.04104v1, its keys are set to them; it differs from them, and is configured otherwise here, in

    two-hot             bins in raw space (arXiv:2301.04104v2): ours is `TwoHot(bins, "symexp")` here
    kl_mode             "separate": "balanced", its default, clips each categorical by itself
    reco_symlog         false: true reconstructs in symlog space, not only the target
    ends                their probabilities: it gets 0 and 1 of the more likely class, and the truth for the first
    actions             REINFORCE: along the gradient of the model it leaves out the baseline
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor, nn
from torch.distributions import OneHotCategorical
from torchrl.modules.models.model_based import two_hot_decode
from torchrl.objectives import DreamerV3ActorLoss, DreamerV3ModelLoss, DreamerV3ValueLoss

from tests.golden.fixtures import tensors
from tests.golden.makers.files import write_arrays

LENGTH, COUNT, LATENTS, CLASSES = 6, 5, 3, 4  # L, N, S, K of the model batch
HORIZON, STATES, SIZE, CHOICES, BINS = 5, 24, 6, 4, 41  # H, N, F, A of the imagined states; bins of a number
SETTINGS: dict[str, float] = {
    "gamma": 0.97,
    "lmbda": 0.9,
    "coef": 0.05,
    "unimix": 0.01,
    "nats": 0.6,
    "dynamic": 0.5,
    "representation": 0.1,
    "decay": 0.99,
}
SCALES = {"wide": (-3.0, 30.0), "narrow": (0.1, 0.4)}  # initial percentiles: a range above 1, and one below


def draw(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return random inputs by their names in the file."""
    bell = -0.5 * np.square(np.arange(BINS) - BINS // 2)  # so that no number lies in the outermost bins
    given = {
        "model/posterior": rng.normal(size=(LENGTH, COUNT, LATENTS, CLASSES)),
        "model/prior": rng.normal(size=(LENGTH, COUNT, LATENTS, CLASSES)),
        "model/guess": rng.normal(size=(LENGTH, COUNT, 7)),
        "model/seen": rng.normal(size=(LENGTH, COUNT, 7)),
        "model/reward_logits": rng.normal(size=(LENGTH, COUNT, BINS)),
        "model/reward": 10 * rng.normal(size=(LENGTH, COUNT)),
        "model/continue_logits": rng.normal(size=(LENGTH, COUNT)),
        "model/terminated": rng.random((LENGTH, COUNT)) < 0.3,
        "imagined/feat": rng.normal(size=(HORIZON + 1, STATES, SIZE)),
        "imagined/action": rng.integers(CHOICES, size=(HORIZON, STATES)),
        "imagined/terminated": rng.random(STATES) < 0.2,
        "imagined/bell": bell,
        "imagined/ends": 2 * rng.normal(size=SIZE),
    }
    sizes = {"reward": BINS, "critic": BINS, "slow": BINS, "actor": CHOICES}
    return given | {f"imagined/{name}": 0.7 * rng.normal(size=(SIZE, size)) for name, size in sizes.items()}


def symexp_bins() -> Tensor:
    """Return the grid of TorchRL in float64; it computes it in float32."""
    grid = torch.linspace(-20, 20, BINS, dtype=torch.float64)
    return grid.sign() * grid.abs().expm1()


class Given(nn.Module):
    """Replacement of a world model or environment that returns given tensors."""

    def __init__(self, imagined: TensorDict | None = None) -> None:
        super().__init__()
        self.imagined = imagined

    def forward(self, given: TensorDict) -> TensorDict:
        return given

    def reset(self, given: TensorDict) -> TensorDict:
        return given

    def rollout(self, **how: Any) -> TensorDict | None:
        return self.imagined


class Value(nn.Module):
    """Logits of a number that is linear in the states, and the number."""

    def __init__(self, weight: Tensor, bell: Tensor) -> None:
        super().__init__()
        self.weight, self.bell = nn.Parameter(weight.clone()), bell

    def forward(self, feat: Tensor) -> tuple[Tensor, Tensor]:
        logits = feat @ self.weight + self.bell
        return logits, two_hot_decode(logits, symexp_bins()).unsqueeze(-1)


class Choice(nn.Module):
    """Logits of a discrete action with a share of the uniform distribution."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())

    def forward(self, feat: Tensor) -> Tensor:
        p, share = (feat @ self.weight).softmax(-1), SETTINGS["unimix"]
        return ((1 - share) * p + share / CHOICES).log()


def of_model(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the terms of the model loss, and the gradient of their sum with respect to each logit."""
    names = ("posterior", "prior", "guess", "reward_logits", "continue_logits")
    leaves = {name: given[f"model/{name}"].clone().requires_grad_() for name in names}
    loss = DreamerV3ModelLoss(
        Given(),
        kl_mode="separate",
        lambda_dynamic=SETTINGS["dynamic"],
        lambda_representation=SETTINGS["representation"],
        lambda_continue=1.0,
        unimix=SETTINGS["unimix"],
        free_bits=SETTINGS["nats"],
        reco_symlog=False,
        num_reward_bins=BINS,
    )
    loss.reward_bins = symexp_bins()
    keys = loss.tensor_keys
    rows = {
        keys.posterior_logits: leaves["posterior"],
        keys.prior_logits: leaves["prior"],
        keys.pixels: given["model/seen"],
        keys.reco_pixels: leaves["guess"],
        keys.reward: given["model/reward"].unsqueeze(-1),
        keys.reward_logits: leaves["reward_logits"],
        keys.continue_pred: leaves["continue_logits"].unsqueeze(-1),
        keys.terminated: given["model/terminated"].bool().unsqueeze(-1),
    }
    found, _ = loss(TensorDict({"next": TensorDict(rows, (LENGTH, COUNT))}, (LENGTH, COUNT)))
    terms = {name.removeprefix("loss_model_"): term.squeeze() for name, term in found.items()}
    gradients = torch.autograd.grad(torch.stack([*terms.values()]).sum(), [*leaves.values()])
    return {f"model/{name}": value for name, value in terms.items()} | {
        f"model/gradient/{name}": value for name, value in zip(names, gradients, strict=True)
    }


def of_imagined(given: dict[str, Tensor], low: float, high: float) -> dict[str, Tensor]:
    """Return actor and critic losses on imagined states, λ-returns, weights, gradients and the return scale."""
    held = {name.removeprefix("imagined/"): value for name, value in given.items() if name.startswith("imagined/")}
    feat = held["feat"].transpose(0, 1)  # [N, H+1, F]
    continues = (feat @ held["ends"] > 0).double()
    continues[:, 0] = 1 - held["terminated"].double()
    reward = two_hot_decode(feat @ held["reward"] + held["bell"], symexp_bins())
    ended = torch.zeros(STATES, HORIZON, 1, dtype=torch.bool)
    after = {
        "state": feat[:, 1:],
        "belief": continues[:, 1:, None],
        "reward": reward[:, 1:, None],
        "done": ended,
        "terminated": ended,
    }
    rows = {
        "state": feat[:, :-1],
        "belief": continues[:, :-1, None],
        "action": nn.functional.one_hot(held["action"].long().T, CHOICES).double(),
        "next": TensorDict(after, (STATES, HORIZON)),
    }
    critic = TensorDictModule(
        Value(held["critic"], held["bell"]), in_keys=["state"], out_keys=["state_value_logits", "state_value"]
    )
    actor = ProbabilisticTensorDictSequential(
        TensorDictModule(Choice(held["actor"]), in_keys=["state"], out_keys=["logits"]),
        ProbabilisticTensorDictModule(["logits"], ["action"], distribution_class=OneHotCategorical),
    )
    loss = DreamerV3ActorLoss(
        actor,
        critic,
        Given(TensorDict(rows, (STATES, HORIZON))),
        continuation_model=TensorDictModule(nn.Identity(), in_keys=["belief"], out_keys=["continuation"]),
        imagination_horizon=HORIZON,
        entropy_bonus=SETTINGS["coef"],
        use_reinforce=True,
        return_normalization_rate=1 - SETTINGS["decay"],
    ).double()
    loss.make_value_estimator(gamma=SETTINGS["gamma"], lmbda=SETTINGS["lmbda"])
    loss.double()
    loss.retnorm.low.fill_(low)
    loss.retnorm.high.fill_(high)
    start = TensorDict({"state": feat[:, 0], "belief": continues[:, 0, None]}, (STATES,))
    acted, imagined = loss(start)
    (of_actor,) = torch.autograd.grad(acted["loss_actor"], [*actor.parameters()])

    valued = DreamerV3ValueLoss(critic, "two_hot", num_value_bins=BINS, slow_critic_regularization=1.0)
    valued.value_bins = symexp_bins()
    for target in valued.target_value_model_params.values(True, True):
        target.data.copy_(held["slow"])
    losses, _ = valued(imagined)
    (of_critic,) = torch.autograd.grad(losses["loss_value"], [*valued.value_model_params.values(True, True)])
    return {
        "policy": acted["loss_actor"],
        "value": losses["loss_value"],
        "returns": imagined["lambda_target"].squeeze(-1).T,
        "weight": imagined["discount_weight"].squeeze(-1).T,
        "low": acted["return_low"],
        "high": acted["return_high"],
        "gradient/actor": of_actor,
        "gradient/critic": of_critic,
    }


def main() -> None:
    """Write the fixture."""
    torch.set_num_threads(1)
    content: dict[str, Any] = draw(np.random.default_rng(0))
    given = tensors(content)
    expected = of_model(given)
    for scale, (low, high) in SCALES.items():
        expected |= {f"{scale}/{name}": value for name, value in of_imagined(given, low, high).items()}
        content |= {f"scales/{scale}": np.array([low, high])}
    content |= {f"settings/{name}": np.float64(value) for name, value in SETTINGS.items()}
    content |= {f"expected/{name}": value.detach().numpy() for name, value in expected.items()}
    write_arrays("torchrl_dreamer_v3", content)


if __name__ == "__main__":
    main()
