"""Trained policies for inference, built from config, specs and weights."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from rlcore import plugins
from rlcore.algorithms import ALGORITHMS
from rlcore.config.build import build
from rlcore.data.history import with_history
from rlcore.errors import UserError
from rlcore.evaluation.signature import SAID, Signature, signature_of
from rlcore.functional.noise import Noise
from rlcore.functional.tree import fit, map_leaves, name_leaves
from rlcore.spec import ArraySpec, EnvSpec
from rlcore.types import Carry


def algorithm_of(description: Mapping[str, Any]) -> Any:
    """Return the module of the algorithm that the description of a policy names.

    Plugins that the user named are imported first, because they can contain the algorithm. Raises UserError if the
    algorithm is unknown.
    """
    plugins.load()
    name = description["algo"]["name"]
    if name not in ALGORITHMS:  # other plugins are not required, because a loaded policy needs no environment
        plugins.require(description.get("plugins", ()))
        raise UserError(f"algo.name={name}: unknown algorithm; algorithms: {', '.join(ALGORITHMS)}")
    plugins.require(plugins_of_classes(description))
    return ALGORITHMS[name]


def plugins_of_classes(description: Mapping[str, Any]) -> list[str]:
    """Return the plugins with the network and the action distribution of the user that a policy has.

    `description` is that of the policy; the plugins are among its `plugins`.
    """
    classes = [str(name) for name in (description["algo"].get("model"), description["distribution"]) if name]
    dotted = [name.replace(":", ".") for name in classes if ":" in name]
    given: Sequence[str] = description.get("plugins", ())
    return [plugin for plugin in given if any(name.startswith(f"{plugin}.") for name in dotted)]


class LoadedPolicy:
    """Trained agent for inference, which validates its inputs.

    Args:
        description: description of the policy as JSON values: `algo` (config of the algorithm), `distribution` (type
            of action distribution), `plugins`, `spec` (of the environment), and optionally `policy_steps` and `digest`
            of its checkpoint.
        state: the agent's state_dict.
        seed: seed of the noise for sampled actions.
    """

    def __init__(self, description: Mapping[str, Any], state: Mapping[str, Any], seed: int = 0) -> None:
        self.description = dict(description)
        self.spec = EnvSpec.from_json(description["spec"])
        module = algorithm_of(description)
        config = build(module.Config, description["algo"], "algo.")
        self.agent = module.Agent(config, self.spec, description["distribution"], torch.Generator())
        self.agent.load_state_dict(state)
        self.agent.requires_grad_(False).eval()
        self._acting = with_history(self.agent, self.spec)
        self.obs_keys: tuple[str, ...] = tuple(getattr(self.agent, "keys", self.spec.obs))
        self._rng = Noise(seed, "policy_eval")

    def initial(self, batch_size: int) -> Carry:
        """Return the carry at the start of `batch_size` episodes; () if the policy is feed-forward."""
        return self._acting.initial(batch_size)

    def predict(self, obs: Any, greedy: bool = True) -> np.ndarray:
        """Return the actions of a feed-forward policy for observations, in the environment's format.

        Args:
            obs: one observation or a batch of observations. It is a dict of arrays, or an array if the environment's
                observations are arrays (key `state`).
            greedy: True: the most likely action; False: a sample.

        Returns:
            One action, or a batch of actions for a batch of observations.

        Raises:
            UserError: If an observation key is missing, has another shape or is not finite; the message contains the
                key and the expected value. Also if the policy is recurrent, because it needs `step`.
        """
        if names := [*self.initial_carry(1)]:
            raise UserError(
                f"this policy has a recurrent state ({', '.join(names)}), which predict would reset at each call; "
                "use action, carry = policy.step(obs, carry), with carry=None at the start of an episode"
            )
        return self.step(obs, greedy=greedy)[0]

    def step(
        self, obs: Any, carry: Carry | None = None, is_first: Any = None, greedy: bool = True
    ) -> tuple[np.ndarray, Carry]:
        """Return the actions of a feed-forward or recurrent policy for observations, and the carry (recurrent state).

        Args:
            obs: one observation or a batch of B observations, as for `predict`.
            carry: the carry that the last call returned; None starts new episodes.
            is_first: [B] bool, True if an observation is the first of an episode. None: False for all, or True for all
                if `carry` is None.
            greedy: True: the most likely action; False: a sample.

        Returns:
            Actions in the environment's format, one or a batch like `obs`; and the carry for the next call.

        Raises:
            UserError: If an observation key is missing, has another shape or is not finite, or if the length of
                `is_first` is not B.
        """
        outputs, carry = self._answer(obs, carry, is_first, greedy)
        return outputs["action"], carry

    def _answer(self, obs: Any, carry: Carry | None, is_first: Any, greedy: bool) -> tuple[dict[str, np.ndarray], Any]:
        """Validate observations and call the agent; return its outputs and the new carry (recurrent state).

        The outputs are a dict with `action` and, if the agent returns them, `logprob` and `value`. If `obs` is a single
        observation, they have no batch dimension.
        """
        given = obs if isinstance(obs, Mapping) else {self.obs_keys[0]: obs}
        arrays = {key: self._array(given, key) for key in self.obs_keys}
        single = [arrays[key].ndim == len(self.spec.obs[key].shape) for key in self.obs_keys]
        if any(single) != all(single):
            raise UserError(
                "obs: some keys have a batch dimension and others have none; give all keys, or none, a batch dimension"
            )
        batch = {key: torch.from_numpy(a[None] if single[0] else a) for key, a in arrays.items()}
        count = len(batch[self.obs_keys[0]])
        opens = np.full(count, carry is None) if is_first is None else np.asarray(is_first, dtype=bool).reshape(-1)
        if len(opens) != count:
            raise UserError(f"is_first: expected one value per observation ({count}), got {len(opens)} values")
        form = self.initial(count)
        with torch.no_grad():
            carry, action, extras = self._acting.act(
                form if carry is None else carry, batch, torch.from_numpy(opens), self._rng, greedy
            )
            outputs = {"action": self.agent.to_env(action)} | {name: extras[name] for name in SAID if name in extras}
        named = {name: part[0].numpy() if single[0] else part.numpy() for name, part in outputs.items()}
        return named, fit(form, carry)

    @functools.cached_property
    def signature(self) -> Signature:
        """Names, shapes and dtypes of all arrays that `exchange` takes and returns.

        The outputs are determined by calling the agent once with an example.
        """
        specs = {key: self.spec.obs[key] for key in self.obs_keys}
        return signature_of(specs, self.initial_carry(1), self._answer(self.example(), None, None, True)[0])

    def example(self) -> dict[str, np.ndarray]:
        """Return a batch with one example observation.

        Its arrays are zeros, except that Discrete observations have their smallest value, and action masks allow all
        choices.
        """
        specs = {key: self.spec.obs[key] for key in self.obs_keys}
        return {key: np.full((1, *s.shape), s.kind == "mask" or s.start, s.dtype) for key, s in specs.items()}

    def initial_carry(self, batch_size: int) -> dict[str, np.ndarray]:
        """Return the initial carry as name -> array [B, ...], with names like `carry.lstm.0`.

        The dict is empty if the policy is feed-forward.
        """
        return self._name(self.initial(batch_size))

    def exchange(self, given: Any, greedy: bool = True) -> dict[str, np.ndarray]:
        """Compute actions from a flat dict of arrays, and return a flat dict of arrays.

        This is the interface for servers: unlike `step`, it has no nested carry. `signature` lists all arrays.

        Args:
            given: observations, key -> [B, ...]. If there is only one key and the policy is feed-forward, this can be
                an array [B, ...] instead of a dict. A recurrent policy also needs `is_first` [B] bool, and the arrays
                of the carry (recurrent state) that the last call or `initial_carry` returned.
            greedy: True: the most likely action; False: a sample.

        Returns:
            `action`, `logprob` and `value` (if the agent returns them), and the carry for the next observations.

        Raises:
            UserError: If an input is missing or has another shape, or if the carry contains NaN.
        """
        if not self.signature.carry:
            return self._answer(given, None, None, greedy)[0]
        names = [column.name for column in self.signature.inputs if column.kind in ("is_first", "carry")]
        if missing := [name for name in names if given.get(name) is None]:
            raise UserError(f"{missing[0]!r} is missing; this recurrent policy needs the inputs {', '.join(names)}")
        opens = np.asarray(given["is_first"], dtype=bool).reshape(-1)
        parts = list[torch.Tensor]()
        for column in self.signature.carry:
            name, shape = column.name, (len(opens), *column.shape)
            if np.shape(given[name]) != shape:
                raise UserError(f"{name!r}: expected shape {shape}, got {np.shape(given[name])}")
            parts.append(torch.from_numpy(np.array(given[name], column.dtype)))
            if parts[-1].isnan().any():  # a null in JSON was converted to NaN, which would persist in the carry
                raise UserError(f"{name!r}: expected numbers, got nan; pass the carry returned by the last call")
        obs = {key: given[key] for key in self.obs_keys if key in given}
        left = iter(parts)
        carry = map_leaves(lambda _: next(left), self.initial(len(opens)))
        outputs, carry = self._answer(obs, carry, opens, greedy)
        return {**outputs, **self._name(carry)}

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
            if not (finite := np.isfinite(array)).all():  # a null in JSON was converted to NaN
                where = tuple(map(int, np.argwhere(~finite)[0]))
                raise UserError(f"obs {key!r}: expected finite float32 numbers, got {array[where]} at {list(where)}")
            return array
        if not np.all((array == np.floor(array)) & (array >= spec.start) & (array < spec.start + spec.n)):
            raise UserError(f"obs {key!r}: expected whole numbers from {spec.start} to {spec.start + spec.n - 1}")
        return np.asarray(array, dtype=np.int64, order="C")  # ascontiguousarray would change shape [] to [1]
