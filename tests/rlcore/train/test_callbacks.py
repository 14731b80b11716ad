"""Callbacks in a training: their calls with facts, their requests, their state, and that they change nothing."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flows.stages.make_env import measure_once
from rlcore.algorithms.on_policy import ppo
from rlcore.config.learning_half import learning_half
from rlcore.config.values import plain
from rlcore.errors import CallbackError, UserError
from rlcore.run_config import build_config
from rlcore.store import checkpoint
from rlcore.store.config_file import config_of
from rlcore.store.directory import RunDirectory
from rlcore.store.events import read_events
from rlcore.store.series import lines
from rlcore.train.boundary import status_of
from rlcore.train.build import build
from rlcore.train.resume import refuse_other_config
from rlcore.train.run_trainer import RunTrainer
from rlcore.train.stop_conditions import StopConditions
from rlcore.train.stopping import UpperBound
from tests.probes.callbacks import Failing, Misspelled, Noise, Recorder
from tests.runs import prepare, values

PLUGIN = "tests.probes.callbacks"
# Iterations of 64 policy steps; checkpoints at 64, 128, 192, 256 and evaluations at 128, 256.
SCHEDULE: dict[str, Any] = {"total_steps": 256, "checkpoint__every": 64, "evaluation__every": 128}
UNTIL_128 = [
    ["iteration", 1, 64],
    ["checkpoint", 1, 64],
    ["iteration", 2, 128],
    ["checkpoint", 2, 128],
    ["evaluation", 2, 128],
]
CALLS = [
    *UNTIL_128,
    ["iteration", 3, 192],
    ["checkpoint", 3, 192],
    ["iteration", 4, 256],
    ["checkpoint", 4, 256],
    ["evaluation", 4, 256],
    ["end", 4, 256],
]


@pytest.fixture(autouse=True)
def plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHEPHERD_PLUGINS", PLUGIN)


def entry(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"{PLUGIN}:{name}", **arguments}


_cards: list[dict[str, Any]] = []


def measured_once(run: RunDirectory) -> dict[str, Any]:
    """Return the card of CartPole-v1, which all runs of this file have in common."""
    if not _cards:
        _cards.append(measure_once(run))
    return _cards[0]


def run_with(path: Path, *callbacks: Any, **keys: Any) -> RunDirectory:
    return prepare(path, card=measured_once, callbacks=list(callbacks), **SCHEDULE | keys)


class Killed(Exception):
    """In place of the signal that ends the process of a trainer."""


def drive(run: RunDirectory, kill_before: Callable[[str, int], bool] = lambda stage, steps: False) -> RunTrainer:
    """Train a run to its end, as the stages do; raise `Killed` before a stage at some policy steps."""
    trainer = RunTrainer(run)

    def at(stage: str) -> None:
        if kill_before(stage, trainer.policy_steps):
            raise Killed

    try:
        while True:
            boundary = trainer.advance(lambda facts: None)
            for stage, do in (("checkpoint", trainer.save), ("evaluate", trainer.evaluate)):
                if stage in boundary.due:
                    at(stage)
                    do()
            at("advance")
            if boundary.done:
                trainer.end(status_of(boundary.reason), boundary.reason)
                return trainer
    finally:
        trainer.close()


def callback_of(trainer: RunTrainer, index: int = 0) -> Any:
    return trainer.callbacks.entries[index].callback


def digest(run: RunDirectory) -> str:
    newest = checkpoint.newest_good(run.checkpoints)
    assert newest is not None
    return checkpoint.manifest(newest)["digest"]


def test_callbacks_receive_events_with_facts(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", entry("Recorder"))
    trainer = drive(run)
    recorder = callback_of(trainer)
    assert recorder.calls == CALLS
    first, saved, _, _, evaluated, *_, last = recorder.facts
    assert (first["name"], first["directory"], first["total_steps"]) == ("run", str(run.path), 256)
    # 2 epochs of 64 rows in minibatches of 16
    assert (first["updates"], first["iteration"], first["policy_steps"]) == (8, 1, 64)
    assert first["metrics"]["Loss/policy_loss"] != 0 and first["checkpoint"] is first["evaluation"] is None
    assert saved["checkpoint"] == str(run.checkpoints / "64") and saved["metrics"]["Mine/iteration"] == 1
    (event,) = [e for e in read_events(run.events) if e["kind"] == "evaluation" and e["policy_steps"] == 128]
    assert evaluated["evaluation"] == event["greedy"] and len(event["greedy"]["returns"]) == 2
    assert (last["status"], last["reason"]) == ("finished", "finished")


def test_logged_values_are_metrics_of_their_step(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", entry("Recorder"), metric__log_every=128)
    drive(run)
    found = lines(read_events(run.events))
    # Windows of two iterations, in which 1, 2 and 3, 4 were logged.
    assert list(found["Mine/iteration"]) == [(128, 1.5), (256, 3.5)]
    assert list(found["Mine/checkpoint"]) == [(64, 1), (128, 2), (192, 3), (256, 4)]
    assert list(found["Mine/evaluation"]) == [(128, 1), (256, 2)]
    assert list(found["Mine/end"]) == [(256, 1)]


@pytest.mark.parametrize(
    ("stop_in", "after", "calls"),
    [
        ("iteration", 3, [*CALLS[:7], ["end", 3, 192]]),
        ("checkpoint", 1, [*CALLS[:2], ["end", 1, 64]]),
        ("evaluation", 1, [*UNTIL_128, ["end", 2, 128]]),
    ],
)
def test_callback_ends_training(stop_in: str, after: int, calls: list[Any], tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", entry("Recorder", stop_after=after, stop_in=stop_in))
    recorder = callback_of(drive(run))
    reason = f"callback {PLUGIN}:Recorder: {after} calls"
    assert recorder.calls == calls
    assert (recorder.facts[-1]["status"], recorder.facts[-1]["reason"]) == ("stopped_early", reason)


def test_stop_condition_reads_logged_metric(tmp_path: Path) -> None:
    stop = [{"upper_bound": {"metric": "Mine/iteration", "value": 2}}]
    recorder = callback_of(drive(run_with(tmp_path / "run", entry("Recorder"), stop=stop)))
    assert recorder.calls == [*UNTIL_128, ["end", 2, 128]]
    assert recorder.facts[-1]["reason"] == "upper_bound: Mine/iteration = 2, which is at least 2"


@pytest.mark.parametrize(
    ("stage", "steps"),
    [("checkpoint", 128), ("evaluate", 128), ("advance", 128), ("checkpoint", 192), ("evaluate", 256)],
)
def test_killed_run_repeats_calls_with_same_facts(stage: str, steps: int, tmp_path: Path) -> None:
    """The state contains the random numbers of each call."""
    whole = run_with(tmp_path / "whole" / "run", entry("Recorder"), entry("Noise", scale=0.01))
    run = run_with(tmp_path / "cut" / "run", entry("Recorder"), entry("Noise", scale=0.01))
    expected = callback_of(drive(whole)).facts
    with pytest.raises(Killed):
        drive(run, lambda at, policy_steps: (at, policy_steps) == (stage, steps))
    resumed = callback_of(drive(run))

    def facts(found: list[dict[str, Any]], path: Path) -> list[dict[str, Any]]:
        moved = json.loads(json.dumps(found).replace(str(path), "PATH"))
        return [{**each, "metrics": {k: v for k, v in each["metrics"].items() if "Time/" not in k}} for each in moved]

    assert facts(resumed.facts, run.path) == facts(expected, whole.path)
    assert digest(run) == digest(whole)
    logged = [lines(read_events(each.events)) for each in (run, whole)]
    names = [name for name in logged[1] if name.startswith("Mine/")]
    assert len(names) == 4 and all(logged[0][name] == logged[1][name] for name in names)


def test_interrupted_run_calls_on_checkpoint_only_for_required_ones(tmp_path: Path) -> None:
    """A signal at step 64 causes a checkpoint in the middle between two required ones, and another at step 128."""
    run = run_with(tmp_path / "run", entry("Recorder"), checkpoint__every=128)
    trainer = RunTrainer(run)
    trainer.interrupted = True
    trainer.advance(lambda facts: None)
    assert trainer.policy_steps == 64
    trainer.save(call=False)
    trainer.close()
    trainer = RunTrainer(run)
    trainer.advance(lambda facts: None)
    trainer.save(call=False)
    trainer.close()
    kept = [call for call in CALLS if call[0] != "checkpoint" or call[2] in (128, 256)]
    assert callback_of(drive(run)).calls == kept


def test_stop_request_survives_kill(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", entry("Recorder", stop_after=3))
    with pytest.raises(Killed):
        drive(run, lambda stage, steps: (stage, steps) == ("advance", 192))
    recorder = callback_of(drive(run))
    assert recorder.calls == [*CALLS[:7], ["end", 3, 192]]
    # Without the callback in the config, its request is void.
    changed = plain(config_of(run)) | {"callbacks": []}
    run.config.write_text(json.dumps(changed))
    assert drive(run).policy_steps == 256


def test_callback_moves_no_bit(tmp_path: Path) -> None:
    plain_run = run_with(tmp_path / "plain" / "run")
    drive(plain_run)
    run = run_with(tmp_path / "gambler" / "run", entry("Gambler"))
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    expected = (torch.rand(2).tolist(), np.random.rand(), random.random(), torch.get_default_dtype())
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    deterministic, threads = torch.backends.cudnn.deterministic, torch.get_num_threads()
    trainer = drive(run)
    assert torch.is_grad_enabled()
    assert (torch.rand(2).tolist(), np.random.rand(), random.random(), torch.get_default_dtype()) == expected
    assert (torch.backends.cudnn.deterministic, torch.get_num_threads()) == (deterministic, threads)
    assert digest(run) == digest(plain_run)
    assert trainer.config.env.wrapper == config_of(plain_run).env.wrapper


def test_callback_without_permission_cannot_reach_trainer(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", entry("Meddler"))
    with pytest.raises(CallbackError, match=r"Meddler: on_iteration raised PermissionError.*changes_training = True"):
        drive(run)


def test_callback_that_changes_training_is_part_of_learning(tmp_path: Path) -> None:
    run = run_with(tmp_path / "noisy" / "run", entry("Noise", scale=0.01), entry("Recorder"))
    trainer = drive(run)
    plain_run = run_with(tmp_path / "plain" / "run")
    drive(plain_run)
    assert digest(run) != digest(plain_run)
    newest = checkpoint.newest_good(run.checkpoints)
    assert newest is not None
    learning, bookkeeping = checkpoint.load(newest)
    (name,) = learning["callbacks"]
    assert learning["callbacks"][name]["last"] == callback_of(trainer).last != 0
    assert [*bookkeeping["callbacks"]["states"]] == [json.dumps(entry("Recorder"), sort_keys=True)]
    before = config_of(run)
    assert learning_half(before)["callbacks"] == [entry("Noise", scale=0.01)]
    assert "callbacks" not in learning_half(config_of(plain_run))
    other = build_config(plain(before) | {"callbacks": [entry("Noise", scale=0.02)]})
    with pytest.raises(UserError, match=r"callbacks=.*0\.02.*cannot change on resume"):
        refuse_other_config(run, before, other)
    with pytest.raises(UserError, match=r"changes training .* several devices"):
        build_config(plain(before) | {"fabric": plain(before)["fabric"] | {"devices": 2}})
    refuse_other_config(run, before, build_config(plain(before) | {"callbacks": [entry("Noise", scale=0.01)]}))


@pytest.mark.parametrize(("method", "saved"), [("on_iteration", 64), ("on_checkpoint", 128), ("on_evaluation", 256)])
def test_failure_names_callback_and_method(method: str, saved: int, tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", entry("Failing", method=method, at=2))
    sentence = rf"callback {PLUGIN}:Failing: {method} raised KeyError: 'no entry 2'"
    with pytest.raises(CallbackError, match=sentence):
        drive(run)
    newest = checkpoint.newest_good(run.checkpoints)
    assert newest is not None and newest.name == str(saved)


def test_state_that_no_checkpoint_can_store_is_named(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", entry("Handle"))
    with pytest.raises(CallbackError, match=r"Handle: state_dict raised TypeError: its state cannot be stored"):
        drive(run)


@pytest.mark.parametrize("kind", ["tuple", "defaultdict"])
def test_state_that_json_would_change_is_refused(kind: str, tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", entry("Inexact", kind=kind))
    with pytest.raises(CallbackError, match=rf"Inexact: state_dict raised TypeError: .* is a {kind}"):
        drive(run)


def test_failed_callback_with_spoiled_state_does_not_prevent_saving(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", entry("Spoiled"))
    trainer = RunTrainer(run)
    try:
        trainer.advance(lambda facts: None)
        trainer.save()
        with pytest.raises(CallbackError, match="spoiled"):
            trainer.advance(lambda facts: None)
        trainer.callbacks.failed = True  # as the trainer process does
        trainer.save(call=False)
    finally:
        trainer.close()
    newest = checkpoint.newest_good(run.checkpoints)
    assert newest is not None and newest.name == "128"
    (state,) = checkpoint.load(newest)[1]["callbacks"]["states"].values()
    assert state == {"count": 1}


@pytest.mark.parametrize(("stop_in", "steps"), [("iteration", 64), ("checkpoint", 64), ("evaluation", 128)])
def test_extended_run_repeats_calls_without_requests_of_its_source(stop_in: str, steps: int, tmp_path: Path) -> None:
    recorder = entry("Recorder", stop_after=1, stop_in=stop_in)
    source = run_with(tmp_path / "source", recorder)
    assert drive(source).policy_steps == steps
    start = source.checkpoints / str(steps)
    run = run_with(tmp_path / "run", recorder, checkpoint__extend_from=str(start))
    if stop_in == "evaluation":  # before the first checkpoint of its own, so that it starts from the source again
        with pytest.raises(Killed):
            drive(run, lambda stage, at: (stage, at) == ("advance", 128))
    extended = callback_of(drive(run))
    assert extended.calls == CALLS  # those of one long run
    saved = [Path(facts["checkpoint"]) for facts in extended.facts if facts["kind"] == "checkpoint"]
    assert start in saved and run.checkpoints / "256" in saved


def test_stop_metric_that_callback_never_logs_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stop = [{"upper_bound": {"metric": "Mine/evaluatio", "value": 1}}]
    run = run_with(tmp_path / "run", entry("Recorder"), stop=stop, algo__update_epochs=4)
    drive(run)
    found = [record.getMessage() for record in caplog.records if record.name == "rlcore.train.stop_conditions"]
    assert found == [
        "stop: neither the training nor a callback has logged Mine/evaluatio yet, so its condition cannot hold; "
        "did you mean 'Mine/evaluation'?"
    ]
    with pytest.raises(UserError, match=r"metric=Loss/polic_loss: ppo does not .*; did you mean 'Loss/policy_loss'"):
        run_with(
            tmp_path / "other", entry("Recorder"), stop=[{"upper_bound": {"metric": "Loss/polic_loss", "value": 1}}]
        )


def test_resumed_conditions_know_what_was_logged_before(caplog: pytest.LogCaptureFixture) -> None:
    def conditions() -> StopConditions:
        return StopConditions([UpperBound("Mine/once", 2), UpperBound("Mine/never", 2)], callbacks=True)

    first, resumed = conditions(), conditions()
    first.update({"Mine/once": 1.0})
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())), {})
    resumed.warn_of_missing(ended=True)
    (message,) = (record.getMessage() for record in caplog.records)
    assert "Mine/never" in message and "Mine/once" not in message


def test_stop_condition_reads_metric_of_evaluation_in_library_trainer() -> None:
    trainer = build(ppo.Config(total_steps=1024, rollout_steps=32), "CartPole-v1", num_envs=2)
    stop = [UpperBound("Mine/evaluation", 2)]
    result = trainer.run(stop, evaluate_every=4, callbacks=[Recorder()])
    assert result.reason == "upper_bound: Mine/evaluation = 2, which is at least 2"
    assert [*result.evaluations] == [256, 512]


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (["nowhere:Mine"], r"callbacks\[0\]\._target_=nowhere:Mine: .* add plugins=\[nowhere\]"),
        ([f"{PLUGIN}:Recorde"], r"_target_=tests.probes.callbacks:Recorde: tests.probes.callbacks has no Recorde"),
        (["watcher"], r"callbacks\[0\]\._target_=watcher: must be a name with its module, as package.module:Class"),
        ([f"{PLUGIN}:function"], r"callbacks\[0\]\._target_=tests.probes.callbacks:function: must be a class"),
        ([f"{PLUGIN}:Misspelled"], r"on_iteration\(run\), .*; did you mean 'on_evaluation'"),
        ([f"{PLUGIN}:WithoutRun"], r"on_end must have the parameters \(self, run\)"),
        ([entry("Recorder", stop=3)], r"does not accept these arguments \(got an unexpected keyword argument 'stop'\)"),
        ([{"every": 3}], r"callbacks\[0\]=.*: must be the name of a class"),
        ([3], r"callbacks\[0\]=3: must be text or mapping"),
        ([f"{PLUGIN}:Recorder", entry("Recorder")], r"callbacks\[1\]: is equal to callbacks\[0\]"),
    ],
)
def test_bad_callbacks_are_refused(callbacks: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_config(values("CartPole-v1", 256, callbacks=callbacks))


def test_constructor_that_fails_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    run = run_with(tmp_path / "run", entry("Broken", number=0))
    with pytest.raises(UserError, match=r"callbacks\[0\]=.*Broken: cannot be created \(ZeroDivisionError: "):
        RunTrainer(run)


def test_callbacks_need_last_checkpoint() -> None:
    keys = {"checkpoint__save_last": False, "callbacks": [f"{PLUGIN}:Recorder"]}
    with pytest.raises(UserError, match=r"save_last=false: cannot be combined with callbacks"):
        build_config(values("CartPole-v1", 256, **keys))


# Without a run directory ----------------------------------------------------------------------------------------------


def small(total_steps: int | None = 256) -> Any:
    config = ppo.Config(total_steps=total_steps, rollout_steps=32, per_rank_batch_size=16, update_epochs=1)
    return build(config, "CartPole-v1", num_envs=2, config={"evaluation": {"episodes": 2}})


def test_library_run_calls_callbacks(tmp_path: Path) -> None:
    trainer, recorder = small(), Recorder(stop_after=3)
    result = trainer.run(callbacks=[recorder], evaluate_every=2)
    assert recorder.calls == [
        ["iteration", 1, 64],
        ["iteration", 2, 128],
        ["evaluation", 2, 128],
        ["iteration", 3, 192],
        ["end", 3, 192],
    ]
    assert (recorder.facts[0]["name"], recorder.facts[0]["directory"]) == (None, None)
    assert result.reason == recorder.facts[-1]["reason"] == "callback Recorder: 3 calls"
    assert result.metrics[128]["Mine/evaluation"] == 1 and result.metrics[192]["Mine/end"] == 1
    trainer.save(tmp_path)
    again, continued = small(), Recorder(stop_after=3)
    again.load(tmp_path).run(callbacks=[continued])
    # The call at the end follows the state in the checkpoint only because `save` was called after it.
    assert continued.calls == [*recorder.calls, ["iteration", 4, 256], ["end", 4, 256]]


def test_library_run_reports_failure_of_callback() -> None:
    trainer, recorder = small(), Recorder()
    with pytest.raises(CallbackError, match="callback Failing: on_iteration raised KeyError"):
        trainer.run(callbacks=[recorder, Failing("on_iteration", at=2)])
    assert [call[0] for call in recorder.calls] == ["iteration", "iteration", "end"]
    assert recorder.facts[-1]["status"] == "failed"
    with pytest.raises(UserError, match="Misspelled has none of the methods on_iteration"):
        trainer.run(callbacks=[Misspelled()])


def test_library_changes_of_callback_reach_policy() -> None:
    trainer = small()
    trainer.run(callbacks=[Noise(10.0)])
    weights = [weight.detach() for weight in trainer.behavior_policy.parameters()]
    assert max(float(weight.abs().max()) for weight in weights) > 5


def test_request_after_call_is_an_error() -> None:
    class Late(Recorder):
        kept: Any = None

        def on_iteration(self, run: Any) -> None:
            if self.kept is not None:
                self.kept.log("Mine/late", 1.0)
            Late.kept = run

    with pytest.raises(CallbackError, match=r"log\('Mine/late', ...\) was called after"):
        small().run(callbacks=[Late()])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("Loss/policy_loss", 1.0, "is that of a metric of the training"),
        ("Rewards/rew_avg", 1.0, "is that of a metric of the training"),
        ("Time/mine", 1.0, "is that of a metric of the training"),
        ("", 1.0, "is that of a metric of the training"),
        ("Mine/a", float("nan"), "must be a finite number"),
    ],
)
def test_bad_metrics_of_callback_are_refused(name: str, value: float, message: str) -> None:
    class Logging(Recorder):
        def on_iteration(self, run: Any) -> None:
            run.log(name, value)

    with pytest.raises(CallbackError, match=message):
        small().run(callbacks=[Logging()])
