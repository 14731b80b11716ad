"""A policy to look at: episodes as an MP4 file, with or without a display, or in a window."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlcore import streams
from rlcore.envs.make import adapt_to_evaluation
from rlcore.envs.vector.limited import limited_env
from rlcore.errors import UserError, first_line
from rlcore.judge.evaluation import episode_limit
from rlcore.judge.loaded_policy import LoadedPolicy
from rlcore.judge.policy import load_policy
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.user_code import is_failure, spell_error, user_code

if TYPE_CHECKING:
    import gymnasium

FRAMES_PER_SECOND = 30.0  # where the environment does not say
FILM_ROUND = 2  # of environment seeds
MAX_STEPS = 2_000  # a film is cut here
log = logging.getLogger(__name__)
ChooseAction = Callable[[dict[str, np.ndarray]], Any]


@user_code()
def film(run: RunDirectory, path: str | Path, name: str = "policy.mp4", episodes: int = 1) -> str | None:
    """Record greedy episodes of a checkpoint, one behind the other.

    Args:
        run: whose environment.
        path: the checkpoint's directory.
        name: of the file in media/.
        episodes: how many.

    Returns:
        The video's path relative to the run, or None if there is no video (the log says why).
    """
    try:
        return record_checkpoint(run, path, name, episodes)
    except BaseException as error:  # a picture is never worth a run
        if not is_failure(error):
            raise
        log.warning("no video: %s", error if isinstance(error, UserError) else spell_error(error))
        return None


@user_code()
def record_checkpoint(run: RunDirectory, path: str | Path, name: str, episodes: int) -> str:
    """Record greedy episodes as `film` does; raise an error, a `UserError` if the cause is known, if that fails."""
    config = config_of(run)
    with limited_env(adapt_to_evaluation(config.env), "rgb_array") as env:
        policy = load_policy(path)
        seeds = [streams.integer(config.seed, "env_eval", FILM_ROUND, episode) for episode in range(episodes)]
        record(lambda: greedy(policy), env, run.media / name, seeds, MAX_STEPS)
    return str((run.media / name).relative_to(run.path))


def show(run: RunDirectory, path: Path, episodes: int) -> Iterator[tuple[float, int]]:
    """Play episodes of a checkpoint greedily in a window; gives return and length of each."""
    config = config_of(run)
    limit, policy = episode_limit(config, run.read_card()), load_policy(path)
    with user_code(), limited_env(adapt_to_evaluation(config.env), "human") as env:
        for episode in range(episodes):
            obs, _ = env.reset(seed=streams.integer(config.seed, "env_eval", FILM_ROUND, episode))
            act, total, length, done = greedy(policy), 0.0, 0, False
            while not done and length != limit:
                obs, reward, terminated, truncated, _ = env.step(act(obs))
                total, length, done = total + float(reward), length + 1, terminated or truncated
            yield total, length


def greedy(policy: LoadedPolicy) -> ChooseAction:
    """For one episode: from one observation dict to the most likely action as an environment takes it.

    The policy's carry goes from each call to the next. Discrete actions are int.
    """
    carry = None

    def act(obs: dict[str, np.ndarray]) -> Any:
        nonlocal carry
        action, carry = policy.step(obs, carry)
        return action.item() if action.ndim == 0 else action

    return act


def record(
    begin: Callable[[], ChooseAction], env: gymnasium.Env, path: Path, seeds: Sequence[int], max_steps: int
) -> dict[str, Any]:
    """Play episodes and write them as one video, whole or not at all.

    Args:
        begin: gives, for each episode, what goes from one observation (as the environment gives it) to one action (as
            it takes it).
        env: made with render_mode="rgb_array"; the caller closes it.
        path: the .mp4 file; its folder is made.
        seeds: of the episodes.
        max_steps: an episode is cut after so many actions.

    Returns:
        path, returns (undiscounted, of what was shown), lengths (actions), both of each episode.

    Raises:
        UserError: this environment cannot be drawn here; says why.
    """
    if env.render_mode != "rgb_array":
        raise UserError(f"{_name(env)}: no video without pictures; make it with render_mode='rgb_array'")
    (obs, _), frame = env.reset(seed=seeds[0]), _frame(env)
    returns, lengths = list[float](), list[int]()
    with writing(path, _rate(env), frame.shape) as write:
        for number, seed in enumerate(seeds):
            if number:
                (obs, _), frame = env.reset(seed=seed), _frame(env)
            write(frame)
            act, total, length, done = begin(), 0.0, 0, False
            while not done and length < max_steps:
                obs, reward, terminated, truncated, _ = env.step(act(obs))
                total, length, done = total + float(reward), length + 1, bool(terminated or truncated)
                write(_frame(env))
            returns.append(total)
            lengths.append(length)
    return {"path": str(path), "returns": returns, "lengths": lengths}


def _name(env: gymnasium.Env) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _rate(env: gymnasium.Env) -> float:
    rate = env.metadata.get("render_fps")
    return float(rate) if rate and rate > 0 else FRAMES_PER_SECOND


def _frame(env: gymnasium.Env) -> np.ndarray:
    """The picture of the moment, [height, width, 3] uint8, both sides even."""
    try:
        picture: Any = env.render()
    except BaseException as error:  # every renderer fails in its own way where a driver or a display is missing
        if not is_failure(error):
            raise
        reason = (isinstance(error, Exception) and first_line(error)) or spell_error(error)
        raise UserError(f"{_name(env)}: cannot be drawn here ({reason})") from error
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
        what = getattr(picture, "shape", None) or type(picture).__name__
        raise UserError(f"{_name(env)}: drew {what} instead of a picture [height, width, 3]")
    # H.264 in its common form halves the colour planes and so takes even sides only.
    odd = [(0, side % 2) for side in picture.shape[:2]]
    return np.pad(picture, [*odd, (0, 0)], mode="edge") if any(o for _, o in odd) else picture


@contextmanager
def writing(path: Path, rate: float, shape: tuple[int, ...]) -> Iterator[Callable[[np.ndarray], None]]:
    """A function that takes frames of `shape`, both sides even; the file gets its name when every frame is in it."""
    import imageio_ffmpeg

    height, width, _ = shape
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _failure(path, error.strerror or str(error)) from error
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.mp4")
    options: dict[str, Any] = {"fps": rate, "codec": "libx264", "macro_block_size": 1, "ffmpeg_log_level": "error"}
    output = ["-movflags", "+faststart", "-threads", "1", "-preset", "veryfast"]
    frames = imageio_ffmpeg.write_frames(str(temporary), (width, height), output_params=output, **options)
    count = 0

    def send(picture: np.ndarray | None) -> None:
        try:
            frames.send(picture)
        except (OSError, RuntimeError) as error:  # no program, no space, a codec that is not there
            raise _failure(path, str(error)) from error

    def write(picture: np.ndarray) -> None:
        nonlocal count
        if picture.shape != shape:
            raise _failure(path, f"the picture changed from {shape} to {picture.shape} within the episode")
        send(np.ascontiguousarray(picture, dtype=np.uint8))
        count += 1

    try:
        send(None)
        yield write
        frames.close()
        # The program's exit code is not told: a full disk at its end shows only in what it left.
        if not temporary.exists() or imageio_ffmpeg.count_frames_and_secs(str(temporary))[0] != count:
            raise _failure(path, "the file is not whole; is the disk full?")
        os.replace(temporary, path)
    finally:
        frames.close()
        temporary.unlink(missing_ok=True)


def _failure(path: Path, reason: str) -> UserError:
    return UserError(f"{path}: the video cannot be written ({(reason.strip().splitlines() or ['no reason given'])[0]})")
