"""The committed schema and docs are what the models say."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from rivet_dagster.config import RivetConfig
from rivet_dagster.config.features import FEATURES, INERT
from rivet_dagster.config.notes import NOTES
from rivet_dagster.config.schema import _SECTIONS, DOCS_FILE, SCHEMA_FILE, _models, docs_text, schema_text
from tests.unit.config.cases import config
from tests.unit.config.test_load import SHOP

MODELS: dict[str, type[BaseModel]] = {model.__name__: model for model in _models(RivetConfig, set())}


def test_the_schema_is_current() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text()


def test_the_docs_are_current() -> None:
    assert DOCS_FILE.read_text(encoding="utf-8") == docs_text()


def test_every_model_is_in_the_docs() -> None:
    assert set(_SECTIONS) == set(MODELS)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_key_has_a_note(name: str) -> None:
    assert set(NOTES[name]) == {field.alias or key for key, field in MODELS[name].model_fields.items()}


def test_every_gated_and_inert_key_exists() -> None:
    at = {place: MODELS[name] for name, (place, _) in _SECTIONS.items() if place not in (None, "-")}
    for feature in FEATURES:
        assert feature.key in at[feature.section].model_fields, feature
    for name in INERT:
        section, _, key = name.rpartition(".")
        assert key in at[section].model_fields, name


def validate(text: str) -> None:
    schema: dict[str, Any] = json.loads(schema_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(yaml.safe_load(text))


@pytest.mark.parametrize(
    "text", [SHOP, config("parallel: '${N}'\nskip_empty: '${B}'\ntuning: {max_retries: '${R}'}")]
)
def test_the_schema_takes_a_config(text: str) -> None:
    validate(text)


@pytest.mark.parametrize("lines", ["parallel: 0", "mode: nope", "chunk_sise: 1", "parallel: x", "format: 3"])
def test_the_schema_refuses_a_mistake(lines: str) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate(config(lines))
