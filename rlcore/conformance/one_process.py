"""Conformance checks of an algorithm that is trained without other ranks."""

from __future__ import annotations

import copy
import dataclasses
import functools
import random
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlcore.config.run import RunConfig
from rlcore.config.values import plain
from rlcore.conformance.trainings import bits, fresh, run, train_a_while
from rlcore.data.history import with_history
from rlcore.data.staging import tensor
from rlcore.evaluation.loaded_policy import LoadedPolicy
from rlcore.evaluation.signature import SAID
from rlcore.functional.noise import Noise
from rlcore.functional.tree import fit, map_leaves, name_leaves
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.step import Step
from rlcore.protocols import Stateful
from rlcore.spec import EnvSpec
from rlcore.store.checkpoint import nested_state
from rlcore.train.components import find_all, parameters
from rlcore.train.trainer import Trainer
from rlcore.types import State


def same_seed_gives_the_same_bits(config: RunConfig) -> None:
    """Check that two trainings with the same config end in bit-identical states, and that the seed has an effect."""
    first, second, other = (
        bits(train_a_while(each)) for each in (config, config, dataclasses.replace(config, seed=config.seed + 1))
    )
    assert first == second, "two trainings with the same config end in states that are not bit-identical"
    assert first != other, "a training with another seed ends in the same state, so the seed has no effect"


def interrupted_equals_uninterrupted(config: RunConfig) -> None:
    """Check that a training that is interrupted and resumed ends in the same state as an uninterrupted one, bit by bit.

    To resume, the state is saved to a checkpoint and loaded into a new training.
    """
    training = train_a_while(config)
    training.state_dict()  # if an environment cannot be saved, saving truncates its episode
    whole = bits(run(training))
    with tempfile.TemporaryDirectory() as folder:
        path = train_a_while(config).save(folder)
        again = fresh(config).load(path)
    assert bits(run(again)) == whole, (
        "a training that was saved and loaded ends in another state than an uninterrupted one"
    )


def state_survives_a_checkpoint(config: RunConfig) -> None:
    """Check that `load_state_dict` followed by `state_dict` returns the loaded state of a learner, bit by bit."""
    stored = nested_state.encode(train_a_while(config).learner.state_dict())
    other = fresh(dataclasses.replace(config, seed=config.seed + 1)).learner
    other.load_state_dict(nested_state.decode(*stored))
    assert nested_state.encode(other.state_dict()) == stored, (
        "load_state_dict followed by state_dict returns another state than the loaded one"
    )


def parts_are_complete(config: RunConfig) -> None:
    """Check that the learner's `components()` returns all objects with state, so that checkpoints are complete.

    Objects with state are modules, optimizers, target networks, random streams and gradient steps (`Step`). Everything
    that an update changes in them must be part of the learner's `state_dict`. The `state_dict` must also record whether
    each gradient step is compiled, because a resumed run must compute in the same way.
    """
    training = fresh(config)
    before = _contents(training)
    after = _contents(run(training))
    state = nested_state.decode(*nested_state.encode(training.learner.state_dict()))
    other = fresh(dataclasses.replace(config, seed=config.seed + 1))
    other.learner.load_state_dict(state)
    other.learner.sync_weights(other.behavior_policy)
    loaded = _contents(other)
    missing = [name for name, bits in after.items() if bits != before.get(name) and bits != loaded.get(name)]
    assert not missing, f"an update changes {missing}, but no component in `components()` stores this"
    for name, step in (find_all(training.learner, Step) | find_all(training.learner, Optimizer)).items():
        began = step.execution.began  # a resumed run is compiled if this is True
        states = [nested_state.encode(_with(training, step, way)) for way in (True, False)]
        step.execution.began = began
        assert states[0] != states[1], (
            f"{name} is not in `components()`, so a resumed run may run it eagerly although it was compiled; add it"
        )


def _with(training: Trainer, step: Step | Optimizer, began: bool) -> State:
    """Mark a gradient step as compiled (`began` is True) or eager, and return the learner's `state_dict` after that."""
    step.execution.began = began
    return training.learner.state_dict()


def _contents(training: Trainer) -> dict[str, Any]:
    """Return the encoded states of all objects with state in a learner and its behavior policy.

    Keys are attribute paths of the objects. A module has one entry for each parameter and buffer.
    """
    found: dict[str, Any] = {}
    places = find_all(training.learner, Stateful)
    if all(part is not training.behavior_policy for part in places.values()):
        places |= find_all({"player": training.behavior_policy}, Stateful)
    for at, part in places.items():
        if isinstance(part, nn.Module):  # includes buffers that are not persistent
            tensors = [*part.named_parameters(), *part.named_buffers()]
            found |= {f"{at}.{name}": nested_state.encode(tensor.detach()) for name, tensor in tensors}
        else:
            found[at] = nested_state.encode(part.state_dict())
    return found


def each_loss_reaches_only_its_parameters(config: RunConfig) -> None:
    """Check that each optimizer changes only its own parameters, and that its loss depends on all of them.

    An optimizer must change at least one of its parameters within a few updates. It need not change all of them,
    because a loss can have a zero gradient at first, such as the KL loss of a Dreamer below its free nats. After an
    update, `.grad` of every parameter must be None.
    """
    training = fresh(config)
    named, optimizers = parameters(training.learner), find_all(training.learner, Optimizer)
    moved: dict[str, set[str]] = {name: set() for name in optimizers}
    reached: dict[str, set[str]] = {name: set() for name in optimizers}
    names = {id(parameter): key for key, parameter in named.items()}

    def watch(name: str, apply: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def step(*given: Any, **more: Any) -> Tensor:
            before = {key: parameter.detach().clone() for key, parameter in named.items()}
            norm = apply(*given, **more)
            moved[name] |= {key for key, parameter in named.items() if not torch.equal(parameter, before[key])}
            return norm

        return step

    def follow(name: str, optimizer: Optimizer, loss: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(loss)
        def value(*inputs: Any) -> Any:
            found, own = loss(*inputs), optimizer.parameters.tensors
            if found[0].requires_grad:
                gradients: Any = torch.autograd.grad(found[0], own, retain_graph=True, allow_unused=True)
                reached[name] |= {names[id(p)] for p, part in zip(own, gradients, strict=True) if part is not None}
            return found

        return value

    assert optimizers, "the learner has no rlcore.optim.optimizer.Optimizer"
    for name, optimizer in optimizers.items():
        optimizer.apply = watch(name, optimizer.apply)
        optimizer.loss = follow(name, optimizer, optimizer.loss)
    run(training)
    for name, optimizer in optimizers.items():
        ids = {id(parameter) for parameter in optimizer.parameters.tensors}
        own = {key for key, parameter in named.items() if id(parameter) in ids}
        assert moved[name] <= own, f"{name} changes parameters of other optimizers: {sorted(moved[name] - own)}"
        assert own <= reached[name], f"the loss of {name} never depends on {sorted(own - reached[name])}"
        assert moved[name], f"{name} does not change any parameter"
    left = [key for key, parameter in named.items() if parameter.grad is not None]
    assert not left, f"`.grad` is not None after the updates in {left}"


def acting_changes_nothing(config: RunConfig) -> None:
    """Check that collecting data with the behavior policy does not change the learner's state."""
    training = fresh(config)
    before = nested_state.encode(training.learner.state_dict())
    training.collector.collect(2 * training.plan.collect_length)
    assert nested_state.encode(training.learner.state_dict()) == before, "collecting changed the learner's state"


def a_loaded_policy_acts_alike(config: RunConfig) -> None:
    """Check that a policy loaded from a checkpoint returns the same outputs as the trained agent.

    These are actions, carry (recurrent state), and extra outputs such as log-probabilities (`Trajectory.extras`).

    Evaluations, videos and policy servers use loaded policies. The check compares two time steps. Between them, the
    carry of the loaded policy is converted to JSON and back, as a client of a policy server does.
    """
    training = train_a_while(config)
    agent, spec = with_history(training.learner.agent, training.envs.spec), training.envs.spec
    description = {"algo": plain(config.algo), "distribution": config.distribution.type, "spec": spec.to_json()}
    state = nested_state.decode(*nested_state.encode(training.learner.state_dict()))
    policy = LoadedPolicy(description, state["agent"])
    count, device = config.env.num_envs, training.fabric.device
    form, held = map_leaves(lambda part: part.to(device), agent.initial(count)), policy.initial_carry(count)
    carry, obs = form, _with_allowed_action(spec, newest_obs(training))
    for opens in (np.ones(count, bool), np.zeros(count, bool)):
        with torch.no_grad():
            carry, action, extras = agent.act(carry, obs, torch.from_numpy(opens).to(device), None, True)
        expected = {"action": agent.to_env(action)} | name_leaves(fit(form, carry))
        expected |= {name: extras[name] for name in SAID if name in extras}
        answer = policy.exchange({key: rows.cpu().numpy() for key, rows in obs.items()} | {"is_first": opens} | held)
        listed = [column.name for column in policy.signature.outputs]
        assert sorted(answer) == sorted(listed) == sorted(expected), (
            f"the signature of a loaded policy lists the outputs {listed}, but the policy returns {[*answer]}, and the "
            f"trained agent {[*expected]}"
        )
        for name, part in expected.items():
            assert np.allclose(answer[name], part.cpu(), rtol=1e-3, atol=1e-5), (
                f"for the same observations, a loaded policy returns another {name} than the trained agent"
            )
        held = {column.name: answer[column.name].tolist() for column in policy.signature.carry}


def _with_allowed_action(spec: EnvSpec, obs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return observations whose action masks allow an action: the last one of an episode can have masks of zeros."""
    nothing = spec.nothing_allowed(obs, torch.cat)
    if nothing is None:
        return obs
    masks = {key: obs[key].flatten(1).masked_fill(nothing.unsqueeze(1), 1).view_as(obs[key]) for key in spec.mask_keys}
    return obs | masks


def a_player_elsewhere_acts_alike(config: RunConfig) -> None:
    """Check that `sync_weights` makes a copy of the behavior policy act like the original.

    Processes that collect data asynchronously have such a copy.
    """
    training = fresh(config)
    elsewhere = copy.deepcopy(training.behavior_policy)
    learner, obs, count = run(training).learner, newest_obs(training), config.env.num_envs
    opens = torch.ones(count, dtype=torch.bool, device=training.fabric.device)

    @torch.no_grad()
    def act(player: Any) -> tuple[Any, Any]:
        rng = Noise(config.seed, "policy", device=training.fabric.device)
        shown = with_history(player, training.envs.spec)
        carry, action, extras = shown.act(shown.initial(count), obs, opens, rng, False)
        said = {"action": action, **name_leaves(carry), **extras}
        return nested_state.encode(player.state_dict()), nested_state.encode(said)

    assert act(elsewhere)[0] != act(learner.behavior_policy)[0], "training does not change the behavior policy"
    learner.sync_weights(elsewhere)
    assert act(elsewhere) == act(learner.behavior_policy), (
        "after sync_weights(), a copy of the behavior policy in another process acts differently from the learner's own"
    )


def greedy_is_deterministic(config: RunConfig) -> None:
    """Check that greedy actions need no random numbers and are deterministic, and that sampled actions vary."""
    training = train_a_while(config)
    agent, obs, count = (
        with_history(training.learner.agent, training.envs.spec),
        newest_obs(training),
        config.env.num_envs,
    )
    opens = torch.ones(count, dtype=torch.bool, device=training.fabric.device)

    @torch.no_grad()
    def act(seed: int | None) -> Tensor:
        rng = None if seed is None else Noise(seed, "policy", device=training.fabric.device)
        return agent.act(agent.initial(count), obs, opens, rng, seed is None)[1]

    first = act(None)
    assert all(torch.equal(first, act(None)) for _ in range(20)), "a greedy action differs between two calls"
    assert any(not torch.equal(first, act(seed)) for seed in range(200)), "all sampled actions equal the greedy action"


def an_episodes_start_forgets(config: RunConfig) -> None:
    """Check that the carry (recurrent state) has no effect on the first time step of an episode (is_first=True)."""
    training = train_a_while(config)
    agent, obs, count = (
        with_history(training.learner.agent, training.envs.spec),
        newest_obs(training),
        config.env.num_envs,
    )
    opens = torch.ones(count, dtype=torch.bool, device=training.fabric.device)
    with torch.no_grad():
        fresh = agent.act(agent.initial(count), obs, opens, None, True)
        later = agent.act(training.collector.carry, obs, opens, None, True)
    one, other = ({"action": action} | name_leaves(carry) for carry, action, _ in (fresh, later))
    same = one.keys() == other.keys() and all(torch.equal(part, other[name]) for name, part in one.items())
    assert same, "the carry of the previous episode affects the first step of an episode"


def no_global_generator_is_used(config: RunConfig) -> None:
    """Check that training neither reads nor advances the global generators of random, NumPy and torch."""
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        before = _generators()
        results.append(bits(train_a_while(config)))
        assert _generators() == before, "training advances a global random generator"
    assert results[0] == results[1], "the result depends on a global random generator"


def newest_obs(training: Trainer) -> dict[str, Tensor]:
    """Return the newest observations of a training that has collected data, key -> [B, ...], on its device."""
    assert training.collector.arrival is not None
    obs = training.collector.arrival.obs
    return {key: tensor(rows, training.fabric.device) for key, rows in obs.items()}


def _generators() -> list[Any]:
    return [torch.get_rng_state().numpy().tobytes(), np.random.get_state()[1].tobytes(), random.getstate()]  # pyright: ignore
