"""SAC-AE against the results of SheepRL (tests.golden.makers.sac_ae), and mutants."""

from __future__ import annotations

import re
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

from rlcore.algorithms.sac.sac_ae import autoencoder
from rlcore.algorithms.sac.sac_ae import learner as sac_ae
from rlcore.functional.noise import Drawn
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec, Window
from rlcore.types import Batch
from tests.golden import sac_ae_draws as draws
from tests.golden.fixtures import arrays, tensors
from tests.golden.mutants import Mutant, given, returned, swap
from tests.golden.off_policy import transitions
from tests.learning.assembly import context

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
    return sac_ae.build(context(values, SPEC, 1, precision="64-true"))[0]


def places(learner: Any) -> dict[str, list[Tensor]]:
    """Map SheepRL's names to our tensors with the same weights."""
    own = {"target": learner.target.module}
    own |= {name: getattr(learner, name) for name in ("agent", "critics", "decoder", "temperature")}
    named = {f"{at}.{name}": p.detach() for at, part in own.items() for name, p in part.named_parameters()}
    found: dict[str, Tensor] = {}
    for name in (key for key in arrays("sac_ae") if not key.startswith("logged/")):
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


def batch(step: int) -> Batch:
    """Return the transitions of a step with one frame per row."""
    given = tensors(draws.batch(step))
    before, now, after = (pictures.unsqueeze(1) for pictures in (*given["rgb"].unbind(1), given["next_rgb"][:, -1]))
    past = {"obs/rgb": before[None], "is_first": torch.zeros(1, len(before), dtype=torch.bool)}
    next_obs = {"rgb": after, "state": given["next_state"]}
    return transitions(given, {"rgb": now, "state": given["state"]}, next_obs, past)


def test_sac_ae_updates_match_sheeprl_in_float64() -> None:
    """Weights of all networks and α after some gradient steps in float64, and the losses of the last."""
    learner, expected = make_learner(), arrays("sac_ae")
    held = places(learner)
    first = {name: draws.weight(name, tuple(value.shape)) for name, value in held.items() if "log_alpha" not in name}
    first["agent._log_alpha"] = np.log(draws.ALPHA)
    for name, value in first.items():
        held[name].copy_(torch.as_tensor(value).view_as(held[name]))
    exact = mock.patch.object(autoencoder, "flatten", lambda obs, spec, keys, lead: obs["state"])  # not in float32
    with exact:
        for step in range(1, draws.STEPS + 1):
            given = tensors(draws.noise(step))
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


# Mutants --------------------------------------------------------------------------------------------------------------

CHECK = test_sac_ae_updates_match_sheeprl_in_float64
LEARNER, LOSS, BITS = "sac_ae.Learner", "reconstruction_loss", "five_bits"
CRITICS, OPTIMIZERS, UPDATE = f"{LEARNER}.step_critics", f"{LEARNER}._make_optimizers", f"{LEARNER}.update"
MUTANTS: dict[str, Mutant] = {
    # Losses and the parts that they train.
    "actor's gradient into the trunk": Mutant(OPTIMIZERS, swap("agent.encoder.projection", "agent.encoder"), CHECK),
    "decoder's loss does not train the encoder": Mutant(
        f"{LEARNER}.decoder_objective", swap("self.critics.encoder(A)", "self.critics.encoder(A).detach()"), CHECK
    ),
    "critics' loss does not train the encoder": Mutant(
        "Critics.outputs", swap("self.encoder(A)", "self.encoder(A).detach()"), CHECK
    ),
    "the actor's projection decoded": Mutant(
        f"{LEARNER}.decoder_objective", swap("self.critics.encoder(A)", "self.agent.encoder(A)"), CHECK
    ),
    # Update frequencies.
    "actor updated every step": Mutant(UPDATE, swap("A.actor.per_rank_update_freq", "1"), CHECK),
    "decoder updated every step": Mutant(UPDATE, swap("A.decoder.per_rank_update_freq", "1"), CHECK),
    "targets moved every step": Mutant(UPDATE, swap("A.critic.per_rank_target_network_update_freq", "1"), CHECK),
    # Targets.
    "encoder's target as slow as the critics'": Mutant(CRITICS, swap("A.encoder.tau * B", "A.tau * B"), CHECK),
    "τ of encoder and critics swapped": Mutant(
        CRITICS,
        swap("{A: config.encoder.tau * B, C: config.tau * D}", "{A: config.tau * B, C: config.encoder.tau * D}"),
        CHECK,
    ),
    "online critics as targets": Mutant(
        "sac.Learner.critic_objective", swap("self.target.module", "self.critics"), CHECK
    ),
    # The reconstruction.
    "no latent penalty": Mutant(LOSS, given(l2_lambda="0.0"), CHECK),
    "no ½ in the latent penalty": Mutant(LOSS, given(l2_lambda="2 * l2_lambda"), CHECK),
    "penalty as a mean over the latent": Mutant(LOSS, swap("A.square().sum(1)", "A.square().mean(1)"), CHECK),
    "squared error summed": Mutant(LOSS, swap("A.flatten(1).mean(1)", "A.flatten(1).sum(1)"), CHECK),
    "no weight decay of the decoder": Mutant(
        "sac_ae.Config.reconstruction_optimizer", swap("getattr(A, B)", "getattr(A, B) if B == 'lr' else 0.0"), CHECK
    ),
    "targets of 8 bits": Mutant(BITS, returned("(x + noise) / 256 - 0.5"), CHECK),
    "targets without noise": Mutant(BITS, given(noise="0 * noise"), CHECK),
    "targets from 0 to 1": Mutant(BITS, returned("it + 0.5"), CHECK),
    # The policy and α.
    "log std clamped": Mutant("sac_ae.Agent.limit", returned("log_std.clamp(-10, 2)"), CHECK),
    "α's loss in log α": Mutant(f"{LEARNER}.alpha_objective", swap("A.log_alpha.exp()", "A.log_alpha"), CHECK),
    "pixels from -½": Mutant("Trunk._pixels", swap("A / 255", "A / 255 - 0.5"), CHECK),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_golden_check_detects_sac_ae_mutant(name: str) -> None:
    mutant = MUTANTS[name]
    # StopIteration: noise is drawn too often.
    with mutant.applied(), pytest.raises((AssertionError, StopIteration)):
        mutant.check()
