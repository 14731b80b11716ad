from __future__ import annotations

import subprocess
import sys

LAST_WORDS = """
import sys
from flows.process.signals import close_dead_outputs

sys.stdin.read()
close_dead_outputs()
print("nobody reads this", flush=True)
print("somebody reads this", file=sys.stderr)
"""


def test_last_words_that_nobody_reads_any_more_are_no_failure() -> None:
    said = subprocess.Popen(
        [sys.executable, "-c", LAST_WORDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert said.stdin and said.stdout and said.stderr
    said.stdout.close()
    said.stdin.close()
    assert said.stderr.read() == b"somebody reads this\n"
    assert said.wait() == 0
    said.stderr.close()
