"""Policy inference as one function of tensors, compiled ahead of time.

    parameters, buffers, carry, obs, is_first, noise  ->  carry, action, the environments' action, extras

The agent's own `act` and `to_env` are traced once; the agent needs no changes. Noise that `act` draws becomes an input:
it is drawn before the call, from the same stream, in the same order and with the same shapes.
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
    """Return policy inference as machine code, or None with a warning in the log if it cannot be compiled.

    If `must` is True because the run began compiled, an error is raised instead (`machine_code.leave_as_written`).
    """
    try:
        return CompiledActing(agent, carry, obs, compiler, autocast)
    except Exception as error:  # tracing can raise any exception in user code
        fresh = ", or start a new run from its weights with init_from"
        machine_code.leave_as_written("acting", "compiled acting", must, error, fresh)
        return None


class CompiledActing:
    """`agent.act` and `agent.to_env`, with sampled actions, as machine code for a fixed number of environments.

    Args:
        agent: agent; `begin` reads its parameters and buffers again if the address of one has changed.
        carry: recurrent state of the agent, in the structure of a fresh one.
        obs: key -> [B, ...]; only shapes and dtypes are used.
        compiler: compilation settings of the run.
        autocast: context manager in which the agent is called.

    Raises:
        Exception: any error of tracing: if the agent's code uses more than tensors, or if it reads a tensor that is
            not a buffer. The machine code would keep the first value of such a tensor after a learner replaced it.
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
        self._captured, self._addresses = self._places.tensors(), self._places.addresses()
        self._noise: Iterator[Sequence[Tensor]] = iter(())
        given = [getattr(recorder, kind)(*shape) for kind, shape in self.draws]
        example = [*self._captured, *self._inputs(carry, obs, first, given)]
        decides = compiler.facts("acting") | {"agent": repr(agent)}
        seed, prepare = compiler.config.seed, compiler.prepare
        facts = machine_code.Facts(decides, seed, lambda: self._names, [agent], _plain(agent), prepare)
        self._function, self._names = machine_code.make_once("acting", self._trace(), example, facts)

    def begin(self, rng: Noise, length: int) -> None:
        """Prepare for `length` calls: read replaced parameters and buffers again, and draw the noise of the calls."""
        if (addresses := self._places.addresses()) != self._addresses:
            self._captured, self._addresses = self._places.tensors(), addresses
        if len(self.draws) == 1:
            ((kind, shape),) = self.draws
            self._noise = ((drawn,) for drawn in rng.in_a_row(kind, length, shape))
        else:  # in the order in which the agent draws it
            self._noise = ([getattr(rng, kind)(*shape) for kind, shape in self.draws] for _ in range(length))

    def __call__(
        self, carry: Carry, obs: dict[str, Tensor], is_first: Tensor
    ) -> tuple[Carry, Tensor, Tensor, dict[str, Tensor]]:
        """Return the next carry, the action [B, A], the environments' action [B, *shape] and extras key -> [B, ...]."""
        outputs = self._function([*self._captured, *self._inputs(carry, obs, is_first, next(self._noise))])
        action, env_action, *rest = outputs
        extras = dict(zip(self._names, rest, strict=False))
        if self.form == ():
            return (), action, env_action, extras
        left = iter(rest[len(self._names) :])
        return rebuild(self.form, left), action, env_action, extras

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
            captured, rest = dict(zip(names, given, strict=False)), given[len(names) :]
            with torch.no_grad():
                action, env_action, extras, carry = reading.call(captured, rest)
            self._names = list(extras)
            # Convert the carry to its initial dtypes and layout: machine code supports only these.
            kept = leaves(fit(self.form, carry))
            return action, env_action, *extras.values(), *(part.contiguous() for part in kept)

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
    """Return the tensors that are plain attributes of the agent's modules: neither parameters nor buffers."""
    return {
        f"{name}.{key}" if name else key: value
        for name, module in agent.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, Tensor)
    }
