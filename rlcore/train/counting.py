"""Memory that an algorithm needs, in bytes and buffer rows.

To count it, the algorithm is built with meta tensors, which have shapes but no data.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rlcore.algorithms import ALGORITHMS
from rlcore.config.run import RunConfig
from rlcore.data.replay import Replay
from rlcore.errors import UserError
from rlcore.functional.noise import Noise
from rlcore.protocols import Buffer
from rlcore.spec import EnvSpec
from rlcore.train.memory_estimate import BEYOND, TensorSizes
from rlcore.types import Context, SingleProcess

log = logging.getLogger(__name__)
NOWHERE = torch.device("meta")
LEARNERS = torch.device("cpu", 0)  # device in the context of the learner; random streams use "cpu" without an index
# For meta tensors, torch runs these functions in Python, which imports sympy: 0.25 s and 36 MB.
LIKE = (torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like, torch.rand_like, torch.randn_like)
MANY = 50_000  # maximum number of torch calls, about half a second


class _TooManyError(Exception):
    """Raised if building the algorithm takes more than `MANY` calls of torch."""


class MetaTensors(TorchFunctionMode):
    """Torch function mode in which all tensors are on the meta device, whatever device the code requests.

    Raises `_TooManyError` after `MANY` calls of torch functions.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        if self.calls > MANY:
            raise _TooManyError
        options = dict(kwargs or {})
        options.pop("generator", None)  # generators are on the CPU, and nothing is drawn
        if options.get("device") is not None:
            options["device"] = NOWHERE
        if func in (Tensor.cpu, Tensor.cuda):
            return args[0]
        if func is Tensor.to:
            args = tuple(NOWHERE if isinstance(value, (str, torch.device)) else value for value in args)
        if func in LIKE and args and not args[0].requires_grad:
            return torch.empty(args[0].shape, dtype=options.get("dtype") or args[0].dtype, device=NOWHERE)
        if func is torch.cat and not any(part.requires_grad for part in args[0]):
            return _join(*args, **options)
        return func(*args, **options)


def _join(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Return `torch.cat` of meta tensors, but without importing sympy, which `torch.cat` does (0.25 s and 36 MB)."""
    shape = list(parts[0].shape)
    shape[dim] = sum(part.shape[dim] for part in parts)
    return torch.empty(shape, dtype=parts[0].dtype, device=NOWHERE)


class EmptyNoise(Noise):
    """Noise source that returns meta tensors."""

    def __init__(self) -> None:
        self.device = NOWHERE

    def normal(self, *shape: int) -> Tensor:
        """Return float32 [*shape]."""
        return torch.empty(shape, device=NOWHERE)

    exponential = uniform = normal

    def bernoulli(self, p: float, *shape: int) -> Tensor:
        """Return uint8 [*shape]."""
        return torch.empty(shape, dtype=torch.uint8, device=NOWHERE)

    def in_a_row(self, kind: str, count: int, shape: tuple[Any, ...]) -> Iterator[Tensor]:
        """Yield `count` draws of a kind and shape."""
        return (getattr(self, kind)(*shape) for _ in range(count))


def check_groups(config: RunConfig, spec: EnvSpec) -> None:
    """Raise a UserError if a parameter group of an optimizer matches no parameter.

    The error message lists the names of the optimizer's parameters.
    """
    try:
        build_empty(config, spec)
    except UserError:
        raise
    except Exception:  # the code may need values of tensors; if it is wrong, training raises the error
        log.debug("the groups of %s cannot be checked", config.algo.name, exc_info=True)


def build_empty(config: RunConfig, spec: EnvSpec) -> tuple[Any, Buffer]:
    """Build a config's learner and buffer with meta tensors; return the learner's state and the buffer."""
    precision = SimpleNamespace(precision="32-true", convert_module=lambda module: module)
    fabric: Any = SimpleNamespace(
        device=LEARNERS,
        to_device=lambda module: module,
        autocast=nullcontext,
        strategy=SimpleNamespace(precision=precision),
    )
    ranks = SingleProcess()
    ranks.size = config.fabric.ranks  # as if this process were rank 0 of several; `sum` returns its argument
    context = Context(config, spec, fabric, ranks, config.env.num_envs)
    # `_TooManyError` can be raised at any call of torch, even in the exit of a `no_grad` block: restore the grad mode.
    grad_mode = torch.set_grad_enabled(torch.is_grad_enabled())
    with grad_mode, torch.random.fork_rng(devices=[]), MetaTensors(), NOWHERE:
        learner, buffer, _ = ALGORITHMS[config.algo.name].build(context)
        return learner.state_dict(), buffer


def count(config: RunConfig, spec: EnvSpec) -> TensorSizes | None:
    """Return the sizes of the algorithm's state in bytes, and of its buffer in rows.

    Return None if they cannot be counted, because the algorithm reads values of tensors while it is built. Meta tensors
    have no values.
    """
    try:
        state, buffer = build_empty(config, spec)
    except _TooManyError:
        return TensorSizes(countable=False)
    except Exception as error:  # an algorithm may fail on tensors without values
        if "overflow" in str(error).lower():  # torch's message for sizes of 2⁶³ bytes and more
            return TensorSizes(BEYOND, BEYOND)
        log.debug("the memory of %s cannot be counted", config.algo.name, exc_info=True)
        return None
    whole, agent = _bytes(state), _bytes(state.get("agent"))
    return TensorSizes(
        agent,
        whole - agent,
        buffer.capacity,
        buffer.batch_rows,
        updates=buffer.count_batches(config.algo.budget(config.width)),
        learned_rows=buffer.learned_rows,
        replay_ratio=float(buffer.ratio) * config.fabric.ranks,
        chunk_rows=buffer.chunk_rows,
        row=buffer.row_bytes,
        on_device=isinstance(buffer, Replay) and buffer.device == LEARNERS,
        in_files=buffer.in_files,
    )


def gpu_memory(index: int) -> int | None:
    """Return the free memory of a GPU in bytes, or None if torch finds no GPU."""
    return torch.cuda.mem_get_info(index)[0] if torch.cuda.is_available() else None


def _bytes(state: Any) -> int:
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, Mapping):
        return sum(map(_bytes, state.values()))
    if isinstance(state, Sequence) and not isinstance(state, str):
        return sum(map(_bytes, state))
    return 0
