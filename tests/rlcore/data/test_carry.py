"""A carry of any form: through the collector, its checkpoint and a loaded policy."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from rlcore.data.carry import mapped, restored, tensors
from rlcore.functional.noise import Noise
from rlcore.store.checkpoint import nested_state
from rlcore.train.collect import Collector
from tests.rlcore.train.test_collect import CountingEnvs


class Memory(NamedTuple):
    hidden: Tensor
    cell: dict[str, tuple[Tensor, Tensor]]


class Remembering:
    """Counts the steps since its episode began, twice over, in a nested carry."""

    def initial(self, batch_size: int) -> Memory:
        return Memory(torch.zeros(batch_size, 1), {"pair": (torch.zeros(batch_size, 2), torch.zeros(batch_size))})

    def act(self, carry: Memory, obs: Any, is_first: Tensor, rng: Any, greedy: bool) -> Any:
        fresh = self.initial(len(is_first))
        kept = iter(tensors(fresh))

        def next_(old: Tensor) -> Tensor:
            keep = ~is_first.bool().reshape(-1, *[1] * (old.dim() - 1))
            return torch.where(keep, old, next(kept)) + 1

        carry = mapped(next_, carry)
        return carry, carry.hidden.long(), {"count": carry.cell["pair"][1]}

    def to_env(self, action: Tensor) -> Tensor:
        return action


def collector() -> Collector:
    return Collector(CountingEnvs((2, 3)), Remembering(), Noise(0, "policy"))


def test_a_nested_carry_is_on_the_batch_in_the_checkpoint_and_forgets_at_an_episodes_start() -> None:
    whole, first = collector(), collector()
    steps, last = whole.collect(5)
    assert tensors(steps.carry)[0].sum() == 0 and tensors(last.carry)[0].min() > 0
    counts = steps.extras["count"]
    assert (counts[steps.is_first.bool()] == 1).all() and counts.max() > 1
    after, _ = whole.collect(4)
    assert [t.tolist() for t in tensors(after.carry)] == [t.tolist() for t in tensors(last.carry)]
    first.collect(5)
    second = collector()
    second.load_state_dict(nested_state.decode(*nested_state.encode(first.state_dict())))
    assert isinstance(second.carry, Memory)
    again, _ = second.collect(4)
    assert torch.equal(again.extras["count"], after.extras["count"])


def test_a_carry_of_another_form_is_refused() -> None:
    form = Remembering().initial(3)
    assert restored(form, tensors(mapped(lambda t: t + 1, form))).hidden.sum() == 3
    with pytest.raises(ValueError, match=r"a carry of \[\[3, 1\]\] where"):
        restored(form, [torch.zeros(3, 1)])
