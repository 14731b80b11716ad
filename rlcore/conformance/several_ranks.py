"""Checks with two ranks, which are threads of one process here and compute what two processes would."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from rlcore import streams
from rlcore.config.groups import RunConfig
from rlcore.conformance.trainings import FEW, bits, check_budget, fresh, module_tensors, run
from rlcore.functional.noise import Noise
from rlcore.functional.tree import map_leaves
from rlcore.optim.optimizer import Optimizer
from rlcore.protocols import Learner
from rlcore.store.checkpoint import nested_state
from rlcore.train.components import parameters
from rlcore.train.training import Training
from rlcore.types import Batch, Trajectory

STEP = 0.05  # length of an optimizer step if two ranks are compared with one
LARGE = 100.0  # factor of the rewards in the second comparison
# Constant noise: it does not matter which rank draws the noise of a sample.
EVEN: dict[str, Callable[..., Tensor]] = {
    "normal": lambda noise, *shape: torch.full(shape, 0.5, device=noise.device),
    "exponential": lambda noise, *shape: torch.full(shape, 0.7, device=noise.device),
    "uniform": lambda noise, *shape: torch.full(shape, 0.4, device=noise.device),
    "bernoulli": lambda noise, _, *shape: torch.ones(shape, dtype=torch.uint8, device=noise.device),
}


def ranks_stay_one(config: RunConfig) -> None:
    """Check that two ranks with different data have equal parameters after a few updates."""
    first, second = (parameters(training.learner) for training in on_two_ranks(lambda **how: run(fresh(config, **how))))
    for name, parameter in first.items():
        assert torch.equal(parameter, second[name]), f"{name} differs between two ranks"


def interrupted_ranks_equal_uninterrupted(config: RunConfig) -> None:
    """Check that two ranks that load the state saved by rank 0 end in the same state as uninterrupted ranks."""

    def save(**how: Any) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
        training = run(fresh(config, **how))
        state = nested_state.encode(training.state_dict())
        return state, bits(run(training))

    def go_on(state: tuple[bytes, bytes], **how: Any) -> tuple[bytes, bytes]:
        training = fresh(config, **how)
        training.load_state_dict(nested_state.decode(*state))
        return bits(run(training))

    (state, whole), _ = on_two_ranks(save)
    assert on_two_ranks(lambda **how: go_on(state, **how))[0] == whole, (
        "two ranks that were saved and loaded end in another state than two uninterrupted ranks"
    )


def two_ranks_learn_as_one(config: RunConfig) -> None:
    """Check that two ranks, each with one half of a batch, learn the same as one rank with the whole batch.

    An algorithm passes only if every sum or quantile over samples includes the samples of all ranks
    (`context.ranks.sum`). Examples are the divisor of a loss, mean and std of advantages, statistics of observations
    and returns, and thresholds.

    The check compares the parameters and buffers of all modules. To make them comparable, every optimizer step here
    goes along the gradient, because update rules such as Adam can make rounding errors as large as a step. Each batch
    is one minibatch (`Config.merge_minibatches`), and all random numbers of an update are equal.

    The comparison is made twice: with the collected rewards and initial weights, and with large rewards and weights.
    The second one tests scales with a lower bound, such as max(1, quantile of the returns), which have no effect on
    small returns.
    """
    fabric = dataclasses.replace(config.fabric, precision="32-true")
    config = dataclasses.replace(config, algo=config.algo.merge_minibatches(), fabric=fabric)
    wide = dataclasses.replace(config, env=dataclasses.replace(config.env, num_envs=2 * config.env.num_envs))
    batches = _batches(fresh(wide))
    _compare_ranks(config, wide, batches, tolerance=1e-6)
    for batch in batches:
        batch.steps.reward, batch.last.reward = LARGE * batch.steps.reward, LARGE * batch.last.reward
    _compare_ranks(config, wide, batches, tolerance=1e-5, prepare=_enlarge)


def _compare_ranks(
    config: RunConfig,
    wide: RunConfig,
    batches: list[Batch],
    tolerance: float,
    prepare: Callable[[Learner], None] = lambda learner: None,
) -> None:
    """Train two ranks and one rank on the same batches, and check that their modules are equal within a tolerance."""

    def learn(config: RunConfig, halves: tuple[int, ...], **how: Any) -> Learner:
        learner = fresh(config, **how).learner
        prepare(learner)
        for batch in batches:
            learner.update(_part(batch, halves), Even())
        return learner

    with _one_length(), _even_draws():
        one = learn(wide, (0, 1))
        ranks = on_two_ranks(lambda ranks: learn(config, (ranks.rank,), ranks=ranks))
    hint = "sum over samples with context.ranks.sum, and return one minibatch per batch (Config.merge_minibatches)"
    expected = module_tensors(one)
    for learner in ranks:
        assert learner.updates == one.updates, (
            f"two ranks take {learner.updates} gradient steps, but one rank takes {one.updates}; {hint}"
        )
        actual = module_tensors(learner)
        for name, tensor in expected.items():
            if not torch.allclose(actual[name], tensor, rtol=tolerance, atol=tolerance):
                off = (actual[name].double() - tensor.double()).abs().max().item()
                raise AssertionError(
                    f"{name} of two ranks differs by {off:.2g} from {name} of one rank with all environments; {hint}"
                )


@torch.no_grad()
def _enlarge(learner: Learner) -> None:
    """Make all weights larger and more different, so that predictions vary by more than the lower bounds of scales."""
    rng = torch.Generator().manual_seed(0)
    for parameter in parameters(learner).values():
        noise = torch.randn(parameter.shape, generator=rng).to(parameter)
        parameter.copy_(3 * parameter + 0.3 * noise)


def _batches(training: Training) -> list[Batch]:
    """Return copies of the first batches of a training."""
    found: list[Batch] = []
    while len(found) < FEW:
        check_budget(training)
        before, random = training.policy_steps, training.policy_steps < training.plan.random_steps
        training.buffer.extend(*training.collector.collect(training.plan.collect_length, random))
        found += [_part(batch, (0, 1)) for batch in training.buffer.batches(before)]
    return found[:FEW]


def _part(batch: Batch, halves: tuple[int, ...]) -> Batch:
    """Return a copy of the given halves of a batch, which is divided by environments.

    If the number of environments is odd, the last one is omitted.
    """
    half = batch.last.reward.shape[0] // 2
    of = slice(half * halves[0], half * (halves[-1] + 1))

    def cut(steps: Trajectory, lead: tuple[slice, ...]) -> Trajectory:
        parts = {field.name: getattr(steps, field.name) for field in dataclasses.fields(steps)}
        carry = map_leaves(lambda value: value[of].clone(), parts.pop("carry"))
        rest = {k: map_leaves(lambda value: value[*lead, of].clone(), v) for k, v in parts.items()}
        return Trajectory(carry=carry, **rest)

    return Batch(cut(batch.steps, (slice(None),)), cut(batch.last, ()), batch.policy_steps)


@contextmanager
def _one_length() -> Iterator[None]:
    """Return a context in which all update rules are replaced by steps along the gradient.

    The first training in this context determines the scale of the steps, and the others use the same scale.
    """
    lengths: list[Tensor] = []
    taken: dict[int, int] = {}  # steps of each thread

    def move(optimizer: Optimizer, gradient: Tensor) -> None:
        thread = threading.get_ident()
        at = taken[thread] = taken.get(thread, -1) + 1
        if len(taken) == 1:
            lengths.append(gradient.norm().clamp(min=1e-12))
        optimizer.parameters.vector.sub_(STEP * gradient / lengths[min(at, len(lengths) - 1)])

    with mock.patch.object(Optimizer, "apply_rule", move):
        yield


@contextmanager
def _even_draws() -> Iterator[None]:
    """Return a context in which all random streams return constants.

    It then does not matter which rank draws the noise of a sample.
    """
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(streams, "generator", lambda *_: Even()))
        for kind, draw in EVEN.items():
            patches.enter_context(mock.patch.object(Noise, kind, draw))
        yield


class Even(np.random.Generator):
    """Random generator that always draws the same number and never changes an order."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def standard_normal(self, size: Any = None, dtype: Any = float, out: Any = None) -> Any:
        """Return 0.5 everywhere."""
        return np.full(() if size is None else size, 0.5, dtype)

    def standard_exponential(self, size: Any = None, dtype: Any = float, method: Any = "zig", out: Any = None) -> Any:
        """Return 0.5 everywhere."""
        return self.standard_normal(size, dtype)

    random = standard_normal

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        """Return the number half a standard deviation above the mean."""
        return np.broadcast_to(np.asarray(loc) + 0.5 * np.asarray(scale), () if size is None else size).copy()

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        """Return the middle of the interval."""
        return self.normal(low, np.asarray(high) - low, size)

    def integers(
        self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64, endpoint: Any = False
    ) -> Any:
        """Return the smallest integer."""
        return np.full(() if size is None else size, 0 if high is None else low, dtype)

    def permutation(self, x: Any, axis: int = 0) -> Any:
        """Return the order unchanged."""
        return np.arange(x) if isinstance(x, int) else np.array(x)

    def shuffle(self, x: Any, axis: int = 0) -> None:
        """Keep the order unchanged."""


class Meeting:
    """Exchange of values between ranks that are threads of one process."""

    def __init__(self, size: int) -> None:
        self.size, self.held = size, [None] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Wait for all ranks, and return their values in the order of ranks."""
        self.held[rank] = value
        self.barrier.wait()
        everyone = list(self.held)
        self.barrier.wait()
        return everyone


class InThread:
    """Rank that is a thread, with the interface of `rlcore.types.Ranks`."""

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.size = meeting, rank, meeting.size

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum over the threads."""
        return torch.stack(self.gather(value.clone())).sum(0)  # a rank may overwrite its value before the other reads

    def gather(self, value: Any) -> list[Any]:
        """Return the value of each thread."""
        return self.meeting.exchange(self.rank, value)


def on_two_ranks(work: Callable[..., Any]) -> list[Any]:
    """Call `work(ranks=...)` in two threads, one per rank; return both results or raise the first error."""
    meeting, made, failed = Meeting(2), {}, []

    def rank(number: int) -> None:
        try:
            made[number] = work(ranks=InThread(meeting, number))
        except BaseException as error:  # otherwise the other rank would wait forever
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
