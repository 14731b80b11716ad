"""SheepRL's config files of PPO, A2C, SAC and environments compose in a user folder and keep their values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlcore.config.values import plain
from rlcore.errors import UserError
from rlcore.store.checkpoint import newest_good
from rlcore.train.run_trainer import RunTrainer
from tests.diambra_engine import engines
from tests.flows.config.sheeprl_files import compare_leaves, compose_files
from tests.runs import lay_out
from tests.soaking import heavy, soak

ROOT = Path(__file__).parents[3]
FILES: dict[str, dict[str, Any]] = json.loads((ROOT / "tests" / "golden" / "other_files.json").read_text())
MISSPELT = "algo optimier"  # in SheepRL's sac_benchmarks, without effect
IMAGES = ("algo.mlp_keys.encoder=[]", "algo.cnn_keys.encoder=[rgb]")
# Overrides that environment files need, because `exp=default` does not select their observation keys.
TYPED = {
    "env=atari": IMAGES,
    "env=crafter": IMAGES,
    "env=diambra": ("algo.mlp_keys.encoder=[own_health]", "algo.cnn_keys.encoder=[frame]"),
}
SLOW = ("a2c_atari", "env=atari", "env=crafter")
ALWAYS = ("env=gym", "ppo", "sac")  # one file of an environment, one algorithm with a rollout, one with a replay buffer
REFUSED = {"ppo_super_mario_bros": "Super Mario Bros is not supported yet"}


@pytest.mark.parametrize("name", sorted(FILES.keys() - REFUSED))
def test_sheeprl_files_keep_their_values(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = compose_files(FILES[name], tmp_path, monkeypatch)[1]
    read = {key: value for key, value in FILES[name].items() if not key.startswith(MISSPELT)}
    assert compare_leaves(tree, read) > 70


@pytest.mark.parametrize("name", REFUSED)
def test_sheeprl_files_are_refused_if_unsupported(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=REFUSED[name]):
        compose_files(FILES[name], tmp_path, monkeypatch)


@pytest.fixture
def six_engines() -> Iterator[list[str]]:
    """Addresses of six DIAMBRA engines."""
    with engines(6) as addresses:
        yield addresses


@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")  # MuJoCo's v4
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=soak if name in SLOW else () if name in ALWAYS else heavy)
        for name in sorted(FILES.keys() - REFUSED)
    ],
)
def test_dry_run_of_sheeprl_file_saves_checkpoint(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if name == "env=diambra":
        monkeypatch.setenv("DIAMBRA_ENVS", " ".join(request.getfixturevalue("six_engines")))
    typed = ("dry_run=true", *TYPED.get(name, ()))
    config, _ = compose_files(FILES[name], tmp_path / "files", monkeypatch, *typed)
    run = lay_out(tmp_path / "run", plain(config))
    session = RunTrainer(run)
    with run.writing():
        while not (boundary := session.advance(lambda sentence: None)).done:
            pass
        saved = session.save()
    session.close()
    assert (boundary.reason, boundary.due) == ("dry_run", ("checkpoint",)) and session.learner.updates > 0
    assert saved["policy_steps"] == boundary.policy_steps and newest_good(run.checkpoints) is not None
