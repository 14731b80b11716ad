"""Write the golden values of Plan2Explore on Dreamer V3: losses of SheepRL for given weights, batch and samples.

p2e.npz              for every variant: weights, batch, the noise equivalent to its samples, and all losses, gradients
                     and metrics of the training step of `p2e_dv3_exploration`, in float64; written as float32
p2e_fixtures.json    overrides of each variant, under SheepRL's and our names
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import torch
from lightning.fabric import Fabric
from sheeprl.algos.dreamer_v3 import dreamer_v3
from sheeprl.algos.dreamer_v3.utils import Moments
from sheeprl.algos.p2e_dv3 import agent as theirs
from sheeprl.algos.p2e_dv3 import p2e_dv3_exploration as exploration
from torch.distributions import Independent, OneHotCategoricalStraightThrough

from tests.golden.makers.dreamer_v3 import COMMON as DREAMER
from tests.golden.makers.p2e_steps import CONTINUED, Metrics, Recorder, as_arrays, inputs, noise
from tests.golden.makers.sheeprl_dreamers import (
    COUNT,
    HORIZON,
    LENGTH,
    NVEC,
    Samples,
    batch,
    compose,
    disturb,
    draw_normals,
    observations,
    write,
)

COMMON = DREAMER | {
    "algo.cnn_keys.encoder": [],
    "algo.ensembles.n": 3,
    "algo.ensembles.dense_units": 5,
    "algo.intrinsic_reward_multiplier": 20.0,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "multi_discrete": {},
    "continuous": {},
    "weighted": {"algo.actor.objective_mix": 0.4, "algo.critics_exploration.intrinsic.weight": 0.7},
    "zero_shot": {"algo.critics_exploration.extrinsic.weight": 0.0},
}
DISCRETE = ("multi_discrete", "zero_shot")
SCALES = {"intrinsic": (-1.0, 0.9), "extrinsic": (-0.5, 1.75), "task": (-1.25, 1.5)}  # percentiles before the step


def scale(cfg: Any, name: str) -> Moments:
    found = Moments(cfg.algo.actor.moments.decay, cfg.algo.actor.moments.max, 0.05, 0.95)
    found.low, found.high = map(torch.tensor, SCALES[name])
    return found


def make(name: str, changes: dict[str, Any]) -> dict[str, np.ndarray]:
    torch.manual_seed(3)
    nvec = NVEC if name in DISCRETE else ()
    cfg = compose("p2e_dv3_exploration", COMMON | changes | {"algo.cnn_keys.decoder": []})
    cfg.algo.per_rank_batch_size, cfg.algo.per_rank_sequence_length = COUNT, LENGTH
    data = batch(nvec, lambda rng: torch.zeros(LENGTH, COUNT, 3, 4, 4))
    del data["rgb"]
    for key, place in CONTINUED.items():
        data[key][place] = 0.0
    fabric = Fabric(accelerator="cpu", devices=1, precision="64-true")
    built = theirs.build_agent(fabric, nvec or (2,), not nvec, cfg, observations(16))
    world, ensembles, actor_task, critic_task, target_task, actor, critics, _ = built
    modules = {"world": world, "ensembles": ensembles, "actor_task": actor_task, "critic_task": critic_task}
    modules |= {"target_task": target_task, "actor_exploration": actor}
    for key, critic in critics.items():
        modules |= {f"critic_{key}": critic["module"], f"target_{key}": critic["target_module"]}
    for module in modules.values():
        module.double()
    disturb(*modules.values())
    recorder, metrics, samples = Recorder(modules), Metrics(), Samples()
    for key, critic in critics.items():
        critic["optimizer"] = recorder.optimizer(f"critic_{key}")
    moments = {key: scale(cfg, key) for key in critics}
    before = {key: value.clone() for key, value in data.items()}
    one_hot = mock.patch.object(OneHotCategoricalStraightThrough, "rsample", lambda self, *_: samples.one_hot(self))
    normal = mock.patch.object(Independent, "rsample", draw_normals(samples))
    places = [mock.patch.object(module, "update", recorder.update) for module in (exploration, dreamer_v3)]
    optimizer = recorder.optimizer
    with one_hot, normal, places[0], places[1]:
        exploration.train(
            fabric,
            world,
            actor_task,
            critic_task,
            target_task,
            optimizer("world"),
            optimizer("actor_task"),
            optimizer("critic_task"),
            data,
            metrics,
            cfg,
            ensembles,
            optimizer("ensembles"),
            actor,
            critics,
            optimizer("actor_exploration"),
            moments,
            scale(cfg, "task"),
            not nvec,
            nvec or (2,),
        )
    observed = torch.cat([value for _, value in samples.drawn[:LENGTH]])
    content = inputs(before, modules) | noise(observed, samples.drawn[LENGTH:], nvec, HORIZON + 1)
    content |= recorder.content | metrics.content
    content |= {f"percentiles/{key}": torch.stack([m.low, m.high]) for key, m in moments.items()}
    return as_arrays(name, content)


def main() -> None:
    write("p2e", make, COMMON, VARIANTS, nvec=NVEC, scales=SCALES)


if __name__ == "__main__":
    main()
