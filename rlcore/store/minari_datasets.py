"""Datasets in Minari's format (https://minari.farama.org): whole episodes, as other libraries write and read them.

Minari's own package reads and writes them, in its folder: MINARI_DATASETS_PATH, else ~/.minari/datasets. It is imported
where it is needed; the extra `minari` brings it.

    an episode of n actions     observations [n+1, ...]   actions, rewards, terminations, truncations [n, ...]
    its rows in rlcore/types.py, of n+1: reward and flags one row later, with the observation that they came with
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
from rlcore.envs.wrappers import Leaf, bare_env, flat_leaves, follow
from rlcore.errors import UserError, first_line
from rlcore.spec import EnvSpec

if TYPE_CHECKING:
    import gymnasium
    from gymnasium import spaces

BARE = "state", "rgb"  # keys of an observation, a vector or an image, that an environment gives by itself


@dataclass(frozen=True)
class PlayedEpisode:
    """One whole episode of n actions.

    Attributes:
        seed: that the environment was reset with.
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
    """Refuse, with a UserError, a name that no new dataset can have here; also where Minari is not installed."""
    try:
        _minari(name, ".dataset.minari_dataset").parse_dataset_id(name)
    except (ValueError, TypeError):  # without a version it is the latter
        raise UserError(
            f"minari:{name}: no name of a Minari dataset; it is [FOLDER/]NAME-vNUMBER, as mine/cartpole-v0, of "
            "letters, digits, - and _, with two or more of them in FOLDER"
        ) from None
    if folder(name).exists():
        raise UserError(f"minari:{name}: is there already; choose another version, or `minari delete {name}`")


def write(name: str, episodes: Iterable[PlayedEpisode], env: gymnasium.Env, about: Mapping[str, Any]) -> str:
    """Write a dataset, with nothing lost: images are stored as they are.

    Args:
        name: of a new one, which `check_name` has passed.
        episodes: in order.
        env: from `rlcore.envs.make`; its spaces, and what Gymnasium knows of it, are written with the dataset.
        about: `algorithm_name`, `author`, `description`, `requirements` as Minari has them; `shepherd`, a mapping of
            JSON values that is kept with them.

    Returns:
        The folder that it lies in.
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
            warnings.simplefilter("ignore")  # of what may be told of a dataset and is not
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
    """Observation keys and action of a dataset; keys that no agent can take are left out.

    A UserError where it is not there, cannot be read, or its actions are none that can be trained.
    """
    dataset, obs = _load(name), {}
    for key, _, leaf in _leaves(dataset.observation_space):
        with suppress(UserError):
            obs[key] = array_spec(key, leaf)
    with _tell_mistakes(name):
        known = dataset.env_spec
        return EnvSpec(name if known is None else known.id, obs, action_spec(dataset.action_space))


def read(name: str, keys: Iterable[str]) -> dict[str, np.ndarray]:
    """Rows of a dataset, its episodes one behind the other, each with its last observation.

    Args:
        name: of the dataset.
        keys: of the observations that are wanted; `read_spec` has them.

    Returns:
        obs/<key> [T, ...], action [T, ...] in the environment's form (at an episode's last row, where none was taken,
        the one before), reward [T] float32, terminated, truncated and is_first [T] bool.

    Raises:
        UserError: there is no episode, or one is not of the form that its dataset says.
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
    """Folder in which a dataset lies, or would lie."""
    return _minari(name, ".storage.datasets_root_dir").get_dataset_path(name)


def _rows(episode: Any, paths: Mapping[str, tuple[Any, ...]]) -> dict[str, np.ndarray]:
    count = len(episode.rewards)
    obs = {f"obs/{key}": np.asarray(follow(episode.observations, path)) for key, path in paths.items()}
    action = np.asarray(episode.actions)
    if count == 0 or len(action) != count or any(len(rows) != count + 1 for rows in obs.values()):
        seen = ", ".join(f"{len(rows)} of {column}" for column, rows in obs.items())
        raise UserError(f"episode {episode.id} has {count} rewards, {len(action)} actions and {seen or 'nothing'}")
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
    """As the flat dict that `rlcore.envs.make` makes of such observations."""
    if kind_of("", space) == "image":
        return [(BARE[1], (), space)]
    return flat_leaves(space)


def _is_bare(env: gymnasium.Env) -> bool:
    """Tell whether the flat dict of an environment from `make` is one observation, which was no dict before."""
    return len(found := obs_spaces(env)) == 1 and found.keys() <= {*BARE} and _is_leaf(bare_env(env).observation_space)


def _is_leaf(space: spaces.Space[Any]) -> bool:
    return [path for _, path, _ in _leaves(space)] == [()]


def _load(name: str) -> Any:
    if not name:
        raise UserError("minari:: names no dataset; write minari:NAME, as minari:mine/cartpole-v0")
    package = _minari(name)
    if not (folder(name) / "data").exists():
        there = nearest(name, package.list_local_datasets())
        raise UserError(
            f"minari:{name}: not in {folder('')}{there}; `minari download {name}` gets one that Minari hosts, "
            f"`shepherd collect RUN --minari {name}` makes one"
        )
    with _tell_mistakes(name):
        return package.load_dataset(name)


def _minari(name: str, module: str = "") -> Any:
    """Minari's package or a module of it, wanted for a dataset."""
    try:
        return import_module(f"minari{module}")
    except ImportError:
        raise UserError(f"minari:{name}: Minari is not installed; run: pip install -e '.[minari]'") from None


@contextmanager
def _tell_mistakes(name: str) -> Iterator[None]:
    """Tell of whatever a dataset, which may be anybody's, has that cannot be read, with its name."""
    try:
        yield
    except Exception as error:
        what = first_line(error) if isinstance(error, (UserError, ImportError, ValueError)) else repr(error)
        raise UserError(f"minari:{name}: cannot be read: {what}") from error
