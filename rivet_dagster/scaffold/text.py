"""The text of a scaffolded rivet.yaml: values that any name survives, and comments that explain."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rivet_dagster.config.base import unsafe_name
from rivet_dagster.engine.names import sanitize
from rivet_dagster.engine.sources.postgres.catalog import Relation
from rivet_dagster.engine.sources.postgres.quote import quote_ident, quote_relation
from rivet_dagster.scaffold.choose import Choice

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_TABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_$]*")  # what `table:` takes
_WORDS: Final = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_VARIABLE: Final = "${"


@dataclass(frozen=True, slots=True)
class Entry:
    """One table and what was chosen for it. name: of the export."""

    name: str
    relation: Relation
    choice: Choice

    @property
    def off(self) -> str | None:
        """Why the entry is written as a comment; None when it is live."""
        names = [self.relation.schema, self.relation.name, *map(str, self.choice.keys.values())]
        if any(_VARIABLE in name for name in names):
            return "its name holds `${`, which stands for a variable: put the name into one"
        return self.choice.refused


def named(tables: Iterable[tuple[Relation, Choice]]) -> list[Entry]:
    """Entries whose export names differ, also where Dagster's asset names are all that shows of them."""
    listed = list(tables)
    bare = [relation.name for relation, _ in listed]
    entries: list[Entry] = []
    taken: set[str] = set()
    for relation, choice in listed:
        name = relation.name
        if bare.count(name) > 1 and relation.schema != "public":
            name = f"{relation.schema}_{name}"
        if unsafe_name(name) or _VARIABLE in name:
            name = sanitize(name).replace("..", "-").lstrip(".")[:100] or "table"
        plain, number = name, 1
        while _asset(name) in taken:
            number += 1
            name = f"{plain}_{number}"
        taken.add(_asset(name))
        entries.append(Entry(name, relation, choice))
    return entries


def _asset(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]", "_", name)


def render(
    head: Iterable[str], source: Mapping[str, Any], entries: Iterable[Entry], *, file_format: str, path: str
) -> str:
    """The file. ``source``: its keys; ``path``: destination, with tokens."""
    lines = [*_comment(head, ""), "source:"]
    lines += [f"  {key}: {_value(value)}" for key, value in source.items()]
    lines += ["", "exports:"]
    for entry in entries:
        lines += [*_entry(entry, file_format, path), ""]
    return "\n".join(lines).rstrip() + "\n"


def _entry(entry: Entry, file_format: str, path: str) -> Iterator[str]:
    choice = entry.choice
    yield from _comment(choice.why, "  ")
    yield from _comment(choice.options, "  ")
    yield from _comment([f"Review: {line}" for line in choice.review], "  ")
    body = [
        f"- name: {_value(entry.name)}",
        *(f"  {key}: {_value(value)}" for key, value in _keys(entry).items()),
        f"  format: {file_format}",
        f"  destination: {{type: local, path: {json.dumps(path)}}}",
    ]
    if choice.overrides:
        body.append(f"  # columns: {_value(choice.overrides)}")
    if entry.off is None:
        yield from (f"  {line}" for line in body)
    else:
        yield from _comment([f"Review: left out, {entry.off}. Then remove the # below.", *body], "  ")


def _keys(entry: Entry) -> dict[str, Any]:
    relation, choice = entry.relation, entry.choice
    if not choice.leave_out and all(map(_TABLE.fullmatch, (relation.schema, relation.name))):
        return {"table": f"{relation.schema}.{relation.name}", **choice.keys}
    kept = [c.name for c in relation.columns if c.name not in choice.leave_out]
    columns = ", ".join(map(quote_ident, kept)) if choice.leave_out else "*"
    query = f"SELECT {columns} FROM {quote_relation(relation.schema, relation.name)}"
    # of a query only the columns are known, not its keys
    return {"query": query, **(choice.keys if "chunk_column" in choice.keys else {"mode": "full"})}


def _comment(lines: Iterable[str], indent: str) -> list[str]:
    return [f"{indent}# {_CONTROL.sub('?', line)}".rstrip() for line in lines]


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_value(key)}: {_value(item)}" for key, item in value.items()) + "}"
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))
