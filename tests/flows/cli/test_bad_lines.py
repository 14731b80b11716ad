"""Command lines with a mistake end with exit code 2 and one sentence, and write no files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.cli import main as cli
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory

pytestmark = pytest.mark.slow

# Command line, and a part of the error message.
LINES = [
    # Commands and options
    ("trainn exp=ppo", "trainn: no such command; did you mean 'train'?"),
    ("''", "'': no such command"),
    ("'  '", "'  ': no such command"),
    ("-x", "-x: unknown option"),
    ("--helpp", "--helpp: unknown option"),
    ("python -u", "no command given"),
    ("python -u x.py", "x.py: shepherd does not run scripts"),
    ("fabric run", "no command given"),
    ("resume", "RUN_DIR: missing"),
    ("resume ''", "RUN_DIR: must not be empty"),
    ("evaluate ''", "SOURCE: must not be empty"),
    ("evaluate folder --vidoe", "did you mean '--video'?"),
    ("evaluate folder --episodes two", "invalid int value: 'two'"),
    ("evaluate folder --episodes 0", "--episodes 0: must be 1 or more"),
    ("evaluate folder --checkpoint", "expected one argument"),
    ("evaluate folder more words", "more words: unknown argument"),
    ("reap folder --resum", "--resum: unknown argument; did you mean '--resume'?"),
    ("compare a b --threshold nan", "nan: must be a finite number"),
    ("compare a b --threshold high", "high: must be a finite number"),
    ("compare '' ''", "SIDES: must not be empty"),
    ("compare a", "a: a comparison needs at least two sides"),
    ("agents ppo", "ppo: unknown argument"),
    ("envs nosuch", "nosuch: no suite or environment has this name"),
    ("registry nosuch", "invalid choice: 'nosuch'"),
    ("registry list ''", "NAME: must not be empty"),
    ("stage nosuch folder", "invalid choice: 'nosuch'"),
    ("sweep status ''", "NAME: must not be empty"),
    ("sweep status nowhere --jsn", "did you mean '--json'?"),
    # Files and folders
    ("resume nowhere", "nowhere: no run here"),
    ("resume file", "file: no run here"),
    ("evaluate nowhere", "nowhere: no run here"),
    ("evaluate models:/@x", "not a model URI"),
    ("collect nowhere --minari a/b-v0", "at least two characters in FOLDER"),
    ("diff nowhere file", "nowhere: no run here"),
    ("reproduce config_alone", "lineage.json: cannot be read"),
    ("reap nowhere", "nowhere: no such folder"),
    ("stage train nowhere", "nowhere: no run here"),
    ("stage make-env file exp=ppo", "run_dir=file: "),
    ("stage make-env new --params nowhere.yaml", "nowhere.yaml: cannot be read"),
    ("stage make-env new --params bytes.yaml", "bytes.yaml: cannot be read"),
    ("stage make-env new --params list.yaml", "list.yaml: does not contain the parameters of a run"),
    ("stage make-env new --params folder", "folder: cannot be read"),
    ("sweep status ../..", "../..: no such sweep"),
    ("sheeprl-eval checkpoint_path=x.ckpt", "SheepRL's .ckpt files cannot be read"),
    # Keys and values. make-env checks the same as `train`.
    ("stage make-env new", "no preset chosen"),
    ("stage make-env new exp=", "exp=: no name given"),
    ("stage make-env new exp=ppoo", "did you mean 'ppo'?"),
    ("stage make-env new exp=ppo =3", "'=3': must have the form key=value"),
    ("stage make-env new exp=ppo seed", "'seed': no value; write seed=VALUE"),
    ("stage make-env new exp=ppo seed=", "seed=: no value given for seed; write seed=VALUE, or leave it out"),
    ("stage make-env new exp=ppo seed=1e400", "seed=inf: must be an integer"),
    ("stage make-env new exp=ppo seed.a.b=1", "must be an integer, got a mapping"),
    ("stage make-env new exp=ppo seed=1,2", "seed=1,2: several values"),
    ("stage make-env new exp=ppo algo.name=[ppo]", "algo.name=['ppo']: unknown algorithm"),
    ("stage make-env new exp=ppo algo.name={a:1}", "algo.name={'a': 1}: unknown algorithm"),
    ("stage make-env new exp=ppo algo.nosuch=1", "unknown key 'algo.nosuch' (value '1'); known keys: "),
    ("stage make-env new exp=ppo env.id=../../etc", "env.id=../../etc: no such environment"),
    ("stage make-env new exp=ppo env.id=os:system", "a config cannot import the module os"),
    ("stage make-env new exp=ppo 'env.id=日本語'", "env.id=日本語: no such environment"),
    ("stage make-env new exp=ppo env.num_envs=1e23", "must be at most 9223372036854775807"),
    ("stage make-env new exp=ppo env.wrapper.nosuch=1", "CartPole-v1 has no argument 'nosuch'"),
    (
        "stage make-env new exp=ppo algo.optimizer.groups={x:{lr:1e-3}}",
        "'x' matches no parameter",
    ),
    ("stage make-env new exp=ppo algo.lr_schedule=[]", "cannot be combined with algo.anneal_lr=true"),
    ("stage make-env new exp=sac buffer.load_from=minari:", "minari:: the name is missing"),
    ("stage make-env new exp=sac env.id=CartPole-v1", "sac needs continuous (Box) actions"),
    ("stage make-env new exp=ppo fabric.devices=two", "fabric.devices=two: "),
    ("stage make-env new exp=ppo metric.logger=5", "metric.logger=5: must be a mapping"),
    ("stage make-env new exp=ppo plugins=[nosuch_module]", "this module cannot be imported"),
    ("stage make-env new exp=ppo run_name=../../x", "must not contain '..'"),
    ("stage make-env new exp=ppo 'run_name=a\x1b[2Jb'", r"run_name=a\x1b[2Jb: must not contain control characters"),
    ("stage make-env new exp=ppo checkpoint.resume_from=nowhere", "this is not the folder of a checkpoint"),
    ("stage make-env new exp=ppo 'seed=${nosuch}'", "there is no key 'nosuch'"),
]


@pytest.fixture
def scratch(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Working directory with files and folders that are not runs."""
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "config_alone").mkdir()
    (tmp_path / "config_alone/config.yaml").write_text("algo: {name: ppo}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SHEPHERD_PLUGINS", raising=False)
    yield tmp_path


@pytest.mark.parametrize(("line", "words"), LINES, ids=[line for line, _ in LINES])
def test_main_prints_one_sentence_for_bad_line(
    line: str, words: str, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(scratch.rglob("*"))
    code = cli.main(shlex.split(line))
    out, err = capsys.readouterr()
    sentences = [sentence for sentence in err.splitlines() if not sentence.startswith("shepherd: interpreted as: ")]
    assert (code, out, len(sentences)) == (2, "", 1), err
    assert sentences[0].startswith("shepherd: ") and words in sentences[0]
    assert len(sentences[0]) < 1200
    assert sorted(scratch.rglob("*")) == before


def test_evaluate_names_file_without_write_permission(
    scratch: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "runs/a/evaluations")

    monkeypatch.setattr("flows.cli.evaluation_commands.locate", refuse)
    assert cli.main(["evaluate", "runs/a"]) == 2
    assert (
        capsys.readouterr().err
        == "shepherd: runs/a/evaluations: Permission denied; choose a folder that you can write to\n"
    )


def test_of_checkpoint_refuses_checkpoint_outside_run(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "runs/a")
    run.checkpoints.mkdir(parents=True)
    run.config.write_text("{}")
    (tmp_path / "runs/b").mkdir()
    assert RunDirectory.of_checkpoint(run.checkpoints / "64").path == run.path
    for moved in (tmp_path / "runs/64", run.path / "64", tmp_path / "runs/b/checkpoints/64"):
        with pytest.raises(
            UserError, match="this checkpoint is outside of its run, but it needs the config of the run"
        ) as error:
            RunDirectory.of_checkpoint(moved)
        assert "give one of its runs" not in str(error.value)
