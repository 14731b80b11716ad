"""Acting as one function of tensors: what lies between an arrival and its answer, compiled ahead of time.

    parameters, buffers, carry, obs, is_first, noise  ->  carry, action, the environments' action, extras

It is made of the agent's own `act` and `to_env` by tracing them once; the agent does not know. Noise that `act` draws
becomes inputs: it is drawn before the call, from the same stream, in the same order and shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.compiled import machine_code
from rlcore.compiled.captured import CapturedTensors, Reading, inputs_of
from rlcore.compiler import Compiler
from rlcore.functional.noise import Drawn, Noise, Recorder
from rlcore.functional.tree import fit, leaves, rebuild
from rlcore.protocols import Agent
from rlcore.types import Carry


def compile_acting(
    agent: Agent,
    carry: Carry,
    obs: dict[str, Tensor],
    compiler: Compiler,
    autocast: Any = nullcontext,
    must: bool = False,
) -> CompiledActing | None:
    """Return acting as machine code; None, and a sentence in the log, if the agent's code cannot be compiled.

    If it `must` be compiled, because the run began so, an error is raised instead (`machine_code.leave_as_written`).
    """
    try:
        return CompiledActing(agent, carry, obs, compiler, autocast)
    except Exception as error:  # whatever tracing meets in somebody's code
        fresh = ", or start a new run from its weights with init_from"
        machine_code.leave_as_written("acting", "compiled acting", must, error, fresh)
        return None


class CompiledActing:
    """`agent.act` and `agent.to_env`, sampling, as machine code for so many environments.

    Args:
        agent: of whose parameters and buffers `begin` reads all anew where one lies elsewhere than before.
        carry: its carry, in the form of a fresh one.
        obs: key -> [B, ...]; shapes and types count.
        compiler: of the run.
        autocast: entered around the agent.

    Raises:
        Exception: whatever tracing raises where an agent's code is none of tensors alone, or reads a tensor that is no
            buffer: the machine code would go on with its first value when a learner has replaced it.
    """

    def __init__(
        self, agent: Agent, carry: Carry, obs: dict[str, Tensor], compiler: Compiler, autocast: Any = nullcontext
    ) -> None:
        assert isinstance(agent, nn.Module)
        self.agent, self.form, self.keys, self.autocast = agent, carry, list(obs), autocast
        first = torch.ones(len(next(iter(obs.values()))), dtype=torch.bool)
        recorder = Recorder()
        with torch.no_grad(), autocast():
            agent.act(carry, obs, first, recorder, False)
        self.draws = tuple(recorder.draws)
        self._names: list[str] = []
        self._places = CapturedTensors([agent])
        self._held, self._addresses = self._places.tensors(), self._places.addresses()
        self._noise: Iterator[Sequence[Tensor]] = iter(())
        given = [getattr(recorder, kind)(*shape) for kind, shape in self.draws]
        example = [*self._held, *self._inputs(carry, obs, first, given)]
        decides = compiler.facts("acting") | {"agent": repr(agent)}
        seed, prepare = compiler.config.seed, compiler.prepare
        facts = machine_code.Facts(decides, seed, lambda: self._names, [agent], _plain(agent), prepare)
        self._function, self._names = machine_code.make_once("acting", self._trace(), example, facts)

    def begin(self, rng: Noise, length: int) -> None:
        """Before `length` calls: read parameters and buffers where an update has replaced some; draw their noise."""
        if (addresses := self._places.addresses()) != self._addresses:
            self._held, self._addresses = self._places.tensors(), addresses
        if len(self.draws) == 1:
            ((kind, shape),) = self.draws
            self._noise = ((drawn,) for drawn in rng.in_a_row(kind, length, shape))
        else:  # in turn, as the agent draws it
            self._noise = ([getattr(rng, kind)(*shape) for kind, shape in self.draws] for _ in range(length))

    def __call__(
        self, carry: Carry, obs: dict[str, Tensor], is_first: Tensor
    ) -> tuple[Carry, Tensor, Tensor, dict[str, Tensor]]:
        """Carry, action [B, A], the environments' action [B, *shape], extras key -> [B, ...]."""
        made = self._function([*self._held, *self._inputs(carry, obs, is_first, next(self._noise))])
        action, taken, *rest = made
        extras = dict(zip(self._names, rest, strict=False))
        if self.form == ():
            return (), action, taken, extras
        left = iter(rest[len(self._names) :])
        return rebuild(self.form, left), action, taken, extras

    def _inputs(
        self, carry: Carry, obs: dict[str, Tensor], is_first: Tensor, noise: Sequence[Tensor]
    ) -> Iterator[Tensor]:
        if self.form != ():
            yield from inputs_of(carry)
        for key in self.keys:
            yield obs[key].contiguous()
        yield is_first
        yield from noise

    def _trace(self) -> Any:
        reading, names = Reading(nn.ModuleList([self.agent]), self._act), self._places.names

        def function(*given: Tensor) -> tuple[Tensor, ...]:
            held, rest = dict(zip(names, given, strict=False)), given[len(names) :]
            with torch.no_grad():
                action, taken, extras, carry = reading.call(held, rest)
            self._names = list(extras)
            # A carry keeps the form that it began with: machine code is for one type and layout.
            kept = leaves(fit(self.form, carry))
            return action, taken, *extras.values(), *(part.contiguous() for part in kept)

        return function

    def _act(self, *given: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor], Carry]:
        agent: Any = self.agent
        left = iter(given)
        carry = rebuild(self.form, left)
        obs = {key: next(left) for key in self.keys}
        with self.autocast():
            carry, action, extras = agent.act(carry, obs, next(left), Drawn(left), False)
        return action, agent.to_env(action), extras, carry


def _plain(agent: nn.Module) -> dict[str, Tensor]:
    """The tensors that an agent's modules hold as plain attributes: neither parameters nor buffers."""
    return {
        f"{name}.{key}" if name else key: value
        for name, module in agent.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, Tensor)
    }
