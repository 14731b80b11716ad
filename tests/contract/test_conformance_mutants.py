"""Conformance passes a world model of an outside author, and rejects its mutants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rlcore import conformance
from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.dreamer.return_scale import ReturnScale
from rlcore.compiled import package
from rlcore.config.build import build
from rlcore.config.groups import EnvConfig
from rlcore.config.run import RunConfig
from rlcore.functional.scan import scan
from rlcore.functional.stats import reduce_loss
from rlcore.optim.optimizer import Optimizer
from rlcore.types import Batch, SingleProcess
from tests.contract.checks import conformance_checks
from tests.probes import latent_model
from tests.probes.latent_model import LATENTS, Agent, Learner, Model
from tests.soaking import heavy

pytestmark = heavy


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "latent_model", latent_model)


def config(**changes: Any) -> RunConfig:
    settings = build(latent_model.Config, {"total_steps": 400} | changes, "algo.")
    return RunConfig(algo=settings, env=EnvConfig(id="CartPole-v1", num_envs=3, max_episode_steps=5), seed=0)


@pytest.mark.parametrize("check", conformance_checks())
def test_conformance_passes_outside_world_model(check: Callable[[RunConfig], None]) -> None:
    check(config())


def test_conformance_passes_loss_below_free_nats() -> None:
    conformance.each_loss_reaches_only_its_parameters(config(free_nats=1e3))


# Mutants --------------------------------------------------------------------------------------------------------------

OPTIMIZER, APPLY, REDUCE = Optimizer.__init__, Optimizer.apply, reduce_loss
PARTS, UPDATE, MODEL_LOSS = Learner.components, Learner.update, Learner.model_loss
ACT, FORWARD, SCALE = Agent.act, Model.forward, ReturnScale.forward


def without_uses(self: Optimizer, *arguments: Any, uses: Any = (), **more: Any) -> None:
    OPTIMIZER(self, *arguments, **more)


def without(name: str) -> Callable[[Learner], dict[str, Any]]:
    return lambda self: {key: part for key, part in PARTS(self).items() if key != name}


def update_without_writing(self: Learner, batch: Batch, rng: Any) -> Any:
    batch.write_back = lambda extras: None
    return UPDATE(self, batch, rng)


def update_writing_old_latents(self: Learner, batch: Batch, rng: Any) -> Any:
    write_back, old = batch.write_back, batch.steps.extras["latent"]
    batch.write_back = lambda extras: write_back({"latent": old})
    return UPDATE(self, batch, rng)


def loss_from_zero_latents(self: Learner, latent: Tensor, rows: Any, rng: Any) -> Any:
    return MODEL_LOSS(self, torch.zeros_like(latent), rows, rng)


def scale_of_one_rank(self: ReturnScale, returns: Tensor, ranks: Any) -> Tensor:
    return SCALE(self, returns, SingleProcess())


def scale_of_one_rank_without_state(self: ReturnScale, returns: Tensor, ranks: Any) -> Tensor:
    """Fresh weights predict returns that differ by less than 1, so only large ones show the fault."""
    return (returns.quantile(0.95) - returns.quantile(0.05)).clamp(min=1)


def mean_of_one_rank(loss: Tensor, weight: Tensor, **means: Tensor) -> Any:
    total, count, logged = REDUCE(loss, weight, **means)
    return total / count, torch.ones(()), logged


def forward_across_episodes(self: Model, latent: Tensor, action: Tensor, first: Tensor, *more: Any) -> Any:
    return FORWARD(self, latent, action, torch.zeros_like(first), *more)


def forward_with_a_fixed_prior(self: Model, *arguments: Any) -> Any:
    prior, layer = self.prior, self.prior
    fixed = torch.nn.functional.linear
    self.__dict__["prior"] = lambda h: fixed(h, layer.weight.detach(), layer.bias.detach())
    try:
        return FORWARD(self, *arguments)
    finally:
        del self.__dict__["prior"]
        assert self.prior is prior


def random_greedy_action(self: Agent, carry: Any, obs: Any, first: Any, rng: Any, greedy: bool = False) -> Any:
    after, action, extras = ACT(self, carry, obs, first, rng, greedy)
    return after, (action + torch.randint(2, action.shape)) % 2 if greedy else action, extras


def action_of_the_global_generator(
    self: Agent, carry: Any, obs: Any, first: Any, rng: Any, greedy: bool = False
) -> Any:
    after, action, extras = ACT(self, carry, obs, first, rng, greedy)
    return after, action if greedy else torch.randint(2, action.shape), extras


def loss_with_a_coefficient(self: Learner, latent: Tensor, rows: Any, rng: Any) -> Any:
    total, *more = MODEL_LOSS(self, latent, rows, rng)
    return total * self.coef, *more


def update_of_the_coefficient(self: Learner, *arguments: Any) -> Any:
    self.coef *= 1 - 1e-6
    return UPDATE(self, *arguments)


def loss_with_a_scan_without_params(self: Learner, latent: Tensor, rows: Any, rng: Any) -> Any:
    action, first, obs, reward = rows

    def step(latent: Tensor, x: Any, params: Any) -> Any:
        latent, divergence = self.agent.model(latent, *x)
        return latent, (latent.clone(), divergence)

    _, (latent, divergence) = scan(step, latent, (action, first, rng.normal(*reward.shape, LATENTS), obs))
    loss = divergence.flatten()
    return *reduce_loss(loss, torch.ones_like(loss)), {"latent": latent.detach()}


def step_that_changes_the_model(self: Optimizer, *arguments: Any) -> Any:
    norm = APPLY(self, *arguments)
    if self.loss.__name__ == "actor_loss":
        self.uses[0].prior.bias.data += 1
    return norm


Changes = list[tuple[Any, str, Any]]  # object, attribute, the mutant's value of it
MUTANTS: dict[str, tuple[Callable[[RunConfig], None], str, Changes]] = {
    "no uses": (
        conformance.compiled_equals_eager,
        "replaces scale.low, .* name its module in the optimizer's `uses`",
        [(Optimizer, "__init__", without_uses)],
    ),
    "no uses, which only two ranks need": (
        conformance.compiled_equals_eager,
        "pass the module that contains them to the optimizer in the argument `uses`",
        [(Optimizer, "__init__", without_uses), (ReturnScale, "forward", lambda *_: torch.ones(()))],
    ),
    "a step that is no component": (
        conformance.parts_are_complete,
        "^step is not in `components",
        [(Learner, "components", without("step"))],
    ),
    "an optimizer that is no component": (
        conformance.parts_are_complete,
        "of_critic",
        [(Learner, "components", without("of_critic"))],
    ),
    "noise that is no component": (
        conformance.interrupted_equals_uninterrupted,
        "ends in another state than an uninterrupted one",
        [(Learner, "components", without("noise"))],
    ),
    "latents not written back": (
        conformance.stored_agent_outputs_are_used,
        "no update replaces it by a newer one",
        [(Learner, "update", update_without_writing)],
    ),
    "latents written back unchanged": (
        conformance.stored_agent_outputs_are_used,
        "no update replaces it by a newer one",
        [(Learner, "update", update_writing_old_latents)],
    ),
    "latents not read": (
        conformance.stored_agent_outputs_are_used,
        "stores the agent's extra output 'latent', which no update reads",
        [(Learner, "model_loss", loss_from_zero_latents)],
    ),
    "a scale of one rank": (
        conformance.two_ranks_learn_as_one,
        "of two ranks differs by",
        [(ReturnScale, "forward", scale_of_one_rank)],
    ),
    "a scale of one rank without state": (
        conformance.two_ranks_learn_as_one,
        "of two ranks differs by",
        [(ReturnScale, "forward", scale_of_one_rank_without_state)],
    ),
    "a mean of one rank": (
        conformance.two_ranks_learn_as_one,
        "of two ranks differs by",
        [(latent_model, "reduce_loss", mean_of_one_rank)],
    ),
    "a latent that outlives its episode": (
        conformance.an_episodes_start_forgets,
        "the carry of the previous episode affects",
        [(Model, "forward", forward_across_episodes)],
    ),
    "a random greedy action": (
        conformance.greedy_is_deterministic,
        "a greedy action differs between two calls",
        [(Agent, "act", random_greedy_action)],
    ),
    "actions of the global generator": (
        conformance.no_global_generator_is_used,
        "training advances a global random generator",
        [(Agent, "act", action_of_the_global_generator)],
    ),
    "a prior that no loss trains": (
        conformance.each_loss_reaches_only_its_parameters,
        "never depends on",
        [(Model, "forward", forward_with_a_fixed_prior)],
    ),
    "a step that changes another module": (
        conformance.each_loss_reaches_only_its_parameters,
        "changes parameters of other optimizers",
        [(Optimizer, "apply", step_that_changes_the_model)],
    ),
    "a coefficient that is no buffer": (
        conformance.compiled_equals_eager,
        "reads a value that an update changes",
        [
            (Learner, "coef", 1.0),
            (Learner, "model_loss", loss_with_a_coefficient),
            (Learner, "update", update_of_the_coefficient),
        ],
    ),
    "a scan without params": (
        conformance.compiled_equals_eager,
        "is not an argument of the step",
        [(Learner, "model_loss", loss_with_a_scan_without_params)],
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_conformance_rejects_mutants_of_world_model(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check, message, changes = MUTANTS[mutant]
    for place, name, broken in changes:
        monkeypatch.setattr(place, name, broken, raising=False)
    with pytest.raises(AssertionError, match=message):
        check(config())


def test_machine_code_equals_eager_rejects_wrong_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler is replaced: every function that it returns computes zeros."""
    graphs: dict[bytes, Any] = {}

    def compile_programs(folder: Any, programs: Any) -> list[bytes]:
        graphs.update((str(i).encode(), graph) for i, (graph, _) in enumerate(programs))
        return [*graphs]

    def load(package: bytes) -> Callable[[list[Tensor]], list[Tensor]]:
        return lambda inputs: [torch.zeros_like(value) for value in graphs[package](*inputs)]

    monkeypatch.setenv("SHEPHERD_CACHE", str(tmp_path))
    monkeypatch.setattr(package, "compile_programs", compile_programs)
    monkeypatch.setattr(package, "load", load)
    with pytest.raises(AssertionError, match="the compiled code is wrong by"):
        conformance.machine_code_equals_eager(config())
    assert len(graphs) == 4, "policy, step of one rank, and two gradients of two ranks; the third sums over ranks"
