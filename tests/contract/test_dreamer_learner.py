"""Learner and replay buffer of the Dreamers follow the config, also with nested observations and other bounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium import spaces

from flows.config.compose import compose
from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.dreamer.sequences import memory_and_plan
from rlcore.data.samplers import EpisodeSequences, Sequences
from rlcore.functional.scalars import TwoHot
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.store.checkpoint import nested_state
from rlcore.types import Context, SingleProcess
from tests.contract.test_registry import SETTINGS
from tests.flows.config.dreamer_leaves import SPEC
from tests.learning.assembly import assemble, context, fabric
from tests.rlcore.envs import probe_envs  # noqa: F401  registers Probe/Spaces-v0
from tests.soaking import heavy

pytestmark = heavy

DREAMERS = [name for name in ALGORITHMS if name.startswith("dreamer")]
BOX = ActionSpec("Box", (3,), "float32", low=(-2.0, 0.0, -float("inf")), high=(2.0, 1.0, float("inf")))
INNER = spaces.Dict({"angle": spaces.Box(-1, 1, (3,)), "grip": spaces.Discrete(2)})
NESTED = spaces.Dict({"arm": INNER, "goal": spaces.Box(-1, 1, (2,))})


@pytest.mark.parametrize("algo", DREAMERS)
def test_dreamer_learns_and_restores_nested_observations(algo: str) -> None:
    keys = ["arm.angle", "arm.grip", "goal"]
    settings = SETTINGS[algo] | {"mlp_keys": {"encoder": keys}}
    one = assemble("Probe/Spaces-v0", settings, num_envs=2, wrapper={"observation": NESTED}).run(60)
    assert one.learner.updates > 2
    decoder = one.learner.agent.world.decoder
    feat = torch.zeros(1, one.learner.agent.world.feat_size)
    assert {key: part.shape[-1] for key, part in decoder(feat).items()} == {"arm.angle": 3, "arm.grip": 2, "goal": 2}
    state = nested_state.encode(one.state_dict())
    other = assemble("Probe/Spaces-v0", settings, num_envs=2, seed=1, wrapper={"observation": NESTED})
    other.load_state_dict(nested_state.decode(*state))
    assert nested_state.encode(other.state_dict()) == state


@pytest.mark.parametrize("algo", DREAMERS)
@pytest.mark.parametrize("normalized", [True, False])
def test_dreamer_scales_or_clips_actions_to_bounds(algo: str, normalized: bool) -> None:
    spec = EnvSpec("Some-v0", {"state": ArraySpec((2,), "float32")}, BOX)
    context_ = context(SETTINGS[algo] | {"normalize_actions": normalized}, spec, num_envs=1)
    agent = ALGORITHMS[algo].build(context_)[0].agent
    raw = torch.tensor([[1.0, -1.0, 3.0], [-0.5, 0.5, -7.0], [-9.0, 9.0, 0.0]])
    # [-2, 2] and [0, 1]: times 2, and 0.5 ± 0.5; elements without bounds stay the same.
    scaled = torch.tensor([[2.0, 0.0, 3.0], [-1.0, 0.75, -7.0], [-2.0, 1.0, 0.0]])
    clipped = torch.tensor([[1.0, 0.0, 3.0], [-0.5, 0.5, -7.0], [-2.0, 1.0, 0.0]])
    bounded = agent.to_env(raw)
    assert torch.equal(bounded, scaled if normalized else clipped)
    # Within the bounds, the inverse is the actor's action.
    torch.testing.assert_close(agent.from_env(bounded)[1], raw[1])


@pytest.mark.parametrize("preset", [f"{algo}_cartpole" for algo in DREAMERS])
def test_dreamer_sampler_follows_buffer_keys(preset: str) -> None:
    def memory(*typed: str) -> Any:
        config = compose([f"exp={preset}", *typed])[0]
        return memory_and_plan(Context(config, SPEC, fabric(), SingleProcess(), config.env.num_envs))[0]

    plain = memory()
    assert type(plain.sampler) is Sequences and plain.sampler.length == 16
    assert plain.online == preset.startswith("dreamer_v3_5")  # as in the authors' code of V3.5
    online = memory("buffer.online=true")
    assert type(online.sampler) is Sequences and online.online
    episodes = memory("buffer.type=episode").sampler
    assert type(episodes) is EpisodeSequences and episodes.length == 16 and not episodes.prioritize_ends
    assert memory("buffer.type=episode", "buffer.prioritize_ends=true").sampler.prioritize_ends


def test_dreamer_replay_stores_carry_and_fixed_extras() -> None:
    config = compose(["exp=dreamer_v3_cartpole"])[0]
    of_run = Context(config, SPEC, fabric(), SingleProcess(), config.env.num_envs)
    extras = {name: ArraySpec((), "float32") for name in ("logprob", "value")}
    carry = {"deter": torch.zeros(1, 3)}
    replay = memory_and_plan(of_run, extras, fixed_extras=["logprob"], carry=carry)[0]
    assert replay.stores_carry and replay.fixed_extras == ("logprob",) and {*replay.extras} == {*extras}
    plain = memory_and_plan(of_run)[0]
    assert not plain.stores_carry and replay.row_bytes == plain.row_bytes + (2 + 3) * 4


def test_dreamer_v3_bins_follow_head_keys() -> None:
    spec = EnvSpec("Some-v0", {"state": ArraySpec((2,), "float32")}, BOX)
    own = {"world_model": SETTINGS["dreamer_v3"]["world_model"] | {"reward_model": {"spacing": "symexp", "bins": 15}}}
    learner = ALGORITHMS["dreamer_v3"].build(context(SETTINGS["dreamer_v3"] | own, spec, num_envs=1))[0]
    assert learner.agent.world.number == TwoHot(15, "symexp")
    assert learner.behavior.number == TwoHot(SETTINGS["dreamer_v3"].get("critic", {}).get("bins", 255))
