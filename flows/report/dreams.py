"""Files with pictures and videos of a world model's predictions.

A dream is a trajectory that the world model imagines: it observes the first steps of a recorded episode and predicts
the following ones without observations. There are two kinds. The first kind uses the recorded actions, and is compared
with the recorded observations (the truth). The second kind uses actions of the agent's policy.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from flows.report.dream_charts import Picture, draw_curves, draw_policy_curves
from flows.report.dream_images import draw_comparison, draw_policy_dream, render_comparison, render_policy_dream
from rlcore.errors import UserError
from rlcore.evaluation.dream import dream
from rlcore.evaluation.play import OnProgress
from rlcore.evaluation.video import writing
from rlcore.spec import EnvSpec
from rlcore.store.directory import RunDirectory, write_bytes
from rlcore.user_code import is_failure, spell_error, user_code

RATE = 8.0  # frames per second, slow enough to compare images
log = logging.getLogger(__name__)


@user_code()
def picture_dreams(run: RunDirectory, path: Path, on_progress: OnProgress | None = None) -> list[str]:
    """Play episodes with a checkpoint and write its world model's predictions to the run's media/.

        dream_<key>.mp4, .png      for each decoded image key: recorded images, predicted images, and their difference
        dream_curves.png           recorded and predicted rewards, continuation probabilities and vector observations,
                                   and the disagreement of an ensemble
        dream_policy.mp4, .png     dreams with actions of the policy: predicted reward, value and continuation
                                   probability; the video is written only if the model predicts images

    Args:
        run: the run that defines environment and seed.
        path: the checkpoint's directory.
        on_progress: called after every step with the number of finished episodes and the number of all episodes.

    Returns:
        The paths of the files, relative to the run directory.

    Raises:
        UserError: If the run's algorithm has no world model.
    """
    dreams, spec = dream(run, path, on_progress), EnvSpec.from_json(run.read_card()["spec"])
    images = {key: spec.obs[key] for key in dreams.model.obs if spec.obs[key].kind == "image"}
    names = list[str]()
    for key, image in images.items():
        name = f"dream_{key.replace('/', '-')}"
        _write_video(run.media / f"{name}.mp4", render_comparison(dreams, key, image))
        _save(run.media / f"{name}.png", draw_comparison(dreams, key, image))
        names += [f"{name}.mp4", f"{name}.png"]
    _save(run.media / "dream_curves.png", draw_curves(dreams, spec))
    names += ["dream_curves.png"]
    if images:
        _write_video(run.media / "dream_policy.mp4", render_policy_dream(dreams, images))
        names += ["dream_policy.mp4"]
    _save(
        run.media / "dream_policy.png",
        draw_policy_dream(dreams, images) if images else draw_policy_curves(dreams, spec),
    )
    return [str((run.media / name).relative_to(run.path)) for name in [*names, "dream_policy.png"]]


def try_to_draw(run: RunDirectory, path: str, on_progress: OnProgress | None = None) -> list[str]:
    """Call `picture_dreams` during a run; if it fails, log a warning and return [], so that the run continues."""
    try:
        return picture_dreams(run, Path(path), on_progress)
    except BaseException as error:
        if not is_failure(error):
            raise
        log.warning("no pictures of dreams: %s", error if isinstance(error, UserError) else spell_error(error))
        return []


def _save(path: Path, picture: Picture) -> None:
    """Write a picture as PNG, atomically."""
    data = io.BytesIO()
    Image.fromarray(picture).save(data, "PNG")
    write_bytes(path, data.getvalue())


def _write_video(path: Path, frames: Iterator[Picture]) -> None:
    """Write frames of one size, with even height and width, as a video."""
    first = next(frames)
    with writing(path, RATE, first.shape) as write:
        write(first)
        for frame in frames:
            write(frame)
