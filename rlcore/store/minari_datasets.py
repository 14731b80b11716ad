"""Reading and writing of offline RL datasets in the format of Minari (https://minari.farama.org).

Minari is a standard format for such datasets. They are stored in the folder MINARI_DATASETS_PATH, by default
~/.minari/datasets. The package `minari` is an optional dependency (extra `minari`), which is imported on first use.

An episode of n actions has different rows in the two formats:

    Minari          observations [n+1, ...]; actions, rewards, terminations, truncations [n, ...]
    `Trajectory`    n+1 rows; reward and flags are in the row of the observation that follows the action
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlcore.config.values import nearest
from rlcore.envs.spaces import action_spec, array_spec, kind_of, obs_spaces
from rlcore.envs.wrappers import Leaf, bare_env, flat_leaves, get_leaf
from rlcore.errors import UserError, first_line
from rlcore.spec import EnvSpec

if TYPE_CHECKING:
    import gymnasium
    from gymnasium import spaces

BARE = "state", "rgb"  # keys for a vector or an image that an environment returns without a dict


@dataclass(frozen=True)
class PlayedEpisode:
    """Complete episode of n actions, to be written to a Minari dataset.

    Attributes:
        seed: seed that was passed to `reset`.
        obs: observations, key -> [n+1, ...].
        action: actions [n, ...], in the format of the environment.
        reward: rewards of the actions, [n] float32.
        terminated: [n] bool; True in the last row if the episode terminated.
        truncated: [n] bool; True in the last row if the episode was truncated.
    """

    seed: int
    obs: Mapping[str, np.ndarray]
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def check_name(name: str) -> None:
    """Raise UserError if the name is not valid for a new dataset, if it exists, or if Minari is not installed."""
    try:
        _minari(name, ".dataset.minari_dataset").parse_dataset_id(name)
    except (ValueError, TypeError):  # TypeError if the version is missing
        raise UserError(
            f"minari:{name}: not a valid name of a Minari dataset; use [FOLDER/]NAME-vNUMBER, such as "
            "mine/cartpole-v0, with letters, digits, - and _, and at least two characters in FOLDER"
        ) from None
    if folder(name).exists():
        raise UserError(f"minari:{name}: already exists; choose another version, or run `minari delete {name}`")


def write(name: str, episodes: Iterable[PlayedEpisode], env: gymnasium.Env, about: Mapping[str, Any]) -> str:
    """Write a Minari dataset. Images are stored without JPEG compression, so that no information is lost.

    Args:
        name: name of the new dataset, for which `check_name` must have passed.
        episodes: the episodes, in the order in which they are stored.
        env: environment from `rlcore.envs.make`; its spaces and its Gymnasium spec are stored with the dataset.
        about: metadata to store: Minari's keys `algorithm_name`, `author`, `description` and `requirements`, and the
            key `shepherd` with a mapping of JSON values.

    Returns:
        The folder of the dataset.
    """
    if not env.action_space.shape and env.action_space.dtype is None:
        raise UserError(
            f"{name}: a dataset in Minari's format cannot store the actions of a {type(env.action_space).__name__} "
            "action space; use another environment"
        )
    buffer = _minari(name, ".data_collector.episode_buffer").EpisodeBuffer
    space: Any = env.observation_space
    bare = _is_bare(env)
    buffers = (
        buffer(
            seed=episode.seed,
            observations=next(iter(episode.obs.values())) if bare else dict(episode.obs),
            actions=episode.action.astype(env.action_space.dtype),
            rewards=episode.reward,
            terminations=episode.terminated,
            truncations=episode.truncated,
            infos={},
        )
        for episode in episodes
    )
    known = bare_env(env)
    place = folder(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Minari warns about missing optional metadata
            dataset = _minari(name).create_dataset_from_buffers(
                name,
                buffers,
                env=known if known.spec is not None and known.spec.entry_point is not None else None,
                observation_space=next(iter(space.spaces.values())) if bare else space,
                action_space=env.action_space,
                jpeg_encoding=False,
                **{key: value for key, value in about.items() if key != "shepherd"},
            )
            dataset.storage.update_metadata({"shepherd": dict(about["shepherd"])})
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    return str(place)


def read_spec(name: str) -> EnvSpec:
    """Return the spec of a Minari dataset: its observation keys and its action space.

    Observation keys with a type of space that agents do not support are omitted. Raises UserError if the dataset does
    not exist, cannot be read, or has an action space that is not supported.
    """
    dataset, obs = _load(name), {}
    for key, _, leaf in _leaves(dataset.observation_space):
        with suppress(UserError):
            obs[key] = array_spec(key, leaf)
    with _convert_errors(name):
        known = dataset.env_spec
        return EnvSpec(name if known is None else known.id, obs, action_spec(dataset.action_space))


def read(name: str, keys: Iterable[str]) -> dict[str, np.ndarray]:
    """Read all episodes of a dataset, concatenated to T rows.

    An episode of n actions has n+1 rows. Its last row contains the last observation; because no action follows, the
    action of this row is a copy of the previous one.

    Args:
        name: name of the dataset.
        keys: observation keys to read, a subset of those that `read_spec` returns.

    Returns:
        Columns by name: obs/<key> [T, ...], action [T, ...] in the format of the environment, reward [T] float32, and
        terminated, truncated and is_first [T] bool. Reward and flags are in the row of the observation that follows
        the action.

    Raises:
        UserError: the dataset has no episodes, or an episode has inconsistent lengths.
    """
    dataset = _load(name)
    paths = {key: path for key, path, _ in _leaves(dataset.observation_space)}
    parts: dict[str, list[np.ndarray]] = {}
    with _convert_errors(name):
        for episode in dataset.iterate_episodes():
            for column, rows in _rows(episode, {key: paths[key] for key in keys}).items():
                parts.setdefault(column, []).append(rows)
    if not parts:
        raise UserError(f"minari:{name}: has no episodes; choose another dataset")
    return {column: np.concatenate(rows) for column, rows in parts.items()}


def folder(name: str) -> Path:
    """Return the folder in which Minari stores the dataset with this name, whether or not it exists."""
    return _minari(name, ".storage.datasets_root_dir").get_dataset_path(name)


def _rows(episode: Any, paths: Mapping[str, tuple[Any, ...]]) -> dict[str, np.ndarray]:
    count = len(episode.rewards)
    obs = {f"obs/{key}": np.asarray(get_leaf(episode.observations, path)) for key, path in paths.items()}
    action = np.asarray(episode.actions)
    if count == 0 or len(action) != count or any(len(rows) != count + 1 for rows in obs.values()):
        seen = ", ".join(f"{len(rows)} of {column}" for column, rows in obs.items())
        raise UserError(
            f"episode {episode.id} is incomplete: it has {count} rewards, {len(action)} actions and "
            f"{seen or 'no observations'}, but needs as many actions as rewards, and one observation more"
        )
    later = {
        "reward": np.asarray(episode.rewards, np.float32),
        "terminated": np.asarray(episode.terminations, bool),
        "truncated": np.asarray(episode.truncations, bool),
    }
    first = {name: np.concatenate([np.zeros(1, rows.dtype), rows]) for name, rows in later.items()}
    opens = np.zeros(count + 1, bool)
    opens[0] = True
    return obs | {"action": np.concatenate([action, action[-1:]])} | first | {"is_first": opens}


def _leaves(space: spaces.Space[Any]) -> list[Leaf]:
    """Flatten an observation space: return (key, path, space) for each space in it that is not a Dict or Tuple.

    The keys are those that an environment from `rlcore.envs.make` uses.
    """
    if kind_of("", space) == "image":
        return [(BARE[1], (), space)]
    return flat_leaves(space)


def _is_bare(env: gymnasium.Env) -> bool:
    """Return True if the unwrapped environment returns observations as a single array instead of a dict."""
    return len(found := obs_spaces(env)) == 1 and found.keys() <= {*BARE} and _is_leaf(bare_env(env).observation_space)


def _is_leaf(space: spaces.Space[Any]) -> bool:
    return [path for _, path, _ in _leaves(space)] == [()]


def _load(name: str) -> Any:
    if not name:
        raise UserError("minari:: the name is missing; use minari:NAME, such as minari:mine/cartpole-v0")
    package = _minari(name)
    if not (folder(name) / "data").exists():
        there = nearest(name, package.list_local_datasets())
        raise UserError(
            f"minari:{name}: not in {folder('')}{there}; `minari download {name}` downloads a dataset hosted by "
            f"Minari, `shepherd collect RUN --minari {name}` creates one"
        )
    with _convert_errors(name):
        return package.load_dataset(name)


def _minari(name: str, module: str = "") -> Any:
    """Import the package `minari`, or its submodule `module`. Raises UserError if it is not installed.

    `name` is the name of a dataset, for the error message.
    """
    try:
        return import_module(f"minari{module}")
    except ImportError:
        raise UserError(f"minari:{name}: Minari is not installed; run: pip install -e '.[minari]'") from None


@contextmanager
def _convert_errors(name: str) -> Iterator[None]:
    """Context manager that converts any error of reading a dataset to UserError, because a dataset can be damaged."""
    try:
        yield
    except Exception as error:
        what = first_line(error) if isinstance(error, (UserError, ImportError, ValueError)) else repr(error)
        raise UserError(f"minari:{name}: cannot be read: {what}") from error
