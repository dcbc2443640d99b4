"""Settings of containerd that it ignores: its files beside what is in effect."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.model.health.faults import Moment
from fairlead.node.running.host import Absent, Host
from fairlead.node.settings import AgentSettings
from fairlead.node.source import Nothing
from fairlead.node.sources.containerd import judge, read, setting, source

AT = Moment(1_000.0, 1_000.0)
CRI = 'plugins."io.containerd.grpc.v1.cri"'
IMAGES = 'plugins."io.containerd.cri.v1.images"'
#: Version 3, as containerd 2 has it: of its section of before, only the streaming server is left.
EFFECTIVE = f"""
version = 3
imports = ["/etc/containerd/conf.d/*.toml"]
[{CRI}]
stream_server_port = "0"
[{IMAGES}]
max_concurrent_downloads = 3
[{IMAGES}.registry]
config_path = ""
"""


def machine(root: Path, **files: str) -> Host:
    for name, text in files.items():
        path = root / "etc/containerd" / f"{name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Host(root)


def faults(host: Host, effective: str = EFFECTIVE) -> dict[str, str]:
    """Return the evidence of the faults by file."""
    facts = read(replace(host, containerd_dump=lambda: effective))
    judged = judge(facts, Nothing(), AT, settings=AgentSettings())
    return {each.identity.component: each.evidence for each in judged.observations}


def test_settings_that_are_in_effect_are_no_fault(tmp_path: Path) -> None:
    text = f'version = 3\n[{IMAGES}.registry]\nconfig_path = "/etc/containerd/certs.d"\n'
    assert faults(machine(tmp_path, config=text)) == {}


def test_a_setting_under_the_section_of_an_earlier_version_is_a_fault(tmp_path: Path) -> None:
    text = f"version = 3\n[{CRI}]\nmax_concurrent_downloads = 10\n"
    found = faults(machine(tmp_path, config=text))
    assert found == {
        "/etc/containerd/config.toml": "containerd ignores 1 setting of it: "
        "io.containerd.grpc.v1.cri.max_concurrent_downloads",
    }


def test_a_registry_under_the_wrong_section_of_a_file_that_is_imported_is_a_fault(
    tmp_path: Path,
) -> None:
    text = 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n'
    host = machine(tmp_path, config=text)
    directory = tmp_path / "etc/containerd/conf.d"
    directory.mkdir()
    (directory / "mirror.toml").write_text(f'version = 3\n[{CRI}.registry]\nconfig_path = "/m"\n')
    assert list(faults(host)) == ["/etc/containerd/conf.d/mirror.toml"]


def test_a_file_of_an_earlier_version_is_left_to_containerd_which_moves_its_keys(
    tmp_path: Path,
) -> None:
    text = f"version = 2\n[{CRI}]\nmax_concurrent_downloads = 10\n"
    assert faults(machine(tmp_path, config=text)) == {}


def test_a_section_that_no_plugin_has_is_named_once_and_many_are_counted(tmp_path: Path) -> None:
    keys = "\n".join(f"key{i} = {i}" for i in range(20))
    text = f'version = 3\n[plugins."io.containerd.none.v1.none".a.b]\nc = 1\n[{IMAGES}]\n{keys}\n'
    (evidence,) = faults(machine(tmp_path, config=text)).values()
    assert evidence.startswith("containerd ignores 21 settings of it: io.containerd.cri.v1.images.")


def test_what_cannot_be_compared_is_absent_or_says_why(tmp_path: Path) -> None:
    with pytest.raises(Absent, match=r"no /etc/containerd/config\.toml"):
        read(Host(tmp_path, containerd_dump=lambda: EFFECTIVE))
    host = machine(tmp_path, config="version = 3\n")
    with pytest.raises(Absent, match="in a container"):
        read(host)
    with pytest.raises(OSError, match="containerd config dump: "):
        read(replace(host, containerd_dump=lambda: "version = "))
    host = replace(machine(tmp_path, config="= 3"), containerd_dump=lambda: EFFECTIVE)
    with pytest.raises(OSError, match=r"/etc/containerd/config\.toml: "):
        read(host)


def test_odd_files_are_compared_without_a_fault_of_ours(tmp_path: Path) -> None:
    for text in ("plugins = 3", "imports = 3", "imports = [3]", "[plugins]\na = [1]", ""):
        faults(machine(tmp_path, config=text), "plugins = [1]")


def test_containerd_is_asked_again_only_when_a_file_of_settings_changes(tmp_path: Path) -> None:
    answers: Iterator[int | None] = iter((3, None, 10))

    def dump() -> str:
        downloads = next(answers)
        if downloads is None:
            raise OSError("containerd config dump: exit code 1: it fails")
        return EFFECTIVE.replace("downloads = 3", f"downloads = {downloads}")

    def downloads(text: str) -> str | None:
        host = replace(machine(tmp_path, config=text), containerd_dump=dump)
        return setting(read(host), "plugins/io.containerd.cri.v1.images/max_concurrent_downloads")

    first, second = "version = 3\n", "version = 3\noom_score = 1\n"
    assert [downloads(first), downloads(first)] == ["3", "3"]
    with pytest.raises(OSError, match="it fails"):
        downloads(second)
    assert [downloads(second), downloads(second), downloads(first)] == ["10", "10", "3"]


def test_the_source_is_one_of_the_agent(tmp_path: Path) -> None:
    made = source(Host(tmp_path), AgentSettings())
    with pytest.raises(Absent):
        made.read()


@pytest.mark.skipif(shutil.which("containerd") is None, reason="no containerd on the PATH")
def test_a_real_containerd_says_what_it_ignores(tmp_path: Path) -> None:
    version = subprocess.run(
        ["containerd", "config", "default"], capture_output=True, text=True, check=True
    ).stdout
    number = next(line for line in version.splitlines() if line.startswith("version = "))
    section = IMAGES if number.endswith("3") else CRI
    wrong = f"[{section}.containerd]\nmax_concurrent_downloads = 10\n"
    text = f"{number}\n[{section}]\nmax_concurrent_downloads = 10\n{wrong}"
    host = machine(tmp_path, config=text)
    config = str(host.path("etc/containerd/config.toml"))
    dumped = subprocess.run(
        ["containerd", "--config", config, "config", "dump"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    (evidence,) = faults(host, dumped).values()
    assert evidence.startswith(f"containerd ignores 1 setting of it: {section[9:-1]}.containerd")
