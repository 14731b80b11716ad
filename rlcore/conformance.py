"""What every algorithm promises, whatever it computes; for those of the registry and for one's own.

    import pytest
    from flows.config.compose import compose
    from rlcore import conformance

    @pytest.mark.parametrize("check", conformance.CHECKS)
    def test_mine_keeps_what_every_algorithm_promises(check):
        check(compose(["exp=mine", "algo.total_steps=400"])[0])

A check takes a checked config, trains some iterations of it in this process, and raises an AssertionError that says
what is broken. Take a config with small networks, short episodes, and everything on that has a state of its own.
"""

from __future__ import annotations

import dataclasses
import random
import tempfile
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from rlcore.config.groups import RunConfig
from rlcore.data.arrivals import tensor
from rlcore.data.carry import tensors
from rlcore.envs.card import environment_card
from rlcore.functional.noise import Noise
from rlcore.optim import package
from rlcore.optim.optimizer import Optimizer
from rlcore.store.checkpoint import nested_state
from rlcore.train.training import Training

FEW = 3  # iterations


def same_seed_gives_the_same_bits(config: RunConfig) -> None:
    """Two trainings end in the same state; one of another seed does not."""
    first, second, other = (
        _bits(_trained(each)) for each in (config, config, dataclasses.replace(config, seed=config.seed + 1))
    )
    assert first == second, "two trainings of the same config end in different bits"
    assert first != other, "another seed changes nothing"


def interrupted_equals_uninterrupted(config: RunConfig) -> None:
    """Saved, thrown away and loaded in the middle: the bits of never stopping."""
    training = _trained(config)
    training.state_dict()  # where an environment cannot be saved, saving cuts its episode
    whole = _bits(_run(training, FEW))
    with tempfile.TemporaryDirectory() as folder:
        path = _trained(config).save(folder)
        again = _training(config).load(path)
    assert _bits(_run(again, FEW)) == whole, "what was saved and loaded goes on to other bits"


def state_survives_a_checkpoint(config: RunConfig) -> None:
    """A learner that loads another's state has exactly that state."""
    stored = nested_state.encode(_trained(config).learner.state_dict())
    other = _training(dataclasses.replace(config, seed=config.seed + 1)).learner
    other.load_state_dict(nested_state.decode(*stored))
    assert nested_state.encode(other.state_dict()) == stored, "a state that was loaded is another one when saved"


def each_loss_reaches_only_its_parameters(config: RunConfig) -> None:
    """A step changes parameters of its own optimizer, all of them in time, and leaves no gradient anywhere."""
    training = _training(config)
    named, optimizers = _parameters(training.learner), _optimizers(training.learner)
    moved: dict[str, set[str]] = {name: set() for name in optimizers}

    def watched(name: str, apply: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def step() -> Tensor:
            before = {key: parameter.detach().clone() for key, parameter in named.items()}
            norm = apply()
            moved[name] |= {key for key, parameter in named.items() if not torch.equal(parameter, before[key])}
            return norm

        return step

    assert optimizers, "the learner holds no rlcore.optim.optimizer.Optimizer"
    for name, optimizer in optimizers.items():
        optimizer.apply = watched(name, optimizer.apply)
    _run(training, FEW)
    for name, optimizer in optimizers.items():
        ids = {id(parameter) for parameter in optimizer.parameters.tensors}
        own = {key for key, parameter in named.items() if id(parameter) in ids}
        assert moved[name] <= own, f"{name} changes what is not its own: {sorted(moved[name] - own)}"
        assert own <= moved[name], f"{name} never changes {sorted(own - moved[name])}"
    held = [key for key, parameter in named.items() if parameter.grad is not None]
    assert not held, f"gradients are left in {held}"


def acting_changes_nothing(config: RunConfig) -> None:
    """Collecting moves no parameter and no statistic of the learner."""
    training = _training(config)
    before = nested_state.encode(training.learner.state_dict())
    training.collector.collect(2 * training.plan.collect_length)
    assert nested_state.encode(training.learner.state_dict()) == before, "collecting changed the learner"


def greedy_is_deterministic(config: RunConfig) -> None:
    """Greedy actions need no noise and are the same every time; sampled ones are not all the same."""
    training = _trained(config)
    agent, obs, count = training.learner.agent, _obs(training), config.env.num_envs
    opens = torch.ones(count, dtype=torch.bool, device=training.fabric.device)

    @torch.no_grad()
    def act(seed: int | None) -> Tensor:
        rng = None if seed is None else Noise(seed, "policy", device=training.fabric.device)
        return agent.act(agent.initial(count), obs, opens, rng, seed is None)[1]

    first = act(None)
    assert all(torch.equal(first, act(None)) for _ in range(20)), "a greedy action differs from one call to the next"
    assert any(not torch.equal(first, act(seed)) for seed in range(20)), "sampled actions are all the greedy one"


def an_episodes_start_forgets(config: RunConfig) -> None:
    """Where `is_first` says so, the carry that came in has no influence."""
    training = _trained(config)
    agent, obs, count = training.learner.agent, _obs(training), config.env.num_envs
    opens = torch.ones(count, dtype=torch.bool, device=training.fabric.device)
    with torch.no_grad():
        fresh = agent.act(agent.initial(count), obs, opens, None, True)
        later = agent.act(training.collector.carry, obs, opens, None, True)
    pairs = zip([fresh[1], *tensors(fresh[0])], [later[1], *tensors(later[0])], strict=True)
    assert all(torch.equal(a, b) for a, b in pairs), "an episode begins with what the last one left in the carry"


def no_global_generator_is_used(config: RunConfig) -> None:
    """Training neither reads nor moves the generators of random, NumPy and torch."""
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        before = _generators()
        results.append(_bits(_trained(config)))
        assert _generators() == before, "a global generator was moved"
    assert results[0] == results[1], "a global generator was read"


def compiled_equals_eager(config: RunConfig) -> None:
    """The graph that would be compiled computes what the code does, but for rounding; it is not built here."""

    def as_graph(graph: Any, *_: Any) -> Callable[[list[Tensor]], list[Tensor]]:
        return lambda inputs: list(graph(*inputs))

    eager = _training(config)
    with mock.patch.object(package, "compiled", as_graph):
        compiled = _training(config, compiled=True)
        for each in (eager, compiled):
            each.collect()
            each.update()
    for (name, one), two in zip(
        eager.learner.agent.named_parameters(), compiled.learner.agent.parameters(), strict=True
    ):
        assert torch.allclose(one, two, rtol=1e-3, atol=1e-5), f"{name} is another when compiled"
    assert eager.learner.updates == compiled.learner.updates, "another number of updates when compiled"


def ranks_stay_one(config: RunConfig) -> None:
    """Two ranks with data of their own have the same parameters after every update."""
    agents = [training.learner.agent for training in _on_two_ranks(lambda **how: _run(_training(config, **how), FEW))]
    for (name, one), two in zip(agents[0].named_parameters(), agents[1].parameters(), strict=True):
        assert torch.equal(one, two), f"{name} differs between two ranks"


def interrupted_ranks_equal_uninterrupted(config: RunConfig) -> None:
    """What rank 0 saves for two ranks is all that both need to go on to the bits of never stopping."""

    def saved(**how: Any) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
        training = _run(_training(config, **how), FEW)
        state = nested_state.encode(training.state_dict())
        return state, _bits(_run(training, FEW))

    def continued(state: tuple[bytes, bytes], **how: Any) -> tuple[bytes, bytes]:
        training = _training(config, **how)
        training.load_state_dict(nested_state.decode(*state))
        return _bits(_run(training, FEW))

    (state, whole), _ = _on_two_ranks(saved)
    assert _on_two_ranks(lambda **how: continued(state, **how))[0] == whole, (
        "two ranks that were saved and loaded go on to other bits"
    )


CHECKS: tuple[Callable[[RunConfig], None], ...] = (
    same_seed_gives_the_same_bits,
    interrupted_equals_uninterrupted,
    state_survives_a_checkpoint,
    each_loss_reaches_only_its_parameters,
    acting_changes_nothing,
    greedy_is_deterministic,
    an_episodes_start_forgets,
    no_global_generator_is_used,
    compiled_equals_eager,
    ranks_stay_one,
    interrupted_ranks_equal_uninterrupted,
)


class Meeting:
    """Where ranks that are threads of one process exchange what they have."""

    def __init__(self, size: int) -> None:
        self.size, self.held = size, [None] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """What all have brought, in their order."""
        self.held[rank] = value
        self.barrier.wait()
        everyone = list(self.held)
        self.barrier.wait()
        return everyone


class InThread:
    """A rank that is a thread, as `rlcore.types.Ranks`."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.size = meeting, rank, meeting.size

    def sum(self, value: Tensor) -> Tensor:
        """The sum over the threads."""
        return torch.stack(self.gather(value)).sum(0)

    def gather(self, value: Any) -> list[Any]:
        """What each thread has."""
        return self.meeting.exchange(self.rank, value)


def _on_two_ranks(work: Callable[..., Any]) -> list[Any]:
    """What each of two ranks, threads of this process, makes of it; the first failure of one is that of both."""
    meeting, made, failed = Meeting(2), {}, []

    def rank(number: int) -> None:
        try:
            made[number] = work(ranks=InThread(meeting, number))
        except Exception as error:
            failed.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return [made[0], made[1]]


def _training(config: RunConfig, **how: Any) -> Training:
    """A training whose environment has been measured at most once."""
    card = _CARDS.setdefault(repr(config.env), {}) or environment_card(config.env, config.seed)
    _CARDS[repr(config.env)] = card
    return Training(config, card, **how)


_CARDS: dict[str, dict[str, Any]] = {}


def _trained(config: RunConfig, iterations: int = FEW) -> Training:
    return _run(_training(config), iterations)


def _run(training: Training, iterations: int) -> Training:
    for _ in range(iterations):
        training.collect()
        training.update()
    return training


def _bits(training: Training) -> tuple[bytes, bytes]:
    """The whole state as a checkpoint writes it: equal exactly when every bit is."""
    return nested_state.encode(training.state_dict())


def _obs(training: Training) -> dict[str, Tensor]:
    assert training.collector.arrival is not None
    obs = training.collector.arrival.obs
    return {key: tensor(rows, training.fabric.device) for key, rows in obs.items()}


def _parameters(learner: Any) -> dict[str, nn.Parameter]:
    """Every parameter that a learner holds, under the name of the module's attribute."""
    modules = {name: value for name, value in vars(learner).items() if isinstance(value, nn.Module)}
    return {f"{at}.{name}": p for at, module in modules.items() for name, p in module.named_parameters()}


def _optimizers(learner: Any) -> dict[str, Optimizer]:
    return {name: value for name, value in vars(learner).items() if isinstance(value, Optimizer)}


def _generators() -> list[Any]:
    return [torch.get_rng_state().numpy().tobytes(), np.random.get_state()[1].tobytes(), random.getstate()]  # pyright: ignore
