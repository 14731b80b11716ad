"""Write the golden values of SAC-AE: results of SheepRL's `train()` of sac_ae for injected weights, batches and noise.

sac_ae.npz  differences of the weights of actor, critics, targets, decoder and log α after STEPS gradient steps in
            float64, and the last logged values. Initial weights, batches and noise are drawn by sac_ae_draws.py,
            here and in the check.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from lightning.fabric import Fabric
from sheeprl.algos.sac_ae.agent import build_agent
from sheeprl.algos.sac_ae.sac_ae import train
from sheeprl.utils.utils import dotdict

from tests.golden import sac_ae_draws as draws
from tests.golden.fixtures import tensors
from tests.golden.makers.files import versions, write_arrays, write_settings

ADAM = {"betas": (0.9, 0.999), "eps": draws.EPS}


class Log:
    """Recorder of the values that `train` logs."""

    disabled = False

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def update(self, name: str, value: Any) -> None:
        self.values[name] = float(value.detach())


def settings() -> Any:
    part = {"cnn_channels_multiplier": 1, "dense_units": draws.UNITS, "mlp_layers": 1}
    part |= {"dense_act": "torch.nn.ReLU", "layer_norm": False}
    keys = {"encoder": ["rgb"], "decoder": ["rgb"]}, {"encoder": ["state"], "decoder": ["state"]}
    algo = {
        "cnn_keys": keys[0],
        "mlp_keys": keys[1],
        "gamma": draws.GAMMA,
        "tau": draws.TAU,
        "encoder": part | {"features_dim": draws.FEATURES, "tau": draws.ENCODER_TAU},
        "decoder": part | {"per_rank_update_freq": draws.DECODER_FREQ, "l2_lambda": draws.L2},
        "actor": {"hidden_size": draws.UNITS, "per_rank_update_freq": draws.ACTOR_FREQ},
        "critic": {
            "n": 2,
            "hidden_size": draws.UNITS,
            "per_rank_target_network_update_freq": draws.TARGET_FREQ,
        },
        "alpha": {"alpha": draws.ALPHA},
        "compile": {"enabled": False, "mode": "default", "player": False},
    }
    return dotdict({"algo": algo, "env": {"screen_size": draws.SIDE}, "distribution": {"type": "auto"}})


def run() -> dict[str, np.ndarray]:
    """Return the differences of the weights, under SheepRL's names, and the last logged values."""
    fabric, cfg = Fabric(accelerator="cpu", devices=1, precision="64-true"), settings()
    fabric.launch()
    space = spaces.Dict(
        {
            "rgb": spaces.Box(0, 255, (draws.FRAMES, draws.SIDE, draws.SIDE), np.uint8),
            "state": spaces.Box(-1, 1, (draws.VECTOR,), np.float32),
        }
    )
    action = gymnasium.spaces.Box(-1.0, 1.0, (draws.ACTIONS,), np.float32)
    agent, encoder, decoder, _ = build_agent(fabric, cfg, space, action)
    agent.log_alpha.data = torch.tensor([np.log(draws.ALPHA)])  # in float64, where the original stays float32
    named = {f"agent.{name}": p for name, p in agent.named_parameters()}
    named |= {f"decoder.{name}": p for name, p in decoder.named_parameters()}
    named = {name.replace("_forward_module.", "").replace("._original_module", ""): p for name, p in named.items()}
    first = {name: draws.weight(name, tuple(p.shape)) for name, p in named.items() if name != "agent._log_alpha"}
    with torch.no_grad():
        for name, value in first.items():
            named[name].copy_(torch.from_numpy(value))
    first["agent._log_alpha"] = named["agent._log_alpha"].detach().numpy().copy()
    adam = torch.optim.Adam
    optimizers = [
        adam(agent.actor.parameters(), lr=draws.LR, **ADAM),
        adam(agent.critic.parameters(), lr=draws.LR, **ADAM),
        adam([agent.log_alpha], lr=draws.LR, betas=(0.5, 0.999), eps=draws.EPS),
        adam(encoder.parameters(), lr=draws.LR, **ADAM),
        adam(decoder.parameters(), lr=2 * draws.LR, weight_decay=draws.DECAY, **ADAM),
    ]
    optimizers = [fabric.setup_optimizers(optimizer) for optimizer in optimizers]
    log = Log()
    for step in range(1, draws.STEPS + 1):
        batch, noise = draws.batch(step), draws.noise(step)
        data = {
            "rgb": batch["rgb"].astype(np.float64),
            "next_rgb": batch["next_rgb"].astype(np.float64),
            "state": batch["state"],
            "next_state": batch["next_state"],
            "actions": np.tanh(batch["u"]),
            "rewards": batch["reward"][:, None],
            "terminated": batch["done"][:, None],
        }
        normals = iter([torch.from_numpy(noise["target"]), torch.from_numpy(noise["actor"])])
        with (
            mock.patch("torch.distributions.normal._standard_normal", lambda *args, left=normals, **kwargs: next(left)),
            # The original log-probability adds it inside the logarithm to avoid log 0.
            mock.patch("torch.log", lambda x, log=torch.log: log(x - 1e-6)),
            mock.patch("torch.rand_like", lambda like, drawn=noise["pixels"]: torch.from_numpy(drawn)),
        ):
            train(fabric, agent, encoder, decoder, *optimizers, tensors(data), log, step, cfg)
    moves = {
        name: (p.detach().numpy() - first[name]).astype(np.float32)  # rounded to 1e-10, because they are small
        for name, p in named.items()
    }
    return moves | {f"logged/{name}": np.float64(value) for name, value in log.values.items()}


def main() -> None:
    """Write the fixture and its settings."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # Fabric's wrapper casts outputs of networks to it
    write_arrays("sac_ae", run())
    write_settings("sac_ae", versions("sheeprl", "torch", "numpy"))


if __name__ == "__main__":
    main()
