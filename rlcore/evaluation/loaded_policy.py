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
from rlcore.evaluation.observations import join_keys, to_batch
from rlcore.evaluation.signature import SAID, Signature, signature_of
from rlcore.functional.noise import Noise
from rlcore.functional.tree import fit, map_leaves, name_leaves
from rlcore.spec import EnvSpec
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
        self.acting = with_history(self.agent, self.spec)
        self.obs_keys: tuple[str, ...] = tuple(getattr(self.agent, "keys", self.spec.obs))
        self._masks = self.spec.mask_keys if config.needs_allowed_action else ()
        self._rng = Noise(seed, "policy_eval")

    def initial(self, batch_size: int) -> Carry:
        """Return the carry at the start of `batch_size` episodes; () if the policy is feed-forward."""
        return self.acting.initial(batch_size)

    def predict(self, obs: Any, greedy: bool = True) -> np.ndarray:
        """Return the actions of a feed-forward policy for observations, in the environment's format.

        Args:
            obs: one observation or a batch of observations. It is a dict of arrays, which can be nested, or an array
                if the environment's observations are arrays (key `state`).
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
        outputs, carry = self._answer(join_keys(obs), carry, is_first, greedy)
        return outputs["action"], carry

    def _answer(
        self, obs: Any, carry: Carry | None, is_first: Any, greedy: bool, needs_allowed_action: bool = False
    ) -> tuple[dict[str, np.ndarray], Any]:
        """Validate observations and call the agent; return its outputs and the new carry (recurrent state).

        The outputs are a dict with `action` and, if the agent returns them, `logprob` and `value`. If `obs` is a single
        observation, they have no batch dimension. If `needs_allowed_action` is true, action masks that allow no action
        raise a UserError; otherwise such masks allow all actions.
        """
        given = obs if isinstance(obs, Mapping) else {self.obs_keys[0]: obs}
        batch, single = to_batch(given, {key: self.spec.obs[key] for key in self.obs_keys})
        if needs_allowed_action and self._masks:
            self._refuse_without_action(batch)
        count = len(batch[self.obs_keys[0]])
        opens = np.full(count, carry is None) if is_first is None else np.asarray(is_first, dtype=bool).reshape(-1)
        if len(opens) != count:
            raise UserError(f"is_first: expected one value per observation ({count}), got {len(opens)} values")
        form = self.initial(count)
        with torch.no_grad():
            carry, action, extras = self.acting.act(
                form if carry is None else carry, batch, torch.from_numpy(opens), self._rng, greedy
            )
            outputs = {"action": self.agent.to_env(action)} | {name: extras[name] for name in SAID if name in extras}
        named = {name: part[0].numpy() if single else part.numpy() for name, part in outputs.items()}
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
                of the carry (recurrent state) that the last call or `initial_carry` returned. The keys of nested dicts
                are joined by dots.
            greedy: True: the most likely action; False: a sample.

        Returns:
            `action`, `logprob` and `value` (if the agent returns them), and the carry for the next observations.

        Raises:
            UserError: If an input is missing or has another shape, if the carry contains NaN, or if the action masks
                allow no action. (`step` accepts such masks, because the last observation of an episode can have them.)
        """
        given = join_keys(given)
        if not self.signature.carry:
            return self._answer(given, None, None, greedy, needs_allowed_action=True)[0]
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
        outputs, carry = self._answer(obs, carry, opens, greedy, needs_allowed_action=True)
        return {**outputs, **self._name(carry)}

    def _refuse_without_action(self, obs: Mapping[str, torch.Tensor]) -> None:
        nothing = self.spec.nothing_allowed({key: obs[key] for key in self._masks}, torch.cat)
        if nothing is not None and nothing.any():
            row, names = int(nothing.nonzero()[0]), ", ".join(map(repr, self._masks))
            raise UserError(
                f"obs {names}: row {row} of the action mask allows no action; set at least one choice of each "
                "sub-action to 1"
            )

    def _name(self, carry: Carry) -> dict[str, np.ndarray]:
        return {name: part.numpy() for name, part in name_leaves(carry).items()}
