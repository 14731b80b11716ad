"""Callbacks as a plugin: `SHEPHERD_PLUGINS=tests.probes.callbacks`."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import Any

import numpy as np
import torch

from rlcore.train.callbacks import Callback, RunFacts


class Recorder(Callback):
    """Its state is the list of its calls: name of the method, iteration and policy step."""

    def __init__(self, stop_after: int | None = None, stop_in: str = "iteration") -> None:
        self.stop_after, self.stop_in = stop_after, stop_in
        self.calls: list[list[Any]] = []
        self.facts: list[dict[str, Any]] = []

    def on_iteration(self, run: RunFacts) -> None:
        self._note("iteration", run)

    def on_evaluation(self, run: RunFacts) -> None:
        self._note("evaluation", run)

    def on_checkpoint(self, run: RunFacts) -> None:
        self._note("checkpoint", run)

    def on_end(self, run: RunFacts) -> None:
        self._note("end", run)

    def _note(self, kind: str, run: RunFacts) -> None:
        self.calls.append([kind, run.iteration, run.policy_steps])
        facts = {key: value for key, value in vars(run).items() if key not in ("config", "_record", "_trainer")}
        draws = [float(torch.rand(())), float(np.random.rand()), random.random()]
        self.facts.append({"kind": kind, **json.loads(json.dumps(facts, default=str)), "draws": draws})
        count = sum(call[0] == kind for call in self.calls)
        run.log(f"Mine/{kind}", count)
        if kind == self.stop_in and count == self.stop_after:
            run.request_stop(f"{count} calls")


class Gambler:
    """It draws from all global generators, and changes what it can reach."""

    def on_iteration(self, run: RunFacts) -> None:
        self._gamble(run)

    def on_evaluation(self, run: RunFacts) -> None:
        self._gamble(run)

    def on_checkpoint(self, run: RunFacts) -> None:
        self._gamble(run)

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": [float(torch.rand(())), float(np.random.rand()), random.random()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        _ = torch.rand(3), np.random.rand(3), random.random()

    def _gamble(self, run: Any) -> None:
        _ = torch.rand(3), np.random.rand(3), random.random()
        torch.manual_seed(1)
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(2)
        torch.backends.cudnn.deterministic = not torch.backends.cudnn.deterministic
        run.metrics.clear()
        run.config.env.wrapper.clear()
        if run.evaluation is not None:
            run.evaluation["returns"].clear()


class Failing:
    """It raises an exception in one of its methods, after some calls."""

    def __init__(self, method: str, at: int = 1) -> None:
        self.method, self.at, self.count = method, at, 0

    def on_iteration(self, run: RunFacts) -> None:
        self._fail("on_iteration")

    def on_evaluation(self, run: RunFacts) -> None:
        self._fail("on_evaluation")

    def on_checkpoint(self, run: RunFacts) -> None:
        self._fail("on_checkpoint")

    def on_end(self, run: RunFacts) -> None:
        self._fail("on_end")

    def _fail(self, method: str) -> None:
        self.count += method == self.method
        if method == self.method and self.count >= self.at:
            raise KeyError(f"no entry {self.count}")


class Noise(Callback):
    """It adds noise to all weights after each iteration, and stores the last noise, a tensor."""

    changes_training = True

    def __init__(self, scale: float) -> None:
        self.scale, self.last = scale, torch.zeros(())

    def on_iteration(self, run: RunFacts) -> None:
        with torch.no_grad():
            for weight in run.trainer.learner.agent.parameters():
                self.last = self.scale * torch.randn(())
                weight += self.last


class Meddler:
    """It asks for the trainer, without the attribute that allows this."""

    def on_iteration(self, run: RunFacts) -> None:
        run.trainer.learner.agent.requires_grad_(False)


class Handle:
    """Its state is not a JSON value."""

    def __init__(self) -> None:
        self.handle = object()

    def on_end(self, run: RunFacts) -> None:
        pass


class Inexact:
    """JSON changes the type of its state."""

    def __init__(self, kind: str) -> None:
        self.value = {"tuple": (1, 2), "defaultdict": defaultdict(int)}[kind]

    def on_end(self, run: RunFacts) -> None:
        pass


class Spoiled:
    """Its state cannot be stored from the second iteration on, in which it fails."""

    def __init__(self) -> None:
        self.count: Any = 0

    def on_iteration(self, run: RunFacts) -> None:
        self.count += 1
        if self.count == 2:
            self.count = object()
            raise KeyError("spoiled")


class Broken:
    def __init__(self, number: int) -> None:
        self.number = 1 // number

    def on_end(self, run: RunFacts) -> None:
        pass


class Misspelled:
    def on_evaluated(self, run: RunFacts) -> None:
        pass


class WithoutRun:
    def on_end(self) -> None:
        pass


def function(run: RunFacts) -> None:
    pass
