"""Write `src/fairlead/embedded/apply/builtin_types.json`: how the fields of built-in kinds merge.

Reads the OpenAPI documents that Kubernetes publishes with its source, from the Go module that
`build.sh` downloads (`tools/kubernetes/go.mod` names the version):

    python tools/kubernetes/field_types.py [DIRECTORY OF THE OPENAPI DOCUMENTS]

Only the kinds of `embedded/builtins.py` are written, and what they are made of. What merges as a
whole (scalars, atomic lists and maps) is a leaf, whatever is in it. `apply/types.py` reads the
table and describes its words.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from fairlead.embedded.builtins import BUILTINS
from fairlead.embedded.resource_info import ResourceInfo

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "src/fairlead/embedded/apply/builtin_types.json"
_LEAVES = ("Quantity", "IntOrString", "Time", "MicroTime")


def documents() -> Path:
    """Return the folder of the published documents in the module cache."""
    command = ["go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"]
    found = subprocess.run(
        command, cwd=ROOT / "tools/kubernetes", check=True, capture_output=True, text=True
    )
    return Path(found.stdout.strip()) / "api/openapi-spec/v3"


class Table:
    """The types of some kinds; `types` is what is written."""

    def __init__(self, folder: Path) -> None:
        self.types: dict[str, Any] = {}
        self._folder = folder
        self._schemas: dict[str, Any] = {}
        self._full_names: dict[str, str] = {}

    def name(self, info: ResourceInfo) -> str:
        """Give a kind its name in the table, before parts of other kinds; return its schema's."""
        path = f"apis/{info.group}/{info.version}" if info.group else f"api/{info.version}"
        document = self._folder / f"{path.replace('/', '__')}_openapi.json"
        self._schemas |= json.loads(document.read_text())["components"]["schemas"]
        wanted = {"group": info.group, "version": info.version, "kind": info.kind}
        full = next(
            name
            for name, schema in self._schemas.items()
            if wanted in schema.get("x-kubernetes-group-version-kind", ())
            and not name.endswith("DeleteOptions")
        )
        self._full_names[info.kind] = full
        return full

    def add(self, full: str) -> None:
        """Add a kind, by the name of its schema, and what it is made of."""
        self._struct(full)

    def _struct(self, full: str) -> str:
        """Return the word for a named schema, and see that it is in the table."""
        name = full.rpartition(".")[2]
        schema = self._schemas[full]
        if name in _LEAVES or schema.get("x-kubernetes-map-type") == "atomic":
            return ""
        if "properties" not in schema:
            return "?"
        if self._full_names.setdefault(name, full) != full:
            name = ".".join(full.split(".")[-3:])  # of two packages: apiextensions.v1.X
        if name not in self.types:
            self.types[name] = {}
            required = schema.get("required", ())
            self.types[name] = {
                field: self._field(below, is_required=field in required)
                for field, below in sorted(schema["properties"].items())
            }
        return name

    def _field(self, schema: dict[str, Any], *, is_required: bool) -> str:
        """Return the word for a field, marked where Go writes it even if it is empty."""
        word = self._word(schema)
        is_list = word.startswith(("[", "{"))
        is_written = (is_required and is_list) or schema.get("default") == {}
        return f"{word}!" if word not in ("", "?") and is_written else word

    def _word(self, schema: dict[str, Any]) -> str:
        if schema.get("x-kubernetes-map-type") == "atomic":
            return ""
        named = schema if "$ref" in schema else (schema.get("allOf") or [{}])[0]
        if "$ref" in named:
            return self._struct(named["$ref"].rpartition("/")[2])
        if schema.get("type") == "object":
            extra = schema.get("additionalProperties")
            return f"{{{self._word(extra)}}}" if isinstance(extra, dict) else "?"
        if schema.get("type") != "array":
            return "" if "type" in schema else "?"
        return self._list(schema)

    def _list(self, schema: dict[str, Any]) -> str:
        strategy = schema.get("x-kubernetes-patch-strategy", "")
        merged = "map" if "x-kubernetes-patch-merge-key" in schema else "set"
        default = merged if strategy.startswith("merge") else "atomic"
        kind = schema.get("x-kubernetes-list-type", default)
        if kind == "atomic":
            return ""
        if kind == "set":
            return "[] set"
        given = schema.get("x-kubernetes-list-map-keys")
        keys = given or [schema["x-kubernetes-patch-merge-key"]]
        item = self._word(schema["items"])
        full = schema["items"]["allOf"][0]["$ref"].rpartition("/")[2]
        fields = self._schemas[full]["properties"]
        words = [
            f"{key}={json.dumps(fields[key]['default'])}" if "default" in fields[key] else key
            for key in keys
        ]
        return f"[{item}] by {', '.join(words)}"


def main() -> None:
    """Write the table."""
    table = Table(Path(sys.argv[1]) if len(sys.argv) > 1 else documents())
    for full in [table.name(info) for info in BUILTINS]:
        table.add(full)
    lines = [f"{json.dumps(name)}: {json.dumps(table.types[name])}" for name in sorted(table.types)]
    TABLE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
