"""`shepherd resume` of a finished run."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.cli.train_command import resume
from flows.config.compose import compose, dump
from rlcore.store.directory import write_json
from tests.runs import lay_out


@pytest.mark.parametrize("lost", ["", "plugins, run_benchmarks", "algo.actor.layer_norm, algo.gamma, env.wrapper"])
def test_resume_names_lost_config_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: str) -> None:
    tree = compose(["exp=ppo", "model_manager.disabled=true"])[1]
    run = lay_out(tmp_path / "run", tree)
    write_json(run.summary, {"status": "finished", "policy_steps": 65536})
    for place in filter(None, lost.split(", ")):
        group, key = tree, place
        while "." in key:
            name, _, key = key.partition(".")
            group = group[name]
        del group[key]
    run.config.write_text(dump(tree))
    resume(str(run.path), [])
    cut = f"config.yaml has no value for {lost}; if the file was cut, restore it from a copy"
    end = cut if lost else "nothing to do"
    assert capsys.readouterr().out == f"{run.path}: already finished (65,536 policy steps); {end}\n"
