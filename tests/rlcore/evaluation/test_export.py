"""Exported files compute what the policy computes; all other policies are refused."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.algorithms import ALGORITHMS
from rlcore.config.build import build
from rlcore.config.values import plain
from rlcore.errors import RunError, UserError
from rlcore.evaluation import export
from rlcore.evaluation.export import METADATA, export_files, trace
from rlcore.evaluation.export_check import Arrays, compare, random_observations
from rlcore.evaluation.greedy_policy import GreedyPolicy, example
from rlcore.evaluation.loaded_policy import LoadedPolicy
from rlcore.evaluation.policy import load_policy
from rlcore.spec import ActionSpec, ArraySpec, Binding, EnvSpec, Window
from tests.contract.test_registry import CONTINUOUS_ONLY, SETTINGS
from tests.learning.assembly import assemble
from tests.runs import SMALL_DREAMER
from tests.soaking import heavy

pytest.importorskip("onnxruntime")
DISCRETE = ActionSpec("Discrete", (), "int64", (3,), (0,))
BOX = ActionSpec("Box", (2,), "float32", low=(-1.0, -2.0), high=(1.0, 3.0))
VECTOR = ArraySpec((4,), "float32")
IMAGE = ArraySpec((64, 64, 3), "uint8", kind="image")
ON_IMAGES = {"cnn_keys": {"encoder": ["rgb"]}, "mlp_keys": {"encoder": ["state"]}}
# One feed-forward, one off-policy and one recurrent policy are exported by every `make test`.
ALWAYS = {("ppo", "discrete"), ("sac", "continuous"), ("ppo_recurrent", "continuous")}


def make_policy(
    algo: str, obs: dict[str, ArraySpec], action: ActionSpec, distribution: str = "auto", **changes: Any
) -> LoadedPolicy:
    """Return a policy with random weights; if it normalizes observations, its statistics are not the initial ones."""
    spec, module = EnvSpec("Some-v0", obs, action), ALGORITHMS[algo]
    config: Any = build(module.Config, SETTINGS[algo] | changes, "algo.")
    agent: Any = module.Agent(config, spec, distribution, torch.Generator().manual_seed(0))
    for layer in agent.modules():
        if type(layer).__name__ == "Normalizer":
            layer.update(torch.randn(50, layer.size, generator=torch.Generator().manual_seed(1)) * 3 + 1)
    description = {"algo": plain(config), "distribution": distribution, "spec": spec.to_json(), "policy_steps": 7}
    return LoadedPolicy(description, agent.state_dict())


def run_onnx(path: Path) -> Callable[[Arrays], Arrays]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    names = [node.name for node in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def run_torch(path: Path) -> Callable[[Arrays], Arrays]:
    module: Any = torch.export.load(path).module()
    return lambda inputs: {
        name: part.numpy() for name, part in module({k: torch.from_numpy(v) for k, v in inputs.items()}).items()
    }


def check_export(policy: LoadedPolicy, folder: Path) -> None:
    """Export a policy in both formats, and compare episodes: each file uses the carry that it returned itself."""
    onnx, pt2 = folder / "policy.onnx", folder / "policy.pt2"
    files = export_files(policy, onnx, pt2)
    assert [file.path for file in files] == [onnx, pt2] and sorted(folder.iterdir()) == [onnx, pt2]
    for run in (run_onnx(onnx), run_torch(pt2)):
        rng, wanted, found = np.random.default_rng(3), policy.initial_carry(5), policy.initial_carry(5)
        for step in range(4):
            given = random_observations(policy, 5, rng)
            if wanted:
                given["is_first"] = np.arange(5) == step if step else np.ones(5, bool)
            expected, outputs = policy.exchange(given | wanted), run(given | found)
            assert [*outputs] == [column.name for column in files[0].outputs]
            for name, value in expected.items():
                other = outputs[f"next_{name}" if name in wanted else name]
                assert other.dtype == value.dtype and other.shape == value.shape, name
                np.testing.assert_allclose(other, value, atol=1e-5, rtol=1e-5, err_msg=name)
            wanted, found = {k: expected[k] for k in wanted}, {k: outputs[f"next_{k}"] for k in found}


def case(algo: str, kind: str) -> Any:
    return pytest.param(algo, kind, id=f"{algo}-{kind}", marks=() if (algo, kind) in ALWAYS else heavy)


@pytest.mark.parametrize(
    ("algo", "kind"),
    [
        case(algo, kind)
        for algo in SETTINGS
        for kind in ("discrete", "continuous")
        if kind == "continuous" or algo not in CONTINUOUS_ONLY
    ],
)
def test_every_algorithm_can_be_exported(algo: str, kind: str, tmp_path: Path) -> None:
    check_export(make_policy(algo, {"state": VECTOR}, DISCRETE if kind == "discrete" else BOX), tmp_path)


@pytest.mark.parametrize(
    "algo",
    [pytest.param("ppo", marks=()), *(pytest.param(algo, marks=heavy) for algo in SETTINGS if algo != "ppo")],
)
def test_policies_on_images_can_be_exported(algo: str, tmp_path: Path) -> None:
    frames = {} if "dream" in algo or algo.startswith("p2e") else {"window": Window(2)}
    obs = {"rgb": dataclasses.replace(IMAGE, **frames), "state": VECTOR}
    keys = ON_IMAGES | ({"cnn_keys": {"encoder": ["rgb"], "decoder": ["rgb"]}} if algo == "sac_ae" else {})
    check_export(make_policy(algo, obs, BOX, **keys), tmp_path)


MASKED = {
    "obs": VECTOR,
    "mask_kind": ArraySpec((3,), "int8", kind="mask", binds=Binding(0)),
    "mask_tool": ArraySpec((4,), "int8", kind="mask", binds=Binding(1, 0, (1,))),
}
SPACES: dict[str, tuple[str, dict[str, ArraySpec], ActionSpec, dict[str, Any]]] = {
    "nested observations": (
        "ppo",
        {
            "arm.angle": ArraySpec((2,), "float64"),
            "arm.on": ArraySpec((3,), "int8"),
            "room": ArraySpec((), "int64", n=5, start=2),
        },
        DISCRETE,
        {"mlp_keys": {"encoder": ["arm.angle", "arm.on", "room"]}},
    ),
    "a mask": ("ppo", {"state": VECTOR, "mask": ArraySpec((3,), "int8", kind="mask")}, DISCRETE, {}),
    "conditional masks": (
        "ppo",
        MASKED,
        ActionSpec("MultiDiscrete", (2,), "int64", (3, 4), (0, 1)),
        {"mlp_keys": {"encoder": ["obs"]}},
    ),
    "masks of a Dreamer": (
        "dreamer_v3",
        {"state": VECTOR, "mask": ArraySpec((3,), "int8", kind="mask")},
        DISCRETE,
        {"actor": SMALL_DREAMER["actor"] | {"cls": "masked_actor"}},
    ),
    "composite actions": (
        "ppo_recurrent",
        {"state": VECTOR},
        ActionSpec("Composite", (4,), "float64", parts=(BOX, DISCRETE, DISCRETE), names=("a", "b", "c")),
        {},
    ),
    "closed actions": (
        "ppo",
        {"state": VECTOR},
        ActionSpec("Box", (3,), "float32", low=(-1.0, 0.5, -2.0), high=(1.0, 0.5, np.inf)),
        {},
    ),
    "tanh normal": ("a2c", {"state": VECTOR}, BOX, {"distribution": "tanh_normal"}),
    "rolling window": ("ppo", {"state": dataclasses.replace(VECTOR, window=Window(3, 2))}, DISCRETE, {}),
    "rolling window of int16": (
        "ppo",
        {"state": ArraySpec((4,), "int16")},
        DISCRETE,
        {"windows": {"state": {"frames": 3, "kind": "rolling"}}},
    ),
    "padded window of int16": (
        "ppo",
        {"state": ArraySpec((4,), "int16")},
        DISCRETE,
        {"windows": {"state": {"frames": 3, "kind": "padded"}}},
    ),
    "padded window": ("ppo", {"state": VECTOR}, DISCRETE, {"windows": {"state": {"frames": 3, "kind": "padded"}}}),
    "reset clock": (
        "ppo_recurrent",
        {"state": VECTOR},
        DISCRETE,
        {
            "sequences_per_state_reset": 2,
            "per_rank_sequence_length": 8,
            "rnn": {"cell": "gru", "lstm": {"hidden_size": 8}},
        },
    ),
}


@pytest.mark.parametrize("name", [n if n in ("a mask",) else pytest.param(n, marks=heavy) for n in SPACES])
def test_policies_of_other_spaces_can_be_exported(name: str, tmp_path: Path) -> None:
    algo, obs, action, changes = SPACES[name]
    check_export(make_policy(algo, obs, action, **changes), tmp_path)


@heavy
def test_policy_trained_in_batched_environments_can_be_exported(tmp_path: Path) -> None:
    env = {"num_envs": 3, "max_episode_steps": 12}
    training = assemble("batched/Pendulum-v1", SETTINGS["ppo"], **env).run(96)
    (tmp_path / "files").mkdir()
    check_export(load_policy(training.save(tmp_path / "checkpoints")), tmp_path / "files")


def test_files_contain_names_and_origin_of_policy(tmp_path: Path) -> None:
    import onnxruntime

    export_files(make_policy("ppo", {"state": VECTOR}, DISCRETE), tmp_path / "p.onnx", tmp_path / "p.pt2")
    session = onnxruntime.InferenceSession(tmp_path / "p.onnx")
    assert [(node.name, node.shape) for node in session.get_inputs()] == [("state", ["batch", 4])]
    assert [node.shape for node in session.get_outputs()] == [["batch"]] * 3
    extra = {METADATA: ""}
    torch.export.load(tmp_path / "p.pt2", extra_files=extra)
    for text in (session.get_modelmeta().custom_metadata_map[METADATA], extra[METADATA]):
        about = json.loads(text)
        assert (about["algorithm"], about["environment"], about["policy_steps"]) == ("ppo", "Some-v0", 7)
        assert about["inputs"] == [{"name": "state", "dtype": "float32", "shape": [4]}]
        assert [column["name"] for column in about["outputs"]] == ["action", "logprob", "value"]


def test_export_excludes_weights_that_actions_do_not_need() -> None:
    policy = make_policy("dreamer_v3", {"state": VECTOR}, DISCRETE)
    module, given = GreedyPolicy(policy), example(policy)
    sizes = {name: weight.numel() for name, weight in module.acting.named_parameters()}
    assert all(size == 1 for name, size in sizes.items() if name.startswith(("world.decoder", "world.reward")))
    assert all(
        size > 1 for name, size in sizes.items() if name.startswith(("actor", "world.encoder", "world.rssm.core"))
    )
    assert all(weight.numel() for weight in policy.agent.parameters())  # the policy itself is not changed
    assert (
        module(given)["action"].tolist() == policy.exchange({k: v.numpy() for k, v in given.items()})["action"].tolist()
    )


# --- the comparison ---------------------------------------------------------------------------------------------------


def own_outputs(policy: LoadedPolicy) -> tuple[GreedyPolicy, Callable[[Arrays], Arrays]]:
    module = GreedyPolicy(policy)
    return module, lambda given: {to: policy.exchange(given)[name] for name, to in module.renamed.items()}


@pytest.mark.parametrize(
    ("algo", "output", "change", "sentence"),
    [
        (
            "ppo",
            "value",
            lambda value: value + np.float32(3e-5),
            r"'value' differs by 3e-05 from that of the policy, but at most 1e-05",
        ),
        ("ppo", "action", lambda action: 2 - action, "'action' is another choice"),
        ("ppo", "action", lambda action: action.astype(np.int32), r"'action' is int32 \[1\] instead of int64 \[1\]"),
        ("ppo", "value", lambda value: value[:, None], r"'value' is float32 \[1, 1\] instead of float32 \[1\]"),
        ("ppo", "value", lambda value: value * np.float32(np.nan), "'value' differs by inf"),
        ("ppo_recurrent", "next_carry.agent.h", lambda h: h + np.float32(1e-4), "'carry.agent.h' differs by 0.0001"),
        ("dreamer_v3", "next_carry.stoch", lambda stoch: np.roll(stoch, 1, -1), "'carry.stoch' is another choice"),
        ("dreamer_v3", "next_carry.stoch", lambda stoch: stoch + np.float32(2e-5), "'carry.stoch' differs by 2e-05"),
    ],
)
def test_comparison_finds_wrong_output(algo: str, output: str, change: Callable[..., Any], sentence: str) -> None:
    policy = make_policy(algo, {"state": VECTOR}, DISCRETE)
    module, run = own_outputs(policy)
    assert compare(policy, module, run, "p.onnx").difference == 0
    with pytest.raises(RunError, match=rf"p.onnx: .*{sentence}.*the file was not written"):
        compare(policy, module, lambda given: (out := run(given)) | {output: change(out[output])}, "p.onnx")


def test_comparison_ignores_actions_that_rounding_decides() -> None:
    policy = make_policy("ppo", {"state": VECTOR}, ActionSpec("Discrete", (), "int64", (2,), (0,)))
    head = policy.agent.head.linear
    head.weight[1], head.bias[1] = head.weight[0], head.bias[0]  # both choices always have the same probability
    module, run = own_outputs(policy)

    def flip_last(given: Arrays) -> Arrays:
        outputs = run(given)
        outputs["action"] = np.concatenate([outputs["action"][:-1], 1 - outputs["action"][-1:]])
        return outputs

    agreement = compare(policy, module, flip_last, "p.onnx")
    assert agreement.undecided == 18 and agreement.rows == 6 * (1 + 2 + 32) - 18  # one row of each batch
    with pytest.raises(RunError, match="rounding errors decide 210 of 210 actions"):
        compare(policy, module, lambda given: (out := run(given)) | {"action": 1 - out["action"]}, "p.onnx")


def test_comparison_of_continuous_action_ignores_no_rows() -> None:
    policy = make_policy("ppo", {"state": VECTOR}, ActionSpec("Box", (1,), "float32", low=(-np.inf,), high=(np.inf,)))
    hidden = [layer for layer in policy.agent.actor.modules() if isinstance(layer, torch.nn.Linear)][-1]
    hidden.weight[0], hidden.bias[0] = 0, 20  # tanh(20) = 1
    head = policy.agent.head.linear
    head.weight[0, 0], head.bias[0] = -1000, 1000  # changes of these two by a millionth move the action by about 1e-3
    module, run = own_outputs(policy)
    assert compare(policy, module, run, "p.onnx").rows == 6 * (1 + 2 + 32)
    with pytest.raises(RunError, match="'action' differs by 5e-05"):
        compare(policy, module, lambda given: (out := run(given)) | {"action": out["action"] + np.float32(5e-5)}, "p")


def test_failed_comparison_keeps_older_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.pt2").write_text("older")
    write = export._write_torch

    def wrong(*arguments: Any) -> Any:
        run = write(*arguments)
        return lambda given: (out := run(given)) | {"value": out["value"] + np.float32(1)}

    monkeypatch.setattr(export, "_write_torch", wrong)
    with pytest.raises(RunError, match="the file was not written"):
        export_files(make_policy("ppo", {"state": VECTOR}, DISCRETE), None, tmp_path / "p.pt2")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("p.pt2", "older")]


# --- refusals ---------------------------------------------------------------------------------------------------------


class Plain(torch.nn.Module):
    """Agent whose policy is one layer; subclasses cannot be exported."""

    def __init__(self, config: Any, spec: Any, distribution: str, rng: torch.Generator) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def initial(self, batch_size: int) -> tuple[()]:
        return ()

    def act(self, carry: Any, obs: Any, is_first: Any, rng: Any, greedy: bool) -> Any:
        return (), self.choose(obs["state"], rng).argmax(-1, keepdim=True), {}

    def choose(self, x: Any, rng: Any) -> Any:
        return self.layer(x)

    def to_env(self, action: torch.Tensor) -> torch.Tensor:
        return action[:, 0]


class ReadsValues(Plain):
    def choose(self, x: Any, rng: Any) -> Any:
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


class FixesBatch(Plain):
    def choose(self, x: Any, rng: Any) -> Any:
        return self.layer(x) + torch.zeros(len(x), 3)


class Draws(Plain):
    def choose(self, x: Any, rng: Any) -> Any:
        return self.layer(x) + 1e-3 * rng.normal(x.shape[0], 3)


@pytest.mark.parametrize(
    ("agent", "sentence"),
    [
        (ReadsValues, "^export: ppo cannot be exported, because its code reads values of tensors"),
        (FixesBatch, "^export: ppo cannot be exported, because its code has a fixed batch size"),
        (Draws, "^export: ppo cannot be exported, because its greedy actions need random numbers"),
    ],
)
def test_untraceable_agent_is_refused(
    agent: type, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rlcore.algorithms.on_policy.ppo import learner as ppo

    monkeypatch.setitem(ALGORITHMS, "ppo", SimpleNamespace(Config=ppo.Config, Agent=agent))
    algo = plain(ppo.Config(total_steps=1))
    spec = EnvSpec("Some-v0", {"state": VECTOR}, DISCRETE)
    policy = LoadedPolicy(
        {"algo": algo, "distribution": "auto", "spec": spec.to_json()}, agent(*[None] * 4).state_dict()
    )
    with pytest.raises(UserError, match=sentence) as refusal:
        export_files(policy, tmp_path / "p.onnx", tmp_path / "p.pt2")
    assert "\n" not in str(refusal.value) and not [*tmp_path.iterdir()]


def test_traced_agent_of_plugin_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlcore.algorithms.on_policy.ppo import learner as ppo

    monkeypatch.setitem(ALGORITHMS, "ppo", SimpleNamespace(Config=ppo.Config, Agent=Plain))
    algo = plain(ppo.Config(total_steps=1))
    spec = EnvSpec("Some-v0", {"state": VECTOR}, DISCRETE)
    description = {"algo": algo, "distribution": "auto", "spec": spec.to_json()}
    module, _ = trace(LoadedPolicy(description, Plain(*[None] * 4).state_dict()))  # pyright: ignore
    assert [column.name for column in module.outputs] == ["action"]


def test_observation_key_of_another_input_is_refused() -> None:
    obs = {"is_first": VECTOR}
    policy = make_policy("ppo_recurrent", obs, DISCRETE, mlp_keys={"encoder": ["is_first"]})
    with pytest.raises(UserError, match="obs: key 'is_first' is also the name of another input"):
        GreedyPolicy(policy)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_package_names_install_command(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == package else found(name))
    with pytest.raises(UserError, match=rf"--onnx .*: {package} is not installed; run: pip install -e '.\[onnx\]'"):
        export.check_destinations(tmp_path / "p.onnx", None)
    export.check_destinations(None, tmp_path / "p.pt2")


@pytest.mark.parametrize(
    ("onnx", "torch_file", "sentence"),
    [
        (None, None, "add --onnx policy.onnx, --torch policy.pt2, or both"),
        ("p.pt2", None, "--onnx p.pt2: must be the name of a file that ends in .onnx"),
        (None, "p", "--torch p: must be the name of a file that ends in .pt2"),
        (None, "file/p.pt2", "--torch file/p.pt2: its folder cannot be written"),
    ],
)
def test_impossible_destination_is_refused(
    onnx: str | None, torch_file: str | None, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=sentence):
        export.check_destinations(onnx, torch_file)
