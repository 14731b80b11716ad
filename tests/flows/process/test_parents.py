from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from flows.process.signals import close_dead_outputs

sys.stdin.read()
close_dead_outputs()
print("not read", flush=True)
print("read", file=sys.stderr)
"""


def test_close_dead_outputs_ignores_closed_pipe() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin and process.stdout and process.stderr
    process.stdout.close()
    process.stdin.close()
    assert process.stderr.read() == b"read\n"
    assert process.wait() == 0
    process.stderr.close()
