"""Comparison of Dreamer presets with SheepRL's presets of the same name: config values and parameter counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from flows.config.compose import compose
from flows.config.sheeprl_names import NETWORKS, OPTIMIZERS
from rlcore.algorithms import ALGORITHMS
from rlcore.config.run import RunConfig
from rlcore.config.values import at
from rlcore.errors import UserError
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.train.counting import count

# Keys of SheepRL that Shepherd lacks or gives another value. docs/coming_from_sheeprl.md lists them.
DROPPED = (
    "_target_",
    "fused",
    "env.wrapper.env",
    "algo.compile.",
    "algo.player",
    "env.wrapper.id",
    "env.wrapper.render_mode",
)
CHANGED = {"env.sync_env": True, "env.actions_as_observation.noop": 0}
TIMING = {"env.capture_video": False, "buffer.memmap": False}  # for timing runs: no videos, no buffer on disk
SPEC = EnvSpec(
    "Some-v0",
    {"rgb": ArraySpec((64, 64, 3), "uint8", kind="image")},
    ActionSpec("Discrete", (), "int64", (9,), (0,)),
)


def translate_value(value: Any) -> Any:
    """Return Shepherd's name for a value of SheepRL's config."""
    if isinstance(value, str):
        known = {"torch.nn.SiLU": "silu", "torch.nn.ELU": "elu", "torch.nn.ReLU": "relu", "torch.nn.Tanh": "tanh"}
        return known.get(value) or NETWORKS.get(value) or OPTIMIZERS.get(value) or value
    return value


def check_leaves(preset: str, expected: Mapping[str, Any], changed: dict[str, Any]) -> None:
    """Check that every value of a preset is SheepRL's, except for the keys in `changed`."""
    tree = compose([f"exp={preset}"])[1]
    changed = CHANGED | (TIMING if preset.endswith("_benchmarks") else {}) | changed
    for key, value in expected.items():
        if not any(part in key for part in DROPPED):
            assert at(tree, key) == changed.get(key, translate_value(value)), key
    for part in ("world_model", "actor", "critic"):
        assert at(tree, f"algo.{part}.optimizer.name") == "adam"


def check_refusal(make: Callable[[], object], parts: Sequence[str]) -> None:
    """Check that `make` raises a UserError whose message contains all parts."""
    with pytest.raises(UserError) as error:
        make()
    for part in parts:
        assert part in str(error.value)


def check_sizes(config: RunConfig, expected: Mapping[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the parameter counts of world model, actor and critic, without allocating parameters."""
    module, built = ALGORITHMS[config.algo.name].learner, list[Any]()
    build = module.build
    monkeypatch.setattr(module, "build", lambda context: built.append(build(context)) or built[-1])
    assert count(config, SPEC) is not None
    ((learner, *_),) = built
    parts = {"world_model": learner.agent.world, "actor": learner.agent.actor, "critic": learner.behavior.critic}
    assert {name: sum(p.numel() for p in part.parameters()) for name, part in parts.items()} == expected
