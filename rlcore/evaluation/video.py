"""Recording of a policy's episodes as MP4 files, which works without a display, and display of episodes in a window."""

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
from rlcore.evaluation.evaluation import episode_limit
from rlcore.evaluation.loaded_policy import LoadedPolicy
from rlcore.evaluation.policy import load_policy
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.user_code import is_failure, spell_error, user_code

if TYPE_CHECKING:
    import gymnasium

FRAMES_PER_SECOND = 30.0  # if the environment does not declare `render_fps`
FILM_ROUND = 2  # set of environment seeds for videos
MAX_STEPS = 2_000  # maximum number of actions per episode in a video
log = logging.getLogger(__name__)
ChooseAction = Callable[[dict[str, np.ndarray]], Any]


@user_code()
def record_video(run: RunDirectory, path: str | Path, name: str = "policy.mp4", episodes: int = 1) -> str | None:
    """Record greedy episodes of a checkpoint, one after the other.

    Args:
        run: run directory; its config defines the environment.
        path: the checkpoint's directory.
        name: name of the file in media/.
        episodes: number of episodes.

    Returns:
        The video's path relative to the run directory. If recording failed, None is returned and the reason is logged.
    """
    try:
        return record_checkpoint(run, path, name, episodes)
    except BaseException as error:  # a failed video must not end the run
        if not is_failure(error):
            raise
        log.warning("no video was recorded: %s", error if isinstance(error, UserError) else spell_error(error))
        return None


@user_code()
def record_checkpoint(run: RunDirectory, path: str | Path, name: str, episodes: int) -> str:
    """Record greedy episodes of a checkpoint as a video `name` in media/; return its path relative to the run.

    Unlike `record_video`, this function raises errors: a `UserError` if the cause is known.
    """
    config = config_of(run)
    with limited_env(adapt_to_evaluation(config.env, config.evaluation.env_config), "rgb_array") as env:
        policy = load_policy(path)
        seeds = [streams.integer(config.seed, "env_eval", FILM_ROUND, episode) for episode in range(episodes)]
        record(lambda: greedy(policy), env, run.media / name, seeds, MAX_STEPS)
    return str((run.media / name).relative_to(run.path))


def show(run: RunDirectory, path: Path, episodes: int) -> Iterator[tuple[float, int]]:
    """Show greedy episodes of a checkpoint in a window; yield (return, number of actions) after each episode."""
    config = config_of(run)
    limit, policy = episode_limit(config, run.read_card()), load_policy(path)
    with user_code(), limited_env(adapt_to_evaluation(config.env, config.evaluation.env_config), "human") as env:
        for episode in range(episodes):
            obs, _ = env.reset(seed=streams.integer(config.seed, "env_eval", FILM_ROUND, episode))
            act, total, length, done = greedy(policy), 0.0, 0, False
            while not done and length != limit:
                obs, reward, terminated, truncated, _ = env.step(act(obs))
                total, length, done = total + float(reward), length + 1, terminated or truncated
            yield total, length


def greedy(policy: LoadedPolicy) -> ChooseAction:
    """Return a function that maps an observation dict to the most likely action in the environment's format.

    The function stores the carry (recurrent state) between calls, so create a new one for each episode. Discrete
    actions are returned as int.
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
    """Run episodes and write all of them to one video file. If an error occurs, no incomplete file remains.

    Args:
        begin: function that is called at the start of each episode and returns the policy for it: a function that maps
            an observation dict to an action in the environment's format.
        env: environment with render_mode="rgb_array"; the caller closes it.
        path: the .mp4 file; its folder is created.
        seeds: environment seed of each episode.
        max_steps: maximum number of actions per episode.

    Returns:
        `path`, `returns` (undiscounted return of the recorded steps of each episode) and `lengths` (number of actions
        of each episode).

    Raises:
        UserError: If the environment cannot be rendered, or the video cannot be written; the message has the reason.
    """
    if env.render_mode != "rgb_array":
        raise UserError(
            f"{_name(env)}: a video needs rendered images, but render_mode is {env.render_mode!r}; create the "
            "environment with render_mode='rgb_array'"
        )
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
    """Render an image [height, width, 3], padded so that both sides are even."""
    try:
        picture: Any = env.render()
    except BaseException as error:  # renderers raise different errors if a driver or a display is missing
        if not is_failure(error):
            raise
        reason = (isinstance(error, Exception) and first_line(error)) or spell_error(error)
        raise UserError(f"{_name(env)}: render() failed on this machine ({reason})") from error
    if not isinstance(picture, np.ndarray) or picture.ndim != 3 or picture.shape[2] != 3:
        what = getattr(picture, "shape", None) or type(picture).__name__
        raise UserError(f"{_name(env)}: render() returned {what}, expected an image [height, width, 3]")
    # H.264 with the common 4:2:0 chroma subsampling requires even sides.
    odd = [(0, side % 2) for side in picture.shape[:2]]
    return np.pad(picture, [*odd, (0, 0)], mode="edge") if any(o for _, o in odd) else picture


@contextmanager
def writing(path: Path, rate: float, shape: tuple[int, ...]) -> Iterator[Callable[[np.ndarray], None]]:
    """Return a context manager that writes a video; it yields a function that appends a frame.

    The file appears at `path` when it is complete. `rate` is the number of frames per second, and `shape` is the shape
    of a frame, (height, width, 3).
    """
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
        except (OSError, RuntimeError) as error:  # ffmpeg or a codec is missing, or the disk is full
            raise _failure(path, str(error)) from error

    def write(picture: np.ndarray) -> None:
        nonlocal count
        if picture.shape != shape:
            raise _failure(path, f"the image shape changed from {shape} to {picture.shape}")
        send(np.ascontiguousarray(picture, dtype=np.uint8))
        count += 1

    try:
        send(None)
        yield write
        frames.close()
        # imageio_ffmpeg does not return ffmpeg's exit code, so a full disk is noticed only by counting the frames.
        if not temporary.exists() or imageio_ffmpeg.count_frames_and_secs(str(temporary))[0] != count:
            raise _failure(path, "the file is incomplete; is the disk full?")
        os.replace(temporary, path)
    finally:
        frames.close()
        temporary.unlink(missing_ok=True)


def _failure(path: Path, reason: str) -> UserError:
    return UserError(f"{path}: the video cannot be written ({(reason.strip().splitlines() or ['no reason given'])[0]})")
