"""What a machine is: read from files, with what cannot be read left out."""

from __future__ import annotations

from pathlib import Path

from fairlead.node.running.host import Host
from fairlead.node.sources import hardware

#: As the driver of NVIDIA writes it (its README, chapter "The /proc interface").
INFORMATION = """Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 346
GPU UUID: \t {uuid}
Video BIOS: \t {bios}
Bus Type: \t PCIe
"""


def put(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def gpu(root: Path, bus: str, uuid: str, bios: str = "96.00.61.00.01") -> None:
    put(root, f"proc/driver/nvidia/gpus/{bus}/information",
        INFORMATION.format(uuid=uuid, bios=bios))  # fmt: skip


def test_a_machine_is_told_by_its_gpus_firmware_and_drivers(tmp_path: Path) -> None:
    host = Host(root=tmp_path)
    assert hardware.read(host) == {}
    put(tmp_path, "sys/class/dmi/id/bios_version", "2.1.3\n")
    put(tmp_path, "sys/module/nvidia/version", "550.54.15\n")
    gpu(tmp_path, "0000:3b:00.0", "GPU-a")
    gpu(tmp_path, "0000:4b:00.0", "GPU-b", "96.00.61.00.02")
    before = hardware.read(host)
    assert before["gpus"].startswith("2 ")
    assert {k: v for k, v in before.items() if k != "gpus"} == {
        "firmware": "2.1.3", "nvidia": "550.54.15",
        "gpuFirmware": "96.00.61.00.01, 96.00.61.00.02",
    }  # fmt: skip
    gpu(tmp_path, "0000:3b:00.0", "GPU-b")
    gpu(tmp_path, "0000:4b:00.0", "GPU-a", "96.00.61.00.02")
    assert hardware.read(host) == before, "in another order they are the same"
    gpu(tmp_path, "0000:4b:00.0", "GPU-c", "96.00.61.00.02")
    assert hardware.read(host)["gpus"] != before["gpus"]


def test_gpus_that_do_not_say_who_they_are_do_not_count(tmp_path: Path) -> None:
    gpu(tmp_path, "0000:3b:00.0", "GPU-????????-????-????-????-????????????", "??.??.??.??.??")
    (tmp_path / "proc/driver/nvidia/gpus/0000:4b:00.0").mkdir()
    assert hardware.read(Host(root=tmp_path)) == {}
    put(tmp_path, "sys/class/drm/card0/device/unique_id", "8d1a")
    put(tmp_path, "sys/class/drm/card0-DP-1/device/unique_id", "none")
    assert hardware.read(Host(root=tmp_path))["gpus"].startswith("1 ")
