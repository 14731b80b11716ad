"""Check of SAC-AE: our learner against SheepRL, with the fixture of make_sac_ae_fixtures.py."""

from __future__ import annotations

import re
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from rlcore.algorithms.sac.sac_ae import autoencoder
from rlcore.algorithms.sac.sac_ae import learner as sac_ae
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig, RunConfig
from rlcore.functional.noise import Drawn
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec, Window
from rlcore.train.fabric import FabricRanks
from rlcore.types import Batch, Context, Trajectory
from tests.golden import sac_ae_draws as draws
from tests.golden.oracle import fabric, fixture

SPEC = EnvSpec(
    "Golden-v0",
    {
        "rgb": ArraySpec((1, draws.SIDE, draws.SIDE), "uint8", kind="image", window=Window(draws.FRAMES)),
        "state": ArraySpec((draws.VECTOR,), "float64"),
    },
    ActionSpec("Box", (2,), "float32", low=(-1.0, -1.0), high=(1.0, 1.0)),
)
# names of SheepRL -> ours; transposed convolutions: those between the linear layer and the last one
NAMES = (
    (r"agent\._(actor|critic)\.encoder\.cnn_encoder\._model", r"agent.encoder.trunk.convolutions"),
    (r"agent\._(actor|critic)\.encoder\.mlp_encoder\.model\._model", r"agent.encoder.trunk.mlp.layers"),
    (r"agent\._actor\.model\._model", r"agent.actor.layers"),
    (r"agent\._actor", r"agent"),
    (r"agent\._critic_target", r"target"),
    (r"agent\._critic", r"critics"),
    (r"agent\._log_alpha", r"temperature.log_alpha"),
    (r"encoder\.cnn_encoder\._model", r"encoder.trunk.convolutions"),
    (r"encoder\.mlp_encoder\.model\._model", r"encoder.trunk.mlp.layers"),
    (r"cnn_encoder\.fc\._model", r"projection"),
    (r"qfs\.(\d)\.model\._model", r"members.\1.layers"),
    (r"decoder\.cnn_decoder\.fc\._model\.0", r"decoder.deconvolutions.0"),
    (r"decoder\.cnn_decoder\._model\.(\d)", lambda found: f"decoder.deconvolutions.{int(found[1]) + 3}"),
    (r"decoder\.cnn_decoder\.to_obs", r"decoder.deconvolutions.9"),
    (r"decoder\.mlp_decoder\.model\._model", r"decoder.mlp.layers"),
    (r"decoder\.mlp_decoder\.heads", r"decoder.heads"),
)
LOGGED = ("value_loss", "policy_loss", "alpha_loss", "reconstruction_loss")


def make_learner() -> Any:
    adam = {"name": "adam", "lr": draws.LR, "eps": draws.EPS}
    layers = {"dense_units": draws.UNITS, "mlp_layers": 1}
    values = {
        "name": "sac_ae",
        "total_steps": 10_000,
        "mlp_keys": {"encoder": ["state"]},
        "cnn_keys": {"encoder": ["rgb"]},
        "gamma": draws.GAMMA,
        "tau": draws.TAU,
        "encoder": layers | {"features_dim": draws.FEATURES, "tau": draws.ENCODER_TAU, "optimizer": adam},
        "decoder": layers
        | {"per_rank_update_freq": draws.DECODER_FREQ, "l2_lambda": draws.L2}
        | {"optimizer": adam | {"lr": 2 * draws.LR, "weight_decay": draws.DECAY}},
        "actor": {"hidden_size": draws.UNITS, "per_rank_update_freq": draws.ACTOR_FREQ, "optimizer": adam},
        "critic": {
            "hidden_size": draws.UNITS,
            "per_rank_target_network_update_freq": draws.TARGET_FREQ,
            "optimizer": adam | {"eps": draws.EPS / 2},  # the original loss is without ½
        },
        "alpha": {"alpha": draws.ALPHA, "optimizer": adam | {"betas": (0.5, 0.999)}},
    }
    run = RunConfig(algo=build(sac_ae.Config, values, "algo."), env=EnvConfig(id=SPEC.id, num_envs=1))
    made = fabric("64-true")
    return sac_ae.build(Context(run, SPEC, made, FabricRanks(made), num_envs=1))[0]


def places(learner: Any) -> dict[str, list[Tensor]]:
    """Map SheepRL's names to our tensors with the same weights."""
    own = {"target": learner.target.module}
    own |= {name: getattr(learner, name) for name in ("agent", "critics", "decoder", "temperature")}
    named = {f"{at}.{name}": p.detach() for at, part in own.items() for name, p in part.named_parameters()}
    found: dict[str, Tensor] = {}
    for name in (key for key in fixture("sac_ae") if not key.startswith("logged/")):
        mine = name
        for theirs, here in NAMES:
            mine = re.sub(theirs, here, mine)
        row = {"fc_mean": slice(0, draws.ACTIONS), "fc_logstd": slice(draws.ACTIONS, None)}
        if (head := next((key for key in row if key in mine), None)) is not None:
            found[name] = named[mine.replace(head, "head.linear")][row[head]]
        else:
            found[name] = named[mine]
    covered = sum(part.numel() for part in found.values())
    assert covered == sum(part.numel() for part in {id(p): p for p in _all(own)}.values())
    return found


def _all(own: dict[str, Any]) -> list[Tensor]:
    return [p for part in own.values() for p in part.parameters()]


def check_updates() -> None:
    """Check weights of all networks and α after some gradient steps in float64, and the losses of the last."""
    learner, expected = make_learner(), fixture("sac_ae")
    held = places(learner)
    first = {name: draws.weight(name, tuple(value.shape)) for name, value in held.items() if "log_alpha" not in name}
    first["agent._log_alpha"] = np.log(draws.ALPHA)
    for name, value in first.items():
        held[name].copy_(torch.as_tensor(value).view_as(held[name]))
    exact = mock.patch.object(autoencoder, "flatten", lambda obs, spec, keys, lead: obs["state"])  # not in float32
    with exact:
        for step in range(1, draws.STEPS + 1):
            given = {name: torch.from_numpy(value) for name, value in draws.noise(step).items()}
            kinds = ["target"]
            kinds += ["actor"] if step % draws.ACTOR_FREQ == 0 else []
            kinds += ["pixels"] if step % draws.DECODER_FREQ == 0 else []
            learner.noise = Drawn(iter([given[kind] for kind in kinds]))
            metrics = learner.update(batch(step), np.random.default_rng(0))
    for name, value in held.items():
        moved, rounding = value.numpy() - first[name], 1e-7 * np.abs(expected[name])  # that of the fixture, float32
        gap = (np.abs(moved - expected[name]) - rounding).max()
        assert gap < 1e-9, f"{name} differs by {gap:.1e}"
    for name in LOGGED:
        theirs = float(expected[f"logged/Loss/{name}"]) / (2 if name == "value_loss" else 1)
        assert abs(float(metrics[f"Loss/{name}"]) - theirs) < 1e-9 * abs(theirs), name


def batch(step: int) -> Batch:
    """Return transitions [1, N] of the fixture as a replay buffer gives them, with one frame per row."""
    given = {name: torch.from_numpy(value) for name, value in draws.batch(step).items()}
    count = len(given["reward"])
    none, nothing = torch.zeros(count, dtype=torch.bool), torch.zeros(count, dtype=torch.float64)
    before, now, after = (pictures.unsqueeze(1) for pictures in (*given["rgb"].unbind(1), given["next_rgb"][:, -1]))
    obs = {"rgb": now[None], "state": given["state"][None]}
    past = {"obs/rgb": before[None], "is_first": none[None]}
    steps = Trajectory(obs, given["u"][None], nothing[None], none[None], none[None], none[None], past=past)
    last = {"rgb": after, "state": given["next_state"]}
    return Batch(steps, Trajectory(last, given["u"], given["reward"], given["done"].bool(), none, none), 0)
