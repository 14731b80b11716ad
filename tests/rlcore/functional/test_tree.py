"""Nested tensors as flat lists and back; nested carries in the collector and its checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from rlcore.functional.noise import Noise
from rlcore.functional.tree import fit, leaves, map_leaves, name_leaves, rebuild
from rlcore.store.checkpoint import nested_state
from rlcore.train.collect import Collector
from tests.rlcore.train.test_collect import CountingEnvs


class Memory(NamedTuple):
    hidden: Tensor
    cell: dict[str, tuple[Tensor, Tensor]]


class Remembering:
    """Counts the steps since the episode began in several parts of a nested carry."""

    def initial(self, batch_size: int) -> Memory:
        return Memory(torch.zeros(batch_size, 1), {"pair": (torch.zeros(batch_size, 2), torch.zeros(batch_size))})

    def act(self, carry: Memory, obs: Any, is_first: Tensor, rng: Any, greedy: bool) -> Any:
        fresh = self.initial(len(is_first))
        kept = iter(name_leaves(fresh).values())

        def next_(old: Tensor) -> Tensor:
            keep = ~is_first.bool().reshape(-1, *[1] * (old.dim() - 1))
            return torch.where(keep, old, next(kept)) + 1

        carry = map_leaves(next_, carry)
        return carry, carry.hidden.long(), {"count": carry.cell["pair"][1]}

    def to_env(self, action: Tensor) -> Tensor:
        return action


def collector() -> Collector:
    return Collector(CountingEnvs((2, 3)), Remembering(), Noise(0, "policy"))


def test_collector_saves_and_resets_nested_carry() -> None:
    whole, first = collector(), collector()
    steps, last = whole.collect(5)
    assert steps.carry.hidden.sum() == 0 and last.carry.hidden.min() > 0
    counts = steps.extras["count"]
    assert (counts[steps.is_first.bool()] == 1).all() and counts.max() > 1
    after, _ = whole.collect(4)
    assert str(name_leaves(after.carry)) == str(name_leaves(last.carry))
    first.collect(5)
    second = collector()
    second.load_state_dict(nested_state.decode(*nested_state.encode(first.state_dict())))
    assert isinstance(second.carry, Memory)
    again, _ = second.collect(4)
    assert torch.equal(again.extras["count"], after.extras["count"])


class Swapping(Remembering):
    """The initial carry has the keys h and c; `act` returns the same keys in another order."""

    def initial(self, batch_size: int) -> Any:
        return {"h": torch.zeros(batch_size), "c": torch.zeros(batch_size)}

    def act(self, carry: Any, obs: Any, is_first: Tensor, rng: Any, greedy: bool) -> Any:
        h, c = (carry[key] * ~is_first for key in ("h", "c"))
        return {"c": c + 10, "h": h + 1}, h.long()[:, None], {"h": h, "c": c}


def test_collector_restores_carry_by_key() -> None:
    whole, first = (Collector(CountingEnvs((4, 5)), Swapping(), Noise(0, "policy")) for _ in range(2))
    whole.collect(3)
    expected, _ = whole.collect(1)
    assert expected.extras["h"].tolist() == [[3, 3]] and expected.extras["c"].tolist() == [[30, 30]]
    first.collect(3)
    second = Collector(CountingEnvs((4, 5)), Swapping(), Noise(0, "policy"))
    second.load_state_dict(nested_state.decode(*nested_state.encode(first.state_dict())))
    again, _ = second.collect(1)
    assert all(torch.equal(again.extras[key], expected.extras[key]) for key in ("h", "c"))


def test_fit_converts_carry_or_refuses_other_structure() -> None:
    form = Memory(torch.zeros(3, 1), {"pair": (torch.zeros(3, 2), torch.zeros(3)), "bits": torch.zeros(3).bool()})
    given = [torch.ones(3, 1).double(), {"bits": torch.ones(3).bool(), "pair": [torch.ones(3, 2), torch.ones(3)]}]
    carry = fit(form, given)
    assert list(name_leaves(carry)) == ["carry.hidden", "carry.cell.bits", "carry.cell.pair.0", "carry.cell.pair.1"]
    assert isinstance(carry, Memory) and isinstance(carry.cell["pair"], tuple) and carry.hidden.dtype == torch.float32
    assert all(part.all() for part in name_leaves(carry).values())
    for other, sentence in (
        ([given[0]], r"carry is a sequence of 1, but the agent's `initial` returns a sequence of 2"),
        ([given[0], {"pair": ()}], r"carry.cell is a dict of 'pair', but .* returns a dict of 'bits', 'pair'"),
        ([torch.ones(2, 1), given[1]], r"carry.hidden is a tensor \[2, 1\], but .* returns a tensor \[3, 1\]"),
        (None, "carry is a NoneType, but"),
    ):
        with pytest.raises(ValueError, match=sentence):
            fit(form, other)


@dataclass
class Rows:
    obs: dict[str, Tensor]
    rest: tuple[dict[str, Tensor], Any]
    carry: Any = None


def test_leaves_are_independent_of_dict_order() -> None:
    """Compiled code knows its inputs by position, so swapped inputs of equal shape would go unnoticed."""
    a, b, c, d = (torch.full((2,), float(i)) for i in range(4))
    one, other = Rows({"a": a, "b": b}, ({"c": c, "d": d}, 5)), Rows({"b": b, "a": a}, ({"d": d, "c": c}, 5))
    flat = [[tensor.tolist() for tensor in leaves(record)] for record in (one, other)]
    assert flat[0] == flat[1] == [[0, 0], [1, 1], [2, 2], [3, 3], 5]
    again = rebuild(other, iter(leaves(one)))
    assert isinstance(again, Rows) and isinstance(again.rest, tuple) and again.carry is None
    assert list(again.obs) == ["b", "a"] and again.rest[1].dtype == torch.int64
    assert torch.equal(again.obs["a"], a) and torch.equal(again.obs["b"], b) and torch.equal(again.rest[0]["d"], d)


def test_leaves_keep_python_float_precision() -> None:
    """1 - ε with a float32 ε is a different bound than in the eager code."""
    (number,) = leaves([0.2])
    assert (1 - number).item() == 1 - 0.2
    assert leaves((True,))[0].dtype == torch.bool
