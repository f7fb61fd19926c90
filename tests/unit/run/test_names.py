"""Names are promises: whose a file is must be told from its name, for any name of an export."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rivet_dagster.engine.names import (
    MANIFEST,
    SUCCESS,
    NameMatcher,
    expand_path,
    hive_folder,
    manifest_copy,
    new_run_id,
    part_name,
    sanitize,
)

NAMES = st.one_of(
    st.text(st.sampled_from("ab_-.0 ü(+*[\\^$u"), min_size=1, max_size=10),
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=10),
)
RUN = "orders_20260102T030405.678_abcdef"


@given(
    NAMES,
    st.integers(0, 10**7),
    st.integers(1, 10**4),
    st.integers(0, 10**5),
    st.sampled_from(["parquet", "csv"]),
)
def test_an_export_knows_its_own_files(
    export: str, unit: int, attempt: int, part: int, extension: str
) -> None:
    run_id = new_run_id(export)
    name = part_name(run_id, unit, attempt, part, extension)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", name)  # a name on every file system and in every URL
    mine = NameMatcher(export)
    found = mine.match(name)
    assert found is not None
    assert (found.run_id, found.temporary) == (sanitize(run_id), False)
    staged = mine.match(f".{name}.0a1b2c3d.tmp")
    assert staged is not None
    assert (staged.run_id, staged.temporary) == (sanitize(run_id), True)
    assert mine.is_staged(f".{name}.0a1b2c3d.tmp")
    assert not mine.is_staged(name)
    assert mine.is_staged(f".{manifest_copy(run_id)}.0a1b2c3d.tmp")


@pytest.mark.parametrize("value", ["2024-01-31", "2024-01", "2024", None])
def test_an_export_knows_its_files_in_the_folders_of_partitions(value: str | None) -> None:
    folder = hive_folder("dé", value)
    found = NameMatcher("orders").match(f"{folder}/{RUN}-u00000-a1-p000.parquet")
    assert found is not None
    assert found.run_id == RUN
    for name in (MANIFEST, SUCCESS, manifest_copy(RUN)):
        assert NameMatcher("orders").is_folder_sidecar(f"{folder}/{name}")
        assert not NameMatcher("orders").is_folder_sidecar(name)
    assert not NameMatcher("others").is_folder_sidecar(f"{folder}/{manifest_copy(RUN)}")


@given(NAMES, NAMES)
def test_an_export_knows_no_other_one_s_files(mine: str, other: str) -> None:
    assume(sanitize(mine) != sanitize(other))
    name = part_name(new_run_id(other), 0, 1, 0, "parquet")
    assert NameMatcher(mine).match(name) is None
    assert NameMatcher(mine).match(f".{name}.00.tmp") is None
    assert not NameMatcher(mine).is_staged(f".{manifest_copy(new_run_id(other))}.00.tmp")


@pytest.mark.parametrize(
    "name",
    [
        MANIFEST, SUCCESS, manifest_copy(RUN), f"{RUN}.parquet", f"{RUN}-u00000-a1-p000.json",
        f"x{RUN}-u00000-a1-p000.parquet", f"{RUN}-u00000-a1-p000.parquet.bak", f"{RUN}-u0-a1-p000.parquet",
        f"sub/{RUN}-u00000-a1-p000.parquet", f"d=x/{RUN}-u00000-a1-p000.parquet",
        f"a/d=2024/{RUN}-u00000-a1-p000.parquet", f"d=2024/a/{RUN}-u00000-a1-p000.parquet",
        f"{RUN.upper()}-u00000-a1-p000.parquet", "orders.parquet",
        f"{RUN}-u00000-a1-p000.parquet\n", f".{RUN}-u00000-a1-p000.parquet.zz.tmp", ".bashrc", "",
    ],
)  # fmt: skip
def test_what_a_person_put_there_is_nobody_s(name: str) -> None:
    assert NameMatcher("orders").match(name) is None


def test_names_of_parts_differ() -> None:
    made = {part_name(RUN, u, a, p, "csv") for u in (0, 1, 11) for a in (1, 11) for p in (0, 1, 11)}
    assert len(made) == 18
    assert part_name(RUN, 7, 2, 3, "csv") == f"{RUN}-u00007-a2-p003.csv"


def test_a_run_id_is_utc_and_unique() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678_999, tzinfo=timezone(timedelta(hours=2)))
    assert new_run_id("e x", at).startswith("e x_20260102T010405.678_")
    assert len({new_run_id("e", at) for _ in range(200)}) == 200


@given(st.lists(st.integers(0, 10**11), min_size=2, max_size=5, unique=True))
def test_run_ids_sort_by_time(seconds: list[int]) -> None:
    stamps = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=s) for s in sorted(seconds)]
    ids = [new_run_id("e", t) for t in stamps]
    assert ids == sorted(ids)


@pytest.mark.parametrize(
    ("template", "path"),
    [
        ("/out/{export}/{date}", "/out/orders/2026-01-02"),
        ("/out/{table}", "/out/orders"),
        ("/out/{export}-{export}", "/out/orders-orders"),
        ("/out/plain", "/out/plain"),
        ("/out/{Export}", "/out/{Export}"),
        ("/{date}/{{export}}", "/2026-01-02/{orders}"),
    ],
)
def test_tokens_of_a_path(template: str, path: str) -> None:
    at = datetime(2026, 1, 3, 1, tzinfo=timezone(timedelta(hours=5)))
    assert expand_path(template, export="orders", now=at) == path


def test_an_export_named_like_a_token_is_itself() -> None:
    assert expand_path("{export}", export="{date}") == "{date}"
