"""Profiles and how export, source and profile are merged."""

from __future__ import annotations

import pytest

from rivet_dagster.config import Tuning
from tests.unit.config.cases import SOURCE, config, load


def tuning(export: str = "", source: str = "") -> Tuning:
    loaded = load(config(f"tuning: {export}" if export else "", source=SOURCE + source))
    return loaded.tuning_for(loaded.exports[0])


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("fast", Tuning("fast", 50_000, 64, 0, 0, 1, 1000, 0, 0)),
        ("balanced", Tuning("balanced", 10_000, 32, 50, 300, 3, 2000, 30, 4096)),
        ("safe", Tuning("safe", 2_000, None, 500, 120, 10, 5000, 10, 2048)),
    ],
)
def test_profiles(profile: str, expected: Tuning) -> None:
    assert tuning(f"{{profile: {profile}}}") == expected
    assert tuning(source=f", tuning: {{profile: {profile}}}") == expected


@pytest.mark.parametrize(
    ("environment", "profile"), [("local", "fast"), ("replica", "balanced"), ("production", "balanced")]
)
def test_the_environment_picks_the_default(environment: str, profile: str) -> None:
    assert tuning(source=f", environment: {environment}").profile == profile
    assert tuning("{profile: safe}", f", environment: {environment}").profile == "safe"


def test_without_anything_it_is_balanced() -> None:
    assert tuning().profile == "balanced"


def test_the_export_wins_key_by_key() -> None:
    merged = tuning(
        "{profile: safe, throttle_ms: 1}", ", tuning: {profile: fast, throttle_ms: 2, max_retries: 7}"
    )
    assert (merged.profile, merged.throttle_ms, merged.max_retries, merged.lock_timeout_s) == (
        "safe",
        1,
        7,
        10,
    )


def test_an_explicit_batch_size_turns_memory_sizing_off() -> None:
    merged = tuning("{batch_size: 7}")
    assert (merged.batch_size, merged.batch_size_memory_mb) == (7, None)
    merged = tuning(source=", tuning: {batch_size: 7}")
    assert (merged.batch_size, merged.batch_size_memory_mb) == (7, None)


def test_memory_sizing_can_be_turned_on() -> None:
    assert tuning("{profile: safe, batch_size_memory_mb: 8}").batch_size_memory_mb == 8
    assert tuning("{throttle_ms: 1}").batch_size_memory_mb == 32


def test_an_empty_value_is_no_value() -> None:
    assert tuning("{throttle_ms: }", ", tuning: {throttle_ms: 9}").throttle_ms == 9


def test_attempts() -> None:
    loaded = load(config())
    assert loaded.attempts_for(loaded.exports[0]) == 4
    loaded = load(config("mode: chunked\nchunk_column: a\nchunk_checkpoint: true\nchunk_max_attempts: 2"))
    assert loaded.attempts_for(loaded.exports[0]) == 2
