"""Dreamer V3's checks: our losses and gradients against SheepRL's numbers.

A check takes the module under test as an argument, as those of `oracle` do.
"""

from __future__ import annotations

import functools
import json
import re
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flows.config.compose import compose
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig, RunConfig
from rlcore.functional.noise import Drawn
from rlcore.nn.rssm import State
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.train.fabric import FabricRanks
from rlcore.types import Batch, Context, Steps
from tests.golden.oracle import HERE, fabric, fixture, part

MADE: dict[str, Any] = json.loads((HERE / "dreamer_v3_fixtures.json").read_text())
VARIANTS: dict[str, dict[str, Any]] = MADE["variants"]
NVEC: tuple[int, ...] = tuple(MADE["nvec"])
OBS = {"rgb": ArraySpec((3, 16, 16), "uint8", kind="image"), "state": ArraySpec((4,), "float32")}
TOLERANCE = 1e-5

# SheepRL's names of weights -> ours.
WORLD = (
    (r"encoder\.cnn_encoder\.model\.0\._model\.(\d+)\.(\w+)", lambda i, k: f"encoder.cnn.layers.{_stage(i, k)}"),
    (r"encoder\.mlp_encoder\.model\._model\.(\d+)\.(\w+)", lambda i, k: f"encoder.mlp.{_hidden(i, k)}"),
    (r"rssm\.recurrent_model\.mlp\._model\.(\d+)\.(\w+)", lambda i, k: f"rssm.core.inputs.{_hidden(i, k)}"),
    (r"rssm\.recurrent_model\.rnn\.linear\.(\w+)", lambda k: f"rssm.core.cell.linear.{k}"),
    (r"rssm\.recurrent_model\.rnn\.layer_norm\.(\w+)", lambda k: f"rssm.core.cell.norm.{k}"),
    (r"rssm\.representation_model\._model\.1\.(\w+)", lambda k: f"rssm.core.norm.norm.{k}"),
    (r"rssm\.representation_model\._model\.3\.(\w+)", lambda k: f"rssm.core.output.{k}"),
    (r"rssm\.transition_model\._model\.(\d+)\.(\w+)", lambda i, k: f"rssm.prior.{_hidden(i, k, 3)}"),
    (r"rssm\.initial_recurrent_state", lambda: "rssm.begin"),
    (r"observation_model\.cnn_decoder\.model\.0\.(\w+)", lambda k: f"decoder.cnn.project.{k}"),
    (
        r"observation_model\.cnn_decoder\.model\.2\._model\.(\d+)\.(\w+)",
        lambda i, k: f"decoder.cnn.layers.{_stage(i, k)}",
    ),
    (r"observation_model\.mlp_decoder\.model\._model\.(\d+)\.(\w+)", lambda i, k: f"decoder.mlp.{_hidden(i, k)}"),
    (r"observation_model\.mlp_decoder\.heads\.0\.(\w+)", lambda k: f"decoder.heads.of_state.{k}"),
)


def _hidden(place: str, kind: str, output: int = -1) -> str:
    """Linear, LayerNorm, activation, ... with the output last, as layers of a `Dense`."""
    at = int(place)
    if at == output:
        return f"output.{kind}"
    return f"hidden.{at // 3 * 2}.{kind}" if at % 3 == 0 else f"hidden.{at // 3 * 2 + 1}.norm.{kind}"


def _stage(place: str, kind: str) -> str:
    at = int(place)
    return f"{at // 3 * 2}.{kind}" if at % 3 == 0 else f"{at // 3 * 2 + 1}.inner.norm.{kind}"


def ours(part_of: str, given: dict[str, np.ndarray], layers: int, width: int) -> dict[str, Tensor]:
    """Weights, or gradients, of one part under our names."""
    head = [
        (rf"{name}\._model\.(\d+)\.(\w+)", own)
        for name, own in (("reward_model", "reward"), ("continue_model", "goes_on"))
    ]
    named: dict[str, Tensor] = {}
    for name, value in given.items():
        name, tensor = name.replace("module.", "").replace("_forward_", ""), torch.from_numpy(value).double()
        if part_of in ("critic", "target"):
            place, kind = re.findall(r"_model\.(\d+)\.(\w+)", name)[0]
            named[_hidden(place, kind, 3 * layers)] = tensor
        elif part_of == "actor":
            found = re.findall(r"model\._model\.(\d+)\.(\w+)", name)
            named[f"hidden.{_hidden(*found[0])}" if found else name.replace("mlp_heads", "heads")] = tensor
        elif re.fullmatch(r"rssm\.representation_model\._model\.0\.weight", name):
            if width:
                named["rssm.core.of_deter.weight"] = tensor[:, :width]
            named["rssm.of_features.weight"] = tensor[:, width:]
        else:
            named[_name_in_world(name, head, 3 * layers)] = tensor
    return named


def _name_in_world(name: str, heads: Any, output: int) -> str:
    for pattern, own in heads:
        if found := re.findall(pattern, name):
            return f"{own}.{_hidden(found[0][0], found[0][1], output)}"
    for pattern, own in WORLD:
        if found := re.fullmatch(pattern, name):
            return own(*found.groups())
    raise KeyError(name)


def make_learner(module: ModuleType, variant: str) -> Any:
    """A learner with SheepRL's weights, in float64; every key of theirs has the same name here."""
    discrete = f"{variant}/noise/choice0" in fixture("dreamer_v3")
    space = ActionSpec("MultiDiscrete", (2,), "int64", nvec=NVEC, start=(0, 0))
    box = ActionSpec("Box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0))
    spec = EnvSpec("Golden-v0", OBS, space if discrete else box)
    run = RunConfig(algo=build(module.Config, composed(variant), "algo."), env=EnvConfig(id=spec.id, num_envs=1))
    made = fabric("64-true")
    return module.build(Context(run, spec, made, FabricRanks(made), num_envs=1))[0]


@functools.cache
def composed(variant: str) -> dict[str, Any]:
    """`algo` of our files with SheepRL's overrides."""
    changes = MADE["common"] | VARIANTS[variant]
    typed = [f"{key}={'null' if value is None else value}" for key, value in changes.items()]
    return compose(["exp=dreamer_v3", "algo=dreamer_v3_S", *typed])[1]["algo"]


def check_losses(module: ModuleType, variant: str) -> None:
    """Every loss, λ-return, weight, and gradient of one batch, with the samples that SheepRL drew."""
    content = part(fixture("dreamer_v3"), f"{variant}/")
    learner = make_learner(module, variant)
    world, actor = learner.agent.world, learner.agent.actor
    layers = learner.config.critic.mlp_layers
    width = 0 if learner.config.world_model.decoupled_rssm else world.rssm.sizes[0]
    parts = {"world": world, "actor": actor, "critic": learner.critic, "target": learner.target_critic.module}
    for name, target in parts.items():
        target.load_state_dict(ours(name, part(content, f"weights/{name}/"), layers, width))
    learner.moments.low, learner.moments.high = map(torch.tensor, MADE["scales"][variant])
    steps: list[Any] = []
    learner.step = lambda *given, rng: steps.append(given) or {}  # what an update makes of a batch
    learner.update(batch_of(part(content, "batch/"), actor.action), np.random.default_rng(0))
    (sequence, tau), count = steps[0], content["returns"].shape[1]
    assert tau == learner.config.critic.tau
    observed = Drawn(iter([torch.from_numpy(content["noise/observed"])]))
    model = learner.model_loss(sequence, observed)
    horizon = len(content["returns"])
    imagined = torch.from_numpy(content["noise/imagined"]).view(horizon, count, -1)
    act = noise_of_actions(content, horizon, count)
    policy = learner.actor_objective(State(**model[3]), sequence.terminated, Drawn(iter([act, imagined])))
    value = learner.critic_objective(policy[3])
    for name, found in (("world", model), ("actor", policy), ("critic", value)):
        compare_gradients(name, parts[name], found, ours(name, part(content, f"gradients/{name}/"), layers, width))
    logged = model[2] | policy[2] | value[2]
    for name, expected in part(content, "metrics/").items():
        near(name, logged[name], expected)
    near("λ-returns", policy[3]["returns"], content["returns"].squeeze(-1))
    near("weights", policy[3]["weight"], content["discount"].squeeze(-1)[:-1])
    near("low", learner.moments.low, content["low"])
    near("high", learner.moments.high, content["high"])


def compare_gradients(name: str, module: torch.nn.Module, found: Any, expected: dict[str, Tensor]) -> None:
    total, weight = found[:2]
    names, parameters = zip(*module.named_parameters(), strict=True)
    gradients = torch.autograd.grad(total / weight, parameters, retain_graph=True, allow_unused=True)
    expected = {key: value for key, value in expected.items() if key in names}
    assert expected.keys() == {*names}, expected.keys() ^ {*names}
    for key, p, gradient in zip(names, parameters, gradients, strict=True):
        near(f"gradient of {name}.{key}", torch.zeros_like(p) if gradient is None else gradient, expected[key])


def near(what: str, found: Tensor, expected: Any) -> None:
    expected = torch.as_tensor(expected, dtype=torch.float64)
    found = found.detach().double()
    assert found.shape == expected.shape, (what, found.shape, expected.shape)
    gap = ((found - expected).abs() / expected.abs().clamp(min=1)).max().item()
    assert gap < TOLERANCE, f"{what} differs by {gap:.1e}"


def noise_of_actions(content: dict[str, np.ndarray], horizon: int, count: int) -> Tensor:
    """Noise by which our actor draws their actions: of categoricals, next to nothing for the class that they drew."""
    if "noise/normal" in content:
        return torch.from_numpy(content["noise/normal"])[:horizon].double()
    parts = [
        torch.where(torch.nn.functional.one_hot(torch.from_numpy(content[f"noise/choice{i}"]), n) > 0, 1e-9, 1.0)
        for i, n in enumerate(NVEC)
    ]
    return torch.cat(parts, -1)[:horizon].view(horizon, count, -1)


def batch_of(given: dict[str, np.ndarray], action: ActionSpec) -> Batch:
    """Rows [L, N] as a memory gives them."""
    held = {key: torch.from_numpy(value) for key, value in given.items()}
    flags = {key: held[key].squeeze(-1).bool() for key in ("terminated", "is_first")}
    said = held["actions"]
    if not action.continuous:
        said = torch.stack([choice.argmax(-1) for choice in said.split(NVEC, -1)], -1)
    # SheepRL's model knows of no truncation: an episode that is cut short goes on.
    reward, cut = held["rewards"].squeeze(-1), torch.zeros_like(flags["terminated"])
    cut[1, 2] = True
    steps = Steps({key: held[key] for key in OBS}, said, reward, flags["terminated"], cut, flags["is_first"])
    return Batch(steps, steps, 0)
