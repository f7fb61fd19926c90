"""pydantic's errors in plain words. A value is shown only where it is one of a list's alternatives."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rivet_dagster.config.base import KeyPath, Place, Problem, kind_of
from rivet_dagster.config.cdc import CdcConfig
from rivet_dagster.config.dagster_block import ExportDagster
from rivet_dagster.config.destination import DestinationConfig
from rivet_dagster.config.export import ExportConfig
from rivet_dagster.config.parquet import ParquetConfig
from rivet_dagster.config.quality import MetaColumns, QualityConfig
from rivet_dagster.config.root import RivetConfig
from rivet_dagster.config.source import SourceConfig
from rivet_dagster.config.tls import TlsConfig
from rivet_dagster.config.tuning import TuningConfig

#: Where a key belongs when it stands somewhere else, most likely place first.
_HOMES: Final[tuple[tuple[str, type[BaseModel]], ...]] = (
    ("tuning", TuningConfig),
    ("destination", DestinationConfig),
    ("parquet", ParquetConfig),
    ("cdc", CdcConfig),
    ("quality", QualityConfig),
    ("meta_columns", MetaColumns),
    ("source.tls", TlsConfig),
    ("dagster", ExportDagster),
    ("source", SourceConfig),
    ("exports", ExportConfig),
)
_CODES: Final = {
    "chunk_count": "RIVET_CONFIG_CHUNK_COUNT_INVALID",
    "chunk_by_days": "RIVET_CONFIG_CHUNK_BY_DAYS_INVALID",
}


def problems_of(error: ValidationError, place: Place) -> list[Problem]:
    """One problem for each key that has a wrong value, a wrong name or none, in the order of the file."""
    found: dict[KeyPath, Problem] = {}
    for detail in error.errors(include_url=False, include_context=True, include_input=True):
        path = _known(detail, place)
        found.setdefault(path, _problem(detail, path))
    for path in [p for p in found if any(len(q) > len(p) and q[: len(p)] == p for q in found)]:
        del found[path]  # the other member of a union; the error inside says what is wrong
    return sorted(found.values(), key=lambda p: place.line(p.path) or 0)


def _known(detail: ErrorDetails, place: Place) -> KeyPath:
    """The location without the names that pydantic adds for the members of a union."""
    path: KeyPath = ()
    for key in detail["loc"]:
        if (*path, key) in place.lines:
            path = (*path, key)
    if detail["type"] == "missing":
        path = (*path, detail["loc"][-1])
    return path


def _problem(detail: ErrorDetails, path: KeyPath) -> Problem:
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    key = str(path[-1]) if path else ""
    code = "RIVET_CONFIG_INVALID"
    message, fix = "the value cannot be used", f"look up `{key}` in docs/config.md"
    if kind == "extra_forbidden":
        return _unknown(path, key)
    if kind == "missing":
        message, fix = f"the key `{key}` is missing", f"add `{key}:`"
        code = "RIVET_CONFIG_NO_EXPORTS" if path == ("exports",) else code
    elif value is None:
        message, fix = "the key has no value", f"give `{key}` a value, or remove it"
    elif kind in ("greater_than_equal", "less_than_equal"):
        word, limit = ("least", context["ge"]) if kind == "greater_than_equal" else ("most", context["le"])
        message, fix = f"the number must be at {word} {limit:g}", f"set `{key}` to {limit:g} at {word}"
        code = _CODES.get(key, code)
    elif kind in ("model_type", "dict_type", "model_attributes_type", "mapping_type"):
        message, fix = f"must be a mapping, not {kind_of(value)}", f"write keys below `{key}:`"
    elif isinstance(value, dict):
        message, fix = "a mapping stands where a value belongs", 'quote a value that has braces: "{date}/x"'
    elif kind in ("literal_error", "enum"):
        return _choice(path, key, str(context.get("expected", "")), value)
    elif kind == "rivet_type":
        message, fix = detail["msg"], _type_fix(detail["msg"], key)
    return Problem(path, message, fix, code)


def _type_fix(message: str, key: str) -> str:
    if "not text" in message and "list" not in message:
        return f"write the value of `{key}` without quotes"
    return f"write `{key}: [a, b]`" if "a list, not" in message else f"correct the value of `{key}`"


def _choice(path: KeyPath, key: str, expected: str, value: Any) -> Problem:
    words = [word.strip().strip("'") for word in expected.replace(" or ", ", ").split(",")]
    fix = f"use one of: {', '.join(words)}"
    if isinstance(value, str) and (near := difflib.get_close_matches(value.lower(), words, 1)):
        fix = f"did you mean `{near[0]}`? One of: {', '.join(words)}"
    shown = f"`{value}`" if isinstance(value, str) and len(value) <= 40 else f"{kind_of(value)}"
    return Problem(path, f"{shown} is not a value of `{key}`", fix)


def _unknown(path: KeyPath, key: str) -> Problem:
    code = "RIVET_CONFIG_UNKNOWN_KEY"
    here = _fields(_model_at(path[:-1]))
    if key == "<<":
        return Problem(path, "merge keys (`<<`) are not supported", "write the keys out", code)
    if near := difflib.get_close_matches(key.lower().replace("-", "_"), here, 1, cutoff=0.8):
        return Problem(path, f"the key `{key}` is not known here", f"did you mean `{near[0]}`?", code)
    for home, model in _HOMES:
        if key in _fields(model) and path[:-1][-1:] != (home,):
            return Problem(path, f"the key `{key}` does not belong here", f"move it under `{home}:`", code)
    near = difflib.get_close_matches(key.lower(), here, 1, cutoff=0.6)
    fix = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(here)}"
    return Problem(path, f"the key `{key}` is not known here", fix, code)


def _fields(model: type[BaseModel] | None) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()] if model is not None else []


def _model_at(path: Iterable[str | int]) -> type[BaseModel] | None:
    """The model that the mapping at ``path`` is read into."""
    model: type[BaseModel] | None = RivetConfig
    for key in path:
        if isinstance(key, int) or model is None:
            continue
        field = next((f for n, f in model.model_fields.items() if (f.alias or n) == key), None)
        inner = _model_in(field.annotation) if field is not None else None
        model = inner if inner is not None else (model if field is None else None)
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if typing.get_origin(annotation) is None:
        is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel)
        return annotation if is_model else None
    return next((m for a in typing.get_args(annotation) if (m := _model_in(a)) is not None), None)
