"""Pictures and videos of world model predictions, read back from the written files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from matplotlib.colors import to_hex
from PIL import Image

from flows.cli import main as cli
from flows.report import dream_charts, dreams
from flows.report.dream_images import EDGE, GAP, LEFT, SHOWN, SMALL_CELL, TOP, as_pictures
from flows.report.dreams import picture_dreams, try_to_draw
from flows.stages import evaluate as stage
from rlcore.evaluation.dream import Dream
from rlcore.evaluation.loaded_world import ModelPrediction
from rlcore.spec import ArraySpec
from rlcore.store import checkpoint
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.train.run_trainer import RunTrainer
from tests.flows.synthetic_runs import CARTPOLE, VECTOR, checkpointed_run, configured
from tests.processes import digest_of
from tests.rlcore.evaluation.test_video import read
from tests.runs import SMALL_DREAMER, prepare
from tests.soaking import always, heavy

pytestmark = heavy

STEPS, SEQUENCES, SIDE, CELL = 50, 6, 16, 128
EVALUATED = {"policy_steps": 4096, "greedy": {"mean": 1.0, "returns": []}}
PICTURES = CARTPOLE | {
    "id": "Some-v0",
    "obs": {
        "rgb": VECTOR | {"shape": [SIDE, SIDE, 3], "dtype": "uint8", "n": None, "start": 0, "kind": "image"},
        "state": VECTOR | {"shape": [2], "dtype": "float32", "n": None, "start": 0},
    },
}


def example_dream() -> Dream:
    """Return a dream: recorded gray 3t + n, predictions 40 brighter from step 5; the last sequence has 20 steps."""
    t, n = np.meshgrid(np.arange(STEPS), np.arange(SEQUENCES), indexing="ij")
    grey = np.broadcast_to((3 * t + n)[..., None, None, None], (STEPS, SEQUENCES, SIDE, SIDE, 3)).astype(np.uint8)
    bright = grey + (40 * (t >= 5)[..., None, None, None]).astype(np.uint8)
    numbers = np.stack([t, n], -1).astype(np.float32)
    valid = t < np.where(n == 5, 20, STEPS)
    continues = (t != 19) | (n != 5)
    truth = ModelPrediction({"rgb": grey, "state": numbers}, t / 10, continues.astype(np.float32), None)
    model = ModelPrediction({"rgb": bright, "state": numbers + 1}, t / 9, 0.9 * np.ones_like(numbers[..., 0]), t / 2)
    own = ModelPrediction(*({k: v[4:] for k, v in model.obs.items()}, *(part[4:] for part in model[1:])))  # pyright: ignore
    own.continues[20, 0] = 0.1  # the first imagined trajectory ends at this time step
    return Dream(truth, model, 5, valid, own)


@pytest.fixture(scope="module")
def charts() -> list[Any]:
    """Return the list to which `pictured_run` appends the drawn Matplotlib figures."""
    return []


@pytest.fixture(scope="module")
def pictured_run(tmp_path_factory: pytest.TempPathFactory, charts: list[Any]) -> RunDirectory:
    run, draw = RunDirectory(tmp_path_factory.mktemp("written")), dream_charts._draw
    run.card.write_text(json.dumps({"spec": PICTURES, "tier": "boundary"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dreams, "dream", lambda *arguments: example_dream())
        patch.setattr(dream_charts, "_draw", lambda figure: (charts.append(figure), draw(figure))[1])
        assert picture_dreams(run, Path("unused")) == [
            "media/dream_rgb.mp4",
            "media/dream_rgb.png",
            "media/dream_curves.png",
            "media/dream_policy.mp4",
            "media/dream_policy.png",
        ]
    return run


def read_picture(path: Path) -> np.ndarray:
    """Read a picture as array [height, width, 3]."""
    with Image.open(path) as image:
        return np.asarray(image).astype(int)


def cell_gray(frame: np.ndarray, row: int, column: int) -> float:
    """Return the mean gray value in the center of a cell of a video frame."""
    side = CELL + 2 * EDGE + GAP
    y, x = TOP + row * side + side // 2, LEFT + column * side + side // 2
    return float(frame[y - 8 : y + 8, x - 8 : x + 8].mean())


@always
def test_dream_video_shows_recording_prediction_and_difference(pictured_run: RunDirectory) -> None:
    _, rate, frames = read(pictured_run.media / "dream_rgb.mp4")
    assert len(frames) == STEPS and rate == dreams.RATE
    for t in (0, 4, 5, 30):
        for n in range(5):
            shown = [cell_gray(frames[t], row, n) for row in range(3)]
            brighter = 40 if t >= 5 else 0
            expected = [3 * t + n, 3 * t + n + brighter, (255 + brighter) // 2]
            assert shown == pytest.approx(expected, abs=3)  # the codec is lossy
    assert cell_gray(frames[19], 0, 5) == pytest.approx(3 * 19 + 5, abs=3)
    assert [cell_gray(frames[20], row, 5) for row in range(3)] == pytest.approx(
        [255] * 3, abs=3
    )  # padding after the end


def test_dream_picture_shows_selected_rows(pictured_run: RunDirectory) -> None:
    page = read_picture(pictured_run.media / "dream_rgb.png")
    side = round(SMALL_CELL / SIDE) * SIDE + 2 + GAP
    for column, t in enumerate(SHOWN):
        for row, expected in enumerate([3 * t, 3 * t + 40 * (t >= 5), (255 + 40 * (t >= 5)) // 2]):
            y, x = TOP + row * side + side // 2, 84 + column * side + side // 2
            assert page[y, x].tolist() == [expected] * 3, (t, row)


def test_policy_dream_fades_after_predicted_end(pictured_run: RunDirectory) -> None:
    _, _, frames = read(pictured_run.media / "dream_policy.mp4")
    assert len(frames) == STEPS - 4
    grey = 3 * np.arange(4, STEPS) + np.where(np.arange(4, STEPS) >= 5, 40, 0)
    assert cell_gray(frames[20], 0, 0) == pytest.approx(grey[20], abs=3)
    assert cell_gray(frames[21], 0, 0) == pytest.approx(255 - (255 - grey[21]) / 4, abs=3)
    assert cell_gray(frames[21], 0, 1) == pytest.approx(grey[21] + 1, abs=3)
    # the curves below are paler after the current time step
    chart = 255 - frames[10][TOP + CELL + 2 * EDGE + GAP :].astype(int)
    now = LEFT + round(10 / 45 * (chart.shape[1] - 2 * GAP - LEFT))
    assert chart[:, LEFT + 8 : now - 4].mean() > 2 * chart[:, now + 4 :].mean()


def test_dream_curves_plot_recording_and_prediction(pictured_run: RunDirectory, charts: list[Any]) -> None:
    curves = {axes.get_ylabel(): axes.lines for axes in charts[0].axes}
    assert [*curves] == ["state 0", "state 1", "reward", "P(continue)"]
    example = example_dream()
    for name, truth, model in (
        ("state 1", example.truth.obs["state"][..., 1], example.model.obs["state"][..., 1]),
        ("reward", example.truth.reward, example.model.reward),
        ("P(continue)", example.truth.continues, example.model.continues),
    ):
        for n in range(SEQUENCES):
            for line, expected in ((curves[name][n], truth), (curves[name][SEQUENCES + n], model)):
                shown = np.where(example.there[:, n], expected[:, n], np.nan)  # no line after the end of an episode
                np.testing.assert_allclose(line.get_ydata(), shown)
    policy_curves = {axes.get_ylabel(): axes.lines for axes in charts[1].axes}
    assert [*policy_curves] == ["reward", "value", "P(continue)"]
    np.testing.assert_allclose(policy_curves["value"][0].get_ydata(), example.own.value[:, 0])


def test_dream_legend_colors_match_curves(pictured_run: RunDirectory, charts: list[Any]) -> None:
    handles = charts[0].legends[0].legend_handles
    colors = {handle.get_label(): to_hex(handle.get_color()) for handle in handles}
    assert colors == {"5 steps observed": "#009e73", "recorded": "#222221", "model": "#d55e00"}
    for axes in charts[0].axes:
        assert {to_hex(band.get_facecolor()) for band in axes.patches} == {"#009e73"}
        assert len(axes.patches) == SEQUENCES
        drawn = [to_hex(line.get_color()) for line in axes.lines[: 2 * SEQUENCES]]
        assert drawn == ["#222221"] * SEQUENCES + ["#d55e00"] * SEQUENCES


def test_picture_dreams_plots_vector_observations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, figures, draw = RunDirectory(tmp_path / "run"), list[Any](), dream_charts._draw
    run.media.mkdir(parents=True)
    state = PICTURES | {"obs": {"state": PICTURES["obs"]["state"]}}
    run.card.write_text(json.dumps({"spec": state, "tier": "boundary"}))
    example = example_dream()
    truth, model, own = (
        prediction._replace(obs={"state": prediction.obs["state"]})
        for prediction in (example.truth, example.model, example.own)
    )
    disagreement = np.arange(STEPS)[:, None] + np.ones(SEQUENCES)
    disagreement[19, 5] = np.nan  # no step after the last row of the episode
    dream = Dream(truth, model, example.seen, example.there, own, disagreement)
    monkeypatch.setattr(dreams, "dream", lambda *arguments: dream)
    monkeypatch.setattr(dream_charts, "_draw", lambda canvas: (figures.append(canvas.figure), draw(canvas))[1])
    assert picture_dreams(run, Path("unused")) == ["media/dream_curves.png", "media/dream_policy.png"]
    lines = next(axes.lines for axes in figures[0].axes if axes.get_ylabel() == "disagreement")
    for n in range(SEQUENCES):
        shown = 1.0 + np.arange(STEPS)
        shown[19 if n == 5 else STEPS :] = np.nan  # the last sequence has 20 rows
        np.testing.assert_allclose(lines[n].get_ydata(), shown)
    curves = {axes.get_ylabel(): axes.lines for axes in figures[1].axes}
    expected = {"state 0": own.obs["state"][..., 0], "state 1": own.obs["state"][..., 1]}
    expected |= {"reward": own.reward, "value": own.value, "P(continue)": own.continues}
    assert [*curves] == [*expected]
    steps = np.arange(STEPS - 4)
    for name, numbers in expected.items():
        for n in range(SEQUENCES):
            pale, colored = curves[name][n], curves[name][SEQUENCES + n]
            assert to_hex(pale.get_color()) == "#dddddc" and to_hex(colored.get_color()) == "#d55e00"
            np.testing.assert_allclose(pale.get_ydata(), numbers[:, n])  # also after the end
            continuing = (steps <= 20) | (n > 0)  # the first trajectory ends at P(continue) = 0.1
            np.testing.assert_allclose(colored.get_ydata(), np.where(continuing, numbers[:, n], np.nan))
            np.testing.assert_allclose(np.diff(colored.get_xdata()), 1)


@pytest.mark.parametrize(
    ("shape", "dtype", "pixel", "expected"),
    [
        ((8, 8, 3), "uint8", [1, 2, 3], [1, 2, 3]),
        ((3, 8, 8), "uint8", [1, 2, 3], [1, 2, 3]),
        ((8, 8, 1), "uint8", [9], [9, 9, 9]),
        ((2, 8, 8, 3), "uint8", [1, 2, 3], [1, 2, 3]),
    ],
)
def test_as_pictures_accepts_every_image_layout(shape: Any, dtype: str, pixel: list[int], expected: list[int]) -> None:
    spec = ArraySpec(shape, dtype, kind="image")
    image = np.zeros((4, 5, *shape), dtype)
    if spec.channels_first:
        image[...] = np.array(pixel).reshape(-1, 1, 1)
    else:
        image[...] = pixel
    pictures = as_pictures(image, spec)
    assert pictures.shape == (4, 5, 8, 8, 3)
    assert (pictures == expected).all()


def test_try_to_draw_logs_failure(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any) -> Any:
        raise ZeroDivisionError("of a film")

    monkeypatch.setattr(dreams, "dream", fail)
    assert try_to_draw(run, "unused") == []
    assert "no pictures of dreams: ZeroDivisionError: of a film" in caplog.text


def test_dream_command_prints_written_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = checkpointed_run(tmp_path / "run", "dreamer", weights=4, algo="dreamer_v3")
    assert cli.main(["dream", str(run.path)]) == 0
    output = capsys.readouterr().out
    for name in ("dream_curves.png", "dream_policy.png"):
        assert name in output and read_picture(run.media / name).shape[1:] == (1200, 3)


def test_dream_command_refuses_run_without_world_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = checkpointed_run(tmp_path / "run", "ppo", weights=1)
    assert cli.main(["dream", str(run.path)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("shepherd: algo.name=ppo: has no world model")
    assert not run.media.exists()


@pytest.mark.parametrize(
    ("algo", "key", "during", "at_end"),
    [
        ("dreamer_v3", "every", 1, 1),
        ("dreamer_v3", "last", 0, 1),
        ("dreamer_v3", "never", 0, 0),
        ("ppo", "every", 0, 0),
    ],
)
def test_evaluation_dream_setting_selects_evaluations(
    algo: str, key: str, during: int, at_end: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = checkpointed_run(tmp_path / "run", "one", weights=1, algo=algo)
    configured(run, evaluation=yaml.safe_load(run.config.read_text())["evaluation"] | {"dream": key})
    called: list[str] = []
    monkeypatch.setattr(stage, "with_torch", lambda run, function, *rest, **more: called.append(function) or EVALUATED)
    monkeypatch.setattr(
        stage, "trainer_for", lambda run: SimpleNamespace(policy_steps=4096, evaluate=lambda: EVALUATED)
    )
    stage.evaluate(run, 4096)
    assert called == ["flows.report.dreams.try_to_draw"] * during
    called.clear()
    stage._evaluate_finally(run)
    assert called == ["flows.report.dreams.try_to_draw"] * at_end + ["rlcore.evaluation.final.final_evaluation"]


def test_dream_skips_run_without_checkpoint(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    dreamer_run = checkpointed_run(run.path.parent / "other", "one", weights=1, algo="dreamer_v3")
    shutil.rmtree(dreamer_run.checkpoints)
    monkeypatch.setattr(stage, "with_torch", lambda *arguments, **more: pytest.fail("it was"))
    stage._dream(dreamer_run, config_of(dreamer_run), "latest", ("every",))


@pytest.mark.slow
def test_dreams_do_not_change_training(tmp_path: Path) -> None:
    digests = []
    for name in ("with", "without"):
        run = prepare(
            tmp_path / name,
            total_steps=160,
            algo="dreamer_v3",
            algo__compile=False,
            algo__learning_starts=32,
            algo__replay_ratio=0.1,
            algo__per_rank_batch_size=2,
            algo__per_rank_sequence_length=8,
            algo__horizon=3,
            buffer__size=200,
            checkpoint__every=40,
            **{f"algo__{part}": keys for part, keys in SMALL_DREAMER.items()},
        )
        session = RunTrainer(run)
        with run.writing():
            while not (boundary := session.advance(lambda progress: None)).done:
                session.save()
                if name == "with" and boundary.policy_steps == 120:
                    assert try_to_draw(run, str(checkpoint.resolve(run, "latest")))
            session.save()
        session.close()
        assert session.learner.updates > 3 and boundary.policy_steps == 160
        digests.append(digest_of(run))
    assert digests[0] == digests[1]
