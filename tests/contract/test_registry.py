"""Properties of every registered algorithm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.on_policy.config import OnPolicyConfig
from rlcore.config.build import build
from rlcore.config.groups import BufferConfig
from rlcore.config.schema import arguments
from rlcore.config.values import at, plain
from rlcore.conformance.trainings import bits
from rlcore.optim.optimizer import Optimizer
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec
from rlcore.store.checkpoint import nested_state
from rlcore.train.components import find_all
from rlcore.types import Context
from tests.learning.assembly import Trainer, assemble, context
from tests.runs import SMALL_DREAMER, SMALL_DREAMER_V1, SMALL_DREAMER_V2, SMALL_DREAMER_V3_5
from tests.soaking import heavy, soak

# Small networks; everything that has state is enabled.
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {
        "name": "ppo",
        "total_steps": 10_000,
        "rollout_steps": 24,
        "per_rank_batch_size": 20,
        "update_epochs": 2,
        "normalize_obs": True,
        "normalize_reward": True,
        "normalize_advantages": True,
        "anneal_lr": True,
        "ent_coef": 0.01,
        "max_grad_norm": 0.5,
        "clip_vloss": True,
        "dense_units": 16,
        "encoder": {"dense_units": 16, "mlp_layers": 1, "mlp_features_dim": 16},
        "actor": {"dense_units": 16, "mlp_layers": 1},
        "critic": {"dense_units": 16, "mlp_layers": 1},
    },
}
SETTINGS["a2c"] = {
    key: value
    for key, value in SETTINGS["ppo"].items()
    if key not in ("per_rank_batch_size", "update_epochs", "clip_vloss")
} | {"name": "a2c", "optimizer": {"name": "rmsprop_tf", "lr": 1e-3, "momentum": 0.5, "centered": True, "eps": 1e-5}}
SETTINGS["sac"] = {
    "name": "sac",
    "total_steps": 10_000,
    "hidden_size": 16,
    "per_rank_batch_size": 20,
    "learning_starts": 30,
    "n_step": 3,
    "actor": {"hidden_size": 16},
    "critic": {"hidden_size": 16, "target_network_frequency": 2},
}
SETTINGS["ppo_recurrent"] = {key: value for key, value in SETTINGS["ppo"].items() if key != "per_rank_batch_size"} | {
    "name": "ppo_recurrent",
    "per_rank_sequence_length": 7,  # of 24 rows: some sequences are a row shorter, some hold an episode's end
    "per_rank_num_batches": 2,
    "rnn": {"lstm": {"hidden_size": 8}, "post_rnn_mlp": {"apply": True, "dense_units": 8}},
}
SETTINGS["droq"] = SETTINGS["sac"] | {
    "name": "droq",
    "n_step": 1,
    "replay_ratio": 2,
    "critic": {"hidden_size": 16, "dropout": 0.1},
}
SETTINGS["crossq"] = SETTINGS["sac"] | {
    "name": "crossq",
    "n_step": 1,
    "policy_delay": 2,
    "actor": {"hidden_size": 16, "renorm_warmup": 2},
    "critic": {"hidden_size": 16, "renorm_warmup": 4},
}
SETTINGS["simba"] = SETTINGS["sac"] | {
    "name": "simba",
    "critic": {"hidden_size": 16, "mlp_layers": 1, "loss": "categorical", "bins": 11},
}
SETTINGS["dreamer_v3"] = {
    "name": "dreamer_v3",
    "total_steps": 10_000,
    "per_rank_batch_size": 4,
    "per_rank_sequence_length": 9,
    "learning_starts": 12,
    "replay_ratio": 0.2,
    "horizon": 4,
    **SMALL_DREAMER,
    "critic": SMALL_DREAMER["critic"] | {"per_rank_target_network_update_freq": 2},
}
SETTINGS["dreamer_v1"] = SETTINGS["dreamer_v3"] | {
    "name": "dreamer_v1",
    "per_rank_pretrain_steps": 1,
    **SMALL_DREAMER_V1,
}
SETTINGS["dreamer_v2"] = SETTINGS["dreamer_v3"] | {
    "name": "dreamer_v2",
    "per_rank_pretrain_steps": 1,
    **SMALL_DREAMER_V2,
}
SETTINGS["dreamer_v3_5"] = SETTINGS["dreamer_v3"] | {
    "name": "dreamer_v3_5",
    **SMALL_DREAMER_V3_5,
    "critic": SMALL_DREAMER_V3_5["critic"] | {"per_rank_target_network_update_freq": 2},
}
SETTINGS |= {
    f"p2e_dv{version}_{phase}": SETTINGS[f"dreamer_v{version}"]
    | {"name": f"p2e_dv{version}_{phase}", "ensembles": {"n": 3, "dense_units": 8, "mlp_layers": 1}}
    for version in ("1", "2", "3", "3_5")
    for phase in ("exploration", "finetuning")
}
ROUGH = {"eps": 1e-4}  # with a smaller eps, Adam turns rounding errors of gradients into steps
SETTINGS["sac_ae"] = {
    "name": "sac_ae",
    "total_steps": 10_000,
    "hidden_size": 16,
    "per_rank_batch_size": 20,
    "learning_starts": 30,
    "per_rank_pretrain_steps": 2,
    "n_step": 2,
    "encoder": {"dense_units": 8, "features_dim": 6, "optimizer": ROUGH},
    "decoder": {"dense_units": 8, "optimizer": ROUGH},
    "actor": {"hidden_size": 16, "optimizer": ROUGH},
    "critic": {"hidden_size": 16, "optimizer": ROUGH},
}
# Episodes of at most 12 steps: every rollout has episode ends and reset rows; CartPole terminates and truncates.
ENVS = {"discrete": "CartPole-v1", "continuous": "Pendulum-v1"}
CONTINUOUS_ONLY = ("sac", "droq", "crossq", "simba", "sac_ae")
# A phase of Plan2Explore has the actor losses of its Dreamer, which is tested with both kinds of actions.
SELDOM = {"exploration": "discrete", "finetuning": "continuous"}
PAIRS = [
    pytest.param(algo, env_id, id=f"{algo}-{kind}", marks=soak if SELDOM.get(algo.rpartition("_")[2]) == kind else ())
    for algo in ALGORITHMS
    for kind, env_id in ENVS.items()
    if kind == "continuous" or algo not in CONTINUOUS_ONLY
]
on_policy = pytest.mark.parametrize("algo", [a for a in ALGORITHMS if issubclass(ALGORITHMS[a].Config, OnPolicyConfig)])
every_algorithm = pytest.mark.parametrize("algo", ALGORITHMS)
# Fine-tuning has the networks and losses of a Dreamer.
every_network = pytest.mark.parametrize(
    "algo", [pytest.param(algo, marks=soak if algo.endswith("finetuning") else ()) for algo in ALGORITHMS]
)
every_env = pytest.mark.parametrize("env_id", ENVS.values(), ids=ENVS)
every_pair = pytest.mark.parametrize(("algo", "env_id"), PAIRS)
with_images = pytest.mark.parametrize("algo", ["ppo", "ppo_recurrent", "sac", "sac_ae", "dreamer_v1", "dreamer_v3"])


def small(
    algo: str,
    env_id: str,
    seed: int = 0,
    precision: str = "32-true",
    distribution: str = "auto",
    accelerator: str = "cpu",
    **changes: Any,
) -> Trainer:
    how = {"seed": seed, "precision": precision, "distribution": distribution, "accelerator": accelerator}
    return assemble(env_id, SETTINGS[algo] | changes, num_envs=3, max_episode_steps=12, **how)


def small_of_images(algo: str, accelerator: str = "cpu", buffer: BufferConfig | None = None, **changes: Any) -> Trainer:
    """A small training on images and a vector, with a frame stack of two except for Dreamers."""
    keys = {"cnn_keys": {"encoder": ["rgb"]}, "mlp_keys": {"encoder": ["state"]}}
    frames = {} if algo.startswith("dreamer") else {"frame_stack": 2}
    env = {"image_key": "rgb", "screen_size": 64, "num_envs": 3, "max_episode_steps": 12} | frames
    return assemble("point_mass", SETTINGS[algo] | keys | changes, accelerator=accelerator, buffer=buffer, **env)


def moved(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    return {name for name, value in before.items() if not np.array_equal(value, after[name])}


@every_algorithm
def test_exported_components_are_in_learner_state(algo: str) -> None:
    training = small(algo, ENVS["continuous"])
    state = training.learner.state_dict()
    training.envs.close()
    for place in ALGORITHMS[algo].Config.exported_components.values():
        component, _, submodule = place.partition(".")
        assert component in state
        assert not submodule or any(name.startswith(f"{submodule}.") for name in state[component]), place
        assert component in training.learner.transferable_components


@pytest.mark.parametrize("algo", ["sac", "dreamer_v3"])
def test_learner_calls_components_only_after_construction(algo: str) -> None:
    module: Any = ALGORITHMS[algo]

    class Later(module.learner.Learner):
        def __init__(self, inputs: Context[Any]) -> None:
            super().__init__(inputs)
            self.later = self.agent

        def components(self) -> dict[str, Any]:
            return super().components() | {"later": self.later}

    action = ActionSpec("Box", (1,), "float32", low=(-1.0,), high=(1.0,))
    learner = Later(context(SETTINGS[algo], EnvSpec("Some-v0", {"state": ArraySpec((2,), "float32")}, action)))
    assert {"agent", "critics" if algo == "sac" else "critic"} <= {*learner.transferable_components}
    assert "later" in learner.components()


def groups(config: Any) -> Iterator[Any]:
    """Yield a config and all config groups in it."""
    yield config
    for field in fields(config):
        if is_dataclass(value := getattr(config, field.name)):
            yield from groups(value)


@every_algorithm
def test_configs_inherit_at_most_two_levels_from_root(algo: str) -> None:
    for group in groups(ALGORITHMS[algo].Config(total_steps=10_000)):
        between = [*filter(is_dataclass, type(group).__mro__)][1:-1]  # without the class and the root
        # A phase of Plan2Explore has all keys of its Dreamer, so its config is derived from that of the Dreamer.
        assert len(between) <= (3 if algo.startswith("p2e") else 2), between


@every_algorithm
def test_partly_given_groups_keep_defaults_of_their_field(algo: str) -> None:
    """A group with one key has the other defaults of its field, not those of its class (`eps` of an optimizer)."""
    cls, required = ALGORITHMS[algo].Config, {"total_steps": 100_000}
    whole = build(cls, required)
    for key in (argument.key for argument in arguments(cls) if "." in argument.key):
        values: Any = at(plain(whole), key)
        for name in reversed(key.split(".")):
            values = {name: values}
        assert build(cls, required | values) == whole, key


def test_settings_cover_every_algorithm() -> None:
    assert SETTINGS.keys() == ALGORITHMS.keys()


def test_settings_rollouts_contain_both_episode_ends() -> None:
    steps, _ = small("ppo", ENVS["discrete"]).collector.collect(48)
    assert steps.terminated.any() and steps.truncated.any()


@pytest.mark.parametrize("algo", ["ppo", "sac", "dreamer_v3"])
def test_neighboring_seeds_share_no_random_values(algo: str) -> None:
    drawn = []
    for seed in (0, 1):
        training = small(algo, ENVS["continuous"], seed=seed)
        weights = np.concatenate([p.detach().numpy().ravel() for p in training.learner.agent.parameters()])
        start = np.concatenate([v.ravel() for v in training.envs.reset().obs.values()])
        streams = (training.collector.rng.host.random(500), training.rng.random(500))
        drawn.append([set(part.tolist()) - {0.0} for part in (weights, start, *streams)])
        training.close()
    for first, second in zip(*drawn, strict=True):
        assert len(first) > 7
        # Among thousands of float32 weights in ±0.5, a few are equal by chance; float64 draws are not.
        assert len(first & second) <= len(first) // 100
    for parts in drawn:  # within a run, action noise and minibatch order share no draw
        assert not parts[2] & parts[3]


@heavy
@every_network
def test_resume_larger_budget_matches_longer_run(algo: str) -> None:
    settings = SETTINGS[algo] | ({"anneal_lr": False} if "anneal_lr" in SETTINGS[algo] else {"replay_ratio": 0.1})

    def training(total: int) -> Trainer:
        return assemble("Pendulum-v1", settings | {"total_steps": total}, num_envs=3)

    straight, first, longer = training(600).run(600), training(300).run(300), training(600)
    longer.load_state_dict(nested_state.decode(*bits(first)))
    assert bits(longer.run(600)) == bits(straight)


@heavy
@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
@every_pair
def test_half_precision_keeps_losses_in_float32(algo: str, env_id: str, precision: str) -> None:
    training = small(algo, env_id, precision=precision)
    steps, _ = training.collector.collect(24)
    states = getattr(training.learner.agent, "stored", {})  # Dreamer V3.5 stores its model states in fewer bytes
    assert {value.dtype for name, value in steps.extras.items() if name not in states} <= {torch.float32}
    before = training.weights()
    seen = []

    def watched(plain: Callable[..., Any]) -> Callable[..., Any]:
        def loss(*arguments: Any) -> Any:
            seen.append(plain(*arguments))
            return seen[-1]

        return loss

    for optimizer in find_all(training.learner, Optimizer).values():
        optimizer.loss = watched(optimizer.loss)
    training.run(100)
    assert {each.dtype for total, weight, means, *_ in seen for each in (total, weight, *means.values())} == {
        torch.float32
    }
    assert all(np.isfinite(list(m.values())).all() for m in training.metrics)
    assert moved(before, training.weights())
    kept = {p.dtype for p in training.learner.agent.parameters()}
    assert kept == {torch.bfloat16 if precision == "bf16-true" else torch.float32}
