"""Comparison of recorded episodes with the reconstructions and predictions of a world model."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlcore.algorithms.dreamer.rssm import ModelState
from rlcore.config.run import RunConfig
from rlcore.evaluation.collection import PlayedRows
from rlcore.evaluation.evaluation import play_round
from rlcore.evaluation.loaded_world import LoadedWorldModel, ModelPrediction, refuse_without_world
from rlcore.evaluation.play import OnProgress
from rlcore.evaluation.policy import load_world_model
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.types import Rows, TimeStep

# As in the videos of Dreamer's authors: time steps that the model observes, time steps of a sequence, sequences.
SEEN, LENGTH, SEQUENCES = 5, 50, 6
ROWS = 500  # maximum number of rows recorded per environment
PURPOSE = "dream"  # random stream of the environment seeds


@dataclass(frozen=True)
class Dream:
    """N recorded sequences of L time steps, and the predictions of a world model for them.

    Attributes:
        truth: recorded data [L, N]; `continues` is 0 if the episode terminated at the time step, otherwise 1.
        model: predictions of the world model, [L, N]. The model observes the first `seen` time steps; the predictions
            for these are reconstructions from posterior states. After that, it receives only the recorded actions.
        seen: number of time steps of each sequence that the model observes.
        there: [L, N] bool; True for recorded time steps, False for the padding after the end of an episode.
        own: predictions for imagined trajectories [H+1, N] with actions of the policy instead of recorded ones. They
            start from the last time step that the model observes, and the actions are the most likely ones.
        disagreement: [L, N]; how much Plan2Explore's ensemble disagrees about the outcome of each recorded step, if the
            model observes all time steps before it. NaN in the last row of an episode, after which there is no step.
            None if the learner has no ensemble.
    """

    truth: ModelPrediction
    model: ModelPrediction
    seen: int
    there: np.ndarray
    own: ModelPrediction
    disagreement: np.ndarray | None = None


def dream(run: RunDirectory, path: Path, on_progress: OnProgress | None = None) -> Dream:
    """Run greedy episodes with the policy of a checkpoint and compute the predictions of its world model.

    Args:
        run: run directory; its config defines environment and seed.
        path: the checkpoint's directory.
        on_progress: called after every step with the number of finished episodes, and the number of all episodes.

    Returns:
        Recorded sequences and the predictions for them.

    Raises:
        UserError: If the run's algorithm has no world model.
    """
    config = config_of(run)
    refuse_without_world(config.algo, config.algo.name)
    model = load_world_model(path, config.seed)
    rows = record(model, config, run.read_card(), on_progress)
    return look(model, *cut(rows))


def record(
    model: LoadedWorldModel, config: RunConfig, card: dict[str, Any], on_progress: OnProgress | None = None
) -> dict[str, np.ndarray]:
    """Run greedy episodes with a policy, and record up to `ROWS` time steps of each environment.

    Only these recordings use the environment seeds of the random stream `dream`.

    Args:
        model: world model with the actor that selects the actions.
        config: config of the run: environment and seed.
        card: the environment card (measured properties of the environment).
        on_progress: called after every step with the number of finished episodes, and the number of all episodes.

    Returns:
        Recorded data, name -> [T, B, ...], as returned by `PlayedRows.columns`.
    """
    recorded, played = PlayedRows(), None

    def on_step(time_step: TimeStep, action: Rows) -> None:
        kept = {key: time_step.obs[key] for key in model.keys}
        recorded(dataclasses.replace(time_step, obs=kept), action)

    play = play_round(
        model.agent, config, card, SEQUENCES, num_envs=SEQUENCES, greedy=True, purpose=PURPOSE, on_step=on_step
    )
    with closing(play):
        for played in itertools.islice(play, ROWS - 1):
            if on_progress is not None:
                on_progress(len(played.done), SEQUENCES)
    assert played is not None and played.arrival is not None
    on_step(played.arrival, recorded.rows["action"][-1])  # the last time step has no action; this one is ignored
    return recorded.columns()


def cut(rows: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Select N sequences of L time steps, each within one episode, from recorded episodes.

    The first sequence is at the start of an episode, and the last one at the end of an episode. The sequences between
    them start later and later in their episodes.

    Args:
        rows: recorded data, name -> [T, B, ...], as returned by `PlayedRows.columns`.

    Returns:
        Sequences [L, N, ...], and a mask [L, N] that is False for padding. If an episode is shorter than L, the padding
        repeats its last time step.
    """
    length, width = rows["is_first"].shape
    episodes: list[tuple[int, int, int]] = []
    for k in range(width):
        begins = map(int, [*np.flatnonzero(rows["is_first"][:, k]), length])
        episodes += [(begin, end, k) for begin, end in itertools.pairwise(begins) if end - begin > 1]
    chosen = sorted(episodes)[:SEQUENCES]
    places, there = np.zeros((2, LENGTH, SEQUENCES), int), np.zeros((LENGTH, SEQUENCES), bool)
    for i in range(SEQUENCES):
        begin, end, k = chosen[i % len(chosen)]
        share = i / (SEQUENCES - 1)
        begin += round(share * max(0, end - begin - LENGTH))
        row = begin + np.arange(LENGTH)
        places[:, :, i], there[:, i] = (row.clip(max=end - 1), np.full(LENGTH, k)), row < end
    return {name: column[places[0], places[1]] for name, column in rows.items()}, there


def look(model: LoadedWorldModel, rows: Mapping[str, np.ndarray], there: np.ndarray) -> Dream:
    """Compute the predictions of a world model for recorded sequences, and its imagined trajectories.

    Args:
        model: the world model with its actor.
        rows: recorded sequences [L, N, ...] that `cut` returned.
        there: mask [L, N] that `cut` returned; False for padding.

    Returns:
        The recorded sequences, the predictions for them, and the imagined trajectories.
    """
    obs = {key: rows[f"obs/{key}"] for key in model.spec.obs if f"obs/{key}" in rows}
    observed = model.observe(obs, rows["action"])
    seen = observed.at(slice(SEEN))  # a state depends only on the time steps up to its own
    then, _ = model.imagine(seen.at(-1), rows["action"][SEEN - 1 : -1])
    whole = ModelState(*(torch.cat(parts) for parts in zip(seen, then, strict=True)))
    newest = torch.from_numpy(there.sum(0).clip(max=SEEN) - 1)  # if the episode is shorter, its last time step
    begin = seen.at((newest, torch.arange(len(newest))))
    own, _ = model.imagine(begin, steps=len(there) - SEEN)
    dreamed = ModelState(*(torch.cat([first.unsqueeze(0), after]) for first, after in zip(begin, own, strict=True)))
    predicted, continues = model.decode(whole), (~rows["terminated"]).astype(np.float32)
    truth = ModelPrediction({key: obs[key] for key in predicted.obs}, rows["reward"], continues, None)
    own_prediction = model.decode(dreamed)
    disagreement = model.disagree(observed, rows["action"])
    if disagreement is not None:
        disagreement = np.where(rows["terminated"] | rows["truncated"], np.nan, disagreement)
    return Dream(truth, predicted, SEEN, there, own_prediction, disagreement)
