"""Step: one gradient step of an algorithm, of several losses in their order, as one function that compiles whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from rlcore.compiled import machine_code
from rlcore.compiled.held import Held, inputs_of, layout
from rlcore.errors import RunError
from rlcore.functional.noise import Draw, Drawn, Noise, Recorder
from rlcore.functional.tree import rebuild
from rlcore.optim.optimizer import Optimizer
from rlcore.optim.target import Target

if TYPE_CHECKING:
    from rlcore.types import Context

Metrics = dict[str, Tensor]


class Step:
    """A function that takes steps of several optimizers and moves targets, called as it is written or compiled whole.

    Compiled, it is one function of parameters, what the rules remember, buffers, noise and inputs, built for the shapes
    of the first inputs. The function is written as if nothing of it were known: `minimize` changes parameters, and the
    next line computes with the changed ones. With several ranks, whose gradients are summed between, it is called as it
    is, and each optimizer's own gradient is compiled.

    Args:
        function: of inputs and, where the call names one, a stream of noise `rng`; gives means for the log, name -> [].
            It may not depend on values.
        optimizers: whose steps it takes.
        targets: that it moves.
        context: what the algorithm is built from.
        modules: others whose parameters or buffers it reads, beside those that the optimizers train or name.
    """

    def __init__(
        self,
        function: Callable[..., Metrics],
        optimizers: Sequence[Optimizer],
        targets: Sequence[Target],
        context: Context,
        modules: Sequence[nn.Module] = (),
    ) -> None:
        self.function, self.optimizers, self.targets = function, [*optimizers], [*targets]
        self.counter = context.compiler and context.compiler.counter
        self.compiled = context.compiler is not None and not self.counter and context.ranks.size == 1
        for optimizer in self.optimizers if self.compiled else ():
            optimizer.compiled = optimizer.whole = False  # it is a part of this one
        self._modules = [m for o in optimizers for m in (o.module, *o.uses)]
        self._modules += [*(t.module for t in targets), *modules]
        self._flat = [*(o.parameters for o in optimizers), *(t.parameters for t in targets)]
        self._held = Held(self._modules, [tensor for flat in self._flat for tensor in flat.tensors])
        self._compiler, name = context.compiler, f"{function.__module__}.{getattr(function, '__qualname__', function)}"
        self._decides = {
            "modules": [*map(repr, self._modules)],
            "rules": [[o.config, o.max_grad_norm, o.reduction] for o in optimizers],
            **(self._compiler.facts(name) if self._compiler else {}),
        }
        self._code: machine_code.Compiled | None = None
        self._layout: list[Any] = []
        self._draws: list[Draw] = []
        self._found: list[list[Any]] = [[], []]  # names of the means; which of what is held it replaces
        self._began: bool | None = None  # compiled, where it was to be; None: it has not begun

    def __call__(self, *inputs: Any, rng: Noise | None = None) -> Metrics:
        """Take the step; the means for the log."""
        if self.counter:
            return {**self.counter.once(self, lambda: self._call(inputs, rng))}  # whose it is may take some out
        if self.compiled and self._code is None:
            self._build(inputs, rng)
        if self._code is None:
            return self._call(inputs, rng)
        noise = [getattr(rng, kind)(*shape) for kind, shape in self._draws]
        given = [*noise, *inputs_of(inputs)]
        assert layout(given) == self._layout, "the step was compiled for other shapes"
        made = iter(self._code([*self._state(), *self._held.tensors(), *given]))
        self._take(made)
        names, replaced = self._found
        self._held.replace({index: next(made) for index in replaced})
        return dict(zip(names, made, strict=True))

    def _call(self, inputs: Sequence[Any], rng: Any) -> Metrics:
        return self.function(*inputs) if rng is None else self.function(*inputs, rng=rng)

    # What it changes --------------------------------------------------------------------------------------------------

    def _state(self) -> list[Tensor]:
        """All that is read and written in every step: parameters, what rules remember, counts; and learning rates."""
        rules = [tensor for o in self.optimizers for tensor in (*o.slots.values(), o.count)]
        return [*(flat.vector for flat in self._flat), *rules, *(o.lr for o in self.optimizers)]

    def _take(self, tensors: Iterator[Tensor]) -> None:
        """Make these, in the order of `_state`, what is read next; learning rates are not among them."""
        for flat in self._flat:
            flat.take(next(tensors))
        for optimizer in self.optimizers:
            optimizer.slots = {name: next(tensors) for name in optimizer.slots}
            optimizer.count = next(tensors)

    # Compiled ---------------------------------------------------------------------------------------------------------

    def _build(self, inputs: Sequence[Any], rng: Noise | None) -> None:
        """Have machine code made for inputs like these; as written where it cannot be traced.

        A UserError where a run that began compiled cannot be traced here, as by another torch.
        """
        try:
            recorder = None if rng is None else Recorder()
            self._apart([*self._state(), *self._held.tensors()], lambda: self._call(inputs, recorder))
            self._draws = [] if recorder is None else [*recorder.draws]
            self._make(inputs, recorder)
        except RunError:
            raise
        except Exception as error:  # whatever tracing meets in somebody's loss
            machine_code.leave_as_written("the gradient step", "a compiled step", bool(self._began), error)
            self.compiled = False
        self._began = self.compiled

    def _make(self, inputs: Sequence[Any], noise: Noise | None) -> None:
        given = [*(getattr(noise, kind)(*shape) for kind, shape in self._draws), *inputs_of(inputs)]
        example = [*self._state(), *self._held.tensors(), *given]
        known = len(example) - len(given)

        def function(*tensors: Tensor) -> tuple[Tensor, ...]:
            left = iter(tensors[known:])
            drawn = None if noise is None else Drawn(iter([next(left) for _ in self._draws]))
            records = rebuild(inputs, left)
            return self._apart(tensors[:known], lambda: self._call(records, drawn))

        self._layout = layout(given)
        made_of = (self.function, *self._modules)
        assert self._compiler is not None
        seed, prepare = self._compiler.config.seed, self._compiler.prepare
        facts = machine_code.Facts(self._decides, seed, lambda: self._found, made_of, prepare=prepare)
        self._code, self._found = machine_code.made_once("the gradient step", function, example, facts)

    def _apart(self, tensors: Sequence[Tensor], function: Callable[[], Metrics]) -> tuple[Tensor, ...]:
        """Call the function with these tensors in the place of its own; gives state, replaced buffers and means.

        Its own are as before when it is done.
        """
        with self._standing():
            left = iter(tensors)
            self._take(left)
            for optimizer in self.optimizers:
                optimizer.lr = next(left)
            held = [*left]
            self._held.replace(dict(enumerate(held)))
            metrics = function()
            for flat in self._flat:
                flat.gather()
            after = self._held.own()
            replaced = [index for index, tensor in enumerate(held) if after[index] is not tensor]
            self._found = [[*metrics], replaced]
            changed = self._state()[: -len(self.optimizers)]
            return *changed, *(after[index] for index in replaced), *metrics.values()

    @contextmanager
    def _standing(self) -> Iterator[None]:
        kept = [(o, o.slots, o.count, o.lr) for o in self.optimizers]
        held = dict(enumerate(self._held.own()))
        with ExitStack() as stack:
            for flat in self._flat:
                stack.enter_context(flat.standing())
            try:
                yield
            finally:
                self._held.replace(held)
                for optimizer, optimizer.slots, optimizer.count, optimizer.lr in kept:
                    optimizer.drop()

    # State ------------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """In which way steps are computed; what they change is in the states of optimizers, targets and modules."""
        return {"compiled": self._began}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the run began."""
        if self.compiled and state["compiled"] is not None:
            self._began = self.compiled = state["compiled"]
