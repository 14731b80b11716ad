"""Algorithms without a model pass the conformance suite, and each check rejects a broken algorithm."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from rlcore import conformance
from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.on_policy.a2c import learner as a2c
from rlcore.algorithms.on_policy.actor_critic import ActorCritic as Agent
from rlcore.algorithms.on_policy.learner import RewardScaler
from rlcore.algorithms.on_policy.ppo import learner as ppo
from rlcore.compiled.whole_step import CapturedTensors
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.conformance.trainings import fresh
from rlcore.evaluation import loaded_policy
from rlcore.functional.noise import Noise
from rlcore.functional.stats import RunningMoments, standardize
from rlcore.functional.tree import leaves, name_leaves
from rlcore.optim.flat import FlatParameters
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.traced import TracedGradient
from rlcore.train import loop
from rlcore.train.components import find_all, parameters
from tests.contract.cases import cases_of, config
from tests.contract.checks import conformance_checks
from tests.probes import q_learning, recurrent, world
from tests.soaking import heavy


@pytest.mark.parametrize(("algo", "env_id", "check"), cases_of(lambda algo: not algo.startswith(("dreamer", "p2e"))))
def test_model_free_algorithm_passes_conformance(algo: str, env_id: str, check: Callable[[RunConfig], None]) -> None:
    check(config(algo, env_id))


@heavy
@pytest.mark.parametrize("check", conformance_checks())
def test_q_learning_probe_passes_conformance(
    check: Callable[[RunConfig], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS, "q_learning", q_learning)
    check(q_learning_config())


@heavy
@pytest.mark.parametrize("check", conformance_checks())
def test_world_model_probe_passes_conformance(
    check: Callable[[RunConfig], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS, "world", world)
    env = EnvConfig(id="discrete_dummy", num_envs=3, max_episode_steps=12)
    check(RunConfig(algo=build(world.Config, {"total_steps": 400}, "algo."), env=env, seed=0))


def q_learning_config(**changes: Any) -> RunConfig:
    settings = build(q_learning.Config, {"total_steps": 400, "learning_starts": 12, "size": 10} | changes, "algo.")
    return RunConfig(algo=settings, env=EnvConfig(id="CartPole-v1", num_envs=3, max_episode_steps=12), seed=0)


def unseeded_noise(self: Noise, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng().standard_exponential(shape, dtype=np.float32))


def global_noise(self: Noise, *shape: int) -> Tensor:
    return torch.empty(shape).exponential_()


def load_running_only(self: RewardScaler, state: dict[str, Any]) -> None:
    self.running = state["running"].clone()


def apply_changing_encoder(self: Optimizer) -> Tensor:
    norm = APPLY(self)
    self.module.encoder.mlp.layers[0].bias.data += 1  # like a loss that changes parameters of another module
    return norm


APPLY, ACT, INIT = Optimizer.apply, Agent.act, FlatParameters.__init__


def act_with_counting_carry(self: Agent, carry: Any, obs: Any, is_first: Any, rng: Any, greedy: bool = False) -> Any:
    _, action, extras = ACT(self, (), obs, is_first, rng, greedy)
    count = (carry or torch.zeros(len(action), 1, dtype=torch.int64)) if isinstance(carry, tuple) else carry
    return count + 1, (action + count) % 2 if greedy else action, extras


def act_at_random(self: Agent, carry: Any, obs: Any, is_first: Any, rng: Any, greedy: bool = False) -> Any:
    return ACT(self, carry, obs, is_first, rng or Noise(np.random.randint(1 << 30), "policy"), False)


def act_changing_weights(self: Agent, *arguments: Any) -> Any:
    self.critic.layers[0].weight.data += 1e-3
    return ACT(self, *arguments)


def act_differently_when_loaded(
    self: Agent, *arguments: Any
) -> Any:  # as if it depended on unsaved state or on a layer's mode
    carry, action, extras = ACT(self, *arguments)
    return carry, action if self.training else 1 - action, extras


def components_without_optimizer(self: a2c.Learner) -> dict[str, Any]:
    return {name: part for name, part in PARTS(self).items() if name != "optimizer"}


def update_counting_in_buffer(self: a2c.Learner, *arguments: Any) -> Any:
    seen = self.agent.seen + 1 if hasattr(self.agent, "seen") else torch.zeros(())
    self.agent.register_buffer("seen", seen, persistent=False)
    return LEARN(self, *arguments)


def optimizer_of_one_rank(self: Optimizer, *arguments: Any, **more: Any) -> None:
    OPTIMIZER(self, *arguments, **more)
    self.ranks = dataclasses.make_dataclass("One", [("size", int, 1)])()


def sync_no_weights(self: Any, player: Any) -> None:
    pass


def parts_of_first_rank(state: Any, ranks: Any) -> list[Any]:
    return []


def standardize_per_rank(x: Tensor, weight: Tensor, total: Any = None) -> Tensor:
    return standardize(x, weight)


def update_moments_per_rank(self: RunningMoments, rows: Tensor, total: Any = None, valid: Any = None) -> None:
    UPDATE(self, rows, valid=valid)


def loss_divided_per_rank(self: a2c.Learner, *inputs: Any) -> Any:
    total, weight, means = LOSS(self, *inputs)
    return total / weight, torch.ones(()), means


OPTIMIZER, UPDATE, LOSS = Optimizer.__init__, RunningMoments.update, a2c.Learner.loss
PARTS, LEARN = a2c.Learner.components, a2c.Learner.update


@pytest.mark.parametrize(
    ("check", "place", "name", "broken"),
    [
        (conformance.same_seed_gives_the_same_bits, Noise, "exponential", unseeded_noise),
        (conformance.interrupted_equals_uninterrupted, RewardScaler, "load_state_dict", load_running_only),
        (conformance.state_survives_a_checkpoint, RewardScaler, "load_state_dict", load_running_only),
        (conformance.parts_are_complete, a2c.Learner, "components", components_without_optimizer),
        (conformance.parts_are_complete, a2c.Learner, "update", update_counting_in_buffer),
        (conformance.each_loss_reaches_only_its_parameters, Optimizer, "apply", apply_changing_encoder),
        (conformance.acting_changes_nothing, Agent, "act", act_changing_weights),
        (conformance.a_loaded_policy_acts_alike, Agent, "act", act_differently_when_loaded),
        (conformance.a_player_elsewhere_acts_alike, a2c.Learner, "sync_weights", sync_no_weights),
        (conformance.greedy_is_deterministic, Agent, "act", act_at_random),
        (conformance.no_global_generator_is_used, Noise, "exponential", global_noise),
        (conformance.ranks_stay_one, Optimizer, "__init__", optimizer_of_one_rank),
        (conformance.two_ranks_learn_as_one, a2c, "standardize", standardize_per_rank),
        (conformance.two_ranks_learn_as_one, RunningMoments, "update", update_moments_per_rank),
        (conformance.two_ranks_learn_as_one, a2c.Learner, "loss", loss_divided_per_rank),
        (conformance.interrupted_ranks_equal_uninterrupted, loop, "parts_of_this_rank", parts_of_first_rank),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_conformance_check_rejects_broken_algorithm(
    check: Callable[[RunConfig], None], place: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = config("a2c", "CartPole-v1")  # passes each check without the change, see the first test
    monkeypatch.setattr(place, name, broken)
    if broken is apply_changing_encoder:  # for an optimizer that must not train the encoder
        monkeypatch.setattr(FlatParameters, "__init__", init_without_encoder)
    with pytest.raises(AssertionError):
        check(run)


def init_without_encoder(self: FlatParameters, module: torch.nn.Module, *more: Any) -> None:
    module.encoder.requires_grad_(False)
    INIT(self, module, *more)


def test_conformance_rejects_carry_outliving_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Agent, "initial", lambda self, batch: torch.zeros(batch, 1, dtype=torch.int64))
    monkeypatch.setattr(Agent, "act", act_with_counting_carry)
    with pytest.raises(AssertionError, match="the carry of the previous episode affects"):
        conformance.an_episodes_start_forgets(config("a2c", "CartPole-v1"))


class Nested(q_learning.Learner):
    """The second optimizer is in a list of dicts; the target network and another one are in a list of an object."""

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self.more = [{"critic": vars(self).pop("second")}]
        self.slow = Slow([vars(self).pop("target"), torch.nn.Linear(1, 1)])

    def __getattr__(self, name: str) -> Any:
        if name in ("second", "target"):
            return self.more[0]["critic"] if name == "second" else self.slow.networks[0]
        raise AttributeError(name)


class Slow:
    def __init__(self, networks: list[Any]) -> None:
        self.networks = networks


def test_find_all_searches_lists_dicts_and_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "q_learning", q_learning)
    count = len(parameters(fresh(q_learning_config()).learner))
    monkeypatch.setattr(q_learning, "Learner", Nested)
    learner = fresh(q_learning_config()).learner
    assert list(find_all(learner, Optimizer)) == ["first", "more[0]['critic']"]
    assert len(parameters(learner)) == count
    conformance.each_loss_reaches_only_its_parameters(q_learning_config())
    conformance.two_ranks_learn_as_one(q_learning_config())

    def apply_changing_agent(self: Optimizer) -> Tensor:
        norm = APPLY(self)
        if self.loss.__name__ == "second_loss":
            self.loss.__wrapped__.__self__.agent.first.layers[0].bias.data += 1
        return norm

    monkeypatch.setattr(Optimizer, "apply", apply_changing_agent)
    with pytest.raises(AssertionError, match=r"more\[0\]\['critic'\] changes parameters of other optimizers"):
        conformance.each_loss_reaches_only_its_parameters(q_learning_config())


def test_seed_determines_default_layer_initialization(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "q_learning", q_learning)
    monkeypatch.setattr(q_learning, "Learner", Nested)  # its second network in a list is a plain torch layer

    def drawn(seed: int) -> float:
        torch.rand(seed)  # earlier draws have no effect
        learner = fresh(dataclasses.replace(q_learning_config(), seed=seed)).learner
        return learner.slow.networks[1].weight.item()

    assert drawn(3) == drawn(3) != drawn(4)


def test_conformance_rejects_swapped_carry_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the parts of a carry were named in another order than `act` returns them."""

    def name_in_reverse(self: loaded_policy.LoadedPolicy, carry: Any) -> dict[str, np.ndarray]:
        return dict(zip(name_leaves(self.initial(1)), [part.numpy() for part in leaves(carry)[::-1]], strict=True))

    recurrent.use(monkeypatch, recurrent.TwoCounts)
    conformance.a_loaded_policy_acts_alike(q_learning_config())
    monkeypatch.setattr(loaded_policy.LoadedPolicy, "_name", name_in_reverse)
    with pytest.raises(AssertionError, match=r"for the same observations, a loaded policy returns another carry\.[ch]"):
        conformance.a_loaded_policy_acts_alike(q_learning_config())


def test_compiled_equals_eager_rejects_different_step(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = TracedGradient.sums

    def other(self: TracedGradient) -> tuple[Tensor, Tensor]:
        gradient, weight = sums(self)
        return 2 * gradient if get_proxy_mode() else gradient, weight

    monkeypatch.setattr(TracedGradient, "sums", other)
    with pytest.raises(AssertionError, match="differs if the update is compiled"):
        conformance.compiled_equals_eager(config("a2c", "CartPole-v1", max_grad_norm=0.0))


def test_compiled_equals_eager_compares_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients that two ranks compile return the buffers that a loss replaces."""

    def initialize(self: Agent, *arguments: Any, **more: Any) -> None:
        plain(self, *arguments, **more)
        self.register_buffer("losses", torch.zeros(()))

    def loss(self: a2c.Learner, *inputs: Any) -> Any:
        self.agent.losses = self.agent.losses + 1
        return LOSS(self, *inputs)

    plain = Agent.__init__
    monkeypatch.setattr(Agent, "__init__", initialize)
    monkeypatch.setattr(a2c.Learner, "loss", loss)
    conformance.compiled_equals_eager(config("a2c", "Pendulum-v1"))
    replace = CapturedTensors.replace
    monkeypatch.setattr(
        CapturedTensors, "replace", lambda self, tensors: replace(self, tensors) if get_proxy_mode() else None
    )
    with pytest.raises(AssertionError, match="agent.losses differs if the update is compiled"):
        conformance.compiled_equals_eager(config("a2c", "Pendulum-v1"))


def test_conformance_rejects_non_scalar_metric(monkeypatch: pytest.MonkeyPatch) -> None:
    update = a2c.Learner.update
    monkeypatch.setattr(
        a2c.Learner, "update", lambda self, *given: update(self, *given) | {"Loss/each": torch.zeros(1)}
    )
    with pytest.raises(AssertionError, match=r"metric 'Loss/each' is a Tensor of shape \[1\]"):
        conformance.same_seed_gives_the_same_bits(config("a2c", "CartPole-v1"))


def test_two_ranks_learn_as_one_rejects_separate_minibatches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo.Config, "merge_minibatches", lambda self: self)
    with pytest.raises(
        AssertionError,
        match=r"two ranks take 24 gradient steps, but one rank takes 48; .* \(Config.merge_minibatches\)",
    ):
        conformance.two_ranks_learn_as_one(config("ppo", "CartPole-v1"))


@heavy
@pytest.mark.parametrize("part_name", ["policy inference", "the gradient step"])
def test_compiled_equals_eager_rejects_changed_constant(part_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example an exploration rate as attribute of the agent, or a coefficient as attribute of the learner."""
    rate = {"policy inference": 1.0, "the gradient step": 1.0}

    def less(self: a2c.Learner, *arguments: Any) -> Any:
        rate[part_name] *= 1 - 1e-6  # too small a change to show in actions or weights
        return update(self, *arguments)

    def act(self: Agent, *arguments: Any) -> Any:
        carry, action, extras = ACT(self, *arguments)
        return carry, action * rate["policy inference"], extras

    def loss(self: a2c.Learner, *inputs: Any) -> Any:
        total, weight, means = LOSS(self, *inputs)
        return total * rate["the gradient step"], weight, means

    update = a2c.Learner.update
    monkeypatch.setattr(Agent, "act", act)
    monkeypatch.setattr(a2c.Learner, "loss", loss)
    conformance.compiled_equals_eager(config("a2c", "Pendulum-v1"))
    monkeypatch.setattr(a2c.Learner, "update", less)
    with pytest.raises(AssertionError, match=f"^{part_name} reads a value that an update changes"):
        conformance.compiled_equals_eager(config("a2c", "Pendulum-v1"))


def test_compiled_equals_eager_rejects_stale_policy_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    def act(self: Agent, *arguments: Any) -> Any:
        carry, action, extras = ACT(self, *arguments)
        return carry, action * self.rate, extras

    def update(self: a2c.Learner, *arguments: Any) -> Any:
        self.agent.rate = self.agent.rate / 2
        return plain(self, *arguments)

    plain = a2c.Learner.update
    monkeypatch.setattr(Agent, "rate", 1.0, raising=False)
    monkeypatch.setattr(Agent, "act", act)
    monkeypatch.setattr(a2c.Learner, "update", update)
    with pytest.raises(AssertionError, match="the action of a rollout differs if the agent.s `act` is compiled"):
        conformance.compiled_equals_eager(config("a2c", "Pendulum-v1"))
