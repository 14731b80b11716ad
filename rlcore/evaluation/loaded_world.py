"""Trained world models for analysis: posterior states of observations, imagined trajectories, and predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.dreamer.plan2explore.ensemble import Ensemble, disagreement
from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.algorithms.dreamer.sequences import open_at_first_row
from rlcore.algorithms.dreamer.world_keys import WORLD
from rlcore.config.build import build
from rlcore.errors import UserError
from rlcore.evaluation.loaded_policy import algorithm_of
from rlcore.functional.noise import Noise
from rlcore.functional.tree import map_leaves
from rlcore.spec import ArraySpec, EnvSpec

SIZED_BY = "members.0.output.bias"  # parameter of an ensemble whose length is the size of a prediction


class ModelPrediction(NamedTuple):
    """Predictions of a world model for states [...].

    Attributes:
        obs: decoded observations, key -> [..., *shape], in the environment's format, dtype and units.
        reward: [...] float32, in the environment's unit; reward of the step that led to the state.
        continues: [...] float32; probability that the episode does not terminate in the state. Dreamer V1 and V2
            predict the product of this probability and `gamma` instead. None if the model does not predict it.
        value: [...] float32; expected discounted return under the policy. None if the critic was not loaded.
    """

    obs: dict[str, np.ndarray]
    reward: np.ndarray
    continues: np.ndarray | None
    value: np.ndarray | None


class LoadedWorldModel:
    """World model with its actor and critic for analysis, on the CPU in float32.

    States are `rlcore.algorithms.dreamer.rssm.ModelState` with two parts: the deterministic state `deter` [..., H] and
    the stochastic state `stoch` [..., Z]. All stochastic states are sampled from one random stream, so the same
    sequence of calls returns the same states.

    Args:
        description: description of the policy, as for `LoadedPolicy`.
        parts: name of a component of the learner -> its state_dict: `agent`, `critic`, and `ensembles` of Plan2Explore.
            If only a world model was registered: `world_model`; actor, critic and ensemble are then not available.
        seed: seed of the noise for stochastic states and for sampled actions.

    Raises:
        UserError: If the algorithm has no world model.
    """

    def __init__(self, description: Mapping[str, Any], parts: Mapping[str, Any], seed: int = 0) -> None:
        self.description, self.spec = dict(description), EnvSpec.from_json(description["spec"])
        algorithm = algorithm_of(description)
        refuse_without_world(algorithm.Config, description["algo"]["name"])
        config = build(algorithm.Config, description["algo"], "algo.")
        self.agent = algorithm.Agent(config, self.spec, description["distribution"], torch.Generator())
        self.acts = "agent" in parts
        if self.acts:
            self.agent.load_state_dict(parts["agent"])
        else:
            self.agent.world.load_state_dict(parts[WORLD])
        self.agent.requires_grad_(False).eval()
        self.world = self.agent.world
        self.keys = (*self.world.encoder.images, *self.world.encoder.vectors)  # keys that the encoder reads
        self._critic: Any = None
        if "critic" in parts:
            outputs = self.agent.number.outputs
            layers, rng = config.critic.layers, torch.Generator()
            self._critic = self.agent.make_mlp(self.world.feat_size, layers, rng, outputs)
            self._critic.load_state_dict(parts["critic"])
            self._critic.requires_grad_(False).eval()
        self._ensemble: Ensemble | None = None
        if "ensembles" in parts:
            inputs, size = self.world.feat_size + self.world.rssm.actions, len(parts["ensembles"][SIZED_BY])
            group = config.ensembles
            self._ensemble = Ensemble(group.n, inputs, size, group.layers, torch.Generator(), self.agent.make_mlp)
            self._ensemble.load_state_dict(parts["ensembles"])
            self._ensemble.requires_grad_(False).eval()
        self._rng = Noise(seed, "dream")

    @torch.no_grad()
    def observe(self, obs: Mapping[str, Any], action: Any, is_first: Any = None) -> ModelState:
        """Compute the posterior states of B sequences of T observations, as in training.

        The first observation of each sequence is always treated as the start of an episode.

        Args:
            obs: observations as returned by the environment: key -> [T, B, *shape], for each key of the encoder.
            action: [T, B, *shape] in the environment's format; action[t] was taken after obs[t]. action[T-1] is not
                used.
            is_first: [T, B] bool; True for the first row of an episode. None: True only for row 0.

        Returns:
            States [T, B, ...].

        Raises:
            UserError: If an observation key is missing, or if shapes do not match.
        """
        rows = {key: self._rows(obs, key) for key in self.keys}
        length, count = next(iter(rows.values())).shape[:2]
        flat_action = self._flat(action, length, count)
        opens = np.zeros((length, count), bool) if is_first is None else np.array(is_first, bool).reshape(length, count)
        before, opens = open_at_first_row(flat_action, torch.from_numpy(opens))
        noise = self.world.rssm.noise(self._rng, length, count)
        return self.world.observe(self.world.encoder.preprocess(rows, 2), before, opens, noise).state

    @torch.no_grad()
    def imagine(
        self, state: ModelState, action: Any = None, *, steps: int = 15, greedy: bool = True
    ) -> tuple[ModelState, np.ndarray]:
        """Imagine B trajectories of H steps without observations; states are sampled from the prior.

        Args:
            state: [B, ...]; states before the first action.
            action: [H, B, *shape] in the environment's format; None: the actor selects the actions.
            steps: H; number of steps if `action` is None.
            greedy: True: the actor's most likely actions; False: samples.

        Returns:
            The states after each action [H, B, ...], and the actions [H, B, *shape] in the environment's format.

        Raises:
            UserError: If `action` is None and the actor was not loaded, or if shapes do not match.
        """
        rssm, actor, count = self.world.rssm, self.agent.actor, len(state.deter)
        if action is None and not self.acts:
            raise UserError(
                "imagine: action=None needs an actor, but this world model was loaded without it; pass the actions"
            )
        given = None if action is None else self._flat(action, None, count)
        states, taken = list[ModelState](), list[Tensor]()
        for t in range(steps if given is None else len(given)):
            if given is None:
                policy = actor.policy(state.feat)
                own = policy.mode() if greedy else actor.clip(policy.sample(actor.noise(self._rng, count)))
                taken.append(self.agent.to_env(own))
                flat_action = actor.flat(own)
            else:
                flat_action = given[t]
            state = rssm.img_step(state, flat_action, rssm.noise(self._rng, count))
            states.append(state)
        joined = ModelState(*(torch.stack(part) for part in zip(*states, strict=True)))
        return joined, np.asarray(action) if given is not None else torch.stack(taken).numpy()

    @torch.no_grad()
    def decode(self, state: ModelState) -> ModelPrediction:
        """Predict observation, reward, probability that the episode continues, and value for states.

        `state` has `deter` [..., H] and `stoch` [..., Z]; the predictions have the same leading dimensions.
        """
        lead = state.deter.shape[:-1]
        feat = map_leaves(lambda part: part.reshape(-1, part.shape[-1]), state).feat
        decoded = self.world.encoder.restore(self.world.decoder(feat))
        obs = {key: _fit(part.unflatten(0, lead).numpy(), self.spec.obs[key]) for key, part in decoded.items()}
        continues = self.world.predict_continue(feat).sigmoid() if self.world.continue_head is not None else None
        value = self.agent.number.mean(self._critic(feat)) if self._critic is not None else None
        predictions = (None if part is None else part.reshape(lead).numpy() for part in (continues, value))
        return ModelPrediction(obs, self.world.predict_reward(feat).reshape(lead).numpy(), *predictions)

    @torch.no_grad()
    def disagree(self, state: ModelState, action: Any) -> np.ndarray | None:
        """Return how much Plan2Explore's ensemble disagrees about the outcome of steps, [T, B].

        Args:
            state: [T, B, ...]; states before the actions, for example from `observe`.
            action: [T, B, *shape] in the environment's format.

        Returns:
            The disagreement [T, B]; None if no ensemble was loaded.
        """
        if self._ensemble is None:
            return None
        return disagreement(self._ensemble(state.feat, self._flat(action, *state.deter.shape[:2]))).numpy()

    def _rows(self, obs: Mapping[str, Any], key: str) -> Tensor:
        """Return the observations of a key as a tensor [T, B, *shape]."""
        if key not in obs:
            raise UserError(f"obs: key {key!r} is missing; expected {', '.join(self.keys)}")
        spec, array = self.spec.obs[key], np.asarray(obs[key])
        if array.shape[2:] != spec.shape or array.ndim < 2:
            raise UserError(f"obs {key!r}: expected [T, B, {', '.join(map(str, spec.shape))}], got {array.shape}")
        return torch.from_numpy(np.ascontiguousarray(array))

    def _flat(self, action: Any, length: int | None, count: int) -> Tensor:
        """Convert actions [T, B, *shape] in the environment's format to vectors [T, B, ...], the model's input.

        `length` is T and `count` is B; if `length` is None, any T is valid. Raises UserError for another shape.
        """
        array, shape = np.array(action, self.spec.action.dtype), self.spec.action.shape
        length = len(array) if length is None else length
        if array.shape != (length, count, *shape):
            form = "" if shape else ": actions of this environment are scalars, which have no further dimension"
            raise UserError(f"action: expected {(length, count, *shape)}, got {array.shape}{form}")
        own = self.agent.from_env(torch.from_numpy(array).flatten(0, 1))
        return self.agent.actor.flat(own).unflatten(0, (length, count))


def _fit(values: np.ndarray, spec: ArraySpec) -> np.ndarray:
    """Convert values to the dtype of a spec; for an integer dtype, they are rounded and clipped to its range."""
    if np.dtype(spec.dtype).kind in "iu":
        info = np.iinfo(spec.dtype)
        values = values.round().clip(info.min, info.max)
    return values.astype(spec.dtype)


def refuse_without_world(config: Any, name: str) -> None:
    """Raise a UserError if an algorithm has no world model. `config` is its `Config` class or an instance of it."""
    if WORLD not in config.exported_components:
        have = [other for other, module in ALGORITHMS.items() if WORLD in module.Config.exported_components]
        raise UserError(f"algo.name={name}: has no world model; algorithms with a world model: {', '.join(have)}")
