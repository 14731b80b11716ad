"""Process of a worker rank, which executes the commands of rank 0.

python -m rlcore.train.worker_rank RUN_DIRECTORY        (started by `rlcore.train.ranks.WorkerRanks`)
"""

from __future__ import annotations

import json
import os
import signal
import sys

from rlcore.errors import EnvironmentFault, RunError, UserError
from rlcore.store.directory import RunDirectory
from rlcore.system.imports import large_imports, without_compiler
from rlcore.user_code import explain_exit


def run_worker_rank(run: RunDirectory) -> None:
    """Execute the commands that rank 0 writes to stdin, until `stop` or the end of stdin.

    The only files that this rank writes are those of its replay buffer in checkpoints.
    """
    from rlcore.train.run_trainer import RunTrainer

    trainer = RunTrainer(run)
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "advance":
            trainer.advance_worker(int(rest[0]))
        elif command == "save":
            trainer.training.state_dict(run.checkpoints)
        else:
            break
    trainer.close()


def main() -> None:
    """Run the process of a worker rank. It ignores signals, because rank 0 handles them and ends this process."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with large_imports("torch"), without_compiler():
        import lightning_fabric  # noqa: F401
    try:
        run_worker_rank(RunDirectory(sys.argv[1]))
    except BaseException as raised:
        error = raised if isinstance(raised, Exception) else EnvironmentFault(explain_exit(raised))
        if not isinstance(error, (UserError, RunError)):
            raise
        output.write(json.dumps({"kind": type(error).__name__, "sentence": str(error)}) + "\n")
        output.flush()
        os._exit(1)
    os._exit(0)


if __name__ == "__main__":
    main()
