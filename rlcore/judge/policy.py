"""Loading of a policy (from a run, a checkpoint, an exported folder), its export, and what it fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from rlcore import plugins
from rlcore.algorithms import ALGORITHMS
from rlcore.config.values import plain
from rlcore.errors import UserError
from rlcore.judge.loaded_policy import LoadedPolicy
from rlcore.judge.loaded_world import LoadedWorldModel
from rlcore.spec import EnvSpec
from rlcore.store import checkpoint
from rlcore.store.checkpoint import nested_state
from rlcore.store.checkpoint.files import read_json
from rlcore.store.directory import RunDirectory, write_json

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig

FORMAT = 1
AGENT, BESIDE, PART = (
    (f"{name}.json", f"{name}.safetensors") for name in ("agent", "beside", "weights")
)  # the shape of a state, and its tensors


def describe(run: RunDirectory, path: Path) -> dict[str, Any]:
    """Description that `LoadedPolicy` needs beside the weights, for the checkpoint at `path` of a run."""
    config = run.read_config()
    manifest = checkpoint.manifest(path)
    return {
        "format": FORMAT,
        "algo": config["algo"],
        "distribution": config["distribution"]["type"],
        "plugins": config.get("plugins", []),
        "spec": run.read_card()["spec"],
        "policy_steps": manifest["policy_steps"],
        "digest": manifest["digest"],
    }


class Source(NamedTuple):
    """Findings in a checkpoint or an exported folder: description for `LoadedPolicy`, parts by name; for errors."""

    description: dict[str, Any]
    parts: dict[str, Any]
    place: str
    files: str = "its files"


def load_policy(path: str | Path, seed: int = 0) -> LoadedPolicy:
    """The policy of a run (its best checkpoint, else the latest), a checkpoint, a folder of them, or an exported one.

    Args:
        path: where it is.
        seed: of the noise of sampled actions.

    Returns:
        A `LoadedPolicy` on the CPU in float32.

    Raises:
        UserError: there is none there, or it is damaged.
    """
    source = read_source(path)
    if "part" in source.description:
        raise UserError(f"{path}: {source.description['part']} of a learner, not a policy; flows.load_part reads it")
    with _tell_errors_in(source.place, source.files):
        return LoadedPolicy(source.description, source.parts["agent"], seed)


def load_world_model(path: str | Path, seed: int = 0) -> LoadedWorldModel:
    """The world model of a run, a checkpoint or an exported policy, as `load_policy` finds it; or a registered one.

    Args:
        path: where it is.
        seed: of the latents.

    Returns:
        A `LoadedWorldModel` on the CPU in float32.

    Raises:
        UserError: there is none there, it is damaged, or its algorithm learns none.
    """
    source = read_source(path)
    with _tell_errors_in(source.place, source.files):
        return LoadedWorldModel(source.description, source.parts, seed)


def read_source(path: str | Path) -> Source:
    """Parts of a learner, the agent's among them, from where `load_policy` finds a policy; raises what it raises."""
    path = Path(path)
    if (path / "policy.json").exists():
        return _read_exported(path)
    if (path / "part.json").exists():
        return _read_part(path)
    path = _checkpoint_at(path)
    learning, bookkeeping = checkpoint.load(path)
    if "policy" not in bookkeeping:  # it lies in a run, which knows
        run = RunDirectory.of_checkpoint(path.resolve())
        return Source(describe(run, path), learning["learner"], f"checkpoint {path}")
    moment = {key: checkpoint.manifest(path)[key] for key in ("policy_steps", "digest")}
    with _tell_errors_in(f"checkpoint {path}", "its files"):
        return Source(bookkeeping["policy"] | moment, learning["learner"], f"checkpoint {path}")


def _checkpoint_at(path: Path) -> Path:
    """The checkpoint that a path stands for: itself, a run's, or the newest of a folder."""
    if (path / "manifest.json").exists():
        return path
    if (run := RunDirectory(path)).config.exists():
        return checkpoint.choose(run)
    newest = checkpoint.newest_good(path)
    if newest is None:
        raise UserError(
            f"{path}: no policy there; give a run, a checkpoint, what Training.save wrote or an exported policy"
        )
    return newest


@contextmanager
def _tell_errors_in(source: str, files: str) -> Iterator[None]:
    """Turn every way in which files, which may be anybody's, can describe no policy into a `UserError`."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{source}: {Path(error.filename).name} cannot be read ({error.strerror})") from None
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError) as error:
        raise UserError(f"{source}: {files} describe no policy ({type(error).__name__})") from error


def _read_exported(path: Path) -> Source:
    """The parts of an exported folder, which may be anybody's."""
    files = f"policy.json and {AGENT[0]}"
    with _tell_errors_in(str(path), files):
        description = _description(path, "policy.json")
        beside = (
            _read(path, BESIDE) if (path / BESIDE[0]).exists() else {}
        )  # of earlier versions only the agent is there
        return Source(description, {**beside, "agent": _read(path, AGENT)}, str(path), files)


def _read_part(path: Path) -> Source:
    """A part of a learner that was exported alone, which may be anybody's."""
    files = f"part.json and {PART[0]}"
    with _tell_errors_in(str(path), files):
        description = _description(path, "part.json")
        return Source(description, {str(description["part"]): _read(path, PART)}, str(path), files)


def _description(path: Path, name: str) -> dict[str, Any]:
    description = read_json((path / name).read_bytes(), name)
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise UserError(f"{name} is of another format than {FORMAT}, which this version reads")
    return description


def _read(path: Path, names: tuple[str, str]) -> Any:
    shape, tensors = ((path / name).read_bytes() for name in names)
    return nested_state.decode(shape, tensors, names)


def _write(path: Path, names: tuple[str, str], state: Any) -> None:
    for name, data in zip(names, nested_state.encode(state), strict=True):
        (path / name).write_bytes(data)


def refuse_other_shapes(policy: LoadedPolicy, config: RunConfig, spec: EnvSpec) -> None:
    """Hold the weights that a run is to start from against the agent that is to take them: a `UserError` names both."""
    agent = ALGORITHMS[config.algo.name].Agent(config.algo, spec, config.distribution.type, torch.Generator())
    if wrong := misfit(policy.agent.state_dict(), agent.state_dict()):
        raise UserError(f"init_from={config.init_from}: {wrong}; use its algo and env keys")


def misfit(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str | None:
    """The first entry in which a state cannot be taken for one of this run, in words; None where all fit."""
    for name, found, wanted in differing_shapes(theirs, ours):
        return f"its {name} is {found}, in this run {wanted}"
    return None


def differing_shapes(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The entries of two agents' states that are of different shapes: name, what is there, what is here."""
    for name in sorted({*theirs, *ours}):
        found, wanted = (_shape_of(state.get(name)) for state in (theirs, ours))
        if wanted != found:
            yield name, found, wanted


def describe_agent(config: RunConfig, spec: EnvSpec) -> dict[str, Any]:
    """Describe the policy of a training that has no run, as `describe` does that of a run's checkpoint."""
    kept = {"algo": plain(config.algo), "distribution": config.distribution.type, "plugins": [*config.plugins]}
    return {"format": FORMAT, **kept, "spec": spec.to_json()}


def _shape_of(value: Any) -> str:
    if value is None:
        return "absent"
    return f"of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else "statistics"


def export_policy(run: RunDirectory, path: Path, destination: Path) -> Path:
    """Write the policy of a run's checkpoint as a folder that needs nothing of the run: policy.json and its weights.

    Beside them lie the parts that another run may start from, critics say.
    """
    learning, bookkeeping = checkpoint.load(path)
    description = describe(run, path)
    needed = plugins.bringing(ALGORITHMS[description["algo"]["name"]].build.__module__)  # not that of the environment
    destination.mkdir(parents=True, exist_ok=True)
    parts = learning["learner"]
    _write(destination, AGENT, parts["agent"])
    if beside := [name for name in bookkeeping.get("passed_on", ()) if name != "agent"]:
        _write(destination, BESIDE, {name: parts[name] for name in beside})
    write_json(destination / "policy.json", description | {"plugins": needed})
    return destination


def export_part(run: RunDirectory, path: Path, part: str, destination: Path) -> Path:
    """Write a part of the learner in a run's checkpoint, one that its algorithm `registers`, as a folder of its own.

    part.json describes the agent that it belongs to, as policy.json does; its state lies beside.
    """
    description = describe(run, path)
    algorithm = ALGORITHMS[description["algo"]["name"]]
    learner: Mapping[str, Any] = checkpoint.load(path)[0]["learner"]
    whole, _, inside = algorithm.Config.registers[part].partition(".")
    state = learner[whole]
    if inside:
        state = {name.removeprefix(f"{inside}."): x for name, x in state.items() if name.startswith(f"{inside}.")}
    destination.mkdir(parents=True, exist_ok=True)
    _write(destination, PART, state)
    needed = plugins.bringing(algorithm.build.__module__)
    write_json(destination / "part.json", description | {"part": part, "plugins": needed})
    return destination


def load_part(path: str | Path) -> dict[str, Any]:
    """The state of a part of a learner that was exported alone: name -> tensor, as its `load_state_dict` takes it.

    Args:
        path: the folder that `export_part` wrote.

    Returns:
        The state.

    Raises:
        UserError: there is none there, or it is damaged.
    """
    if not (Path(path) / "part.json").exists():
        raise UserError(f"{path}: no part of a learner that lies alone; load_policy and load_world_model read the rest")
    source = _read_part(Path(path))
    return source.parts[source.description["part"]]
