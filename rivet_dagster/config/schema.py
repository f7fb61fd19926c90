"""JSON Schema of rivet.yaml and the table of keys in the docs, both made from the models.

``python -m rivet_dagster.config.schema`` prints the schema, ``--write`` writes it beside this module,
``--docs`` writes docs/config.md.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from rivet_dagster.config.features import FEATURES, INERT, UNFILLED_TOKENS, Feature
from rivet_dagster.config.notes import NOTES
from rivet_dagster.config.root import RivetConfig

SCHEMA_FILE: Final = Path(__file__).with_name("rivet.schema.json")
DOCS_FILE: Final = Path(__file__).parents[2] / "docs" / "config.md"

#: pydantic leaves bounds that stand behind a validator under its own names.
_BOUNDS: Final = {"ge": "minimum", "le": "maximum"}
_VARIABLE: Final = {"type": "string", "pattern": r"\$\{[^}]+\}"}

#: Section name in ``features`` -> heading in the docs, for the models that stand at one place.
_SECTIONS: Final = {
    "RivetConfig": ("", "Top level"),
    "SourceConfig": ("source", "source"),
    "TlsConfig": (None, "source.tls"),
    "MongoConfig": ("-", "source.mongo"),
    "TuningConfig": ("tuning", "tuning (under `source` or an export)"),
    "ExportConfig": ("export", "exports[]"),
    "DestinationConfig": ("export.destination", "exports[].destination"),
    "ParquetConfig": (None, "exports[].parquet"),
    "ExportDagster": (None, "exports[].dagster"),
    "FreshnessConfig": (None, "exports[].dagster.freshness"),
    "RootDagster": (None, "dagster"),
    "MetaColumns": ("export.meta_columns", "exports[].meta_columns"),
    "QualityConfig": ("-", "exports[].quality"),
    "SettleConfig": (None, "exports[].settle"),
    "CdcConfig": ("-", "exports[].cdc"),
    "NotificationsConfig": ("-", "notifications"),
    "SlackConfig": ("-", "notifications.slack"),
    "LoadConfig": ("-", "load"),
    "LoadOverride": ("-", "exports[].load"),
    "LoadPartition": ("-", "load.partition"),
    "PartitionRange": ("-", "load.partition.range"),
}

_INTRO = """# rivet.yaml

The keys of the config file. This page is generated: `python -m rivet_dagster.config.schema --docs`.

- The whole language of the reference tool is read and checked. What this version cannot do is refused
  with `RIVET_CONFIG_NOT_BUILT`; nothing is ignored. The column *built* says what works: `yes`, `no`, the
  values that work, or `label` for a key that only describes the export for planning.
- Unknown keys, keys without effect in the chosen mode, and TAB indentation are errors. Each error names the
  file, line, export, key and what to change. YAML is read by the 1.2 rules: `no` is text.
- `${NAME}` in any value is replaced from the parameters, then from the environment. It is replaced after
  parsing, so a value never changes the structure of the file, and only once. An unset name is an error.
  To write the characters `${` themselves, put them into a variable.
- Secrets belong into the environment: `url_env`, `password_env`. They are read when a run connects, so a
  code location loads without them.
- Names of tables and columns are exact, case included. Any may stand in double quotes as in SQL, a quote in
  it twice; YAML then wants single quotes around it: `table: 'public."Odd.Name"'`, `chunk_column: '"a.b"'`.
- A relative `path` or `ca_file` starts at the folder of the config file.
- A host that is not this machine needs a `tls:` block, for each host of a URL; `mode: disable` opts out.
"""


def json_schema() -> dict[str, Any]:
    """The schema as a document for editors: numbers and booleans may also be ``${NAME}``."""
    schema = RivetConfig.model_json_schema(by_alias=True)
    for name, model in [("RivetConfig", schema), *schema["$defs"].items()]:
        for key, field in model.get("properties", {}).items():
            field.pop("title", None)
            field["description"] = NOTES[name][key]
        model.pop("title", None)
        model.pop("description", None)
    document: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "rivet.yaml",
        **_with_variables(schema),
    }
    return document


def _with_variables(node: Any) -> Any:
    if isinstance(node, list):
        return [_with_variables(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") not in ("integer", "number", "boolean"):
        return {key: _with_variables(value) for key, value in node.items()}
    kept = {key: node[key] for key in ("default", "description") if key in node}
    typed = {_BOUNDS.get(key, key): value for key, value in node.items() if key not in kept}
    return {"anyOf": [typed, _VARIABLE], **kept}


def schema_text() -> str:
    return json.dumps(json_schema(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def docs_text() -> str:
    """docs/config.md as it must be."""
    lines = [_INTRO]
    models = {model.__name__: model for model in _models(RivetConfig, set())}
    for name, (section, title) in _SECTIONS.items():
        lines += ["", f"## {title}", "", "| key | type | default | built | |", "|---|---|---|---|---|"]
        lines += [_row(name, section, key, field) for key, field in models[name].model_fields.items()]
    lines += ["", "## What to use instead", "", "| not built | until then |", "|---|---|"]
    lines += [f"| `{feature.name}`{_other_than(feature)} | {feature.instead} |" for feature in FEATURES]
    lines += [
        f"| `{{{token}}}` in a destination | use {{date}}, {{export}} or {{table}} |"
        for token in UNFILLED_TOKENS
    ]
    return "\n".join(lines) + "\n"


def _row(model: str, section: str | None, key: str, field: FieldInfo) -> str:
    key = field.alias or key
    cells = (f"`{key}`", _type(field.annotation), _default(field), _built(section, key), NOTES[model][key])
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _built(section: str | None, key: str) -> str:
    if section == "-":
        return "no"
    if f"{section}.{key}" in INERT:
        return "label"
    feature = next((f for f in FEATURES if f.section == section and f.key == key), None)
    if feature is None:
        return "yes"
    words = [f"`{value}`" for value in feature.built if isinstance(value, str)]
    return ", ".join(words) or "no"


def _other_than(feature: Feature) -> str:
    words = [f"`{value}`" for value in feature.built if isinstance(value, str)]
    return f" other than {', '.join(words)}" if words else ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None or isinstance(value, BaseModel) or value in ((), {}):
        return ""
    return f"`{json.dumps(value)}`" if not isinstance(value, str) else f"`{value}`"


def _type(annotation: Any) -> str:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(args[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_type(arg) for arg in args if arg is not type(None)))
    if origin is Literal:
        return ", ".join(f"`{arg}`" for arg in args)
    if origin is tuple:
        return f"list of {_type(args[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return f"map to {_type(args[1])}"
    return _plain_type(annotation)


def _plain_type(annotation: Any) -> str:
    if issubclass(annotation, BaseModel):
        return "block"
    names = {bool: "true/false", int: "whole number", float: "number", str: "text", SecretStr: "text"}
    if annotation is Any:
        return "anything"
    return names.get(annotation) or ", ".join(f"`{member.value}`" for member in annotation)


def _models(annotation: Any, seen: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        if issubclass(annotation, BaseModel) and annotation not in seen:
            seen.add(annotation)
            yield annotation
            for field in annotation.model_fields.values():
                yield from _models(field.annotation, seen)
        return
    for argument in typing.get_args(annotation):
        yield from _models(argument, seen)


def main(arguments: Sequence[str]) -> None:
    if "--write" in arguments:
        SCHEMA_FILE.write_text(schema_text(), encoding="utf-8")
    if "--docs" in arguments:
        DOCS_FILE.write_text(docs_text(), encoding="utf-8")
    if not arguments:
        sys.stdout.write(schema_text())


if __name__ == "__main__":
    main(sys.argv[1:])
