"""Put on the path of a process that is to be killed: on SIGUSR1 it writes where it is, and goes on.

The C code of `faulthandler` does that at once, whatever the interpreter is doing, so the product needs no hook.
"""

import faulthandler
import os
import signal

folder = os.environ.get("KILLS_FOLDER")
if folder:
    file = open(os.path.join(folder, f"{os.getpid()}.stack"), "w")  # noqa: SIM115 - lives as long as the process
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
