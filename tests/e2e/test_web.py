"""`fairlead web` as a person starts it, on a real cluster of `fairlead up`: its link, its pages
over HTTP, live changes and logs, and its end.
"""

from __future__ import annotations

import html
import http.client
import os
import re
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest
from tests.e2e.cli_world import Shell, eventually
from tests.e2e.command_server import Started, command_server
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.e2e


class Page:
    """A signed-in browser, by plain HTTP."""

    def __init__(self, link: str) -> None:
        parts = urlsplit(link)
        self.address = parts.netloc
        answer = self.ask(f"{parts.path}?{parts.query}")
        assert answer.status == 200, answer.read()
        self.cookie = (answer.getheader("Set-Cookie") or "").partition(";")[0]

    cookie = ""

    def ask(self, path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_SECONDS)
        connection.request("GET", path, headers={"Cookie": self.cookie})
        return connection.getresponse()

    def text(self, path: str) -> str:
        answer = self.ask(path)
        text = answer.read().decode()
        assert answer.status == 200, text
        return text

    def confirm(self, path: str) -> str:
        """Confirm a change as its preview shows it; return where it leads."""
        form = self.text(path).partition('<form method="post" action="/change')[2]
        fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', form)
        assert fields, "the preview has a button"
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_SECONDS)
        headers = {"Cookie": self.cookie, "Origin": f"http://{self.address}"}
        connection.request("POST", path.partition("?")[0], body=urlencode(fields), headers=headers)
        answer = connection.getresponse()
        assert answer.status == 303, answer.read().decode()
        return answer.getheader("Location") or ""

    def send(self, path: str, form: Mapping[str, str]) -> tuple[int, str]:
        """Send a form as a page of the site does; return the status, and where it leads or what it
        says.
        """
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_SECONDS)
        headers = {"Cookie": self.cookie, "Origin": f"http://{self.address}"}
        connection.request("POST", path, body=urlencode(form), headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Location") or answer.read().decode()

    def event(self, path: str, *, having: str) -> str:
        """Return the first line of a stream that has a text; the stream is left then."""
        answer = self.ask(path)
        assert answer.status == 200
        try:
            while line := answer.readline().decode():
                if having in line:
                    return line
        finally:
            answer.close()
        raise AssertionError(f"the stream has ended without {having}")


@contextmanager
def serving(shell: Shell, *arguments: str) -> Iterator[tuple[Started, str]]:
    """Yield the process of the page and its first link."""
    command = shell.forked("web", "--url", "--port", "0", *arguments)
    read, write = os.pipe()
    with open(os.devnull, "r+b") as nothing, os.fdopen(read) as out:
        process = command_server().start(command, [nothing.fileno(), write, nothing.fileno()])
        os.close(write)
        try:
            yield process, out.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(PATIENCE_SECONDS)
            finally:
                process.kill()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    made.environment["XDG_RUNTIME_DIR"] = str(tmp_path / "run")
    made.up("--nodes", "4", "--listen", "127.0.0.1:0")
    try:
        yield made
    finally:
        made.down()


def submit(shell: Shell, name: str, *arguments: str, script: str = "sleep 300") -> None:
    path = shell.root / f"{name}.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    shell.run("submit", "--name", name, *arguments, str(path))


def test_the_page_shows_what_the_commands_show_and_stays_current(shell: Shell) -> None:
    submit(shell, "holds", "--nodes", "4", "--gpus", "8", "--simulate", "1h", "--time", "2h")
    eventually(lambda: shell.state("holds"), "Running")
    submit(shell, "waits", "--nodes", "2", "--gpus", "8", "--simulate", "1h")
    eventually(lambda: shell.status("waits").get("verdict", {}).get("reason"),
               "InsufficientCapacity")  # fmt: skip
    with serving(shell) as (_, link):
        page = Page(link)
        home = page.text("/")
        for text in ("waits", "holds", "InsufficientCapacity", "of 32; 32 held"):
            assert text in home, text
        # The process that decides has 0.4 s to answer; a page that does without it says less.
        eventually(lambda: "position 1 of 1" in page.text("/jobs/default/waits"), expected=True)
        job = page.text("/jobs/default/waits")
        why = shell.run("why", "waits").out
        assert "needs 16 GPUs, 0 of 32 are free: 16 short" in why
        for text in ("needs 16 GPUs, 0 of 32 are free: 16 short",
                     'href="/jobs/default/holds"', "fairlead why waits"):  # fmt: skip
            assert text in job, text
        assert page.text("/cluster").count('class="used"></i>') == 32 + 1  # and the legend
        page.confirm("/change/cancel/default/holds")
        page.event("/live?of=/jobs%3Fstate%3DCancelled", having="holds")
        eventually(lambda: "On <b>" in page.text("/jobs/default/waits"), expected=True)
        shell.delete_job("holds")
        eventually(lambda: "holds" in page.text("/jobs"), expected=False)
        assert "has ended: Cancelled" in page.text("/jobs/default/holds")
        assert page.ask("/jobs/default/never").status == 404
        eventually(lambda: "GPU hours" in page.text("/usage?by=job"), expected=True)
        assert "<td>holds</td>" in page.text("/usage?by=job")
        assert "\nholds," in page.text("/usage.csv?by=job")
        for path, text in (("/teams", "No teams"), ("/fleet", "No pools"), ("/doctor", "Doctor")):
            assert text in page.text(path), path


def test_changes_from_the_page_are_those_of_the_commands(shell: Shell) -> None:
    submit(shell, "first", "--nodes", "1", "--gpus", "8", "--simulate", "1h")
    eventually(lambda: shell.state("first"), "Running")
    (node,) = shell.job("first")["status"]["placement"]["roles"][0]["nodes"]
    with serving(shell) as (_, link):
        page = Page(link)
        preview = page.text(f"/change/drain/{node}?within=2h")
        assert "Job default/first, 1 member: " in preview
        assert f"fairlead node drain {node} --within 2h" in preview
        assert page.confirm(f"/change/cordon/{node}?reason=noisy+fan") == f"/nodes/{node}"
        assert "noisy fan; fairlead node resume ends it" in shell.run("node", node).out
        assert page.confirm(f"/change/drain/{node}?within=2h") == f"/nodes/{node}"
        assert re.search("empty by .*, in (2h|1h59m)", shell.run("node", node).out)
        assert page.confirm(f"/change/resume/{node}") == f"/nodes/{node}"
        assert "cordoned" not in shell.run("node", node).out
        page.confirm(f"/change/test/{node}")
        code, made = shell.get(f"/apis/fairlead.dev/v1alpha1/nodetests/{node}-1")
        assert (code, made["spec"]["suite"]) == (200, "quick")
        page.confirm("/change/cancel/default/first")
        eventually(lambda: shell.state("first"), "Cancelled")
        eventually(lambda: "/change/rerun/default/first" in page.text("/jobs/default/first"),
                   expected=True)  # fmt: skip
        assert page.confirm("/change/rerun/default/first") == "/jobs/default/first-retry-1"
        eventually(lambda: shell.state("first-retry-1"), "Running")
        shell.create("/apis/scheduling.k8s.io/v1/priorityclasses",
                     {"metadata": {"name": "low"}, "value": -5})  # fmt: skip
        submit(shell, "waits", "--nodes", "4", "--gpus", "8", "--simulate", "1h")
        eventually(lambda: shell.state("waits"), "Waiting")
        waits = "/change/priority/default/waits?class=low"
        eventually(lambda: "With priority=low:" in page.text(waits), expected=True)
        assert page.confirm(waits) == "/jobs/default/waits"
        assert shell.job("waits")["spec"]["priority"] == -5


def test_a_job_is_written_previewed_and_submitted_on_the_page(shell: Shell) -> None:
    shell.environment["PLANTED"] = "of-the-page"
    with serving(shell) as (_, link):
        page, kept = Page(link), ("csrf", "act", "text", "form", "namespace", "name", "cpus")
        token = re.findall('name="csrf" value="([^"]+)"', page.text("/submit"))[0]
        script = "#!/bin/sh\n#SBATCH --time=5\necho from-$SLURM_NNODES-$PLANTED\n"
        form = {"csrf": token, "act": "preview", "text": script, "name": "typed"}
        status, said = page.send("/submit", {**form, "gpus": "9"})
        assert (status, "9 GPUs" in said) == (409, True), said
        status, said = page.send("/submit", {**form, "cpus": "100m"})
        assert (status, "fits now, on 1 node" in said) == (200, True), said
        assert shell.get("/apis/fairlead.dev/v1alpha1/namespaces/default/jobs/typed")[0] == 404
        ready = said.rpartition('class="act"')[2].partition("</form>")[0]
        values = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', ready))
        assert set(values) == set(kept)
        values = {name: html.unescape(value) for name, value in values.items()}
        assert page.send("/submit", values) == (303, "/jobs/default/typed")
        eventually(lambda: shell.state("typed"), "Succeeded")
        assert shell.run("logs", "typed").out == "from-1-\n"
        assert "of-the-page" not in str(shell.job("typed"))
        shown = html.unescape(said.partition('<pre class="answer">')[2].partition("</pre>")[0])
        manifest = shown.replace("typed", "again")
        form = {"csrf": token, "act": "submit", "form": "manifest", "text": manifest}
        assert page.send("/submit", form) == (303, "/jobs/default/again")
        eventually(lambda: shell.state("again"), "Succeeded")
        status, said = page.send("/submit", form)
        assert (status, "already" in said) == (409, True), said


def test_a_log_is_followed_and_left(shell: Shell) -> None:
    submit(shell, "talks", script="for i in 1 2 3 4 5 6 7 8 9; do echo line-$i; sleep 1; done\n"
           "sleep 300")  # fmt: skip
    eventually(lambda: shell.state("talks"), "Running")
    with serving(shell) as (_, link):
        page = Page(link)
        assert "line-1" in page.event("/logs/default/talks", having="line-1")
        for _ in range(40):  # more than are followed at a time: who leaves makes room
            eventually(lambda: _is_line(page), expected=True)
        assert "line-1\n" in page.text("/logs/default/talks?download=1")


def _is_line(page: Page) -> bool:
    """Tell whether a log is followed now, and leave it."""
    return "line" in page.event("/logs/default/talks", having="data:")


def test_a_second_command_gives_a_new_link_to_the_page_that_is_served(shell: Shell) -> None:
    with serving(shell) as (process, link):
        second = shell.run("web", "--url").out.strip()
        assert urlsplit(second).netloc == urlsplit(link).netloc
        assert second != link
        assert "Home" in Page(second).text("/")
        records = list((shell.root / "run" / "fairlead").iterdir())
        assert [each.stat().st_mode & 0o077 for each in records] == [0]
        page = Page(shell.run("web", "--url").out.strip())
        stream = page.ask("/live?of=/")  # somebody looks on until the end
        assert stream.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 0
        with pytest.raises(http.client.IncompleteRead):  # it has ended, in the middle
            stream.read()
        assert not list((shell.root / "run" / "fairlead").iterdir())
    with serving(shell) as (_, third):
        assert "Home" in Page(third).text("/")


def test_a_port_that_was_asked_for_and_is_in_use_is_an_error(shell: Shell) -> None:
    with serving(shell) as (_, link):
        port = urlsplit(link).port
        result = shell.run("web", "-n", "default", "--url", "--port", str(port), code=4)
        assert f"cannot listen on 127.0.0.1:{port}" in result.err
        assert "--port 0" in result.err


def test_a_cluster_that_has_gone_is_said_and_its_return_seen(shell: Shell) -> None:
    submit(shell, "stays", "--nodes", "1", "--gpus", "8", "--simulate", "1h")
    eventually(lambda: shell.state("stays"), "Running")
    with serving(shell) as (_, link):
        page = Page(link)
        address = shell.https().host
        shell.down()
        assert "stays" in page.text("/jobs")
        shell.up("--listen", address + ":" + str(_port(shell)))
        submit(shell, "later", "--nodes", "1", "--gpus", "8", "--simulate", "1h")
        eventually(lambda: "later" in page.text("/jobs"), expected=True)


def _port(shell: Shell) -> Any:
    return shell.https().port
