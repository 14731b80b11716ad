"""Comparison of a preset of ours with SheepRL's of that name, leaf by leaf, and by its parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from flows.config.compose import compose
from flows.config.sheeprl_names import NETWORKS, OPTIMIZERS
from rlcore.algorithms import ALGORITHMS
from rlcore.config.groups import RunConfig
from rlcore.config.values import at
from rlcore.errors import UserError
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.train.counting import count

# Leaves of theirs that are not here, or have another value: each is told in docs/coming_from_sheeprl.md.
DROPPED = (
    "_target_",
    "fused",
    "env.wrapper.env",
    "algo.compile.",
    "algo.player",
    "env.wrapper.id",
    "env.wrapper.render_mode",
)
OTHERS = {"env.sync_env": True, "env.actions_as_observation.noop": 0}
TIMING = {"env.capture_video": False, "buffer.memmap": False}  # of timing runs: neither films nor memory on the disk
SPEC = EnvSpec(
    "Some-v0",
    {"rgb": ArraySpec((64, 64, 3), "uint8", kind="image")},
    ActionSpec("Discrete", (), "int64", (9,), (0,)),
)


def named(value: Any) -> Any:
    """A value of theirs under our name."""
    if isinstance(value, str):
        known = {"torch.nn.SiLU": "silu", "torch.nn.ELU": "elu", "torch.nn.ReLU": "relu", "torch.nn.Tanh": "tanh"}
        return known.get(value) or NETWORKS.get(value) or OPTIMIZERS.get(value) or value
    return value


def check_leaves(preset: str, theirs: Mapping[str, Any], others: dict[str, Any]) -> None:
    """Every leaf of a preset is theirs, but those with `others` as their values."""
    tree, others = compose([f"exp={preset}"])[1], OTHERS | (TIMING if preset.endswith("_benchmarks") else {}) | others
    for key, value in theirs.items():
        if not any(part in key for part in DROPPED):
            assert at(tree, key) == others.get(key, named(value)), key
    for part in ("world_model", "actor", "critic"):
        assert at(tree, f"algo.{part}.optimizer.name") == "adam"


def check_refusal(make: Callable[[], object], parts: Sequence[str]) -> None:
    """A mistake is told in a sentence that names all of these."""
    with pytest.raises(UserError) as told:
        make()
    for part in parts:
        assert part in str(told.value)


def check_sizes(config: RunConfig, theirs: Mapping[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """World model, actor and critic have as many parameters each as theirs, counted without making any."""
    module, built = ALGORITHMS[config.algo.name].learner, list[Any]()
    build = module.build
    monkeypatch.setattr(module, "build", lambda context: built.append(build(context)) or built[-1])
    assert count(config, SPEC) is not None
    ((learner, *_),) = built
    parts = {"world_model": learner.agent.world, "actor": learner.agent.actor, "critic": learner.critic}
    assert {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()} == theirs
