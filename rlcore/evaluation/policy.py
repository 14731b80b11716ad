"""Loading of policies and world models from runs, checkpoints and exported folders; their export; checks of shapes."""

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
from rlcore.evaluation.loaded_policy import LoadedPolicy
from rlcore.evaluation.loaded_world import LoadedWorldModel
from rlcore.spec import EnvSpec
from rlcore.store import checkpoint
from rlcore.store.checkpoint import nested_state
from rlcore.store.checkpoint.files import read_json
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.run_files import describe_other_format

if TYPE_CHECKING:
    from rlcore.config.groups import RunConfig

FORMAT = 2  # of policy.json and part.json; Shepherd 0.1.0 wrote 1
AGENT, BESIDE, PART = (
    (f"{name}.json", f"{name}.safetensors") for name in ("agent", "beside", "weights")
)  # pairs of files: the structure of a state, and its tensors


def describe(run: RunDirectory, path: Path) -> dict[str, Any]:
    """Return the description of the policy in a run's checkpoint, which `LoadedPolicy` needs besides the weights."""
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
    """Content of a checkpoint or an exported folder: a description for `LoadedPolicy`, and components by name.

    `place` and `files` are texts for error messages.
    """

    description: dict[str, Any]
    parts: dict[str, Any]
    place: str
    files: str = "its files"


def load_policy(path: str | Path, seed: int = 0) -> LoadedPolicy:
    """Load a policy.

    Args:
        path: a run (its best checkpoint, or the latest if there is no best), a checkpoint, a folder of checkpoints, or
            an exported policy.
        seed: seed of the noise for sampled actions.

    Returns:
        A `LoadedPolicy` on the CPU in float32.

    Raises:
        UserError: If there is no policy at `path`, or if it is damaged.
    """
    source = read_source(path)
    if "part" in source.description:
        raise UserError(
            f"{path}: contains only {source.description['part']} of a learner, not a policy; load it with "
            "flows.load_part"
        )
    with _tell_errors_in(source.place, source.files):
        return LoadedPolicy(source.description, source.parts["agent"], seed)


def load_world_model(path: str | Path, seed: int = 0) -> LoadedWorldModel:
    """Load a world model.

    Args:
        path: a run, a checkpoint or an exported policy (see `load_policy`), or a registered world model.
        seed: seed of the noise for latent states and for sampled actions.

    Returns:
        A `LoadedWorldModel` on the CPU in float32.

    Raises:
        UserError: If there is no model at `path`, if it is damaged, or if its algorithm has no world model.
    """
    source = read_source(path)
    with _tell_errors_in(source.place, source.files):
        return LoadedWorldModel(source.description, source.parts, seed)


def read_source(path: str | Path) -> Source:
    """Load the components of a learner, including the agent, from a path as in `load_policy`."""
    path = Path(path)
    if (path / "policy.json").exists():
        return _read_exported(path)
    if (path / "part.json").exists():
        return _read_part(path)
    path = _checkpoint_at(path)
    learning, bookkeeping = checkpoint.load(path)
    if "policy" not in bookkeeping:  # the checkpoint of a run, which has the description
        run = RunDirectory.of_checkpoint(path.resolve())
        return Source(describe(run, path), learning["learner"], f"checkpoint {path}")
    moment = {key: checkpoint.manifest(path)[key] for key in ("policy_steps", "digest")}
    with _tell_errors_in(f"checkpoint {path}", "its files"):
        return Source(bookkeeping["policy"] | moment, learning["learner"], f"checkpoint {path}")


def _checkpoint_at(path: Path) -> Path:
    """Return the checkpoint at a path.

    The path can be a checkpoint, a run (its best checkpoint is returned), or a folder of checkpoints (the newest one is
    returned).
    """
    if (path / "manifest.json").exists():
        return path
    if (run := RunDirectory(path)).config.exists():
        return checkpoint.choose(run)
    newest = checkpoint.newest_good(path)
    if newest is None:
        raise UserError(
            f"{path}: contains no policy; use the path of a run, of a checkpoint, of a folder written by "
            "Training.save, or of an exported policy"
        )
    return newest


@contextmanager
def _tell_errors_in(source: str, files: str) -> Iterator[None]:
    """Return a context manager that converts errors caused by invalid files to a `UserError`.

    The files are not trusted, so any error is possible. `source` and `files` are used in the message.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{source}: {Path(error.filename).name} cannot be read ({error.strerror})") from None
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError) as error:
        raise UserError(f"{source}: {files} describe no policy ({type(error).__name__}); damaged files?") from error


def _read_exported(path: Path) -> Source:
    """Load the components in an exported folder, which is not trusted."""
    files = f"policy.json and {AGENT[0]}"
    with _tell_errors_in(str(path), files):
        description = _description(path, "policy.json")
        beside = _read(path, BESIDE) if (path / BESIDE[0]).exists() else {}
        return Source(description, {**beside, "agent": _read(path, AGENT)}, str(path), files)


def _read_part(path: Path) -> Source:
    """Load a single exported component of a learner, which is not trusted."""
    files = f"part.json and {PART[0]}"
    with _tell_errors_in(str(path), files):
        description = _description(path, "part.json")
        return Source(description, {str(description["part"]): _read(path, PART)}, str(path), files)


def _description(path: Path, name: str) -> dict[str, Any]:
    description = read_json((path / name).read_bytes(), name)
    if not isinstance(description, dict) or not isinstance(description.get("format"), int):
        raise UserError(f"{name} has no format number, so it does not describe a policy")
    if description["format"] != FORMAT:
        raise UserError(f"{name} {describe_other_format(description['format'], FORMAT)}")
    return description


def _read(path: Path, names: tuple[str, str]) -> Any:
    shape, tensors = ((path / name).read_bytes() for name in names)
    return nested_state.decode(shape, tensors, names)


def _write(path: Path, names: tuple[str, str], state: Any) -> None:
    for name, data in zip(names, nested_state.encode(state), strict=True):
        (path / name).write_bytes(data)


def refuse_other_shapes(policy: LoadedPolicy, config: RunConfig, spec: EnvSpec) -> None:
    """Raise a UserError if the weights of `init_from` do not have the shapes of this run's agent."""
    agent = ALGORITHMS[config.algo.name].Agent(config.algo, spec, config.distribution.type, torch.Generator())
    if wrong := describe_mismatch(policy.agent.state_dict(), agent.state_dict()):
        raise UserError(
            f"init_from={config.init_from}: {wrong}; use the algo and env keys with which these weights were trained"
        )


def describe_mismatch(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str | None:
    """Return a message about the first parameter with another shape than in this run, or None if all match.

    `theirs` is the state that is loaded, `ours` is a state of this run.
    """
    for name, found, wanted in differing_shapes(theirs, ours):
        return f"its {name} is {found}, but in this run it is {wanted}"
    return None


def differing_shapes(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the entries that have different shapes in two states: name, shape in `theirs`, shape in `ours`."""
    for name in sorted({*theirs, *ours}):
        found, wanted = (_shape_of(state.get(name)) for state in (theirs, ours))
        if wanted != found:
            yield name, found, wanted


def describe_agent(config: RunConfig, spec: EnvSpec) -> dict[str, Any]:
    """Return the description of a policy (see `describe`) that was trained without a run directory."""
    kept = {"algo": plain(config.algo), "distribution": config.distribution.type, "plugins": [*config.plugins]}
    return {"format": FORMAT, **kept, "spec": spec.to_json()}


def _shape_of(value: Any) -> str:
    if value is None:
        return "absent"
    return f"of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else "statistics"


def export_policy(run: RunDirectory, path: Path, destination: Path) -> Path:
    """Export the policy of a run's checkpoint to a self-contained folder with policy.json and weights.

    The folder also contains the components from which another run can start, such as critics.
    """
    learning, bookkeeping = checkpoint.load(path)
    description = describe(run, path)
    needed = plugins.bringing(ALGORITHMS[description["algo"]["name"]].build.__module__)  # not that of the environment
    destination.mkdir(parents=True, exist_ok=True)
    parts = learning["learner"]
    _write(destination, AGENT, parts["agent"])
    if beside := [name for name in bookkeeping.get("transferable_components", ()) if name != "agent"]:
        _write(destination, BESIDE, {name: parts[name] for name in beside})
    write_json(destination / "policy.json", description | {"plugins": needed})
    return destination


def export_part(run: RunDirectory, path: Path, part: str, destination: Path) -> Path:
    """Export one of the algorithm's `exported_components` from a run's checkpoint to a folder.

    The file part.json describes the agent to which the component belongs, like policy.json. The weights are in separate
    files.
    """
    description = describe(run, path)
    algorithm = ALGORITHMS[description["algo"]["name"]]
    learner: Mapping[str, Any] = checkpoint.load(path)[0]["learner"]
    whole, _, inside = algorithm.Config.exported_components[part].partition(".")
    state = learner[whole]
    if inside:
        state = {name.removeprefix(f"{inside}."): x for name, x in state.items() if name.startswith(f"{inside}.")}
    destination.mkdir(parents=True, exist_ok=True)
    _write(destination, PART, state)
    needed = plugins.bringing(algorithm.build.__module__)
    write_json(destination / "part.json", description | {"part": part, "plugins": needed})
    return destination


def load_part(path: str | Path) -> dict[str, Any]:
    """Load the state of a single exported component of a learner.

    Args:
        path: a folder written by `export_part`.

    Returns:
        State of the component, name -> tensor; it is an argument for `load_state_dict`.

    Raises:
        UserError: If there is no exported component at `path`, or if it is damaged.
    """
    if not (Path(path) / "part.json").exists():
        raise UserError(
            f"{path}: contains no single exported component (no part.json); load policies and world models with "
            "load_policy and load_world_model"
        )
    source = _read_part(Path(path))
    return source.parts[source.description["part"]]
