"""The error tree: one object for every failure, its kind decided by type, and one failure for a run."""

from __future__ import annotations

import ast
import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rivet_dagster.engine import errors
from rivet_dagster.engine.errors import (
    EXIT_CODE,
    REGISTRY,
    STOP_RANK,
    BusyError,
    ConfigError,
    CrashedError,
    EnvironmentFault,
    IntegrityError,
    InternalError,
    RefusalError,
    RivetError,
    SchemaDriftError,
    TransientError,
    UsageError,
    as_rivet_error,
    error_object,
    representative,
)
from rivet_dagster.engine.run.retry import CAP_S, backoff_s
from tests.golden.checker import CLASSES as CLASSES_OF_KIND

KEYS = ["code", "kind", "class", "exit_code", "retryable", "action", "message"]
PACKAGE = Path(errors.__file__).parents[1]


def tree(root: type[RivetError] = RivetError) -> Iterator[type[RivetError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


CLASSES = list(tree())


def test_the_public_names() -> None:
    assert errors.__all__ == [
        "EXIT_CODE", "REGISTRY", "STOP_RANK", "BusyError", "CodeEntry", "ConfigError", "CrashedError",
        "EnvironmentFault", "IntegrityError", "InternalError", "RefusalError", "RivetError",
        "SchemaDriftError", "TransientError", "UsageError", "as_rivet_error", "error_object",
        "representative",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "error_class", "exit_code", "retryable"),
    [
        (UsageError, "generic", 1, False),
        (ConfigError, "generic", 1, False),
        (EnvironmentFault, "generic", 1, False),
        (TransientError, "retryable", 2, True),
        (BusyError, "retryable", 2, True),
        (IntegrityError, "data_integrity", 3, False),
        (SchemaDriftError, "schema_drift", 4, False),
        (RefusalError, "refusal", 5, False),
        (InternalError, "internal", 6, False),
        (CrashedError, "crashed", None, True),
    ],
)
def test_the_tree(kind: type[RivetError], error_class: str, exit_code: int | None, retryable: bool) -> None:
    error = kind("text")
    assert (error.error_class, error.exit_code, error.retryable) == (error_class, exit_code, retryable)
    assert set(CLASSES) - {RivetError} >= {kind}


@pytest.mark.parametrize("code", REGISTRY)
def test_every_code_makes_an_object(code: str) -> None:
    assert re.fullmatch(r"RIVET_[A-Z0-9_]+", code)
    error = RivetError("text", code=code, export="e")
    for with_message in (True, False):
        made = error_object(error, with_message=with_message)
        assert list(made) == KEYS
        assert (made["code"], made["kind"], made["action"]) == (
            code,
            REGISTRY[code].kind,
            REGISTRY[code].action,
        )
        assert (made["message"] is None) is not with_message
        assert made["action"].endswith(".")


def test_no_code_is_unused() -> None:
    """A code that nothing raises would be a promise of the documentation alone."""
    text = "".join(
        p.read_text() for p in PACKAGE.rglob("*.py") if p.name not in {"errors.py", "errors_doc.py"}
    )
    defaults = {c.default_code for c in CLASSES}
    assert not {code for code in REGISTRY if f'"{code}"' not in text and code not in defaults}


def test_a_code_is_raised_with_its_class() -> None:
    """``RivetError(code=...)`` takes any code; one that came with another class would change its meaning."""
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            kind = getattr(errors, getattr(node.func, "id", ""), None) if isinstance(node, ast.Call) else None
            if not (isinstance(node, ast.Call) and isinstance(kind, type) and issubclass(kind, RivetError)):
                continue
            code = next((k.value for k in node.keywords if k.arg == "code"), ast.Constant(kind.default_code))
            entry = REGISTRY.get(str(code.value)) if isinstance(code, ast.Constant) else None
            if entry is not None and kind.error_class not in CLASSES_OF_KIND[entry.kind]:
                wrong.append(f"{path.name}:{node.lineno}: {kind.__name__} with {ast.unparse(code)}")
    assert wrong == []


def test_a_code_that_is_not_registered_is_a_defect() -> None:
    with pytest.raises(KeyError):
        RivetError("text", code="RIVET_TYPO")


def test_whatever_else_is_raised_is_internal() -> None:
    made = error_object(ZeroDivisionError("x"))
    assert list(made) == KEYS
    assert (made["code"], made["class"], made["exit_code"]) == ("RIVET_INTERNAL", "internal", 6)
    known = TransientError("x")
    assert as_rivet_error(known) is known


def test_a_process_that_died_without_a_word() -> None:
    made = error_object(CrashedError("signal 9", export="e"))
    assert list(made) == KEYS
    assert [made[key] for key in ("code", "kind", "class", "exit_code", "retryable", "action")] == [
        None, None, "crashed", None, True, None,
    ]  # fmt: skip
    assert made["message"] == "[crashed] signal 9 (export e)"


def test_ranks_and_exit_codes_cover_the_classes() -> None:
    assert STOP_RANK.keys() == EXIT_CODE.keys() == {c.error_class for c in CLASSES}
    assert len(set(STOP_RANK.values())) == len(STOP_RANK)


@given(st.lists(st.sampled_from([c for c in CLASSES if c is not RivetError]), min_size=1, max_size=6))
def test_the_worst_stands_for_a_run(kinds: list[type[RivetError]]) -> None:
    raised = [kind(f"{i}") for i, kind in enumerate(kinds)]
    best = representative(raised)
    rank = max(STOP_RANK[e.error_class] for e in raised)
    assert best is [e for e in raised if STOP_RANK[e.error_class] == rank][-1]
    for order in itertools.islice(itertools.permutations(raised), 6):
        assert representative(list(order)).error_class == best.error_class


def test_a_config_error_says_where() -> None:
    error = ConfigError("is wrong", file="a/rivet.yaml", line=7, export="e", field="mode", fix="write full")
    assert (
        str(error)
        == "[RIVET_CONFIG_INVALID] a/rivet.yaml:7, export 'e', key `mode`: is wrong Fix: write full"
    )
    assert (error.file, error.line, error.export, error.field, error.fix) == (
        "a/rivet.yaml", 7, "e", "mode", "write full",
    )  # fmt: skip
    assert str(ConfigError("is wrong")) == "[RIVET_CONFIG_INVALID] is wrong"


@given(st.integers(-5, 10**6), st.integers(0, 10**9), st.integers(0, 2**32))
def test_waiting_is_bounded(attempt: int, base_ms: int, seed: int) -> None:
    random.seed(seed)
    whole = backoff_s(attempt, base_ms, jitter=False)
    assert 0 <= whole <= CAP_S
    assert whole / 2 <= backoff_s(attempt, base_ms) <= whole
    asked = TransientError("x", retry_after_s=15)
    assert 15 + whole / 2 <= backoff_s(attempt, base_ms, asked) <= 15 + whole


def test_workers_that_failed_together_do_not_return_together() -> None:
    waits = [backoff_s(3, 500) for _ in range(40)]
    assert len(set(waits)) > 30
    assert max(waits) - min(waits) > 0.5


def test_waiting_doubles() -> None:
    assert [backoff_s(n, 500, jitter=False) for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 32, 60]
    assert backoff_s(3, 0) == 0
