"""Conformance checks of training with two ranks.

In a run, each rank is a process. In these checks, each rank is a thread, which computes the same results.
"""

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
from rlcore.config.run import RunConfig
from rlcore.conformance.trainings import FEW, bits, check_budget, fresh, module_tensors, run
from rlcore.functional.noise import Noise
from rlcore.functional.tree import map_leaves
from rlcore.optim.optimizer import Optimizer
from rlcore.protocols import Learner
from rlcore.store.checkpoint import nested_state
from rlcore.train.components import parameters
from rlcore.train.trainer import Trainer
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
    """Check that two ranks, which collect different data, still have equal parameters after a few updates."""
    first, second = (parameters(training.learner) for training in on_two_ranks(lambda **how: run(fresh(config, **how))))
    for name, parameter in first.items():
        assert torch.equal(parameter, second[name]), f"{name} differs between two ranks"


def interrupted_ranks_equal_uninterrupted(config: RunConfig) -> None:
    """Check that training on two ranks can be interrupted and resumed without an effect on its results.

    Two new ranks load the state that rank 0 has saved. They must end in the same state as two uninterrupted ranks.
    """

    def save(**how: Any) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
        training = run(fresh(config, **how))
        state = nested_state.encode(training.state_dict())
        return state, bits(run(training))

    def resume(state: tuple[bytes, bytes], **how: Any) -> tuple[bytes, bytes]:
        training = fresh(config, **how)
        training.load_state_dict(nested_state.decode(*state))
        return bits(run(training))

    (state, whole), _ = on_two_ranks(save)
    assert on_two_ranks(lambda **how: resume(state, **how))[0] == whole, (
        "two ranks that were saved and loaded end in another state than two uninterrupted ranks"
    )


def two_ranks_learn_as_one(config: RunConfig) -> None:
    """Check that two ranks, each with one half of a batch, learn the same as one rank with the complete batch.

    An algorithm passes only if every sum or quantile over samples includes the samples of all ranks
    (`context.ranks.sum`). Examples are the divisor of a loss, mean and standard deviation of advantages, statistics of
    observations and returns, and thresholds.

    The check compares the parameters and buffers of all modules after a few updates. Three changes make them
    comparable. Each optimizer takes steps of gradient descent, because rules such as Adam can turn a rounding error
    into a full step. Each batch is a single minibatch (`Config.merge_minibatches`). All random numbers are constants.

    The comparison is made twice: with the collected rewards and initial weights, and with large rewards and weights.
    The second comparison tests normalization by a scale with a lower bound, such as max(1, quantile of the returns).
    With small returns, such a scale is always 1.
    """
    fabric = dataclasses.replace(config.fabric, precision="32-true")
    config = dataclasses.replace(config, algo=config.algo.merge_minibatches(), fabric=fabric)
    wide = dataclasses.replace(config, env=dataclasses.replace(config.env, num_envs=2 * config.env.num_envs))
    batches = _batches(fresh(wide))
    _compare_ranks(config, wide, batches, tolerance=1e-6)
    for batch in batches:
        batch.steps.reward, batch.last.reward = LARGE * batch.steps.reward, LARGE * batch.last.reward
    _compare_ranks(config, wide, batches, tolerance=1e-4, prepare=_enlarge)  # rounding: 3e-5 of PPO with images


def _compare_ranks(
    config: RunConfig,
    wide: RunConfig,
    batches: list[Batch],
    tolerance: float,
    prepare: Callable[[Learner], None] = lambda learner: None,
) -> None:
    """Check that training on two ranks gives the same parameters and buffers as training on one rank.

    Args:
        config: config of each of the two ranks.
        wide: config of the single rank, with twice as many environments.
        batches: batches for the single rank; each of the two ranks uses one half of every batch.
        tolerance: relative and absolute tolerance of the comparison.
        prepare: function that changes each learner before the training.

    Raises:
        AssertionError: if a parameter or buffer differs by more than the tolerance.
    """

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
    """Multiply all weights by 3 and add noise, so that predictions vary more than any lower bound of a scale."""
    rng = torch.Generator().manual_seed(0)
    for parameter in parameters(learner).values():
        noise = torch.randn(parameter.shape, generator=rng).to(parameter)
        parameter.copy_(3 * parameter + 0.3 * noise)


def _batches(training: Trainer) -> list[Batch]:
    """Collect data until the buffer returns batches for a few updates (`FEW`), and return copies of these batches."""
    found: list[Batch] = []
    while len(found) < FEW:
        check_budget(training)
        before, random = training.policy_steps, training.policy_steps < training.plan.random_steps
        training.buffer.extend(*training.collector.collect(training.plan.collect_length, random))
        found += [_part(batch, (0, 1)) for batch in training.buffer.batches(before)]
    return found[:FEW]


def _part(batch: Batch, halves: tuple[int, ...]) -> Batch:
    """Return a copy of a part of a batch: the first half of its environments, the second half, or both.

    Args:
        batch: the batch. If its number of environments is odd, the last one is omitted.
        halves: (0,) for the first half, (1,) for the second one, (0, 1) for both.

    Returns:
        The copy.
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
    """Return a context in which all optimizers use gradient descent instead of their update rule, such as Adam.

    In the first training in this context, each step has the length `STEP`. In later trainings, step n multiplies the
    gradient by the same factor as step n of the first training.
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

    All samples then get the same random numbers, no matter which rank draws them.
    """
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(streams, "generator", lambda *_: Even()))
        for kind, draw in EVEN.items():
            patches.enter_context(mock.patch.object(Noise, kind, draw))
        yield


class Even(np.random.Generator):
    """Substitute for a NumPy random generator; each method returns constants, and permutations keep the order."""

    def __init__(self) -> None:
        super().__init__(np.random.PCG64(0))

    def standard_normal(self, size: Any = None, dtype: Any = float, out: Any = None) -> Any:
        """Return an array of this size in which all numbers are 0.5."""
        return np.full(() if size is None else size, 0.5, dtype)

    def standard_exponential(self, size: Any = None, dtype: Any = float, method: Any = "zig", out: Any = None) -> Any:
        """Return an array of this size in which all numbers are 0.5."""
        return self.standard_normal(size, dtype)

    random = standard_normal

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        """Return an array of this size in which all numbers are loc + 0.5 scale."""
        return np.broadcast_to(np.asarray(loc) + 0.5 * np.asarray(scale), () if size is None else size).copy()

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        """Return an array of this size in which all numbers are the midpoint of low and high."""
        return self.normal(low, np.asarray(high) - low, size)

    def integers(
        self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64, endpoint: Any = False
    ) -> Any:
        """Return an array of this size in which all numbers are the lower bound: `low`, or 0 if `high` is None."""
        return np.full(() if size is None else size, 0 if high is None else low, dtype)

    def permutation(self, x: Any, axis: int = 0) -> Any:
        """Return a copy of `x`, or 0, 1, ..., x - 1 for an integer. The order is not changed."""
        return np.arange(x) if isinstance(x, int) else np.array(x)

    def shuffle(self, x: Any, axis: int = 0) -> None:
        """Do nothing, so that the order of `x` stays the same."""


class Meeting:
    """Object through which ranks that are threads of one process exchange values.

    Args:
        size: number of ranks.
    """

    def __init__(self, size: int) -> None:
        self.size, self.held = size, [None] * size
        self.barrier = threading.Barrier(size, timeout=60)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """Wait until all ranks have called this method, and return the values they passed, in the order of ranks."""
        self.held[rank] = value
        self.barrier.wait()
        everyone = list(self.held)
        self.barrier.wait()
        return everyone


class InThread:
    """Implementation of the interface `rlcore.types.Ranks` for a rank that is a thread.

    Args:
        meeting: object through which the ranks exchange values.
        rank: number of this rank, from 0.
    """

    def __init__(self, meeting: Meeting, rank: int) -> None:
        self.meeting, self.rank, self.size = meeting, rank, meeting.size

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of the tensors that all ranks pass."""
        return torch.stack(self.gather(value.clone())).sum(0)  # a rank may overwrite its value before the other reads

    def gather(self, value: Any) -> list[Any]:
        """Return the values that all ranks pass, in the order of ranks."""
        return self.meeting.exchange(self.rank, value)


def on_two_ranks(work: Callable[..., Any]) -> list[Any]:
    """Execute a function on two ranks, which are threads.

    Args:
        work: function that is called as `work(ranks=...)` in each thread, with an object of type `rlcore.types.Ranks`.
            It builds its training with `fresh`.

    Returns:
        The results of rank 0 and rank 1. If a call raises an exception, this exception is raised instead.
    """
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
