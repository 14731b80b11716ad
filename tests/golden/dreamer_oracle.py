"""Parts of the checks of Dreamers against SheepRL: names of weights, learners, comparisons."""

from __future__ import annotations

import dataclasses
import re
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flows.config.compose import compose
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.config.build import build
from rlcore.config.groups import DistributionConfig, EnvConfig, RunConfig
from rlcore.functional.noise import Drawn
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.train.fabric import FabricRanks
from rlcore.types import Batch, Context, Trajectory
from tests.golden.oracle import fabric

TOLERANCE = 1e-5
BOX = ActionSpec("Box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0))
PLACES = {  # names of SheepRL's MLPs -> ours
    r"encoder\.mlp_encoder\.model": "encoder.mlp",
    r"rssm\.recurrent_model\.mlp": "rssm.core.inputs",
    r"rssm\.transition_model": "rssm.prior",
    r"observation_model\.mlp_decoder\.model": "decoder.mlp",
    "reward_model": "reward",
    "continue_model": "continue_head",
}
CONVOLUTIONS = {
    r"encoder\.cnn_encoder\.model\.0": "encoder.cnn",
    r"observation_model\.cnn_decoder\.model\.2": "decoder.cnn",
}
OTHERS = {
    r"rssm\.recurrent_model\.rnn\.linear": "rssm.core.cell.linear",
    r"rssm\.recurrent_model\.rnn\.layer_norm": "rssm.core.cell.norm",
    r"observation_model\.cnn_decoder\.model\.0": "decoder.cnn.project",
    r"observation_model\.mlp_decoder\.heads\.0": "decoder.heads.of_state",
}


class Names:
    """Map SheepRL's names of weights to ours.

    Args:
        layers: hidden layers of a head.
        normed: a LayerNorm is behind each hidden layer.
        width: of h, that the posterior sees; 0: it does not.
    """

    def __init__(self, layers: int, normed: bool, width: int) -> None:
        self.layers, self.each, self.width = layers, 3 if normed else 2, width

    def of(self, part_of: str, given: dict[str, np.ndarray]) -> dict[str, Tensor]:
        """Return weights, or gradients, of one part under our names."""
        named: dict[str, Tensor] = {}
        for name, value in given.items():
            name, tensor = name.replace("module.", "").replace("_forward_", ""), torch.from_numpy(value).double()
            if part_of in ("critic", "target"):
                named[self._layer(*re.findall(r"_model\.(\d+)\.(\w+)", name)[0], self.layers)] = tensor
            elif part_of == "actor":
                found = re.findall(r"model\._model\.(\d+)\.(\w+)", name)
                named[f"hidden.{self._layer(*found[0])}" if found else name.replace("mlp_heads", "heads")] = tensor
            elif re.fullmatch(r"rssm\.representation_model\._model\.0\.weight", name):
                if self.width:
                    named["rssm.core.deter_proj.weight"] = tensor[:, : self.width]
                named["rssm.feature_proj.weight"] = tensor[:, self.width :]
            else:
                named[self._in_world(name)] = tensor
        return named

    def _layer(self, place: str, kind: str, output: int = -1) -> str:
        """Map linear, (LayerNorm,) activation, ... and the output after the given number of layers to a `Dense`."""
        layer, rest = divmod(int(place), self.each)
        if layer == output:
            return f"output.{kind}"
        return f"hidden.{2 * layer}.{kind}" if not rest else f"hidden.{2 * layer + 1}.norm.{kind}"

    def _in_world(self, name: str) -> str:
        for pattern, own in PLACES.items():
            if found := re.fullmatch(rf"{pattern}\._model\.(\d+)\.(\w+)", name):
                output = {"rssm.prior": 1, "reward": self.layers, "continue_head": self.layers}.get(own, -1)
                return f"{own}.{self._layer(*found.groups(), output)}"
        for pattern, own in CONVOLUTIONS.items():
            if found := re.fullmatch(rf"{pattern}\._model\.(\d+)\.(\w+)", name):
                stage, rest = divmod(int(found[1]), self.each)
                return (
                    f"{own}.layers.{2 * stage}.{found[2]}"
                    if not rest
                    else f"{own}.layers.{2 * stage + 1}.inner.norm.{found[2]}"
                )
        for pattern, own in OTHERS.items():
            if found := re.fullmatch(rf"{pattern}\.(\w+)", name):
                return f"{own}.{found[1]}"
        if found := re.fullmatch(r"rssm\.representation_model\._model\.(\d+)\.(\w+)", name):
            place = {0: "rssm.feature_proj", self.each: "rssm.core.output"}.get(int(found[1]), "rssm.core.norm.norm")
            return f"{place}.{found[2]}"
        if name == "rssm.initial_recurrent_state":
            return "rssm.begin"
        raise KeyError(name)


def make_learner(module: ModuleType, typed: list[str], nvec: tuple[int, ...], side: int) -> Any:
    """Return a learner in float64; every key of SheepRL has the same name here."""
    return make_parts(module, typed, nvec, side)[0]


def make_parts(module: ModuleType, typed: list[str], nvec: tuple[int, ...], side: int) -> tuple[Any, Any, Any]:
    """Return learner, buffer and plan as in a run."""
    obs = {"rgb": ArraySpec((3, side, side), "uint8", kind="image"), "state": ArraySpec((4,), "float32")}
    action = ActionSpec("MultiDiscrete", (len(nvec),), "int64", nvec=nvec, start=(0,) * len(nvec)) if nvec else BOX
    spec, tree, made = EnvSpec("Golden-v0", obs, action), compose(typed)[1], fabric("64-true")
    run = RunConfig(
        algo=build(module.Config, tree["algo"], "algo."),
        env=EnvConfig(id=spec.id, num_envs=1),
        distribution=DistributionConfig(type=tree["distribution"]["type"]),
    )
    return module.build(Context(run, spec, made, FabricRanks(made), num_envs=1))


def type_keys(changes: dict[str, Any]) -> list[str]:
    """Return overrides as on the command line."""
    return [f"{key}={'null' if value is None else value}" for key, value in changes.items()]


def given_step(learner: Any, batch: Batch) -> tuple[Any, ...]:
    """Return the inputs of a gradient step as an update makes them from a batch."""
    steps: list[Any] = []
    learner.step = lambda *given, rng: steps.append(given) or {}
    learner.update(batch, np.random.default_rng(0))
    return steps[0]


class Case(NamedTuple):
    """One batch of SheepRL: a learner with its weights, the noise of its samples, and its gradients and metrics."""

    learner: Any
    parts: dict[str, Any]
    batch: Batch
    noise: dict[str, Tensor]  # in the order in which a gradient step draws it
    gradients: dict[str, dict[str, Tensor]]
    metrics: dict[str, np.ndarray]

    def check_losses(self) -> tuple[Any, Any]:
        """Check losses, gradients and metrics against SheepRL; return inputs of the step and outputs of the actor."""
        learner, step = self.learner, given_step(self.learner, self.batch)
        model = learner.model_loss(step[0], Drawn(iter([self.noise["observed"]])))
        imagined = Drawn(iter([self.noise["action"], self.noise["imagined"]]))
        policy = learner.behavior.actor_objective(ModelState(**model[3]), step[0].terminated, imagined)
        found = (model, policy, learner.behavior.critic_objective(policy[3]))
        for name, loss in zip(self.gradients, found, strict=True):
            compare_gradients(name, self.parts[name], loss, self.gradients[name])
        logged = found[0][2] | found[1][2] | found[2][2]
        for name, expected in self.metrics.items():
            near(name, logged[name], expected)
        return step, policy[3]

    def check_update(self, policy_steps: int, amount: float | None) -> None:
        """Check that an update with learning rate 0 logs SheepRL's metrics, gradient norms and the noise amount."""
        learner = self.learner
        for optimizer in (learner.world_optimizer, learner.behavior.actor_optimizer, learner.behavior.critic_optimizer):
            optimizer.set_lr(0.0)
        learner.noise, learner.updates = Drawn(iter(self.noise.values())), 1  # after the copy of the target critic
        found = learner.update(dataclasses.replace(self.batch, policy_steps=policy_steps), np.random.default_rng(0))
        expected: dict[str, Any] = dict(self.metrics)
        for name, part in (("world_model", "world"), ("actor", "actor"), ("critic", "critic")):
            own = [self.gradients[part][key].flatten() for key, _ in self.parts[part].named_parameters()]
            expected[f"Grads/{name}"] = torch.cat(own).norm()
        if amount is not None:
            expected["Params/exploration_amount"] = amount
        assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
        for name, value in expected.items():
            near(name, found[name], value)


def compare_gradients(name: str, module: torch.nn.Module, found: Any, expected: dict[str, Tensor]) -> None:
    """Compare the gradients of a loss, as an optimizer takes it, with those of SheepRL."""
    total, weight = found[:2]
    names, parameters = zip(*module.named_parameters(), strict=True)
    gradients = torch.autograd.grad(total / weight, parameters, retain_graph=True, allow_unused=True)
    expected = {key: value for key, value in expected.items() if key in names}
    assert expected.keys() == {*names}, expected.keys() ^ {*names}
    for key, p, gradient in zip(names, parameters, gradients, strict=True):
        near(f"gradient of {name}.{key}", torch.zeros_like(p) if gradient is None else gradient, expected[key])


def near(what: str, found: Tensor, expected: Any, within: float = TOLERANCE) -> None:
    """Refuse a difference above a tolerance, relative to the expected value and to one."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    found = found.detach().double()
    assert found.shape == expected.shape, (what, found.shape, expected.shape)
    gap = ((found - expected).abs() / expected.abs().clamp(min=1)).max().item()
    assert gap < within, f"{what} differs by {gap:.1e}"


def noise_of(content: dict[str, np.ndarray], nvec: tuple[int, ...], horizon: int) -> dict[str, Tensor]:
    """Return the noise of SheepRL's samples in the order in which our gradient step draws it."""
    count = content["returns"].shape[1]
    return {
        "observed": torch.from_numpy(content["noise/observed"]),
        "action": noise_of_actions(content, nvec, horizon, count),
        "imagined": torch.from_numpy(content["noise/imagined"]).view(horizon, count, -1),
    }


def noise_of_actions(content: dict[str, np.ndarray], nvec: tuple[int, ...], horizon: int, count: int) -> Tensor:
    """Return noise with which our actor samples SheepRL's actions: nearly zero for the sampled class."""
    if "noise/normal" in content:
        return torch.from_numpy(content["noise/normal"])[:horizon].double()
    parts = [
        torch.where(torch.nn.functional.one_hot(torch.from_numpy(content[f"noise/choice{i}"]), n) > 0, 1e-9, 1.0)
        for i, n in enumerate(nvec)
    ]
    return torch.cat(parts, -1)[:horizon].view(horizon, count, -1)


def batch_of(given: dict[str, np.ndarray], nvec: tuple[int, ...]) -> Batch:
    """Return rows [L, N] as a replay buffer gives them."""
    held = {key: torch.from_numpy(value) for key, value in given.items()}
    flags = {key: held[key].squeeze(-1).bool() for key in ("terminated", "is_first")}
    said = held["actions"]
    if nvec:
        said = torch.stack([choice.argmax(-1) for choice in said.split(nvec, -1)], -1)
    # SheepRL's model has no truncation: a truncated episode continues.
    reward, cut = held["rewards"].squeeze(-1), torch.zeros_like(flags["terminated"])
    cut[1, 2] = True
    obs = {key: held[key] for key in ("rgb", "state") if key in held}
    steps = Trajectory(obs, said, reward, flags["terminated"], cut, flags["is_first"])
    return Batch(steps, steps, 0)
