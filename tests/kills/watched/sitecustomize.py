"""Module on the path of a process that will be killed: on SIGUSR1 the process writes its stack and continues.

The C code of `faulthandler` does this at any point of the interpreter, so the product needs no hook.
"""

import faulthandler
import os
import signal

folder = os.environ.get("KILLS_FOLDER")
if folder:
    file = open(os.path.join(folder, f"{os.getpid()}.stack"), "w")  # noqa: SIM115 - lives as long as the process
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
