"""Loading of policies, world models and other components of a learner, and writing of policy folders.

They are loaded from run directories, checkpoints, policy folders, or folders of a single component.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from rlcore import plugins
from rlcore.algorithms import ALGORITHMS
from rlcore.config.values import plain
from rlcore.errors import UserError
from rlcore.evaluation.loaded_policy import LoadedPolicy, plugins_of_classes
from rlcore.evaluation.loaded_world import LoadedWorldModel
from rlcore.spec import EnvSpec
from rlcore.store import checkpoint
from rlcore.store.checkpoint import nested_state
from rlcore.store.checkpoint.files import read_json
from rlcore.store.directory import RunDirectory, write_json
from rlcore.store.run_files import describe_other_format

if TYPE_CHECKING:
    from rlcore.config.run import RunConfig

FORMAT = 2  # of policy.json and part.json; Shepherd 0.1.0 wrote 1
AGENT, BESIDE, PART = (
    (f"{name}.json", f"{name}.safetensors") for name in ("agent", "beside", "weights")
)  # pairs of files: the structure of a state, and its tensors


def describe(run: RunDirectory, path: Path) -> dict[str, Any]:
    """Return the description of the policy in a run's checkpoint: everything that `LoadedPolicy` needs except weights.

    It has the config of the algorithm, the spec of the environment, and the digest of the checkpoint.
    """
    config, manifest = run.read_config(), checkpoint.manifest(path)
    if not isinstance(config.get("distribution"), dict) or "type" not in config["distribution"]:
        raise UserError(f"{run.config}: damaged, distribution.type is missing; restore it from a copy")
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
    """Content of a checkpoint, a policy folder, or the folder of a single component.

    Attributes:
        description: description of the policy, see `LoadedPolicy`.
        parts: name of a component of the learner -> its state_dict.
        place: path of the checkpoint or folder, for error messages.
        files: names of the files with the description, for error messages.
        env: group `env` of the run's config, as nested dicts; None if the source is not the checkpoint of a run.
    """

    description: dict[str, Any]
    parts: dict[str, Any]
    place: str
    files: str = "its files"
    env: Mapping[str, Any] | None = None


def load_policy(path: str | Path, seed: int = 0) -> LoadedPolicy:
    """Load a policy.

    Args:
        path: directory of a run (the best checkpoint is used, or the newest if there is no best one), of a checkpoint,
            of several checkpoints (the newest is used), or a policy folder.
        seed: seed of the noise for sampled actions.

    Returns:
        A `LoadedPolicy` on the CPU in float32.

    Raises:
        UserError: If there is no policy at `path`, or if it is damaged.
    """
    return policy_of(read_source(path), seed)


def policy_of(source: Source, seed: int = 0) -> LoadedPolicy:
    """Return the policy in a source; `seed` and the errors are those of `load_policy`."""
    if "part" in source.description:
        raise UserError(
            f"{source.place}: contains only the component {source.description['part']} of a learner, not a policy; "
            "load it with flows.load_part"
        )
    with _explain_errors(source.place, source.files):
        return LoadedPolicy(source.description, source.parts["agent"], seed)


def load_world_model(path: str | Path, seed: int = 0) -> LoadedWorldModel:
    """Load a world model.

    Args:
        path: a run, a checkpoint or a policy folder (see `load_policy`), or a registered world model.
        seed: seed of the noise for latent states and for sampled actions.

    Returns:
        A `LoadedWorldModel` on the CPU in float32.

    Raises:
        UserError: If there is no model at `path`, if it is damaged, or if its algorithm has no world model.
    """
    source = read_source(path)
    with _explain_errors(source.place, source.files):
        return LoadedWorldModel(source.description, source.parts, seed)


def read_source(path: str | Path) -> Source:
    """Load the components of a learner, including the agent, from a run, a checkpoint or a policy folder.

    The folder of a single component (see `export_part`) is also valid.
    """
    path = Path(path)
    if (path / "policy.json").exists():
        return _read_policy_folder(path)
    if (path / "part.json").exists():
        return _read_part(path)
    found = checkpoint.locate(path, checkpoint.choose)
    if found is None:
        raise UserError(
            f"{path}: contains no policy; use the path of a run, of a checkpoint, of a folder written by "
            "Trainer.save, or of a policy folder"
        )
    path = found
    learning, bookkeeping = checkpoint.load(path)
    if "policy" not in bookkeeping:  # the checkpoint of a run, which has the description
        run = RunDirectory.of_checkpoint(path.resolve())
        return Source(describe(run, path), learning["learner"], f"checkpoint {path}", env=run.read_config().get("env"))
    moment = {key: checkpoint.manifest(path)[key] for key in ("policy_steps", "digest")}
    with _explain_errors(f"checkpoint {path}", "its files"):
        return Source(bookkeeping["policy"] | moment, learning["learner"], f"checkpoint {path}")


@contextmanager
def _explain_errors(source: str, files: str) -> Iterator[None]:
    """Return a context manager that converts errors caused by invalid files to a `UserError`.

    The files may be damaged or manipulated, so that reading them can raise almost any error. The message has `source`,
    the path, and `files`, the names of the files.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"{source}: {Path(error.filename).name} cannot be read ({error.strerror})") from None
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, MemoryError) as error:
        raise UserError(
            f"{source}: {files} do not describe a policy ({type(error).__name__}); the files may be damaged"
        ) from error


def _read_policy_folder(path: Path) -> Source:
    """Load the components in a policy folder; raise UserError if its files are invalid."""
    files = f"policy.json and {AGENT[0]}"
    with _explain_errors(str(path), files):
        description = _description(path, "policy.json")
        beside = _read(path, BESIDE) if (path / BESIDE[0]).exists() else {}
        return Source(description, {**beside, "agent": _read(path, AGENT)}, str(path), files)


def _read_part(path: Path) -> Source:
    """Load the component in a folder that `export_part` wrote; raise UserError if its files are invalid."""
    files = f"part.json and {PART[0]}"
    with _explain_errors(str(path), files):
        description = _description(path, "part.json")
        return Source(description, {str(description["part"]): _read(path, PART)}, str(path), files)


def _description(path: Path, name: str) -> dict[str, Any]:
    description = read_json((path / name).read_bytes(), name)
    if not isinstance(description, dict) or not isinstance(description.get("format"), int):
        raise UserError(f"{name}: this file has no key format with an integer, so it is not a description of a policy")
    if description["format"] != FORMAT:
        raise UserError(f"{name}: this file {describe_other_format(description['format'], FORMAT)}")
    return description


def _read(path: Path, names: tuple[str, str]) -> Any:
    shape, tensors = ((path / name).read_bytes() for name in names)
    return nested_state.decode(shape, tensors, names)


def _write(path: Path, names: tuple[str, str], state: Any) -> None:
    for name, data in zip(names, nested_state.encode(state), strict=True):
        (path / name).write_bytes(data)


def refuse_other_shapes(policy: LoadedPolicy, config: RunConfig, spec: EnvSpec) -> None:
    """Raise a UserError if the weights of `policy`, loaded from `init_from`, do not fit the agent of this run.

    The agent's shapes depend on its config and on the spec of the environment.
    """
    agent = check_agent(config, spec)
    if wrong := describe_mismatch(policy.agent.state_dict(), agent.state_dict()):
        raise UserError(
            f"init_from={config.init_from}: {wrong}; use the algo and env keys with which these weights were trained"
        )


def check_agent(config: RunConfig, spec: EnvSpec) -> nn.Module:
    """Build the agent of a run on the CPU, with random weights; raise UserError if a class of the user is wrong."""
    with torch.random.fork_rng(devices=[]):  # layers without an explicit initialization use torch's global generator
        return ALGORITHMS[config.algo.name].Agent(config.algo, spec, config.distribution.type, torch.Generator())


def describe_mismatch(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str | None:
    """Return an error message about the first parameter that has different shapes in two states; None if all match.

    `theirs` is the state to be loaded, and `ours` is a state of the current run.
    """
    for name, found, wanted in differing_shapes(theirs, ours):
        return f"its {name} is {found}, but in this run it is {wanted}"
    return None


def differing_shapes(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, shape in `theirs`, shape in `ours`) for each entry that has different shapes in two states.

    The shapes are texts; "absent" if a state does not have the entry.
    """
    for name in sorted({*theirs, *ours}):
        found, wanted = (_shape_of(state.get(name)) for state in (theirs, ours))
        if wanted != found:
            yield name, found, wanted


def describe_agent(config: RunConfig, spec: EnvSpec) -> dict[str, Any]:
    """Return the description of a policy, see `describe`, for training without a run directory."""
    kept = {"algo": plain(config.algo), "distribution": config.distribution.type, "plugins": [*config.plugins]}
    return {"format": FORMAT, **kept, "spec": spec.to_json()}


def _shape_of(value: Any) -> str:
    if value is None:
        return "absent"
    return f"of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else "statistics"


def write_policy_folder(run: RunDirectory, path: Path, destination: Path) -> Path:
    """Write the policy of a run's checkpoint to a policy folder, from which it can be loaded without the run.

    The folder contains a description of the policy (policy.json), its weights, and other components from which a new
    run can start, such as critics.
    """
    learning, bookkeeping = checkpoint.load(path)
    description = describe(run, path)
    needed = _plugins_of_policy(description)
    destination.mkdir(parents=True, exist_ok=True)
    parts = learning["learner"]
    _write(destination, AGENT, parts["agent"])
    if beside := [name for name in bookkeeping.get("transferable_components", ()) if name != "agent"]:
        _write(destination, BESIDE, {name: parts[name] for name in beside})
    write_json(destination / "policy.json", description | {"plugins": needed})
    return destination


def _plugins_of_policy(description: Mapping[str, Any]) -> list[str]:
    """Return the plugins with the algorithm, the network and the action distribution, without the environment's."""
    of_algorithm = plugins.bringing(ALGORITHMS[description["algo"]["name"]].build.__module__)
    return [*dict.fromkeys([*of_algorithm, *plugins_of_classes(description)])]


def export_part(run: RunDirectory, path: Path, part: str, destination: Path) -> Path:
    """Export a single component of a learner, such as a world model, from a run's checkpoint to a folder.

    `part` is the name of the component in `exported_components` of the algorithm's config. The folder contains the
    weights of the component and a description of the policy (part.json).
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
    write_json(destination / "part.json", description | {"part": part, "plugins": _plugins_of_policy(description)})
    return destination


def load_part(path: str | Path) -> dict[str, Any]:
    """Load the state of a single component of a learner, such as a world model, that `export_part` exported.

    Args:
        path: a folder written by `export_part`.

    Returns:
        State of the component, name -> tensor; it is an argument for `load_state_dict`.

    Raises:
        UserError: If there is no exported component at `path`, or if it is damaged.
    """
    if not (Path(path) / "part.json").exists():
        raise UserError(
            f"{path}: has no part.json, so it is not a single exported component; load policies and world models with "
            "load_policy and load_world_model"
        )
    source = _read_part(Path(path))
    return source.parts[source.description["part"]]
