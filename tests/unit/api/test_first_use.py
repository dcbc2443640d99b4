"""The first use of a wire type by several threads at once."""

from __future__ import annotations

import subprocess
import sys

#: In a process of its own: a type is prepared once in a process, and what fails is the interpreter.
PROGRAM = """
import sys, threading
import msgspec
from fairlead.api.jobs.job import Job

sys.setswitchinterval(1e-6)
found = []
body = {"metadata": {"name": "a"}}

def read():
    found.append(msgspec.convert(body, Job))

threads = [threading.Thread(target=read) for _ in range(6)]
for each in threads: each.start()
for each in threads: each.join()
assert [job.metadata.name for job in found] == ["a"] * 6, found
"""


def test_threads_may_use_a_type_first_at_the_same_time() -> None:
    for _ in range(4):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
        assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr}"
