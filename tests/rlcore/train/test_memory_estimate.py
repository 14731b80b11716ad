"""Resource estimate of a run: a sum without any allocation, compared with the free resources."""

from __future__ import annotations

import dataclasses
import re
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from flows.config.compose import compose
from rlcore.algorithms import ALGORITHMS
from rlcore.algorithms.on_policy.ppo.learner import Learner
from rlcore.config.groups import BufferConfig
from rlcore.config.run import RunConfig
from rlcore.data.replay import Replay
from rlcore.data.samplers import Transitions
from rlcore.data.sizes import chunk_rows, row_bytes
from rlcore.errors import UserError
from rlcore.spec import ActionSpec, ArraySpec, EnvSpec, Window
from rlcore.system.free_memory import FreeResources
from rlcore.train import counting, resource_check
from rlcore.train import memory_estimate as needs
from rlcore.train.counting import count
from rlcore.train.memory_estimate import ResourceEstimate, estimate, size
from rlcore.train.resource_check import check_resources
from rlcore.train.trainer import Trainer
from rlcore.types import Context, TrainingSchedule

GB = 10**9
PLENTY = FreeResources(memory=20 * GB, disk=100 * GB, threads=30_000, cores=2)
DISCRETE = ActionSpec("Discrete", (), "int64", nvec=(2,), start=(0,))
SPEC = EnvSpec("CartPole-v1", {"state": ArraySpec((4,), "float32")}, DISCRETE)
CONTINUOUS = dataclasses.replace(SPEC, action=ActionSpec("Box", (1,), "float32", low=(-1.0,), high=(1.0,)))
IMAGES = EnvSpec("Frames", {"rgb": ArraySpec((84, 84, 3), "uint8"), "state": ArraySpec((4,), "float32")}, DISCRETE)


def replace_build(build: Callable[[Context], Any]) -> Any:
    """Return PPO with another function `build`."""
    ppo = ALGORITHMS["ppo"]
    return SimpleNamespace(Config=ppo.Config, Agent=ppo.Agent, build=build)


def config(*overrides: str) -> RunConfig:
    return compose(["exp=ppo", *overrides])[0]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FreeResources:
    monkeypatch.setattr(resource_check.FreeResources, "at", staticmethod(lambda folder: PLENTY))
    return PLENTY


def refusal(*overrides: str) -> str:
    with pytest.raises(UserError) as refused:
        check_resources(config(*overrides), SPEC, Path("nowhere"))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def estimate_of(given: RunConfig, spec: EnvSpec) -> ResourceEstimate:
    return estimate(given, spec, count(given, spec))


def tensor_bytes(state: Any) -> int:
    if isinstance(state, dict):
        return sum(tensor_bytes(value) for value in state.values())
    return state.numel() * state.element_size() if isinstance(state, torch.Tensor) else 0


@pytest.mark.parametrize(
    "overrides",
    [
        ["exp=ppo"],
        ["exp=ppo", "env.id=Pendulum-v1", "algo.normalize_obs=true", "algo.actor.ortho_init=true"],
        ["exp=a2c", "optim@algo.optimizer=rmsprop_tf", "algo.normalize_reward=true"],
        ["exp=sac"],
    ],
)
def test_count_equals_size_of_learner_state(overrides: list[str]) -> None:
    given = compose(overrides)[0]
    training = Trainer(given)
    counted = count(given, training.envs.spec)
    state = training.learner.state_dict()
    assert counted is not None and counted.agent == tensor_bytes(state["agent"])
    # Normalizer statistics are float64 numbers and scalars; everything else matches to the byte.
    assert counted.agent + counted.beside == tensor_bytes(state)
    training.close()


def test_count_takes_no_memory_and_no_random_numbers() -> None:
    before, peak = torch.random.get_rng_state(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    counted = count(config("algo.dense_units=30000"), SPEC)
    assert counted is not None and counted.agent > 7 * GB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 100_000  # kB
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("preset", ["ppo", "a2c", "sac"])
def test_count_does_not_import_sympy(preset: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.symbolic_shapes", None)  # the module that imports sympy
    assert count(compose([f"exp={preset}"])[0], SPEC if preset != "sac" else CONTINUOUS) is not None


def test_estimate_sums_all_parts() -> None:
    given = config("env.num_envs=8", "algo.rollout_steps=100", "num_threads=2", "algo.total_steps=8000")
    counted, whole = count(given, SPEC), estimate_of(given, SPEC)
    assert counted is not None
    row = 4 * 4 + 8 + 7  # state, a discrete action, reward and three flags
    assert row_bytes(SPEC) == row and row_bytes(IMAGES) == 84 * 84 * 3 + row
    assert whole.memory == {
        "processes": needs.PROCESS,
        "threads": 2 * needs.THREAD,
        "environments": (8 + 25) * needs.ENVIRONMENT,  # and those of an evaluation
        "rollout": 2 * 100 * 8 * row + 10 * 100 * 8 * 8,  # with 10 orders of its rows
        "parameters": counted.agent,
        "optimizer": counted.beside + counted.agent,
    }
    assert whole.disk == {"checkpoints": 7 * (counted.agent + counted.beside + 8 * (row + needs.STATE))}


def test_estimate_includes_ranks_and_environment_processes() -> None:
    one = estimate_of(config("env.num_envs=3"), SPEC).memory
    two = estimate_of(config("env.num_envs=3", "fabric.devices=2", "env.sync_env=false"), SPEC)
    assert two.memory["processes"] == 2 * one["processes"] + 6 * needs.WORKER
    assert two.memory["parameters"] == 2 * one["parameters"] and two.memory["rollout"] == 2 * one["rollout"]


@pytest.mark.parametrize(
    ("overrides", "peak"),
    [([], 833), (["env.num_envs=16", "env.sync_env=false"], 1221)],
    ids=["in the trainer", "in 16 processes"],
)
def test_estimate_sentence_is_close_to_measured_memory(overrides: list[str], peak: int) -> None:
    """Peak of the estimate_of PSS of `shepherd train exp=ppo` on CartPole (2026-11-28), in MB, within 25 %."""
    message = estimate_of(config(*overrides), SPEC).sentence(PLENTY, command=True)
    found = re.search(r"needs about ([\d.]+) (MB|GB)", message)
    assert found is not None
    assert float(found[1]) * {"MB": 1, "GB": 1000}[found[2]] == pytest.approx(peak, rel=0.25), message


def test_estimate_of_gpu_run_uses_gpu_memory() -> None:
    given = config("fabric.accelerator=cuda", "algo.rollout_steps=100", "env.num_envs=8")
    counted, whole = count(given, SPEC), estimate_of(given, SPEC)
    assert counted is not None and "parameters" not in whole.memory
    rollout = 100 * 8 * row_bytes(SPEC)
    assert whole.memory["rollout"] == rollout  # on the host, as collected
    learning = {"parameters": counted.agent, "optimizer": counted.agent + counted.beside}
    assert whole.device == learning | {"rollout": rollout + 10 * 100 * 8 * 8}
    assert whole.find_shortage(PLENTY) is None  # the free GPU memory is unknown
    message = whole.find_shortage(dataclasses.replace(PLENTY, device=10_000))
    assert message is not None and "of the GPU's memory (optimizer" in message


class Remembering(Learner):
    """PPO learner with a replay buffer, as an algorithm without its own estimate."""


def test_estimate_includes_replay_buffer_in_memory_and_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(context: Context) -> Any:
        replay = Replay(context, Transitions(), size=10_000, batch_size=4)
        return Remembering(context), replay, TrainingSchedule(context.config.algo.step_limit, 1)

    monkeypatch.setitem(ALGORITHMS, "ppo", replace_build(build))
    given = config("env.num_envs=2", "algo.total_steps=100000")
    for spec in (SPEC, IMAGES):
        row = row_bytes(spec)
        whole, chunk = estimate_of(given, spec), chunk_rows(10_000, 2 * row)
        rows = (10_000 + chunk + 1) * 2
        assert whole.memory["replay memory"] == rows * row
        assert whole.memory["a chunk that is written"] == 2 * chunk * 2 * row  # its columns, and the file's content
        assert whole.memory["batch"] == 4 * 2 * row  # four steps, each with the arrival after it
        held = 2 * row  # of both environments
        new = 100_000 // 20 // 2 * held  # a checkpoint for each twentieth of the budget
        again = min(new, chunk * held) + min(new, chunk * held // 16 + held)  # in pieces first, and the newest chunk
        assert whole.disk["replay memory"] == (rows + 2 * chunk) * row + 7 * (new + again)
        files = estimate_of(dataclasses.replace(given, buffer=dataclasses.replace(given.buffer, memmap=True)), spec)
        assert "replay memory" not in files.memory
        assert files.disk["replay memory"] == whole.disk["replay memory"] + rows * row
    monkeypatch.setattr(
        resource_check.FreeResources, "at", staticmethod(lambda folder: dataclasses.replace(PLENTY, memory=GB // 4))
    )
    with pytest.raises(UserError, match=r"would need .* of memory \(replay memory "):
        check_resources(given, IMAGES, Path("nowhere"), begun=True)


def test_estimate_limits_replay_buffer_to_rows_of_run() -> None:
    given = compose(["exp=sac_pendulum", "algo.total_steps=1000", "env.num_envs=2"])[0]
    box = ActionSpec("Box", (1,), "float32", low=(-1.0,), high=(1.0,))
    spec = dataclasses.replace(SPEC, action=box)
    assert estimate_of(given, spec).memory["replay memory"] == (500 + 1) * 2 * row_bytes(spec)


def test_estimate_puts_buffer_on_device_into_gpu_memory() -> None:
    spec = dataclasses.replace(SPEC, action=ActionSpec("Box", (1,), "float32", low=(-1.0,), high=(1.0,)))
    given = compose(["exp=sac", "fabric.accelerator=cuda", "buffer.size=10000"])[0]
    there = dataclasses.replace(given, buffer=dataclasses.replace(given.buffer, on_device=True))
    host, device = estimate_of(given, spec), estimate_of(there, spec)
    assert device.device == host.device | {"replay memory": host.memory["replay memory"]}
    assert device.memory == {name: count for name, count in host.memory.items() if name != "replay memory"}


@pytest.mark.usefixtures("machine")
def test_check_resources_refuses_too_large_batch() -> None:
    box = ActionSpec("Box", (1,), "float32", low=(-1.0,), high=(1.0,))
    given = compose(["exp=sac"])[0]  # the config check requires a buffer of at least one batch
    given = dataclasses.replace(given, algo=dataclasses.replace(given.algo, per_rank_batch_size=100_000_000_000))
    spec = dataclasses.replace(SPEC, action=box)
    with pytest.raises(UserError, match=r"per_rank_batch_size=100000000000: .*batch.*largest"):
        check_resources(given, spec, Path("nowhere"))


@pytest.mark.parametrize(
    ("override", "largest", "what"),
    [
        ("algo.rollout_steps=1000000000000", (10_000_000, 500_000_000), "of memory (rollout 568 TB)"),
        ("algo.update_epochs=100000000000", (100_000, 50_000_000), "of memory (rollout "),
        ("num_threads=100000", (20_000, 30_000), "100,000 threads and processes"),
        ("env.num_envs=100000000", (100_000, 2_000_000), "of memory (rollout 1.8 TB, environments 614 GB)"),
        ("fabric.devices=64", (8, 8), "64 processes that are always busy, but this machine has only 2 cores"),
        ("algo.dense_units=1000000000", (10_000, 30_000), "of memory (optimizer 24 EB, parameters 8.0 EB)"),
        ("algo.dense_units=100000000000", (10_000, 30_000), "more than 999 EB of memory"),
        ("algo.critic.dense_units=1000000", (10_000, 60_000), "of memory (optimizer 12 TB, parameters 4.0 TB)"),
        ("algo.mlp_layers=100000000", (10, 1_000), "networks with too many layers"),
    ],
)
@pytest.mark.usefixtures("machine")
def test_check_resources_names_largest_value_that_fits(
    monkeypatch: pytest.MonkeyPatch, override: str, largest: tuple[int, int], what: str
) -> None:
    monkeypatch.setattr(counting, "MANY", 5_000)
    message = refusal(override)
    key = override.partition("=")[0]
    assert message.startswith(f"{override}: this run would need ") and what in message
    found = int(message.rpartition(f"the largest {key} that fits is ")[2])
    assert largest[0] <= found <= largest[1]
    check_resources(config(f"{key}={found}"), SPEC, Path("nowhere"))


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("env.frame_stack", 100_000, "frames"),
        ("env.frame_stack_dilation", 1_000_000, "frames"),
        ("env.screen_size", 10_000, "rollout"),
        ("env.actions_as_observation.num_stack", 10_000_000, "rollout"),
    ],
)
def test_check_resources_names_key_of_large_observation(
    key: str, value: int, part: str, machine: FreeResources
) -> None:
    stacked = ["env.frame_stack=2"] if key.endswith("dilation") else []
    given = config("env.id=Frames", f"{key}={value}", *stacked)
    env = given.env
    window = Window(env.frame_stack, env.frame_stack_dilation) if env.frame_stack > 1 else None
    obs = {"rgb": ArraySpec((env.screen_size, env.screen_size, 3), "uint8", kind="image", window=window)}
    if (past := env.actions_as_observation.num_stack) > 0:
        obs["action_stack"] = ArraySpec((2 * past,), "float32")
    with pytest.raises(
        UserError, match=rf"^{key}={value}: this run would need .*{part}.*; the largest {key} that fits"
    ):
        check_resources(given, EnvSpec("Frames", obs, DISCRETE), Path("nowhere"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            dataclasses.replace(SPEC, action=dataclasses.replace(DISCRETE, nvec=(10**9,))),
            "choices of the action: 1,000",
        ),
        (
            dataclasses.replace(SPEC, action=ActionSpec("MultiDiscrete", (2,), "int64", nvec=(3, 10**9), start=(0, 0))),
            "choices of sub-action 1: 1,000,000,000",
        ),
        (dataclasses.replace(SPEC, obs={"state": ArraySpec((), "int64", n=10**9)}), "observation 'state': 1,000"),
    ],
)
def test_check_resources_names_space_with_many_values(spec: EnvSpec, message: str, machine: FreeResources) -> None:
    with pytest.raises(UserError, match=rf"mostly because of the large spaces of env.id=CartPole-v1 \({message}"):
        check_resources(config(), spec, Path("nowhere"))


SIX = ActionSpec("Box", (6,), "float32", low=(-1.0,) * 6, high=(1.0,) * 6)
CHEETAH = EnvSpec("Cheetah", {"state": ArraySpec((17,), "float64")}, SIX)
PIXELS = ArraySpec((64, 64, 3), "uint8", kind="image", window=Window(4))  # a frame is kept once
WALKER = EnvSpec("Walker", {"rgb": PIXELS, "state": ArraySpec((17,), "float32")}, SIX)
VECTOR_ROW, IMAGE_ROW = 17 * 8 + 6 * 4 + 7, 64 * 64 * 3 + 17 * 4 + 6 * 4 + 7
LONG = "algo.total_steps=100000000"
SEEN = "algo.cnn_keys.encoder=[rgb]"


@pytest.mark.parametrize(
    ("overrides", "spec", "memory", "disk", "bound"),
    [
        # The bound: free memory without that of the processes, divided by the bytes of a row.
        (["buffer.size=50000000"], CHEETAH, 2 * GB, 100 * GB, (2 * GB - needs.PROCESS) / VECTOR_ROW),
        (["buffer.size=null", SEEN], WALKER, 4 * GB, 100 * GB, (4 * GB - needs.PROCESS) / IMAGE_ROW),
        (
            ["buffer.size=50000000", "fabric.devices=2"],
            CHEETAH,
            2 * GB,
            100 * GB,
            (2 * GB - 2 * needs.PROCESS) / VECTOR_ROW,
        ),
        (["buffer.size=50000000", "algo.n_step=5"], CHEETAH, 2 * GB, 100 * GB, (2 * GB - needs.PROCESS) / VECTOR_ROW),
        # On disk: the file of rows, the chunks of the newest checkpoint, and seven times (five kept ones, the
        # best, the one that is written) what is new in an interval, here the whole memory.
        (["buffer.size=5000000", "buffer.memmap=true", SEEN], WALKER, 4 * GB, 40 * GB, 40 * GB / IMAGE_ROW / 9),
        # 20 kept checkpoints, the best and the one being written have one buffer each.
        (["buffer.size=1000000", "checkpoint.keep_last=20", SEEN], WALKER, 90 * GB, 40 * GB, 40 * GB / IMAGE_ROW / 23),
    ],
    ids=["vectors", "images", "two ranks", "n steps", "files", "checkpoints"],
)
def test_check_resources_names_largest_buffer_size(
    overrides: list[str], spec: EnvSpec, memory: int, disk: int, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = FreeResources(memory=memory, disk=disk, threads=30_000, cores=2)
    monkeypatch.setattr(resource_check.FreeResources, "at", staticmethod(lambda folder: here))
    given = ["exp=sac", LONG, *overrides]
    with pytest.raises(
        UserError, match=r"^buffer.size=\w+: this run would need .*the largest buffer.size that fits"
    ) as message:
        check_resources(compose(given)[0], spec, Path("nowhere"))
    found = int(str(message.value).rpartition(" ")[2])
    assert 0.85 * bound < found < bound

    def sized(size: int) -> RunConfig:
        return compose([f"buffer.size={size}" if "buffer.size" in key else key for key in given])[0]

    check_resources(sized(found), spec, Path("nowhere"))
    with pytest.raises(UserError, match=r"^buffer.size="):
        check_resources(sized(found * 6 // 5), spec, Path("nowhere"))


def test_check_resources_names_no_size_below_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    given = compose(["exp=sac", LONG, SEEN])[0]
    whole = sum(estimate_of(dataclasses.replace(given, buffer=BufferConfig(size=200)), WALKER).memory.values())
    monkeypatch.setattr(
        resource_check.FreeResources, "at", staticmethod(lambda folder: dataclasses.replace(PLENTY, memory=whole))
    )
    with pytest.raises(UserError, match=r"^this run would need .*; free some of it, or reduce several config values$"):
        check_resources(given, WALKER, Path("nowhere"))  # 200 rows would fit, and a batch has 256


def test_estimate_of_buffer_with_dataset_is_whole() -> None:
    given = compose(["exp=sac", "algo.total_steps=1000"])[0]
    short, filled = (
        estimate_of(dataclasses.replace(given, buffer=BufferConfig(size=500_000, load_from=source)), CHEETAH)
        for source in (None, "minari:x-v0")
    )
    assert short.memory["replay memory"] < 2_000 * VECTOR_ROW
    assert 500_000 * VECTOR_ROW <= filled.memory["replay memory"] < 560_000 * VECTOR_ROW  # and a chunk


def test_check_resources_refuses_too_small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        resource_check.FreeResources, "at", staticmethod(lambda folder: dataclasses.replace(PLENTY, disk=10**7))
    )
    given = config("checkpoint.keep_last=null", "checkpoint.every=64")
    with pytest.raises(UserError, match=r"checkpoint.keep_last=null: .* of disk .*keep_last that fits is \d\d$"):
        check_resources(given, SPEC, Path("nowhere"), begun=True)


def test_check_resources_subtracts_existing_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        resource_check.FreeResources, "at", staticmethod(lambda folder: FreeResources(10**7, 10**5, 3000, 1))
    )
    with pytest.raises(UserError, match="of disk"):
        check_resources(config(), SPEC, tmp_path, begun=True)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "kept").write_bytes(bytes(10**6))
    check_resources(config(), SPEC, tmp_path, begun=True)


@pytest.mark.usefixtures("machine")
def test_count_of_unsupported_algorithm_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(context: Context) -> Any:
        assert torch.ones(1, device="cpu").item() == 1

    monkeypatch.setitem(ALGORITHMS, "ppo", replace_build(build))
    assert count(config(), SPEC) is None
    check_resources(config("algo.dense_units=1000000000"), SPEC, Path("nowhere"), begun=True)


@pytest.mark.parametrize("many", range(10, 16))
def test_aborted_count_restores_torch_state(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any point: the switches of torch are calls of torch, too."""

    def build(context: Context) -> Any:
        while True:
            with torch.no_grad():
                torch.ones(1)

    monkeypatch.setattr(counting, "MANY", many)
    monkeypatch.setitem(ALGORITHMS, "ppo", replace_build(build))
    counted = count(config(), SPEC)
    assert counted is not None and not counted.countable
    learns = torch.is_grad_enabled()
    torch.set_grad_enabled(True)  # for the tests after this one
    assert learns


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (36_620, "37 kB"), (2 * 10**13, "20 TB")]
)
def test_size_is_spelled_with_units(count: int, text: str) -> None:
    assert size(count) == text


def test_estimate_includes_extras_in_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(context: Context) -> Any:
        extras = {"latent": ArraySpec((32,), "float32"), "logprob": ArraySpec((), "float32")}
        replay = Replay(context, Transitions(), size=1_000, batch_size=4, extras=extras, carry=(torch.zeros(1, 8),))
        return Remembering(context), replay, TrainingSchedule(context.config.algo.step_limit, 1)

    monkeypatch.setitem(ALGORITHMS, "ppo", replace_build(build))
    counted = count(config("env.num_envs=2", "algo.total_steps=100000"), IMAGES)
    assert counted is not None and counted.row == row_bytes(IMAGES) + (32 + 1 + 8) * 4


@pytest.mark.parametrize("slot", [52, 92, 12_288, 100_000])
@pytest.mark.parametrize("size", [1, 50, 10_000, 100_000, 1_000_000, 10_000_000])
def test_chunk_rows_are_bounded_in_bytes(size: int, slot: int) -> None:
    chunk = chunk_rows(size, slot) * slot
    assert chunk <= max(slot, 32 << 20) and chunk <= max(slot, size * slot // 8)
    assert size * slot < 64 << 20 or chunk > (8 << 20) - slot


@pytest.mark.usefixtures("machine")
def test_check_resources_logs_one_line_and_details(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    given = compose(["exp=dreamer_v3_cartpole", "env.num_envs=2", "algo.total_steps=1001"])[0]
    check_resources(given, SPEC, Path("nowhere"), begun=True)
    # 1,000 policy steps; random rows are not counted: 0.25 · (1,000 - 498)
    shown = [record.getMessage() for record in caplog.records if not hasattr(record, "detail")]
    assert len(shown) == 1
    assert shown[0].startswith("trains 1,000 policy steps with 125 gradient steps on the CPU; needs about ")
    assert (
        "125 gradient steps of 256 rows: replay ratio 0.25 (gradient steps per policy step), train ratio 64 (rows)"
        in caplog.messages
    )
    assert any(line.startswith("memory: processes ") for line in caplog.messages)
    caplog.clear()
    check_resources(config("fabric.devices=2", "env.num_envs=2"), SPEC, Path("nowhere"), begun=True)
    assert "gradient steps" not in caplog.text  # not for on-policy algorithms
    assert " policy steps on the CPU (2 ranks); needs about " in caplog.text


@pytest.mark.usefixtures("machine")
def test_check_resources_logs_no_budget_without_total_steps(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    stop = "stop=[{upper_bound:{metric:updates,value:10}}]"
    check_resources(compose(["exp=sac", "algo.total_steps=null", stop])[0], CONTINUOUS, Path("nowhere"), begun=True)
    assert any(line.startswith("trains on the CPU until a stop condition holds; needs") for line in caplog.messages)
    assert any(line.startswith("gradient steps of 256 rows: replay ratio 1 (grad") for line in caplog.messages)
    assert "9,007," not in caplog.text
