"""The how-to lists every setting and every source of the agent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args

from msgspec import Meta
from tests.unit.node.host_tree import HostTree, changed

from fairlead.app.configuration.controller_settings import ControllerSettings
from fairlead.input.sections import description_of, fields_of, is_section, parse, plain
from fairlead.node.registry import SOURCES, conflicts, sources
from fairlead.node.running.probe_settings import CloudProvider
from fairlead.node.settings import AgentSettings, ExportedMetricSettings, ExporterSettings

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "node-agent.md"


def row(path: str, type_: Any, default: object) -> str:
    base = get_args(type_)[0]
    (limits,) = [each for each in get_args(type_) if isinstance(each, Meta)]
    enums = [e for e in (base, *get_args(base)) if isinstance(e, type) and issubclass(e, Enum)]
    if isinstance(default, bool):
        shown, accepted = str(default).lower(), "true, false"
    elif enums:
        shown, accepted = default or "none", ", ".join(each.value for each in enums[0])
    elif isinstance(default, list | dict):
        shown, accepted = ", ".join(default) or "none", f"{limits.max_length} of them"
    elif isinstance(default, str):
        shown, accepted = default or "none", f"{limits.max_length} characters"
    else:
        shown, accepted = f"{default:,}", f"{limits.ge:,} to {limits.le:,}"
    return f"| `{path}` | {shown} | {accepted} | {description_of(type_)} |"


def rows() -> Iterator[str]:
    for name, type_ in fields_of(AgentSettings).items():
        default = plain(AgentSettings())[name]
        if is_section(type_):
            for inner, field in fields_of(type_).items():
                yield row(f"{name}.{inner}", field, default[inner])
        else:
            yield row(name, type_, default)


def test_the_page_lists_every_setting() -> None:
    _, _, table = PAGE.read_text().partition("## Settings")
    listed = [line for line in table.splitlines() if line.startswith("| `")]
    wanted = list(rows())
    assert listed == wanted, "\n".join(["the table should be:", *wanted])


def test_the_settings_that_the_page_shows_are_accepted() -> None:
    """Those of the agent, and where destinations are limited those of the controllers."""
    texts = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    of_controllers = [text for text in texts if "destinations:" in text]
    for text in texts:
        if text not in of_controllers:
            assert parse(text, AgentSettings, conflicts, source="page") != AgentSettings()
    assert len(of_controllers) == 1
    assert parse(of_controllers[0], ControllerSettings, source="page") != ControllerSettings()


def test_the_page_lists_every_source_with_its_period(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    settings = changed(AgentSettings(), "programs", directory=str(tmp_path))
    settings = changed(settings, "tuning", profile="ml-node")
    settings = changed(settings, "traffic", pods=str(tmp_path / "pods.json"))
    settings = changed(settings, "shaping", enabled=True)
    settings = changed(settings, "reach", names=("localhost",))
    settings = changed(settings, "monitors", gpud="http://127.0.0.1/", dcgm="http://127.0.0.1/")
    settings = changed(settings, "cloud", provider=CloudProvider.AWS)
    page = ExporterSettings("http://127.0.0.1/", (ExportedMetricSettings("a"),))
    settings = changed(settings, "exporters", pages=(page,))
    made = {source.name: source.period_seconds for source in sources(tree.host(), settings)}
    listed = re.findall(r"^\| ([a-z-]+) \| .* \| (\d+) s \|$", PAGE.read_text(), re.MULTILINE)
    assert {name: int(period) for name, period in listed} == made
    assert made.keys() == SOURCES.keys()
    assert min(made.values()) >= 1, "at most one wake-up a second and source"
