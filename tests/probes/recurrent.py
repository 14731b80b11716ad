"""Recurrent policy in place of that of Q-learning: an LSTM state and two more types in one nested carry."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlcore.algorithms import ALGORITHMS
from rlcore.functional.noise import Noise
from rlcore.spec import EnvSpec
from tests.probes import q_learning

UNITS = 3


class Agent(q_learning.Agent):
    """Agent whose actions count the rows of an episode, 0 at the first, modulo the number of actions."""

    def __init__(self, config: q_learning.Config, spec: EnvSpec, distribution: str, rng: torch.Generator) -> None:
        super().__init__(config, spec, distribution, rng)
        self.cell = nn.LSTMCell(sum(spec.obs[key].size for key in self.keys), UNITS)
        with torch.no_grad():
            for parameter in self.cell.parameters():
                parameter.uniform_(-1, 1, generator=rng)

    def initial(self, batch_size: int) -> dict[str, Any]:
        state = tuple(torch.zeros(batch_size, UNITS) for _ in range(2))
        return {"lstm": state, "age": [torch.zeros(batch_size, dtype=torch.int64)], "odd": torch.zeros(batch_size) > 0}

    def act(self, carry: Any, obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False) -> Any:
        keep = ~is_first
        state = self.cell(self.features(obs), tuple(part * keep[:, None] for part in carry["lstm"]))
        age, odd = carry["age"][0] * keep, carry["odd"] & keep
        return {"lstm": state, "age": [age + 1], "odd": ~odd}, (age % self.count)[:, None], {}


class TwoCounts(q_learning.Agent):
    """Counts the rows of an episode by ones under `h` and by tens under `c`; `act` returns them in another order."""

    def initial(self, batch_size: int) -> dict[str, Tensor]:
        return {"h": torch.zeros(batch_size), "c": torch.zeros(batch_size)}

    def act(self, carry: Any, obs: dict[str, Tensor], is_first: Tensor, rng: Noise | None, greedy: bool = False) -> Any:
        h, c = (carry[key] * ~is_first for key in ("h", "c"))
        return {"c": c + 10, "h": h + 1}, (h % self.count).long()[:, None], {"h": h, "c": c}


def use(monkeypatch: pytest.MonkeyPatch, agent: type[nn.Module] = Agent) -> None:
    """Replace the agent of `algo.name=q_learning`."""
    monkeypatch.setitem(ALGORITHMS, "q_learning", q_learning)
    monkeypatch.setattr(q_learning, "Agent", agent)
