"""Which cluster a command talks to, and how a running one is recognised."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairlead.app.configuration.settings import UpFlags, parse_listen, remember, settle
from fairlead.app.run_file import (
    RunningCluster,
    clear_running,
    identity,
    read_running,
    write_running,
)
from fairlead.cli.connection.connect import (
    Choice,
    default_data_directory,
    find_connection,
    replica_connection,
    stopped_data,
)
from fairlead.cli.kubectl_plugin import VARIABLE
from fairlead.input.errors import CliError, Code
from fairlead.kube.kubeconfig import write_kubeconfig


def running(pid: int) -> RunningCluster:
    """Return the record that a process of that number would leave now."""
    mine = identity(pid)
    assert mine is not None
    return RunningCluster(pid, mine.start_ticks, mine.boot_id, "http://own", "0.1.0", 1.0)


class Home:
    """A home directory with kubeconfigs in the places where they are looked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = root / ".local" / "share" / "fairlead"
        self.environment = {"HOME": str(root)}

    def config(self, path: Path, server: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_kubeconfig(path, server, "t", "c", namespace="team")
        return path

    def server(self, **choice: str) -> str:
        return find_connection(Choice(**choice), self.environment).server


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_plugin_of_kubectl_means_kubectls_cluster_also_where_another_one_runs(home: Home) -> None:
    home.config(home.root / ".kube" / "config", "http://home")
    home.config(home.data / "kubeconfig", "http://own")
    write_running(home.data, running(os.getpid()))
    assert home.server() == "http://own"
    home.environment[VARIABLE] = "1"
    assert home.server() == "http://home"
    home.environment["FAIRLEAD_KUBECONFIG"] = str(home.data / "kubeconfig")
    assert home.server() == "http://own"


def test_the_places_are_looked_at_in_the_documented_order(home: Home) -> None:
    home.config(home.root / ".kube" / "config", "http://home")
    assert home.server() == "http://home"
    home.environment["KUBECONFIG"] = str(home.config(home.root / "k", "http://variable"))
    assert home.server() == "http://variable"
    home.config(home.data / "kubeconfig", "http://own")
    assert home.server() == "http://variable", "a cluster that does not live is passed over"
    write_running(home.data, running(os.getpid()))
    assert home.server() == "http://own"
    explicit = home.config(home.root / "f", "http://fairlead-variable")
    home.environment["FAIRLEAD_KUBECONFIG"] = str(explicit)
    assert home.server() == "http://fairlead-variable"
    flag = home.config(home.root / "g", "http://flag")
    assert home.server(kubeconfig=str(flag)) == "http://flag"
    assert find_connection(Choice(str(flag)), home.environment).namespace == "team"


def test_a_replica_in_a_pod_talks_to_the_cluster_that_was_chosen(home: Home) -> None:
    home.environment["KUBERNETES_SERVICE_HOST"] = "10.0.0.1"
    home.environment["KUBECONFIG"] = str(home.config(home.root / "k", "http://variable"))
    assert replica_connection(Choice(), home.environment).server == "http://variable"


def test_a_stopped_cluster_is_named_when_there_is_nothing_else(home: Home) -> None:
    home.config(home.data / "kubeconfig", "http://own")
    with pytest.raises(CliError) as caught:
        home.server()
    (problem,) = caught.value.problems
    assert problem.code is Code.UNREACHABLE
    assert problem.help == ("fairlead up --detach",)


def test_an_explicit_kubeconfig_of_a_stopped_cluster_says_how_to_start_it(home: Home) -> None:
    elsewhere = home.config(home.root / "elsewhere" / "kubeconfig", "http://dead")
    remember(settle(elsewhere.parent, UpFlags()), 7443)
    assert home.server(kubeconfig=str(elsewhere)) == "http://dead", "another program's files"
    (elsewhere.parent / "store").mkdir()
    with pytest.raises(CliError) as caught:
        home.server(kubeconfig=str(elsewhere))
    assert caught.value.problems[0].help == (f"fairlead up --detach --data {elsewhere.parent}",)


def test_a_kubeconfig_variable_that_names_a_stopped_cluster_is_as_good_as_the_flag(
    home: Home,
) -> None:
    own = home.config(home.data / "kubeconfig", "http://own")
    remember(settle(home.data, UpFlags()), 7443)
    (home.data / "store").mkdir()
    home.environment["KUBECONFIG"] = str(own)
    with pytest.raises(CliError) as caught:
        home.server()
    assert caught.value.problems[0].help == ("fairlead up --detach",)
    assert stopped_data(Choice(), home.environment) == home.data
    other = home.config(home.root / "k", "http://other")
    home.environment["KUBECONFIG"] = f"{own}{os.pathsep}{other}"
    assert home.server() == "http://own"
    assert stopped_data(Choice(), home.environment) is None


def test_the_data_directory_follows_the_environment() -> None:
    assert default_data_directory({"HOME": "/h"}) == Path("/h/.local/share/fairlead")
    assert default_data_directory({"HOME": "/h", "XDG_DATA_HOME": "/x"}) == Path("/x/fairlead")
    assert default_data_directory({"HOME": "/h", "XDG_DATA_HOME": "relative"}) == Path(
        "/h/.local/share/fairlead"
    )
    assert default_data_directory({"HOME": "/h", "FAIRLEAD_DATA": "/d"}) == Path("/d")


def test_a_record_counts_only_while_its_very_process_lives(tmp_path: Path) -> None:
    assert read_running(tmp_path) is None
    mine = running(os.getpid())
    write_running(tmp_path, mine)
    assert read_running(tmp_path) == mine
    assert (tmp_path / "run.json").stat().st_mode & 0o777 == 0o600
    reused = RunningCluster(
        mine.pid, mine.start_ticks + 1, mine.boot_id, "http://own", "0.1.0", 1.0
    )
    write_running(tmp_path, reused)
    assert read_running(tmp_path) is None
    (tmp_path / "run.json").write_text("{half")
    assert read_running(tmp_path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_record_of_another_user_names_none_of_our_processes(tmp_path: Path) -> None:
    write_running(tmp_path, running(os.getpid()))
    assert read_running(tmp_path) is not None
    os.chown(tmp_path / "run.json", 65_534, 65_534)
    assert read_running(tmp_path) is None


def test_only_the_process_itself_removes_its_record(tmp_path: Path) -> None:
    write_running(tmp_path, running(os.getpid()))
    clear_running(tmp_path, os.getpid() + 1)
    assert read_running(tmp_path) is not None
    clear_running(tmp_path, os.getpid())
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("7443", ("127.0.0.1", 7443)),
     (":80", ("127.0.0.1", 80)), ("[::1]:1", ("::1", 1)), ("localhost:9", ("localhost", 9))],
)  # fmt: skip
def test_listen_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_listen(text) == address


@pytest.mark.parametrize("text", [":\u00b2", ":\u0661"], ids=["superscript", "arabic"])
def test_a_port_has_digits_of_ascii(text: str) -> None:
    with pytest.raises(CliError, match="has no port from 0 to 65535"):
        parse_listen(text)


@pytest.mark.parametrize("text", ["", "127.0.0.1", "host:80", "127.0.0.1:-1", "127.0.0.1:65536"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(CliError) as caught:
        parse_listen(text)
    assert caught.value.problems[0].code is Code.LISTEN_ADDRESS


def test_a_plain_up_continues_with_what_was_given_before(tmp_path: Path) -> None:
    first = settle(tmp_path, UpFlags(nodes=200, gpus=4, profile="training"))
    assert (first.host, first.port, first.is_port_asked) == ("127.0.0.1", 7443, False)
    remember(first, 50_123)
    again = settle(tmp_path, UpFlags())
    assert (again.nodes, again.gpus, again.profile, again.port) == (200, 4, "training", 50_123)
    assert not again.is_port_asked, "a remembered port may be replaced when it is busy"
    changed = settle(tmp_path, UpFlags(nodes=0, listen="127.0.0.1:1"))
    assert (changed.nodes, changed.gpus, changed.port, changed.is_port_asked) == (0, 4, 1, True)


def test_a_damaged_memory_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{")
    assert settle(tmp_path, UpFlags()).nodes == 0
