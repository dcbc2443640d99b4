"""One test as a program: `python -m fairlead.node.machine_tests cpu '{"seconds": 2}'`."""

from __future__ import annotations

import os
import sys

import msgspec

from fairlead.node.machine_tests.programs import run_program

if __name__ == "__main__":
    os.write(1, msgspec.json.encode(run_program(sys.argv[1], sys.argv[2])) + b"\n")
