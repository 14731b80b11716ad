"""Reading and writing of datasets in Minari's format (https://minari.farama.org), which other libraries use.

The `minari` package (extra `minari`) reads and writes them in MINARI_DATASETS_PATH, by default ~/.minari/datasets. It
is imported on first use.

    Minari, an episode of n actions     observations [n+1, ...]   actions, rewards, terminations, truncations [n, ...]
    `Trajectory`, the same episode      n+1 rows; reward and flags are one row later, with the resulting observation
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
    """Complete episode of n actions.

    Attributes:
        seed: seed of the environment's reset.
        obs: key -> [n+1, ...].
        action: [n, ...], in the environment's form.
        reward: [n] float32.
        terminated: [n] bool.
        truncated: [n] bool.
    """

    seed: int
    obs: Mapping[str, np.ndarray]
    action: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


def check_name(name: str) -> None:
    """Raise UserError if a new dataset cannot have this name, or if Minari is not installed."""
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
    """Write a Minari dataset without loss; images are not compressed to JPEG.

    Args:
        name: name of the new dataset, checked by `check_name`.
        episodes: episodes in order.
        env: environment from `rlcore.envs.make`; its spaces and its Gymnasium spec are stored with the dataset.
        about: metadata: Minari's `algorithm_name`, `author`, `description` and `requirements`, and `shepherd`, a
            mapping of JSON values.

    Returns:
        The folder of the dataset.
    """
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
    """Return observation keys and action of a Minari dataset; keys that agents cannot use are omitted.

    Raise UserError if the dataset does not exist, cannot be read, or has an action space that is not supported.
    """
    dataset, obs = _load(name), {}
    for key, _, leaf in _leaves(dataset.observation_space):
        with suppress(UserError):
            obs[key] = array_spec(key, leaf)
    with _tell_mistakes(name):
        known = dataset.env_spec
        return EnvSpec(name if known is None else known.id, obs, action_spec(dataset.action_space))


def read(name: str, keys: Iterable[str]) -> dict[str, np.ndarray]:
    """Read the rows of a dataset: its episodes concatenated, each including its last observation.

    Args:
        name: name of the dataset.
        keys: observation keys to read, among those of `read_spec`.

    Returns:
        obs/<key> [T, ...], action [T, ...] in the environment's form, reward [T] float32, and terminated, truncated and
        is_first [T] bool. The last row of an episode has no action and repeats the one before.

    Raises:
        UserError: the dataset has no episodes, or an episode has inconsistent lengths.
    """
    dataset = _load(name)
    paths = {key: path for key, path, _ in _leaves(dataset.observation_space)}
    parts: dict[str, list[np.ndarray]] = {}
    with _tell_mistakes(name):
        for episode in dataset.iterate_episodes():
            for column, rows in _rows(episode, {key: paths[key] for key in keys}).items():
                parts.setdefault(column, []).append(rows)
    if not parts:
        raise UserError(f"minari:{name}: has no episodes")
    return {column: np.concatenate(rows) for column, rows in parts.items()}


def folder(name: str) -> Path:
    """Return the folder of a dataset, which need not exist."""
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
    """Return the flattened observation keys of a space, with the names that `rlcore.envs.make` gives them."""
    if kind_of("", space) == "image":
        return [(BARE[1], (), space)]
    return flat_leaves(space)


def _is_bare(env: gymnasium.Env) -> bool:
    """Return True if the observation of the unwrapped environment is a single array, not a dict."""
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
    with _tell_mistakes(name):
        return package.load_dataset(name)


def _minari(name: str, module: str = "") -> Any:
    """Import the `minari` package or a module of it. Raises UserError if it is not installed."""
    try:
        return import_module(f"minari{module}")
    except ImportError:
        raise UserError(f"minari:{name}: Minari is not installed; run: pip install -e '.[minari]'") from None


@contextmanager
def _tell_mistakes(name: str) -> Iterator[None]:
    """Context manager that converts all errors of reading a dataset to a UserError; datasets are not trusted."""
    try:
        yield
    except Exception as error:
        what = first_line(error) if isinstance(error, (UserError, ImportError, ValueError)) else repr(error)
        raise UserError(f"minari:{name}: cannot be read: {what}") from error
