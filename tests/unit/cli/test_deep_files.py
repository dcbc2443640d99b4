"""Files that are nested, repeated or broken beyond reason end in an error with a place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fairlead.cli.app import run
from fairlead.input.plain import UnreadableText, json_document, yaml_document, yaml_documents

DEEP = "[" * 100_000
FLOW = "{a: " * 5_000 + "1" + "}" * 5_000
BLOCK = "".join(f"{'  ' * i}a:\n" for i in range(300))
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
WIDE = "[" + "1," * 300_000 + "1]"

#: What reads a file of this name.
READERS: dict[str, Callable[[str], list[str]]] = {
    "kubeconfig": lambda file: ["ps", "--kubeconfig", file],
    "manifest": lambda file: ["submit", "-f", file],
    "suppressions": lambda file: ["doctor", "--offline", "--suppressions", file],
    "baseline": lambda file: ["doctor", "--offline", "--baseline", file],
    "kubelet": lambda file: ["doctor", "--offline", "--kubelet-config", file],
    "manifests": lambda file: ["doctor", "--offline", "--manifests", str(Path(file).parent)],
    "preflight": lambda file: ["doctor", "preflight", "-f", file, "--trace", file, "--nodes", "10"],
    "uses": lambda file: ["doctor", "metrics", "http://127.0.0.1:1", "--uses", file],
    "scenario": lambda file: ["sim", "run", file],
    "run": lambda file: ["sim", "replay", str(Path(file).parent)],
    "settings": lambda file: ["up", "--data", f"{file}.data", "--settings", file],
    "values": lambda file: ["install", "--dry-run", "--values", file],
    "teams": lambda file: ["teams", "plan", "-f", file],
    "teams import": lambda file: ["teams", "import", "-f", file],
    "webhook": lambda file: ["webhook", "-f", file],
    "stages": lambda file: ["sim", "import", "--format", "kwok", file, f"{file}.out"],
}


@pytest.mark.parametrize("text", [DEEP, FLOW, BLOCK, BOMB], ids=["deep", "flow", "block", "bomb"])
@pytest.mark.parametrize("reader", READERS)
def test_a_file_of_many_levels_is_an_error_of_the_file(
    reader: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "scenario.json" if reader == "run" else "api.yaml"
    file = tmp_path / name
    file.write_text(text)
    (tmp_path / "summary.json").write_text("{}")
    if reader == "teams import":
        body = {"apiVersion": "v1", "kind": "ConfigMap", "data": {"shares": text}}
        file.write_text(json.dumps(body))
    code = run(READERS[reader](str(file)))
    error = capsys.readouterr().err
    assert code == 2, error
    assert "fault of fairlead" not in error
    assert any(word in error for word in (str(file), "data.shares", str(tmp_path))), error


def test_bounds_come_with_their_lines() -> None:
    with pytest.raises(UnreadableText, match="line 1: nested more than 64 levels"):
        yaml_document(DEEP)
    with pytest.raises(UnreadableText, match="line 65: nested more than 64 levels"):
        yaml_document(BLOCK)
    with pytest.raises(UnreadableText, match="more than 200,000 values"):
        yaml_document(BOMB)
    with pytest.raises(UnreadableText, match="more than 200,000 values"):
        yaml_document(WIDE)
    for text in (DEEP, "[" * 66 + "]" * 66):
        with pytest.raises(UnreadableText, match="nested more than 64 levels"):
            json_document(text)
    assert json_document("[" * 64 + "]" * 64)


def test_mistakes_have_their_places() -> None:
    with pytest.raises(UnreadableText, match=r"line 2, column 1: .*given twice.*keep one"):
        yaml_document("a: 1\na: 2")
    with pytest.raises(UnreadableText, match="not several"):
        yaml_document("a: 1\n---\nb: 2")
    with pytest.raises(UnreadableText, match="line 2, column 3: not JSON"):
        json_document('{"a": 1,\n  b}')
    with pytest.raises(UnreadableText, match="not JSON"):
        json_document(b"\xff")
    assert yaml_document("") is None
    assert yaml_documents("a: 1\n---\n---\n[b]") == [{"a": 1}, ["b"]]
