"""A trained policy to act with; of its agent, only shapes, config and weights are needed."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rlcore import plugins
from rlcore.algorithms import ALGORITHMS
from rlcore.config.build import build
from rlcore.data.history import recalling
from rlcore.errors import UserError
from rlcore.functional.noise import Noise
from rlcore.functional.tree import fit, map_leaves, name_leaves
from rlcore.judge.signature import SAID, Signature, signature_of
from rlcore.spec import ArraySpec, EnvSpec
from rlcore.types import Carry


def algorithm_of(description: Mapping[str, Any]) -> Any:
    """The algorithm that a description names, of a plugin too; a `UserError` where it is not here."""
    plugins.load()
    name = description["algo"]["name"]
    if name not in ALGORITHMS:  # what only brought an environment is not asked for
        plugins.require(description.get("plugins", ()))
        raise UserError(f"algo.name={name}: not an algorithm here; algorithms: {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


class LoadedPolicy:
    """An agent with the shapes it expects.

    Args:
        description: `algo` (its config as plain values), `distribution`, `plugins`, `spec`, `policy_steps`, `digest`.
        state: the agent's state_dict.
        seed: of the noise of sampled actions.
    """

    def __init__(self, description: Mapping[str, Any], state: Mapping[str, Any], seed: int = 0) -> None:
        self.description = dict(description)
        self.spec = EnvSpec.from_json(description["spec"])
        module = algorithm_of(description)
        config = build(module.Config, description["algo"], "algo.")
        self.agent = module.Agent(config, self.spec, description["distribution"], torch.Generator())
        self.agent.load_state_dict(state)
        self.agent.requires_grad_(False).eval()
        self._acting = recalling(self.agent, self.spec)
        self.obs_keys: tuple[str, ...] = tuple(getattr(self.agent, "keys", self.spec.obs))
        self._rng = Noise(seed, "policy_eval")

    def initial(self, batch_size: int) -> Carry:
        """The carry at the start of so many episodes; () where the policy remembers nothing."""
        return self._acting.initial(batch_size)

    def predict(self, obs: Any, greedy: bool = True) -> np.ndarray:
        """Actions for observations, in the environment's own form, of a policy that remembers nothing.

        Args:
            obs: one observation or a batch of them: an array where the environment gives an array (key `state`),
                or a dict of arrays.
            greedy: the most likely action; False samples.

        Returns:
            One action or a batch of them, as the observations were given.

        Raises:
            UserError: a key is missing, of another shape or not finite; names it and what was expected. Or the policy
                remembers, and would forget from one call to the next: names `step`.
        """
        if names := [*self.initial_carry(1)]:
            raise UserError(
                f"this policy remembers ({', '.join(names)}) and would begin an episode at each call of predict; "
                "use action, carry = policy.step(obs, carry), with carry=None at an episode's start"
            )
        return self.step(obs, greedy=greedy)[0]

    def step(
        self, obs: Any, carry: Carry | None = None, is_first: Any = None, greedy: bool = True
    ) -> tuple[np.ndarray, Carry]:
        """As `predict`, for every policy: gives the carry that is to be handed in with the next observations.

        Args:
            obs: as for `predict`.
            carry: of the last call; None begins episodes.
            is_first: [B] bool, which of the observations open an episode; None = none of them, or all without a carry.
            greedy: the most likely action; False samples.

        Returns:
            Actions as `predict` gives them, and the carry.

        Raises:
            UserError: as `predict`; `is_first` is of another length than the batch.
        """
        said, carry = self._answer(obs, carry, is_first, greedy)
        return said["action"], carry

    def _answer(self, obs: Any, carry: Carry | None, is_first: Any, greedy: bool) -> tuple[dict[str, np.ndarray], Any]:
        """The action and what the agent says beside it, by name, a batch where a batch was given; and the carry."""
        given = obs if isinstance(obs, Mapping) else {self.obs_keys[0]: obs}
        arrays = {key: self._array(given, key) for key in self.obs_keys}
        single = [arrays[key].ndim == len(self.spec.obs[key].shape) for key in self.obs_keys]
        if any(single) != all(single):
            raise UserError("obs: some keys are batched and others are not")
        batch = {key: torch.from_numpy(a[None] if single[0] else a) for key, a in arrays.items()}
        count = len(batch[self.obs_keys[0]])
        opens = np.full(count, carry is None) if is_first is None else np.asarray(is_first, dtype=bool).reshape(-1)
        if len(opens) != count:
            raise UserError(f"is_first: expected one value an observation, {count}, got {len(opens)}")
        form = self.initial(count)
        with torch.no_grad():
            carry, action, extras = self._acting.act(
                form if carry is None else carry, batch, torch.from_numpy(opens), self._rng, greedy
            )
            said = {"action": self.agent.to_env(action)} | {name: extras[name] for name in SAID if name in extras}
        return {name: part[0].numpy() if single[0] else part.numpy() for name, part in said.items()}, fit(form, carry)

    @functools.cached_property
    def signature(self) -> Signature:
        """Every array that `exchange` takes and gives; found out by asking the agent once."""
        specs = {key: self.spec.obs[key] for key in self.obs_keys}
        return signature_of(specs, self.initial_carry(1), self._answer(self.example(), None, None, True)[0])

    def example(self) -> dict[str, np.ndarray]:
        """A batch of one observation by key: zeros, the smallest value of a Discrete one, a mask that allows all."""
        specs = {key: self.spec.obs[key] for key in self.obs_keys}
        return {key: np.full((1, *s.shape), s.kind == "mask" or s.start, s.dtype) for key, s in specs.items()}

    def initial_carry(self, batch_size: int) -> dict[str, np.ndarray]:
        """The carry at the start of so many episodes as arrays [B, ...] named as `carry.lstm.0`; {} where it is ()."""
        return self._name(self.initial(batch_size))

    def exchange(self, given: Any, greedy: bool = True) -> dict[str, np.ndarray]:
        """Everything by name, as `signature` lists it: what a server takes and gives.

        Args:
            given: observations by key, or an array alone where there is one key and no carry; of a policy that
                remembers also `is_first` [B] bool and the carry, as the last call gave it or of `initial_carry`.
            greedy: the most likely action; False samples.

        Returns:
            `action`, `logprob` and `value` where the agent says them, and the carry for the next observations.

        Raises:
            UserError: something is missing or of another shape, or a number of the carry is NaN.
        """
        if not self.signature.carry:
            return self._answer(given, None, None, greedy)[0]
        names = [column.name for column in self.signature.inputs if column.kind in ("is_first", "carry")]
        if missing := [name for name in names if given.get(name) is None]:
            raise UserError(f"{missing[0]!r} is missing; a policy that remembers takes {', '.join(names)}")
        opens = np.asarray(given["is_first"], dtype=bool).reshape(-1)
        parts = list[torch.Tensor]()
        for column in self.signature.carry:
            name, shape = column.name, (len(opens), *column.shape)
            if np.shape(given[name]) != shape:
                raise UserError(f"{name!r}: expected shape {shape}, got {np.shape(given[name])}")
            parts.append(torch.from_numpy(np.array(given[name], column.dtype)))
            if parts[-1].isnan().any():  # a null in JSON is NaN by now, and would stay in what is remembered
                raise UserError(f"{name!r}: expected numbers, got nan; hand in what the last call gave")
        obs = {key: given[key] for key in self.obs_keys if key in given}
        left = iter(parts)
        carry = map_leaves(lambda _: next(left), self.initial(len(opens)))
        said, carry = self._answer(obs, carry, opens, greedy)
        return {**said, **self._name(carry)}

    def _name(self, carry: Carry) -> dict[str, np.ndarray]:
        return {name: part.numpy() for name, part in name_leaves(carry).items()}

    def _array(self, given: Mapping[str, Any], key: str) -> np.ndarray:
        if key not in given:
            raise UserError(f"obs: key {key!r} is missing; expected {', '.join(self.obs_keys)}")
        spec: ArraySpec = self.spec.obs[key]
        array = np.asarray(given[key])
        if array.dtype.kind not in "biuf":
            raise UserError(f"obs {key!r}: expected numbers, got {array.dtype}")
        lead = array.ndim - len(spec.shape)
        if lead not in (0, 1) or array.shape[lead:] != spec.shape:
            batch = f"({', '.join(['N', *map(str, spec.shape)])})"
            raise UserError(f"obs {key!r}: expected shape {spec.shape} or {batch}, got {array.shape}")
        if spec.n is None and np.dtype(spec.dtype).kind in "iu":
            info = np.iinfo(spec.dtype)
            if not np.all((array == np.floor(array)) & (array >= info.min) & (array <= info.max)):
                raise UserError(f"obs {key!r}: expected whole numbers from {info.min} to {info.max}")
            return np.asarray(array, dtype=spec.dtype, order="C")
        if spec.n is None:
            with np.errstate(over="ignore"):
                array = np.asarray(array, dtype=np.float32, order="C")
            if not (finite := np.isfinite(array)).all():  # a null in JSON is NaN by now
                where = tuple(map(int, np.argwhere(~finite)[0]))
                raise UserError(f"obs {key!r}: expected finite float32 numbers, got {array[where]} at {list(where)}")
            return array
        if not np.all((array == np.floor(array)) & (array >= spec.start) & (array < spec.start + spec.n)):
            raise UserError(f"obs {key!r}: expected whole numbers from {spec.start} to {spec.start + spec.n - 1}")
        return np.asarray(array, dtype=np.int64, order="C")  # ascontiguousarray would make [1] of []
