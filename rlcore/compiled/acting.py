"""Policy inference as one function of tensors, compiled ahead of time.

    parameters, buffers, carry, obs, is_first, noise  ->  carry, action, the environments' action, extras

The methods `act` and `to_env` of the agent are traced once; the agent needs no changes. Random numbers that `act` draws
become inputs of the compiled function. They are drawn before each call, from the stream that the eager agent would use,
in its order and with its shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.compiled import machine_code
from rlcore.compiled.whole_step import CapturedTensors, inputs_of
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
    """Compile policy inference to machine code; if that fails, log a warning and return None.

    `must` is True if the run began with compiled policy inference and is being resumed. A failure then raises an error
    instead (see `machine_code.leave_as_written`), because a resumed run must compute in the same way as before.
    """
    try:
        return CompiledActing(agent, carry, obs, compiler, autocast)
    except Exception as error:  # tracing can raise any exception in user code
        fresh = ", or start a new run from its weights with init_from"
        machine_code.leave_as_written("policy inference", "compiled policy inference", must, error, fresh)
        return None


class CompiledActing:
    """Policy inference as machine code: `agent.act` with sampled actions, then `agent.to_env`, for B environments.

    Args:
        agent: the agent. `begin` reads its parameters and buffers again if one of them has a new memory address.
        carry: initial recurrent state of the agent for B environments; it defines structure, shapes and dtypes.
        obs: example observations, key -> [B, ...]; only shapes and dtypes are used.
        compiler: compilation settings of the run.
        autocast: function that returns the context manager in which the agent is called.

    Raises:
        Exception: any error of tracing. Tracing fails if the agent computes with values other than tensors. It also
            fails if the agent reads a tensor that is neither a parameter nor a buffer, because the machine code
            would keep the current value of that tensor even if a learner replaced it later.
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
        self._function, self._names = machine_code.make_once("policy inference", self._trace(), example, facts)

    def begin(self, rng: Noise, length: int) -> None:
        """Prepare for the next `length` calls: read replaced parameters and buffers, and draw the random numbers."""
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
        """Select actions for one time step of B environments.

        Args:
            carry: recurrent state after the previous time step.
            obs: key -> [B, ...].
            is_first: [B] bool.

        Returns:
            The new recurrent state, the agent's action [B, A], the same action in the format of the environment
            [B, *shape], and the extra outputs of the agent (`Trajectory.extras`), name -> [B, ...].
        """
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
        count = len(self._places)

        def function(*given: Tensor) -> tuple[Tensor, ...]:
            with torch.no_grad(), self._places.replaced(given[:count]):
                action, env_action, extras, carry = self._act(*given[count:])
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
    """Return all tensors that are attributes of the agent's modules, but neither parameters nor buffers, by path."""
    return {
        f"{name}.{key}" if name else key: value
        for name, module in agent.named_modules()
        for key, value in vars(module).items()
        if isinstance(value, Tensor)
    }
