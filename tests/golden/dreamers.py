"""Checks of Dreamers against SheepRL: names of weights, learners, comparisons, and mutants of all versions."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from flows.config.compose import compose
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.functional.noise import Drawn
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.types import Batch, Trajectory
from tests.golden.fixtures import part, tensors
from tests.golden.mutants import Mutant, swap
from tests.learning.assembly import context

TOLERANCE = 1e-5
Check = Callable[[], None]
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
    spec, tree = EnvSpec("Golden-v0", obs, action), composed(tuple(typed))
    return module.build(context(tree["algo"], spec, 1, precision="64-true", distribution=tree["distribution"]["type"]))


@functools.cache
def composed(typed: tuple[str, ...]) -> dict[str, Any]:
    """Return the config of overrides as nested dicts; no mutant changes a function of the composition."""
    return compose(typed)[1]


def type_keys(changes: dict[str, Any]) -> list[str]:
    """Return overrides as on the command line."""
    return [f"{key}={'null' if value is None else value}" for key, value in changes.items()]


class RecordedStep:
    """Gradient step of a learner that records its inputs and changes nothing."""

    def __init__(self) -> None:
        self.inputs: list[tuple[Any, ...]] = []
        self.aux: dict[str, Any] = {}

    def __call__(self, *inputs: Any, rng: Any) -> dict[str, Any]:
        self.inputs.append(inputs)
        return {}


def given_step(learner: Any, batch: Batch) -> tuple[Any, ...]:
    """Return the inputs of a gradient step as an update makes them from a batch."""
    learner.step = step = RecordedStep()
    learner.update(batch, np.random.default_rng(0))
    return step.inputs[0]


class Case(NamedTuple):
    """One batch of SheepRL: a learner with its weights, the noise of its samples, and its results.

    Attributes:
        learner: with SheepRL's weights.
        parts: its modules by SheepRL's names.
        batch: input of an update.
        noise: of SheepRL's samples, in the order in which a gradient step draws it.
        gradients: of world, actor and critic.
        content: the golden values of the variant.
    """

    learner: Any
    parts: dict[str, Any]
    batch: Batch
    noise: dict[str, Tensor]
    gradients: dict[str, dict[str, Tensor]]
    content: dict[str, np.ndarray]

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        return part(self.content, "metrics/")

    def check_losses(self) -> tuple[Any, Any]:
        """Check losses, gradients, metrics, λ-returns and weights against SheepRL.

        Returns:
            (inputs of the gradient step, outputs of the actor's objective).
        """
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
        returns, weight = policy[3]["returns"], policy[3]["weight"]
        near("λ-returns", returns, self.content["returns"].squeeze(-1))
        near("weights", weight, self.content["discount"].squeeze(-1)[: len(self.content["returns"])])
        return step, policy[3]

    def check_update(self, policy_steps: int, amount: float | None) -> None:
        """Check that an update with learning rate 0 logs SheepRL's metrics, gradient norms and the noise amount."""
        learner = self.learner
        for optimizer in (learner.world_optimizer, learner.behavior.actor_optimizer, learner.behavior.critic_optimizer):
            optimizer.set_lr(0.0)
        learner.noise, learner.updates = Drawn(iter(self.noise.values())), 1  # after the copy of the target critic
        found = learner.update(dataclasses.replace(self.batch, policy_steps=policy_steps), np.random.default_rng(0))
        expected: dict[str, Any] = dict(self.metrics)
        for name, place in (("world_model", "world"), ("actor", "actor"), ("critic", "critic")):
            own = [self.gradients[place][key].flatten() for key, _ in self.parts[place].named_parameters()]
            expected[f"Grads/{name}"] = torch.cat(own).norm()
        if amount is not None:
            expected["Params/exploration_amount"] = amount
        assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
        for name, value in expected.items():
            near(name, found[name], value)


def make_case(
    learner: Any,
    content: dict[str, np.ndarray],
    nvec: tuple[int, ...],
    ours: Callable[..., Any],
    *,
    rolled: bool = True,
) -> Case:
    """Load SheepRL's weights into a learner and return the case of one variant.

    Args:
        learner: its weights are replaced.
        content: the golden values of the variant.
        nvec: choices of the actions; () for continuous ones.
        ours: return weights or gradients of one part under our names.
        rolled: SheepRL stores actions with the observation that they led to.
    """
    behavior = learner.behavior
    parts = {"world": learner.agent.world, "actor": learner.agent.actor, "critic": behavior.critic}
    gradients = {name: ours(name, part(content, f"gradients/{name}/")) for name in parts}
    if part(content, "weights/target/"):
        parts["target"] = behavior.target_critic
    for name, module in parts.items():
        module.load_state_dict(ours(name, part(content, f"weights/{name}/")))
    rows = part(content, "batch/")
    if rolled:
        rows["actions"] = np.roll(rows["actions"], -1, 0)
    return Case(learner, parts, batch_of(rows, nvec), noise_of(content, nvec), gradients, content)


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


def noise_of(content: dict[str, np.ndarray], nvec: tuple[int, ...]) -> dict[str, Tensor]:
    """Return the noise of SheepRL's samples in the order in which our gradient step draws it."""
    horizon, count = content["noise/imagined"].shape[:2]
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
    held = tensors(given)
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


def of_all(model_loss: str, few: Check, ends: Check, update: Check) -> dict[str, Mutant]:
    """Return the mutants of one version: of the state, of the rows that predict it, and of returns.

    Args:
        model_loss: the function with the loss of the world model.
        few: check with discrete actions, which detects most mutants.
        ends: check with a continue head, on rows that are terminated and truncated.
        update: check of a whole update.
    """
    segment = "Segment(steps.obs, before, is_first, steps.reward, steps.terminated)"
    rows, opens = "segment_of", "open_at_first_row"
    return {
        "state not forgotten": Mutant("RSSM._move", swap("torch.where(A, B, C)", "C"), few),
        "action before not forgotten": Mutant("RSSM._move", swap("prev_action.masked_fill(A, 0)", "prev_action"), few),
        "reward one step early": Mutant(
            rows, swap(segment, segment.replace("steps.reward", "steps.reward.roll(-1, 0)")), few
        ),
        "action one step late": Mutant(opens, swap("torch.cat([A, action[:-1]])", "action"), few),
        "truncation as end": Mutant(
            rows, swap(segment, segment.replace("steps.terminated", "(steps.terminated | steps.truncated)")), ends
        ),
        "ends taught as going on": Mutant(model_loss, swap("~batch.terminated", "batch.terminated"), ends),
        "λ-return ends without a value": Mutant("lambda_return", swap("discount[-1:]", "0 * discount[-1:]"), few),
        "norm of another": Mutant("DreamerBehavior.train", swap("trained.norm", "actor.norm"), update),
    }
