"""Entry point of `shepherd`. Exit codes: 0 success, 1 failure, 2 user error, 130 interrupted.

Each command imports the heavy libraries that it needs, so that a user error is reported within a second.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from flows.cli.other_commands import translate
from flows.cli.parser import HELP, parse, parser
from flows.config.yaml_files import VARIABLES
from flows.process.exits import run_command
from flows.process.signals import CODE, exit_sentence, terminable
from flows.settings import configure_environment, read_dotenv
from rlcore import plugins
from rlcore.system.printable import log_handler, print_safely
from rlcore.system.secrets import redact
from rlcore.user_code import user_code


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code; `argv=None` uses the arguments of this process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        gc.set_threshold(50_000, 20, 20)  # imports create hundreds of thousands of objects that are never freed
        _warn_in_sentences()
    try:
        with terminable(for_good=argv is None):
            return run_command(lambda: _run(arguments))
    except KeyboardInterrupt:  # TrainingInterrupted is one
        print_safely(exit_sentence(), file=sys.stderr)
        return CODE
    finally:
        if argv is None:
            gc.freeze()  # skip the last garbage collection when Python exits


def _warn_in_sentences() -> None:
    """Print this project's warnings as lines of level and message; Prefect's format would add time and module."""
    handler = log_handler("%(levelname)s %(message)s")
    for name in ("rlcore", "flows"):
        logging.getLogger(name).addHandler(handler)
        logging.getLogger(name).propagate = False


def _run(arguments: list[str]) -> int:
    """Run the command of a command line and return the exit code; if the command returns text, print it."""
    modules, words = plugins.take_from(arguments)  # every command accepts plugins; child processes inherit them
    if not words:
        parser().print_help()
        return 2
    line = translate(words)
    if line.words != words:
        print_safely(f"shepherd: interpreted as: {redact(str(line))}", *plugins.as_typed(modules), file=sys.stderr)
    if line.search_path:
        variable = VARIABLES[0]
        os.environ[variable] = ";".join(filter(None, (line.search_path, os.environ.get(variable))))
    calls, values = parse(line.words)
    read_dotenv() if calls == HELP else configure_environment()  # help reads only the config
    plugins.name(modules)
    module, _, name = calls.partition(":")
    with user_code():  # otherwise `sys.exit()` in an environment or a plugin would end the command without a message
        result = getattr(import_module(module), name)(**values)
    if isinstance(result, str):
        print_safely(result)
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
