"""rivet.yaml -> RivetConfig, or one ConfigError that says what to change.

In this order: the file, its YAML, the variables, names and types of keys, keys that exclude or need
each other, and last what this version has not built. Nothing here connects anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rivet_dagster.config.base import Context, KeyPath, Place, Problem
from rivet_dagster.config.features import not_built
from rivet_dagster.config.messages import problems_of
from rivet_dagster.config.root import RivetConfig, attach
from rivet_dagster.config.source import register_url
from rivet_dagster.config.yaml_lines import Document, YamlProblem, read_yaml
from rivet_dagster.engine.errors import ConfigError
from rivet_dagster.engine.redact import register_secret


def load_config(path: str | Path, params: Mapping[str, str] | None = None) -> RivetConfig:
    """Read and check a config file.

    ``params`` fill ``${NAME}`` before the environment does. Raises ConfigError for the first problem;
    ``others`` of it holds the rest.
    """
    file = Path(path).absolute()
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"the config cannot be read: {reason}",
            code="RIVET_CONFIG_UNREADABLE",
            file=str(file),
            fix="check the path and its permissions",
        ) from None
    return parse_config(text, file, params)


def parse_config(text: str, path: Path, params: Mapping[str, str] | None = None) -> RivetConfig:
    """Like ``load_config`` for ``text`` that stands, or would stand, at the absolute ``path``."""
    try:
        document = read_yaml(text, str(path), params)
    except YamlProblem as problem:
        raise ConfigError(problem.message, file=str(path), line=problem.line, fix=problem.fix) from None
    _register_secrets(document)
    if document.problems:
        raise _error(document.problems, document)
    context = Context(path.parent)
    try:
        config = RivetConfig.model_validate(document.data, context=context)
    except ValidationError as error:
        problems = problems_of(error, document.place)
        raise _error(problems, document) from None
    if problems := [*config.problems(context), *not_built(config)]:
        raise _error(problems, document)
    attach(config, path, document.place)
    return config


def _register_secrets(document: Document) -> None:
    """Before anything can fail, so that no error shows them."""
    data = document.data
    source = data.get("source")
    if isinstance(source, dict):
        if isinstance(password := source.get("password"), str):
            register_secret(str(password))
        if isinstance(url := source.get("url"), str):
            register_url(str(url), document.substituted.get(("source", "url"), ()))
    for keys in (("notifications", "slack", "webhook_url"), ("load", "url")):
        if isinstance(value := _dig(data, keys), str):
            register_secret(str(value))


def _dig(data: Any, keys: Sequence[str]) -> Any:
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _error(problems: Sequence[Problem], document: Document) -> ConfigError:
    errors = [_config_error(problem, document.data, document.place) for problem in problems]
    first = errors[0]
    if len(errors) > 1:
        count = len(errors) - 1
        first = _config_error(problems[0], document.data, document.place, f" ({count} more in this file)")
    first.others = errors[1:]
    return first


def _config_error(problem: Problem, data: Any, place: Place, tail: str = "") -> ConfigError:
    export, keys = _export_of(problem.path, data)
    names = [str(key) for key in keys if not str(key).startswith("\0")]
    return ConfigError(
        problem.message,
        code=problem.code,
        file=place.file,
        line=place.line(problem.path),
        export=export,
        field=".".join(names) or None,
        fix=problem.fix + tail,
    )


def _export_of(path: KeyPath, data: Any) -> tuple[str | None, KeyPath]:
    """(name of the export, keys inside it), or (None, keys) outside the exports."""
    if len(path) < 2 or path[0] != "exports" or not isinstance(path[1], int):
        return None, path
    exports = data.get("exports")
    entry = exports[path[1]] if isinstance(exports, list) and path[1] < len(exports) else None
    name = entry.get("name") if isinstance(entry, dict) else None
    return (str(name) if isinstance(name, str) else f"#{path[1] + 1}"), path[2:]
