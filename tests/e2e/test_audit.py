"""What was taken is on record: through a kill, in an export, and against whoever changes it."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator

import pytest
from tests.e2e.cli_world import Shell, eventually

from fairlead.runtime.kept.audit import record_of_line

pytestmark = pytest.mark.e2e


@pytest.fixture
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("audit"))
    (shell.root / "s.yaml").write_text(f"audit:\n  exportTo: ['file://{shell.root}/out.jsonl']\n")
    shell.up("--listen", "127.0.0.1:0", "--settings", "s.yaml")
    try:
        yield shell
    finally:
        shell.down()


def test_an_end_that_was_cut_off_is_found_by_a_copy(shell: Shell) -> None:
    for name in ("first", "second", "third"):
        shell.run("run", "--name", name, "--time", "1s", "--", "sleep", "60", code=1)
    shown = shell.run("audit", "--no-headers").out.splitlines()
    assert [line.split()[2:6] for line in shown] == [
        ["End", "Job", f"default/{name}", "TimeLimit"] for name in ("first", "second", "third")
    ]
    said = shell.run("audit", "verify").out
    assert said.startswith("3 records, whole; the head is 3:")
    exported = shell.run("audit", "export").out
    file = shell.root / "out.jsonl"
    eventually(lambda: file.exists() and file.read_text(), exported)
    assert [record_of_line(line.encode()).number for line in exported.splitlines()] == [1, 2, 3]

    os.kill(shell.pid(), signal.SIGKILL)
    shell.up()
    shell.run("run", "--name", "fourth", "--time", "1s", "--", "sleep", "60", code=1)
    assert shell.run("audit", "verify").out.startswith("4 records, whole")
    eventually(lambda: file.read_text().count("\n"), 4)
    shell.down()

    head = said.split()[-1]
    whole = ("audit", "verify", "--head", head, "--against", "out.jsonl")
    assert shell.run(*whole).out.startswith("4 records, whole"), "of a cluster that is stopped, too"
    database = shell.data / "history.db"
    with sqlite3.connect(database) as attacker:
        attacker.execute("DELETE FROM audit WHERE number > 2")
    attacker.close()
    assert shell.run("audit", "verify").out.startswith("2 records, whole")
    assert "record 3 is missing, which the copy has; 2 in all" in shell.run(*whole, code=1).err
    with sqlite3.connect(database) as attacker:
        attacker.execute("UPDATE audit SET object = 'Job default/other' WHERE number = 2")
    attacker.close()
    refused = shell.run("audit", "verify", code=1).err
    assert "error[E605]: the audit records are not as they were written" in refused
    assert "record 2 was changed" in refused
    assert "not a number, a colon and" in shell.run("audit", "verify", "--head", "3", code=2).err
