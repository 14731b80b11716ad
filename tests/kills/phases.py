"""Phase of a process when it was killed, from the stacks that `watched/sitecustomize.py` makes it write."""

from __future__ import annotations

import re
from collections.abc import Mapping

FRAME = re.compile(r'File "(?P<file>[^"]+)", line \d+ in (?P<function>\S+)')
# The innermost of our frames that names a phase decides; "" = any function of that file or folder.
PLACES = (
    ("rlcore/store/checkpoint/writing.py", "save", "checkpoint"),
    ("rlcore/store/checkpoint/names.py", "prune", "checkpoint"),
    ("rlcore/train/run_trainer.py", "save", "checkpoint"),
    ("rlcore/evaluation/play.py", "", "evaluation"),
    ("rlcore/evaluation/evaluation.py", "", "evaluation"),
    ("rlcore/evaluation/final.py", "", "evaluation"),
    ("rlcore/evaluation/video.py", "", "evaluation"),
    ("rlcore/evaluation/random_agent.py", "", "collect"),
    ("rlcore/train/run_trainer.py", "_continue", "restore"),
    ("rlcore/train/run_trainer.py", "_account", "log"),
    ("rlcore/train/run_trainer.py", "__init__", "build"),
    ("rlcore/train/collect.py", "collect", "rollout"),
    ("rlcore/data/rollout.py", "", "update"),
    ("rlcore/train/loop.py", "take_gradient_steps", "update"),
    ("flows/stages/register_model.py", "", "registration"),
    ("flows/registry/", "", "registration"),
    ("flows/stages/make_env.py", "", "make-env"),
    ("flows/stages/collect.py", "", "collect"),
    ("flows/stages/summary.py", "", "summary"),
    ("flows/report/tables.py", "", "summary"),
    ("flows/tracking/", "", "mirror"),
    ("flows/runs/create.py", "", "creation"),
    ("flows/config/compose.py", "", "creation"),
    ("flows/workers/local_api.py", "", "start"),
    ("rlcore/train/server.py", "serve", "between"),
    ("flows/stages/train.py", "training_loop", "start"),
)


def phase_of(stack: str) -> str:
    """Return the phase of the main thread: "import" while modules are loaded, "start" if nothing else is known."""
    main = stack.rpartition("Current thread")[2]
    frames = [(match["file"], match["function"]) for match in FRAME.finditer(main)]
    loading = next((i for i, (file, _) in enumerate(frames) if file.startswith("<frozen importlib")), None)
    for index, (file, function) in enumerate(frames):
        for path, name, phase in PLACES:
            if path in file and name in ("", function):
                return "import" if loading is not None and loading < index else phase
    return "import" if loading is not None else "start"


def phase_of_tree(stacks: Mapping[str, str]) -> str:
    """Return the phase of a whole run: that of the trainer if known, otherwise that of the driving process.

    Args:
        stacks: "trainer" and "cli" -> the stack that each wrote; missing if a process wrote none.
    """
    trainer = phase_of(stacks["trainer"]) if stacks.get("trainer") else None
    if trainer not in (None, "between", "start"):
        return trainer
    driver = phase_of(stacks.get("cli", ""))
    return driver if driver != "start" or trainer is None else trainer
