"""Episodes that were played beside what a world model makes of them, and episodes of its own."""

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

from rlcore.config.groups import RunConfig
from rlcore.judge.collection import PlayedRows
from rlcore.judge.evaluation import play_round
from rlcore.judge.loaded_world import LoadedWorldModel, Told, refuse_without_world
from rlcore.judge.play import OnProgress
from rlcore.judge.policy import load_world_model
from rlcore.nn.rssm import ModelState
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.types import Arrival, Rows

SEEN, LENGTH, SEQUENCES = 5, 50, 6  # rows that the model sees, rows in all, sequences: as in the authors' films
ROWS = 500  # that are recorded of an environment at most
PURPOSE = "dream"  # stream of the environments' seeds


@dataclass(frozen=True)
class Dream:
    """Sequences of L rows and N episodes, and as many dreams.

    Attributes:
        truth: what was recorded [L, N]; `goes_on` is 0 where the episode terminated, 1 elsewhere.
        model: what the model says of it [L, N]: it sees the first rows, and the actions of all.
        seen: how many rows it sees.
        there: [L, N] bool, rows that were recorded; behind an episode's end there are none.
        own: what it says of its own dreams [H+1, N], with the policy's most likely actions, from the last row seen on.
    """

    truth: Told
    model: Told
    seen: int
    there: np.ndarray
    own: Told


def dream(run: RunDirectory, path: Path, on_progress: OnProgress | None = None) -> Dream:
    """Play episodes with the policy of a checkpoint, greedily, and look into its world model.

    Args:
        run: whose environment and seed.
        path: the checkpoint's directory.
        on_progress: called after every step with the number of episodes that have ended, and of all.

    Returns:
        The dream.

    Raises:
        UserError: the run's algorithm learns no world model.
    """
    config = config_of(run)
    refuse_without_world(config.algo, config.algo.name)
    model = load_world_model(path, config.seed)
    rows = record(model, config, run.read_card(), on_progress)
    return look(model, *cut(rows))


def record(
    model: LoadedWorldModel, config: RunConfig, card: dict[str, Any], on_progress: OnProgress | None = None
) -> dict[str, np.ndarray]:
    """Rows of greedy play on seeds that nothing else has, as `PlayedRows.columns` gives them; `ROWS` at most."""
    recorded, played = PlayedRows(), None

    def on_step(arrival: Arrival, action: Rows) -> None:
        kept = {key: arrival.obs[key] for key in model.keys}
        recorded(dataclasses.replace(arrival, obs=kept), action)

    play = play_round(
        model.agent, config, card, SEQUENCES, num_envs=SEQUENCES, greedy=True, purpose=PURPOSE, on_step=on_step
    )
    with closing(play):
        for played in itertools.islice(play, ROWS - 1):
            if on_progress is not None:
                on_progress(len(played.done), SEQUENCES)
    assert played is not None and played.arrival is not None
    on_step(played.arrival, recorded.rows["action"][-1])  # what nobody has answered is the last observation
    return recorded.columns()


def cut(rows: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """N sequences of L rows out of [T, B] rows, each within an episode, from its beginning, its end and between.

    Args:
        rows: of a `PlayedRows`.

    Returns:
        The sequences [L, N, ...], and which of their rows are there [L, N]: those behind an episode's end repeat it.
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
    """Look into a model: sequences as it sees them, and its dreams from where it has seen the first rows of each.

    Args:
        model: to look into.
        rows: sequences [L, N, ...], as `cut` gives them.
        there: [L, N], as `cut` gives it.

    Returns:
        The dream.
    """
    obs = {key: rows[f"obs/{key}"] for key in model.spec.obs if f"obs/{key}" in rows}
    seen = model.observe({key: part[:SEEN] for key, part in obs.items()}, rows["action"][:SEEN])
    then, _ = model.imagine(seen.at(-1), rows["action"][SEEN - 1 : -1])
    whole = ModelState(*(torch.cat(parts) for parts in zip(seen, then, strict=True)))
    newest = torch.from_numpy(there.sum(0).clip(max=SEEN) - 1)  # of an episode of fewer rows its last one
    begin = seen.at((newest, torch.arange(len(newest))))
    own, _ = model.imagine(begin, steps=len(there) - SEEN)
    dreamed = ModelState(*(torch.cat([first.unsqueeze(0), after]) for first, after in zip(begin, own, strict=True)))
    told, goes_on = model.decode(whole), (~rows["terminated"]).astype(np.float32)
    truth = Told({key: obs[key] for key in told.obs}, rows["reward"], goes_on, None)
    return Dream(truth, told, SEEN, there, model.decode(dreamed))
