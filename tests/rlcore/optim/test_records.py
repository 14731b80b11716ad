from __future__ import annotations

from typing import NamedTuple

import torch

from rlcore.optim.records import leaves, rebuilt


class Pair(NamedTuple):
    obs: dict[str, torch.Tensor]
    rest: tuple[dict[str, torch.Tensor], float]


def test_a_dict_that_was_filled_in_another_order_gives_the_same_tensors_in_the_same_places() -> None:
    """Compiled code knows its inputs by their places: of two of one shape nothing would show that they changed them."""
    a, b, c, d = (torch.full((2,), float(i)) for i in range(4))
    one, other = Pair({"a": a, "b": b}, ({"c": c, "d": d}, 5.0)), Pair({"b": b, "a": a}, ({"d": d, "c": c}, 5.0))
    flat = [[tensor.tolist() for tensor in leaves(record)] for record in (one, other)]
    assert flat[0] == flat[1] == [[0, 0], [1, 1], [2, 2], [3, 3], 5.0]
    again = rebuilt(other, leaves(one))
    assert (
        list(again.obs) == ["b", "a"]
        and isinstance(again, Pair)
        and isinstance(again.rest, tuple)
        and again.rest[1].item() == 5.0
    )
    assert torch.equal(again.obs["a"], a) and torch.equal(again.obs["b"], b) and torch.equal(again.rest[0]["d"], d)
