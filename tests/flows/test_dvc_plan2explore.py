"""The two phases of Plan2Explore as stages of DVC, with the real `dvc` command."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from rlcore.store.directory import RunDirectory
from tests import processes
from tests.flows.test_dvc import Repository
from tests.soaking import heavy, soak
from tests.stores import furnish

pytestmark = [pytest.mark.slow, heavy]
FOLDER = "pipelines/plan2explore"
SMALL = {
    r"total_steps: \d+": "total_steps: 160",
    r"learning_starts: \d+": "learning_starts: 80",
    "compile: auto": "compile: false",
    "capture_video: true": "capture_video: false",
    r"( |_)episodes: \d+": r"\1episodes: 2",
}


class Phases(Repository):
    """A repository with the stages of both phases and small parameters."""

    def make(self) -> None:
        super().make()
        shutil.copytree(processes.ROOT / FOLDER, self.folder / FOLDER)
        for phase in ("exploration", "finetuning"):
            self.edit(phase, SMALL)
        self.commit()

    def edit(self, phase: str, changes: dict[str, str]) -> None:
        """Edit the parameters of a phase: pattern -> replacement."""
        file = self.folder / FOLDER / f"{phase}.yaml"
        text = file.read_text()
        for pattern, new in changes.items():
            text, count = re.subn(pattern, new, text)
            assert count, pattern
        file.write_text(text)

    def reproduce(self) -> list[str]:
        """Run both stages and return the names of those that were not up to date."""
        return re.findall(r"Running stage '.*:(.+)'", self.dvc("repro", f"{FOLDER}/dvc.yaml"))


@soak
def test_fine_tuning_stage_follows_exploration_stage(tmp_path: Path) -> None:
    """A change of the exploration run trains both runs again, a change of the fine-tuning run only this one."""
    repository = Phases(tmp_path / "checkout")
    repository.make()
    furnish(repository.home)
    run = RunDirectory(repository.folder / "runs/dvc/plan2explore/finetuning")
    assert repository.reproduce() == ["exploration", "finetuning"]
    first = run.read_identity()
    assert first["init_from"]["digest"] == first["load_from"]["digest"]
    assert repository.reproduce() == []
    repository.edit("finetuning", {"horizon: 10": "horizon: 8"})
    assert repository.reproduce() == ["finetuning"]
    second = run.read_identity()
    assert second["run_id"] != first["run_id"] and second["init_from"] == first["init_from"]
    repository.edit("exploration", {"horizon: 10": "horizon: 9"})
    assert repository.reproduce() == ["exploration", "finetuning"]
    assert run.read_identity()["init_from"]["digest"] != first["init_from"]["digest"]
    assert (run.path / "results" / "metrics.json").exists()
