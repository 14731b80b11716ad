"""Extended runs: they continue bit for bit, and what does not fit their source is refused before a file is written."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from flows.cli.main import main
from flows.config.compose import compose, compose_extended, dump, params_yaml
from flows.config.notices import notices
from flows.runs.create import new_run
from flows.runs.extend import extended_run
from flows.runs.params import follow_params
from flows.stages.make_env import make_env
from flows.sweeps.creating import Checked, check_plan
from flows.sweeps.plan import plan
from rlcore import plugins
from rlcore.config.learning_half import config_hash
from rlcore.errors import UserError
from rlcore.evaluation.policy import write_policy_folder
from rlcore.optim.optimizer import Optimizer
from rlcore.store import checkpoint, compare
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.events import read_events
from rlcore.train.components import find_all
from rlcore.train.resume import other_learning
from rlcore.train.run_trainer import RunTrainer

SMALL = ["env.num_envs=2", "checkpoint.every=128", "evaluation.every=128", "evaluation.episodes=2", "group=first"]
PPO = ["exp=ppo", *SMALL, "algo.rollout_steps=32", "algo.per_rank_batch_size=16", "algo.update_epochs=2"]
SAC = ["exp=sac", *SMALL, "env.id=Pendulum-v1", "algo.per_rank_batch_size=8", "algo.hidden_size=8", "buffer.size=300"]
SAC += ["algo.replay_ratio=0.25"]
TYPED = {"ppo": [*PPO, "algo.anneal_lr=false", "algo.normalize_obs=true", "algo.normalize_reward=true"], "sac": SAC}


def start(run: RunDirectory) -> RunDirectory:
    make_env(run)
    return run


def train(run: RunDirectory, until: int | None = None, earlier: Mapping[int, float] | None = None) -> RunDirectory:
    """Train a run to its end or to a checkpoint, with its checkpoints and evaluations; `earlier` are known scores."""
    session = RunTrainer(run)
    session.scores |= earlier or {}
    try:
        while not (at := session.advance(lambda facts: None)).done or at.due:
            if "checkpoint" in at.due:
                session.save()
            if "evaluate" in at.due:
                session.evaluate()
            if at.done or (until is not None and at.policy_steps >= until):
                return run
    finally:
        session.close()
    return run


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDirectory]:
    """A finished run of 256 policy steps for each algorithm; for "annealed" with PPO's preset."""
    folder = tmp_path_factory.mktemp("sources")
    typed = {**TYPED, "annealed": [*PPO, "algo.anneal_lr=true"]}
    return {
        name: train(start(new_run([*words, "algo.total_steps=256", f"run_dir={folder / name}"])))
        for name, words in typed.items()
    }


@pytest.fixture
def ppo(sources: dict[str, RunDirectory]) -> RunDirectory:
    return sources["ppo"]


def extend(source: RunDirectory | Path, folder: Path, *overrides: str) -> RunDirectory:
    path = source.path if isinstance(source, RunDirectory) else source
    return extended_run(str(path), ["algo.total_steps=512", *overrides, f"run_dir={folder}"])


def same_bits(first: RunDirectory, second: RunDirectory) -> bool:
    one, other = (checkpoint.resolve(run, "latest") for run in (first, second))
    return one.name == other.name and not list(compare.differences(one, other))


@pytest.mark.parametrize("algo", ["ppo", "sac"])
def test_extended_run_equals_run_with_larger_budget(
    algo: str, sources: dict[str, RunDirectory], tmp_path: Path
) -> None:
    whole = train(start(new_run([*TYPED[algo], "algo.total_steps=512", f"run_dir={tmp_path / 'whole'}"])))
    longer = train(start(extend(sources[algo], tmp_path / "longer")))
    assert same_bits(whole, longer)
    half = [checkpoint.load(checkpoint.resolve(run, "latest"))[1]["fingerprint"]["learning"] for run in (whole, longer)]
    newest = str(checkpoint.resolve(sources[algo], "latest"))
    assert [*other_learning(*half)] == [("checkpoint.extend_from", None, newest)]  # `shepherd diff` lists it
    scores = [
        {e["policy_steps"]: e["greedy"]["mean"] for e in read_events(run.events) if e["kind"] == "evaluation"}
        for run in (whole, longer)
    ]
    assert scores[1] == {steps: score for steps, score in scores[0].items() if steps >= 256}
    assert sorted(scores[1]) == [256, 384, 512]


def test_interrupted_extended_run_ends_in_same_bits(sources: dict[str, RunDirectory], tmp_path: Path) -> None:
    source = sources["annealed"]
    whole = train(start(extend(source, tmp_path / "whole")))
    broken = start(extend(source, tmp_path / "broken"))
    session = RunTrainer(broken)  # ends before its first checkpoint
    session.training.advance(320, lambda metrics: False)
    session.close()
    assert not list(checkpoint.newest_first(broken.checkpoints))
    train(broken, until=384)
    assert [path.name for path in checkpoint.newest_first(broken.checkpoints)] == ["384"]
    train(broken)
    assert same_bits(whole, broken)


def test_best_checkpoint_of_extended_run_is_its_own(ppo: RunDirectory, tmp_path: Path) -> None:
    run = train(start(extend(ppo, tmp_path / "run")), earlier={128: 1e6})
    scores = {e["policy_steps"]: e["greedy"]["mean"] for e in read_events(run.events) if "greedy" in e}
    best = max((steps for steps in scores if steps > 256), key=lambda steps: (scores[steps], steps))
    assert checkpoint.resolve(run, "best").name == str(best)


def test_annealing_follows_new_budget(sources: dict[str, RunDirectory], tmp_path: Path) -> None:
    source = sources["annealed"]
    run = start(extend(source, tmp_path / "run"))
    at = f"continues the training of {source.path} from 256 to 512 policy steps"
    line = f"{at}; algo.anneal_lr: annealed over the new budget, from 50% of the initial value"
    assert line in [*notices(config_of(run))]
    session = RunTrainer(run)
    session.training.advance(320, lambda metrics: False)
    optimizer = next(iter(find_all(session.learner, Optimizer).values()))
    assert float(optimizer.lr) == pytest.approx(optimizer.config.lr * (1 - 256 / 512))
    session.close()


def test_new_settings_replace_restored_values(sources: dict[str, RunDirectory], tmp_path: Path) -> None:
    run = start(extend(sources["sac"], tmp_path / "run", "algo.critic.optimizer.lr=0.5", "algo.gamma=0.5"))
    session = RunTrainer(run)
    rates = {float(optimizer.lr) for optimizer in find_all(session.learner, Optimizer).values()}
    session.close()
    assert 0.5 in rates and len(rates) > 1


def test_rollouts_of_other_length_end_at_budget(ppo: RunDirectory, tmp_path: Path) -> None:
    run = train(start(extend(ppo, tmp_path / "run", "algo.rollout_steps=64", "buffer.size=null")))
    assert checkpoint.resolve(run, "latest").name == "512"


def test_dry_run_takes_first_gradient_step_of_extended_run(ppo: RunDirectory, tmp_path: Path) -> None:
    run = train(start(extend(ppo, tmp_path / "run", "dry_run=true")))
    assert checkpoint.resolve(run, "latest").name == "320"


def test_lineage_names_run_checkpoint_and_config(ppo: RunDirectory, tmp_path: Path) -> None:
    newest = checkpoint.resolve(ppo, "latest")
    run = extend(ppo, tmp_path / "run")
    assert run.read_identity()["extend_from"] == {
        "given": str(ppo.path),
        "uri": None,
        "path": str(newest),
        "digest": checkpoint.manifest(newest)["digest"],
        "run_id": ppo.read_identity()["run_id"],
        "config_hash": config_hash(config_of(ppo)),
        "policy_steps": 256,
    }
    config = config_of(run)
    assert (config.checkpoint.extend_from, config.group) == (str(newest), None)
    assert config_hash(config) != config_hash(config_of(new_run([*TYPED["ppo"], f"run_dir={tmp_path / 'other'}"])))
    earlier = extend(newest.with_name("128"), tmp_path / "earlier", "group=second")
    assert earlier.read_identity()["extend_from"]["policy_steps"] == 128
    assert config_of(earlier).group == "second"


def test_extended_run_has_new_default_directory(ppo: RunDirectory, tmp_path: Path) -> None:
    run = extended_run(str(ppo.path), ["algo.total_steps=512", f"log_root={tmp_path}"])
    assert run.path.parent == tmp_path / "ppo/CartPole-v1"


REFUSED = [
    ([], r"algo.total_steps=256: .*/256 was trained for 256 policy steps already; set a larger number"),
    (["algo.total_steps=200"], r"algo.total_steps=200: .*/256 was trained for 256 policy steps already"),
    (
        ["algo.total_steps=512", "env.num_envs=4", "env.id=Acrobot-v1"],
        r"env.id=Acrobot-v1 \(there CartPole-v1\), env.num_envs=4 \(there 2\): cannot differ .*init_from=",
    ),
    (
        ["algo.total_steps=512", "algo.actor.dense_units=8", "algo.gamma=0.5"],
        r"algo.actor.dense_units, algo.gamma: changes the shape of the state in .*agent.* there, .* here.*and \d+ more",
    ),
    (
        ["algo.total_steps=512", "algo.dense_units=8"],
        r"algo.actor.dense_units, .*algo.dense_units, .*: changes the shape of the state in ",
    ),
    (["algo.total_steps=512", "algo.name=a2c"], r"algo.name=a2c: cannot differ from the algorithm of .* \(ppo\)"),
    (["algo.total_steps=512", "algo.optimizer.name=sgd"], r"algo.optimizer.name=sgd \(there adam\): cannot differ"),
    (
        ["algo.total_steps=512", "algo.optimizer.name=laprop"],
        r"algo.optimizer.name=laprop \(there adam\): cannot differ",
    ),
    (
        ["algo.total_steps=512", "algo.rollout_steps=48", "buffer.size=null"],
        r"an iteration has 96 policy steps \(48 in each of 2 environments\), but .* was trained for 256, which is not",
    ),
    (["algo.total_steps=512", "optim=sgd"], r"algo.optimizer.name=sgd \(there adam\): cannot differ"),
    (
        ["algo.total_steps=512", "exp=sac"],
        "exp=sac: an extended run has the config of its source, in which only files of the groups logger and optim can",
    ),
    (
        ["algo.total_steps=512", "checkpoint.extend_from=runs/a"],
        "checkpoint.extend_from: cannot be set by `shepherd extend`, because .*/ppo is the run to extend",
    ),
    (["algo.total_steps=512", "init_from=runs/a"], "init_from and checkpoint.extend_from cannot be combined"),
    (["algo.total_steps=512", "stop=[{upper_bound: {metric: Evaluation/greedy_mean, value: 1}}]"], "stop: .* holds"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED)
def test_refuses_what_does_not_fit(
    ppo: RunDirectory, tmp_path: Path, overrides: Sequence[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["extend", str(ppo.path), *overrides, f"run_dir={tmp_path / 'run'}"]) == 2
    said = capsys.readouterr().err
    assert re.match(f"shepherd: {message}", said) and said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_missing_checkpoint_is_refused_with_list(ppo: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["extend", str(ppo.checkpoints / "7"), "algo.total_steps=512"]) == 2
    assert re.search(r"no checkpoint 7; choose latest, best or one of .*256", capsys.readouterr().err)


def test_keys_that_refer_to_a_changed_key_follow_it(ppo: RunDirectory, tmp_path: Path) -> None:
    """In the config files of PPO, the activations of encoder, actor and critic are `${algo.dense_act}`."""
    changed = ["algo.total_steps=512", "algo.dense_act=relu", "algo.critic.dense_act=silu"]
    config = config_of(extended_run(str(ppo.path), [*changed, f"run_dir={tmp_path / 'run'}"])).algo
    assert (config.encoder.dense_act, config.actor.dense_act, config.critic.dense_act) == ("relu", "relu", "silu")
    unchanged = config_of(ppo).algo
    assert (config.dense_units, config.actor.dense_units) == (unchanged.dense_units, unchanged.actor.dense_units)


@pytest.mark.parametrize("typed", [["logger=csv", "metric.logger.project=mine"], ["metric.logger.name=none"]])
def test_chosen_files_replace_those_of_the_source(typed: Sequence[str], tmp_path: Path) -> None:
    """Of the keys of the optimizer's file, PPO's preset sets lr; the source has another one."""
    typed = ["exp=ppo", "algo.optimizer.lr=0.5", *typed]
    run = write_run(tmp_path / "run", typed, typed)
    before, after = config_of(run), compose_extended(run, ["logger=wandb", "optim=adamw"])[0]
    assert after.metric.logger.name == "wandb"
    assert after.metric.logger.project == (before.metric.logger.project or before.exp_name)
    optimizer = after.algo.optimizer
    assert (optimizer.name, optimizer.weight_decay, optimizer.lr) == ("adamw", 0.01, 0.5)


def write_run(path: Path, typed: Sequence[str], overrides: Sequence[str]) -> RunDirectory:
    """Write the config that `typed` gives, and other recorded overrides."""
    path.mkdir()
    run = RunDirectory(path)
    run.config.write_text(dump(compose(typed)[1]))
    run.overrides.write_text("".join(f"{override}\n" for override in overrides))
    return run


def test_interpolation_with_another_value_is_not_restored(tmp_path: Path) -> None:
    """A parameter file can keep the preset's value for the actor, and change that of all networks."""
    run = write_run(tmp_path / "run", ["exp=ppo", "algo.dense_act=relu", "algo.actor.dense_act=tanh"], ["exp=ppo"])
    algo = compose_extended(run, ["algo.gamma=0.9"])[0].algo
    assert (algo.dense_act, algo.actor.dense_act, algo.critic.dense_act) == ("relu", "tanh", "relu")


def test_last_of_two_recorded_overrides_counts(tmp_path: Path) -> None:
    typed = ["exp=ppo", "algo.dense_act=silu", "algo.dense_act=relu"]  # an extended run records those of its source too
    run = write_run(tmp_path / "run", ["exp=ppo", "algo.dense_act=relu"], typed)
    assert compose_extended(run, ["algo.dense_act=elu"])[0].algo.actor.dense_act == "elu"


def test_recorded_plugins_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugins.VARIABLE, "")
    (tmp_path / "recorded_plugin.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    run = write_run(tmp_path / "run", ["exp=ppo"], ["exp=ppo", "plugins=[recorded_plugin]"])
    compose_extended(run, ["algo.gamma=0.9"])
    assert "recorded_plugin" not in sys.modules and not plugins.list_named()


@pytest.mark.parametrize("name", ["ppo_recurrent", "sac_ae", "dreamer_v3"])
def test_config_without_changes_is_that_of_the_source(name: str, tmp_path: Path) -> None:
    typed = [f"exp={name}", "algo.dense_act=elu"]
    run = write_run(tmp_path / "run", typed, typed)
    assert compose_extended(run, [])[1] == run.read_config()


def test_refuses_source_without_training_state(ppo: RunDirectory, tmp_path: Path) -> None:
    policy = write_policy_folder(ppo, checkpoint.resolve(ppo, "latest"), tmp_path / "policy")
    fresh = new_run([*PPO, f"run_dir={tmp_path / 'fresh'}"])
    for place, message in (
        (policy, "an exported policy has no training state; give the run that trained it"),
        (tmp_path / "nowhere", "no run or checkpoint here; give a run that has a checkpoint"),
        (fresh.path, "no undamaged checkpoint yet; give a run that has a checkpoint"),
    ):
        typed = [*PPO, "algo.total_steps=512", f"checkpoint.extend_from={place}", f"run_dir={tmp_path / 'run'}"]
        with pytest.raises(UserError, match=f"^checkpoint.extend_from={place}: {message}"):
            new_run(typed)
    with pytest.raises(UserError, match="^algo.name=a2c .there ppo.: cannot differ"):
        typed = ["exp=a2c", *SMALL, "algo.rollout_steps=32", f"checkpoint.extend_from={ppo.path}"]
        new_run([*typed, "algo.total_steps=512", f"run_dir={tmp_path / 'run'}"])
    assert not (tmp_path / "run").exists()


def test_relative_source_without_checkpoint_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_run([*PPO, f"run_dir={tmp_path / 'fresh'}"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="^checkpoint.extend_from=fresh: no undamaged checkpoint yet"):
        extended_run("fresh", ["algo.total_steps=512"])


def test_removed_source_is_one_sentence(tmp_path: Path, ppo: RunDirectory) -> None:
    source = RunDirectory(tmp_path / "source")
    shutil.copytree(ppo.path, source.path)
    run = start(extend(source, tmp_path / "run"))
    shutil.rmtree(source.path)
    with pytest.raises(UserError, match=f"^{run.path}: has no checkpoint of its own yet and starts from .* any more"):
        RunTrainer(run)


def test_resume_recommends_extend(sources: dict[str, RunDirectory], capsys: pytest.CaptureFixture[str]) -> None:
    run = sources["annealed"]
    assert main(["resume", str(run.path), "algo.total_steps=512"]) == 2
    assert f"use `shepherd extend {run.path} algo.total_steps=512`" in capsys.readouterr().err
    assert main(["resume", str(run.path), "algo.total_steps=512", "algo.anneal_lr=false", "metric.log_every=7"]) == 2
    advice = f"use `shepherd extend {run.path} algo.anneal_lr=false algo.total_steps=512 metric.log_every=7`"
    assert advice in capsys.readouterr().err
    assert main(["resume", str(run.path), "env.num_envs=4"]) == 2
    assert f"set init_from={run.path}" in capsys.readouterr().err


def test_parameter_file_detects_changed_source(tmp_path: Path, ppo: RunDirectory) -> None:
    source = RunDirectory(tmp_path / "source")
    shutil.copytree(ppo.path, source.path)
    params = tmp_path / "params.yaml"
    typed = [*TYPED["ppo"], "algo.total_steps=512", f"checkpoint.extend_from={source.path}"]
    params.write_text(yaml.safe_dump(params_yaml(typed)))
    run = follow_params(str(tmp_path / "run"), str(params), [], "make-env")
    first = run.read_identity()["run_id"]
    assert follow_params(str(run.path), str(params), [], "train").read_identity()["run_id"] == first
    shutil.rmtree(source.checkpoints / "256")  # the newest one is now another
    assert follow_params(str(run.path), str(params), [], "train").read_identity()["run_id"] != first


def test_sweep_refuses_source_whose_environment_needs_its_seed(
    sources: dict[str, RunDirectory], tmp_path: Path
) -> None:
    repeated = start(new_run([*TYPED["ppo"], "algo.total_steps=256", f"run_dir={tmp_path / 'repeated'}"]))
    write_json(repeated.card, repeated.read_card() | {"tier": "replay"})
    train(repeated)

    assert check_sweep(sources["ppo"], 512).pace.done == 256
    with pytest.raises(UserError, match=r"^seed=\d+ .there 42.: cannot differ .* its state does not fit; .*init_from="):
        check_sweep(repeated, 512)


def test_sweep_names_its_budget_if_it_is_too_small(ppo: RunDirectory) -> None:
    with pytest.raises(UserError, match="^sweep.budget=256: .*/256 was trained for 256 policy steps already"):
        check_sweep(ppo, 256)


def check_sweep(source: RunDirectory, budget: int) -> Checked:
    typed = [line for line in TYPED["ppo"] if not line.startswith("group=")]
    varied = ["algo.optimizer.lr=choice(1e-4,1e-3)", f"sweep.budget={budget}"]
    return check_plan(plan([*typed, *varied, f"checkpoint.extend_from={source.path}", "sweep.confirm_seeds=0"]))
