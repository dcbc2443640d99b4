"""Kubeconfig: what is read is what kubectl would use; what is wrong is said with its place."""

from __future__ import annotations

import base64
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fairlead.kube.incluster import in_cluster
from fairlead.kube.kubeconfig import (
    EXEC_VERSIONS,
    Connection,
    KubeconfigError,
    config_paths,
    load,
    load_connection,
    resolve,
    write_kubeconfig,
)
from fairlead.kube.protocol import HttpRequest, headers_of

USER = {"token": "secret"}


def write(path: Path, user: dict | None = None, cluster: dict | None = None, **more) -> Path:
    cluster = {"server": "https://host:6443/", **(cluster or {})}
    document = {
        "current-context": "dev",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": USER if user is None else user}],
        "contexts": [{"name": "dev", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
        **more,
    }
    path.write_text(json.dumps(document))
    return path


def refusal(path: Path, context: str = "") -> str:
    with pytest.raises(KubeconfigError) as caught:
        load_connection(context, path=path)
    return str(caught.value)


def test_the_current_context_is_resolved_to_server_namespace_and_credentials(
    tmp_path: Path,
) -> None:
    connection = load_connection(path=write(tmp_path / "config"))
    assert connection.server == "https://host:6443"
    assert connection.namespace == "ml"
    assert connection.token == "secret"
    assert str(tmp_path / "config") in connection.source
    assert "secret" not in repr(connection)


def test_files_beside_the_kubeconfig_are_found_and_inline_data_wins(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"from file")
    (tmp_path / "cert.pem").write_bytes(b"cert")
    key = base64.b64encode(b"inline key").decode()
    user = {
        "client-certificate": "cert.pem",
        "client-key": "not-read.pem",
        "client-key-data": key,
        "tokenFile": "token",
    }
    path = write(tmp_path / "config", user, {"certificate-authority": "ca.pem"})
    connection = load_connection(path=path)
    assert connection.certificate_authority == b"from file"
    assert (connection.client_certificate, connection.client_key) == (b"cert", b"inline key")
    assert connection.token_file == tmp_path / "token"


@pytest.mark.parametrize(
    "given",
    [
        {"token": "t"},
        {"tokenFile": "token"},
        {"client-certificate-data": "eA==", "client-key-data": "eA=="},
    ],
)
def test_credentials_of_the_file_itself_go_before_a_credential_plugin(
    tmp_path: Path, given: dict
) -> None:
    plugin = {"command": "aws", "apiVersion": EXEC_VERSIONS[0]}
    path = tmp_path / "config"
    assert load_connection(path=write(path, {"exec": plugin})).exec_plugin is not None
    assert load_connection(path=write(path, {"exec": plugin, **given})).exec_plugin is None


def test_of_several_files_the_first_to_name_something_wins_and_missing_ones_are_skipped(
    tmp_path: Path,
) -> None:
    first = write(
        tmp_path / "1", clusters=[{"name": "c", "cluster": {"server": "http://first"}}], users=[]
    )
    second = write(
        tmp_path / "2",
        {"token": "from-second"},
        {"server": "http://second"},
        **{"current-context": "other"},
    )
    variable = os.pathsep.join([str(tmp_path / "missing"), str(first), "", str(second)])
    config = load(config_paths(environment={"KUBECONFIG": variable}))
    assert config.files == (first, second)
    connection = resolve(config)
    assert (connection.server, connection.token) == ("http://first", "from-second")


def test_without_kubeconfig_variable_the_home_directory_is_used() -> None:
    assert config_paths(environment={"HOME": "/h"}) == (Path("/h/.kube/config"),)
    explicit = config_paths(Path("/x"), environment={"KUBECONFIG": "/y"})
    assert explicit == (Path("/x"),)


def test_no_file_at_all_says_how_to_get_one(tmp_path: Path) -> None:
    text = refusal(tmp_path / "config")
    assert str(tmp_path / "config") in text
    assert "fairlead up" in text


def test_broken_yaml_is_reported_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("clusters:\n- name: [oops\nusers: }\n")
    text = refusal(path)
    assert text.startswith(f"{path}: line 3, column ")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"[1, 2]", "want a mapping"),
        (b"clusters: 7", "clusters: want a list"),
        (b"users: [{name: 7}]", "users[0]: want a mapping with 'name'"),
        (b"", "no current-context"),
        (b"current-context: [x]", ".current-context: want text"),
    ],
)
def test_a_malformed_file_is_refused_with_file_and_place(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "config"
    path.write_bytes(content)
    text = refusal(path)
    assert str(path) in text
    assert said in text


def test_an_unknown_context_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    text = refusal(write(tmp_path / "config"), "prod")
    assert "no context is named 'prod'" in text
    assert "has: dev" in text


def test_a_context_that_names_a_missing_cluster_is_refused_at_its_place(tmp_path: Path) -> None:
    contexts = [{"name": "dev", "context": {"cluster": "gone", "user": "u"}}]
    text = refusal(write(tmp_path / "config", contexts=contexts))
    assert "contexts[0].context.cluster: no cluster is named 'gone'" in text


@pytest.mark.parametrize(
    ("user", "cluster", "said"),
    [
        ({"exec": {"command": "aws"}}, {}, "users[0].user.exec.apiVersion: want client.auth"),
        ({"exec": {"args": []}}, {}, "users[0].user.exec.command: want the name of a program"),
        ({"auth-provider": {"name": "gcp"}}, {}, "uses an auth provider"),
        ({"username": "a", "password": "b"}, {}, "uses a password"),
        ({"as-uid": "1"}, {}, "need as, the user"),
        ({"as": "ann", "as-groups": "vision"}, {}, "users[0].user.as-groups: want a list"),
        ({"as": "ann", "as-user-extra": "x"}, {}, "as-user-extra: want a mapping, got a str"),
        ({"as": "ann", "as-user-extra": {"a": "b"}}, {}, "as-user-extra.a: want a list"),
        ({"client-certificate-data": "eA=="}, {}, "go together"),
        ({"client-key-data": "?"}, {}, "users[0].user.client-key-data: not base64"),
        ({"token": 7}, {}, "users[0].user.token: want text, got a int"),
        ({}, {"certificate-authority": "no.pem"}, "no.pem cannot be read"),
        ({}, {"server": "host:6443"}, "server: want a URL such as https://host:6443"),
        ({}, {"proxy-url": "socks5://p"}, "proxy-url: want an http or https proxy"),
    ],
)
def test_what_cannot_be_used_is_refused_and_never_ignored(
    tmp_path: Path, user: dict, cluster: dict, said: str
) -> None:
    path = write(tmp_path / "config", user, cluster)
    text = refusal(path)
    assert str(path) in text
    assert said in text


def test_whom_requests_are_made_for_is_read_with_groups_uid_and_further_facts(
    tmp_path: Path,
) -> None:
    extra = {"scopes": ["view", "edit"], "acme.com/Project": ["x"]}
    user = {"as": "ann", "as-groups": ["vision"], "as-uid": "u-1", "as-user-extra": extra}
    connection = load_connection(path=write(tmp_path / "config", user))
    assert (connection.impersonate_user, connection.impersonate_groups) == ("ann", ("vision",))
    assert headers_of(HttpRequest("GET", "/"), connection, "", "test")[3:] == [
        ("Impersonate-User", "ann"),
        ("Impersonate-Group", "vision"),
        ("Impersonate-Uid", "u-1"),
        ("Impersonate-Extra-scopes", "view"),
        ("Impersonate-Extra-scopes", "edit"),
        ("Impersonate-Extra-acme.com%2Fproject", "x"),
    ]


def test_a_written_kubeconfig_is_private_whole_and_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text("what was there before")
    path.chmod(0o644)
    write_kubeconfig(path, "http://127.0.0.1:1", 'to"ken: #1', "fairlead")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    connection = load_connection("fairlead", path=path)
    assert connection == Connection(
        server="http://127.0.0.1:1", source=connection.source, token='to"ken: #1'
    )
    assert [p.name for p in tmp_path.iterdir()] == ["kubeconfig"]


def test_a_kubeconfig_that_cannot_be_written_says_where(tmp_path: Path) -> None:
    with pytest.raises(KubeconfigError, match=r"no-such-dir/k: cannot be written: .*--data"):
        write_kubeconfig(tmp_path / "no-such-dir" / "k", "http://x", "t", "c")


def test_in_a_pod_the_mounted_service_account_is_used(tmp_path: Path) -> None:
    for name, content in (("token", "t1"), ("ca.crt", "PEM"), ("namespace", "ml\n")):
        (tmp_path / name).write_text(content)
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    connection = in_cluster(environment=environment, directory=tmp_path)
    assert connection.server == "https://[fd00::1]:6443"
    assert connection.namespace == "ml"
    assert connection.token_file == tmp_path / "token"
    (tmp_path / "token").unlink()
    with pytest.raises(KubeconfigError, match="automountServiceAccountToken"):
        in_cluster(environment=environment, directory=tmp_path)
    with pytest.raises(KubeconfigError, match="this is no pod"):
        in_cluster(environment={}, directory=tmp_path)


def test_importing_it_loads_neither_yaml_nor_aiohttp_nor_asyncio() -> None:
    code = (
        "import sys, fairlead.kube.kubeconfig\n"
        "print([m for m in ('yaml', 'aiohttp', 'asyncio', 'msgspec') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert answer.stdout.decode().strip() == "[]"


def test_a_written_kubeconfig_is_yaml_and_is_read_without_loading_that(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    write_kubeconfig(path, "http://127.0.0.1:1", "secret", "fairlead")
    code = (
        "import sys, pathlib\nfrom fairlead.kube.kubeconfig import load_connection\n"
        f"print(load_connection(path=pathlib.Path({str(path)!r})).token, 'yaml' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert answer.stdout.decode().split() == ["secret", "False"]
    document = yaml.safe_load(path.read_text())
    assert document["users"] == [{"name": "fairlead", "user": {"token": "secret"}}]
    path.write_text("{users: [], clusters: []}  # YAML that begins as JSON does")
    with pytest.raises(KubeconfigError, match="no context"):
        load_connection(path=path)


def test_the_authority_is_written_beside_the_server_that_it_vouches_for(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    write_kubeconfig(path, "https://127.0.0.1:7443", "secret", "fairlead", authority=b"PEM\n")
    connection = load_connection(path=path)
    assert (connection.server, connection.token) == ("https://127.0.0.1:7443", "secret")
    assert connection.certificate_authority == b"PEM\n"
