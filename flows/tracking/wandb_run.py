"""Copy of a run in Weights & Biases (`logger=wandb`), with the curves, the config and the final status."""

from __future__ import annotations

import configparser
import netrc
import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flows.report.command_lines import short_path
from rlcore.config.values import at
from rlcore.errors import UserError
from rlcore.store.directory import RunDirectory
from rlcore.store.events import COMPLETE

KEY, MODE, ADDRESS = "WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"
CREDENTIALS = (KEY, "WANDB_IDENTITY_TOKEN_FILE")
CLOUD = "https://api.wandb.ai"
TIMEOUT = 60.0  # seconds for the first contact with the server, and for the upload of the last points


class WandbRun:
    """Run in W&B. It has the id of the run, so that another process can continue it.

    Its attribute `received` is the number of points that the W&B server has; None offline. `address` is the run's page,
    or offline the command that uploads its files.

    Args:
        run: the run.
        sent: number of points that were sent before.
    """

    def __init__(self, run: RunDirectory, sent: int) -> None:
        import wandb  # 2 s

        tree, identity = run.read_config(), run.read_identity()
        chosen = tree["metric"]["logger"]
        offline = is_offline(chosen.get("offline", False))
        mode = "disabled" if os.environ.get(MODE) == "disabled" else "offline" if offline else "online"
        own = {key: identity.get(key) for key in ("run_id", "commit", "dirty")} | {"run_dir": str(run.path)}
        self._step = sent
        self._run: Any = wandb.init(
            id=identity["run_id"],
            name=run.name,
            project=chosen.get("project") or chosen.get("experiment_name") or tree.get("exp_name"),
            entity=chosen.get("entity"),
            group=tree.get("group"),
            tags=[f"{name}:{value}"[:64] for name, value in (chosen.get("tags") or {}).items()],
            config=tree | {"shepherd": own},
            dir=str(run.path),
            resume=None if offline else "allow",
            reinit="create_new",  # this process may serve several runs
            settings=wandb.Settings(
                mode=mode,
                silent=True,
                console="off",
                disable_code=True,  # the lineage of the run has the commit and the changes
                disable_git=True,
                init_timeout=TIMEOUT,
                finish_timeout=TIMEOUT,  # by default, `finish` waits for the server without limit
            ),
        )
        self._run.define_metric("policy_steps", hidden=True)
        self._run.define_metric("*", step_metric="policy_steps")
        self.received = None if offline else self._run.starting_step
        self._step = sent if self.received is None else min(sent, self.received)
        self.address: str | None = None  # WANDB_MODE=disabled writes and sends nothing
        if mode == "offline":
            files = shlex.quote(short_path(Path(self._run.dir).parent))
            self.address = f"wandb sync {'--append ' if sent else ''}{files}"
        elif mode == "online":
            self.address = self._run.url

    def log(self, policy_steps: int, values: Mapping[str, float], time: float) -> None:
        """Send the metrics of one point."""
        self._run.log({"policy_steps": policy_steps, "_timestamp": time, **values}, step=self._step)
        self._step += 1

    def close(self, status: str | None) -> None:
        """Wait until everything is uploaded or written, and set the state of the run."""
        if status is not None:
            self._run.summary["status"] = status
        self._run.finish(exit_code=0 if status in (None, *COMPLETE, "pruned") else 1)


def is_offline(configured: bool) -> bool:
    """Return True if W&B must not contact its server, according to the config or to the variable WANDB_MODE."""
    return configured or os.environ.get(MODE, "") in ("offline", "dryrun", "disabled")


def check(offline: bool) -> None:
    """Raise UserError if W&B is not installed, or if it has no API key and is not offline."""
    if find_spec("wandb") is None:
        raise UserError("metric.logger.name=wandb: W&B is not installed; run: pip install -e '.[wandb]'")
    if not is_offline(offline) and not _has_key():
        raise UserError(
            f"metric.logger.name=wandb: no API key for {_host()}; set {KEY}, run `wandb login`, or add "
            "metric.logger.offline=true"
        )


def _has_key() -> bool:
    """Return True if W&B finds an API key: in the environment, or in the file that `wandb login` writes."""
    if any(os.environ.get(name) for name in CREDENTIALS):
        return True
    home = Path.home()
    chosen = os.environ.get("NETRC")
    for path in [Path(chosen)] if chosen else [home / ".netrc", home / "_netrc"]:
        with suppress(OSError, netrc.NetrcParseError):
            return _host() in netrc.netrc(path).hosts
    return False


def _host() -> str:
    """Return the host name of the W&B server, from the environment or the file that `wandb login --host` writes."""
    folder = Path(os.environ.get("WANDB_CONFIG_DIR") or Path.home() / ".config" / "wandb")
    settings = configparser.ConfigParser()
    with suppress(OSError, configparser.Error):
        settings.read(folder / "settings")
    address = os.environ.get(ADDRESS) or at(settings, "default.base_url") or CLOUD
    return urlsplit(address).hostname or address
