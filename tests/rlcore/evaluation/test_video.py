"""Videos, decoded and compared with the frames of the environment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest

from rlcore.envs.suites.headless import headless_rendering
from rlcore.errors import UserError
from rlcore.evaluation import video
from rlcore.evaluation.video import record
from rlcore.store import checkpoint
from tests.flows.synthetic_runs import CARTPOLE, checkpointed_run
from tests.probes import recurrent
from tests.soaking import always, heavy

pytestmark = heavy


class Painter(gymnasium.Env):
    """Frame t has the gray value 20 t; the episode ends after `length` actions; the reward is the action."""

    observation_space = gymnasium.spaces.Dict({"state": gymnasium.spaces.Box(0, 100, (1,))})
    action_space = gymnasium.spaces.Discrete(5)

    def __init__(
        self, side: tuple[int, int] = (32, 48), length: int = 7, render_mode: str | None = "rgb_array"
    ) -> None:
        self.side, self.length, self.render_mode = side, length, render_mode
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 12}
        self.time, self.taken = 0, []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seed_given, self.time = seed, 0
        return {"state": np.zeros(1, np.float32)}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self.taken.append(action)
        obs = {"state": np.full(1, self.time, np.float32)}
        return obs, float(action), self.time == self.length, False, {}

    def render(self) -> Any:
        return np.full((*self.side, 3), 20 * self.time, np.uint8)


class Broken(Painter):
    def render(self) -> Any:
        raise RuntimeError("no GL library\nand more")


def read(path: Path) -> tuple[tuple[int, int], float, np.ndarray]:
    """Return width and height, frames per second and frames [N, height, width, 3], decoded by ffmpeg."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, capture_output=True, check=True)
    match = re.search(rb"Video: h264.* (\d+)x(\d+).* ([\d.]+) fps", done.stderr).groups()
    width, height = int(match[0]), int(match[1])
    return (width, height), float(match[2]), np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)


@always
def test_record_writes_every_frame(tmp_path: Path) -> None:
    env = Painter()
    result = record(lambda: lambda obs: int(obs["state"][0]) % 3, env, tmp_path / "new" / "policy.mp4", [5], 100)
    _, rate, frames = read(tmp_path / "new" / "policy.mp4")
    assert env.seed_given == 5
    assert rate == 12
    # one gray value per frame, from before the first action to after the last; the codec is lossy
    assert [round(float(f.mean()) / 20) for f in frames] == list(range(8))
    # actions are obs % 3 = 0 1 2 0 1 2 0
    assert result == {"path": str(tmp_path / "new" / "policy.mp4"), "returns": [6.0], "lengths": [7]}


def test_record_video_resets_carry_at_episode_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recurrent.use(monkeypatch)
    state, action = CARTPOLE["obs"]["state"] | {"shape": [1]}, CARTPOLE["action"] | {"nvec": [5]}
    spec = {"id": "Painter", "obs": {"state": state}, "action": action}
    run, envs = checkpointed_run(tmp_path / "run", "run", 1, spec, "q_learning"), [Painter(), Painter()]
    path, made = checkpoint.resolve(run, "latest"), iter(envs)
    monkeypatch.setattr(video, "adapt_to_evaluation", lambda config, _: config)
    monkeypatch.setattr(video, "limited_env", lambda config, render_mode: nullcontext(next(made)))
    assert video.record_video(run, path) == "media/policy.mp4"
    # each action is the number of earlier actions in its episode, modulo 5
    assert envs[0].taken == [0, 1, 2, 3, 4, 0, 1]
    assert list(video.show(run, path, 2)) == [(11.0, 7), (11.0, 7)]
    assert envs[1].taken == 2 * envs[0].taken


def test_record_truncates_endless_episode(tmp_path: Path) -> None:
    result = record(lambda: lambda obs: 1, Painter(length=10**9), tmp_path / "cut.mp4", [0], 4)
    assert (result["lengths"], result["returns"]) == ([4], [4.0])
    assert len(read(tmp_path / "cut.mp4")[2]) == 5


def test_record_pads_odd_sides(tmp_path: Path) -> None:
    record(lambda: lambda obs: 0, Painter(side=(33, 47)), tmp_path / "odd.mp4", [0], 3)
    assert read(tmp_path / "odd.mp4")[0] == (48, 34)


def test_record_uses_30_fps_by_default(tmp_path: Path) -> None:
    env = Painter()
    env.metadata = {"render_modes": ["rgb_array"]}
    record(lambda: lambda obs: 0, env, tmp_path / "rate.mp4", [0], 3)
    assert read(tmp_path / "rate.mp4")[1] == 30


def test_record_films_cartpole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    result = record(lambda: lambda obs: 0, env, tmp_path / "cartpole.mp4", [3, 4], 500)
    env.close()
    assert all(
        5 < length < 20 for length in result["lengths"]
    )  # with the constant action left, the pole falls within a dozen steps
    assert len(read(tmp_path / "cartpole.mp4")[2]) == sum(length + 1 for length in result["lengths"])


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (Painter(render_mode=None), "render_mode='rgb_array'"),
        (Broken(), r"render\(\) failed on this machine \(no GL library\)"),
    ],
)
def test_record_refuses_environment_that_cannot_render(env: Painter, reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=reason) as error:
        record(lambda: lambda obs: 0, env, tmp_path / "none.mp4", [0], 3)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_record_keeps_old_video_if_policy_fails(tmp_path: Path) -> None:
    path = tmp_path / "policy.mp4"
    path.write_bytes(b"the old one")

    def act(obs: dict[str, np.ndarray]) -> int:
        if obs["state"][0] == 2:
            raise ZeroDivisionError
        return 0

    with pytest.raises(ZeroDivisionError):
        record(lambda: act, Painter(), path, [0], 100)
    assert path.read_bytes() == b"the old one"
    assert list(tmp_path.iterdir()) == [path]


def test_record_removes_incomplete_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imageio_ffmpeg, "count_frames_and_secs", lambda path: (1, 0.1))  # as if the disk had been full
    with pytest.raises(UserError, match="the file is incomplete"):
        record(lambda: lambda obs: 0, Painter(), tmp_path / "policy.mp4", [0], 100)
    assert list(tmp_path.iterdir()) == []


def test_headless_rendering_chooses_offscreen_renderers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    for libraries, wanted in ({"EGL", "OSMesa"}, "egl"), ({"OSMesa"}, "osmesa"), (set(), "egl"):
        monkeypatch.setenv("MUJOCO_GL", "")
        monkeypatch.setattr("ctypes.util.find_library", lambda name, there=libraries: name in there or None)
        headless_rendering()
        assert os.environ["MUJOCO_GL"] == wanted
    assert os.environ["SDL_VIDEODRIVER"] == "dummy"


def test_headless_rendering_keeps_user_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    monkeypatch.setenv("SDL_VIDEODRIVER", "x11")
    headless_rendering()
    assert (os.environ["MUJOCO_GL"], os.environ["SDL_VIDEODRIVER"]) == ("osmesa", "x11")


def test_headless_rendering_with_display_removes_empty_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("MUJOCO_GL", "")
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    headless_rendering()
    assert "MUJOCO_GL" not in os.environ
    assert "SDL_VIDEODRIVER" not in os.environ


def test_video_module_imports_renderers_lazily() -> None:
    heavy = "[m for m in ('mujoco', 'imageio_ffmpeg', 'pygame') if m in sys.modules]"
    code = f"import sys, rlcore.evaluation.video; print({heavy})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
