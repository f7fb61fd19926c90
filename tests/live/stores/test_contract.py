"""What every object store does with parts and sidecars, on a real server of each kind."""

from __future__ import annotations

import base64
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from rivet_dagster.engine.destinations import s3
from rivet_dagster.engine.destinations.base import ConflictError
from rivet_dagster.engine.destinations.bucket import NoObjectError
from rivet_dagster.engine.destinations.staging import FOLDER
from rivet_dagster.engine.errors import IntegrityError, RivetError
from rivet_dagster.engine.names import NameMatcher
from tests.live.stores.conftest import Place, held

PART = "o_20240101T000000.000_abcdef-u00000-a1-p000.parquet"
#: Larger than one piece of any store, so that it takes several.
LARGE = os.urandom((16 << 20) + 12345)


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data).digest()).decode()


def test_a_part_goes_and_comes_back_whatever_its_key_holds(place: Place) -> None:
    name = f"day=2024-01-01/a b+c%2F=ü?#&{PART}"
    with place.store() as store:
        store.prepare()
        assert list(store.list()) == []
        assert store.size(name) is None
        staged = place.stage(store, b"data", name)
        stored = store.publish(staged, name)
        assert not staged.exists()
        assert [(o.name, o.size, o.md5) for o in store.list()] == [(name, 4, stored)]
        assert stored == md5(b"data")
        assert store.size(name) == 4
        assert store.read_bytes(name, 10) == b"data"
        with store.open_input(name) as file:
            file.seek(-3, os.SEEK_END)
            assert file.read() == b"ata"
        assert store.uri(name).endswith(f"{place.prefix}/{name}")

        store.move(name, f"_quarantine/run/{name}")
        assert list(store.list()) == []
        assert [o.name for o in store.list_quarantine()] == [f"_quarantine/run/{name}"]
        store.move(name, f"_quarantine/run/{name}")  # cut short, it is done again
        store.delete(f"_quarantine/run/{name}")
        store.delete(f"_quarantine/run/{name}")
        assert list(store.list_quarantine()) == []


def test_a_prefix_ends_at_a_slash(place: Place) -> None:
    with place.store() as one, place.store(below="_v2") as other:
        held(other).put_bytes("x", b"1")
        assert list(one.list()) == []
        assert [o.name for o in other.list()] == ["x"]


def test_no_part_replaces_another(place: Place) -> None:
    with place.store() as store:
        store.publish(place.stage(store, b"first"), PART)
        with pytest.raises(ConflictError):
            store.publish(place.stage(store, b"other"), PART)
        assert store.read_bytes(PART, 10) == b"first"


def test_a_part_whose_answer_was_lost_is_known_as_ones_own(place: Place) -> None:
    with place.store() as store:
        stored = store.publish(place.stage(store, b"first"), PART)
        assert store.publish(place.stage(store, b"first"), PART) == stored


def test_of_two_writers_at_once_one_wins(place: Place) -> None:
    with place.store() as store, ThreadPoolExecutor(8) as pool:

        def write(number: int) -> int | None:
            try:
                store.replace(place.stage(store, b"%d" % number), "manifest.json", None)
            except ConflictError:
                return None
            return number

        won = [number for number in pool.map(write, range(8)) if number is not None]
        assert len(won) == 1
        assert store.read_bytes("manifest.json", 10) == b"%d" % won[0]


def test_a_sidecar_is_replaced_over_the_version_that_was_seen(place: Place) -> None:
    with place.store() as store:
        assert store.version("manifest.json") is None
        held(store).put_bytes("manifest.json", b"one")
        seen = store.version("manifest.json")
        held(store).put_bytes("manifest.json", b"two")
        for over in (seen, None):
            with pytest.raises(ConflictError):
                store.replace(place.stage(store, b"late"), "manifest.json", over)
        assert store.read_bytes("manifest.json", 3) == b"two"
        with pytest.raises(IntegrityError):
            store.read_bytes("manifest.json", 2)
        assert store.read_bytes("absent", 2) is None


def test_a_part_over_the_budget_is_sent_in_pieces(place: Place) -> None:
    mine = NameMatcher("o")
    with place.store(oneshot_budget_mb=0) as store:
        stored = store.publish(place.stage(store, LARGE), PART)
        (listed,) = store.list()
        assert (listed.size, listed.md5) == (len(LARGE), stored)
        assert stored in ("", md5(LARGE))
        with store.open_input(PART) as file:
            assert file.read() == LARGE
        assert store.publish(place.stage(store, LARGE), PART) == stored, "its answer was lost"
        if place.server.kind != "gcs":  # its emulator compares generations in single requests only
            with pytest.raises(ConflictError):
                store.publish(place.stage(store, LARGE[::-1]), PART)
        assert [o.name for o in store.list()] == [PART]
        assert store.staged(mine) == (), "an upload is left"


def test_a_new_holder_ends_uploads_that_are_under_way(place: Place) -> None:
    mine = NameMatcher("o")
    with place.store() as store:
        if place.server.kind != "s3":
            pytest.skip("the store shows no uploads; it drops them by itself after a week")
        bucket, base = store._bucket, store._base
        upload = bucket.begin(base + PART, 4, None)
        bucket.begin(base + "others.parquet", 4, None)
        (found,) = store.staged(mine)
        assert found.name == PART
        store.unstage(found)
        store.unstage(found)
        assert store.staged(mine) == ()
        with pytest.raises(ConflictError):
            bucket.complete(upload, [], b"", None)


def test_an_object_too_large_for_one_copy_is_copied_in_pieces(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place.server.kind != "s3":
        pytest.skip("the others copy any size by themselves")
    monkeypatch.setattr(s3, "_COPY_LIMIT", 1 << 20)
    monkeypatch.setattr(s3, "_COPIED_AT_ONCE", 6 << 20)
    with place.store() as store:
        store.publish(place.stage(store, LARGE), PART)
        store.move(PART, f"_quarantine/run/{PART}")
        assert list(store.list()) == []
        with store.open_input(f"_quarantine/run/{PART}") as file:
            assert file.read() == LARGE
        with pytest.raises(NoObjectError):
            store._bucket.copy(store._key("absent"), store._key(PART), len(LARGE))
        assert list(store._bucket.uploads(store._base)) == [], "an upload is left"


def test_a_long_listing_comes_whole(place: Place) -> None:
    if place.server.kind == "azure":
        pytest.skip("its pages hold 5,000, which its emulator takes a minute to make")
    with place.store() as store, ThreadPoolExecutor(8) as pool:
        wanted = [f"f={n % 3}/{n:04d}" for n in range(1050)]
        key, data = store._base, b""
        empty = hashlib.md5(data).digest()
        list(pool.map(lambda name: store._bucket.put(key + name, data, empty, None), wanted))
        assert sorted(o.name for o in store.list()) == sorted(wanted)


def test_a_bucket_that_is_not_there(place: Place) -> None:
    if place.server.kind == "s3":
        pytest.skip("SeaweedFS makes a bucket that it is asked for")
    with place.store(bucket="no-such-bucket") as store, pytest.raises(RivetError) as caught:
        store.prepare()
    assert caught.value.code == "RIVET_DEST_NOT_FOUND"


def test_the_probe_of_the_doctor_leaves_nothing(place: Place) -> None:
    with place.store() as store:
        store.probe()
        assert list(store.list()) == []


def test_nothing_stays_on_the_local_disk(place: Place) -> None:
    with place.store() as store:
        held(store).put_bytes("x", b"1")
        with pytest.raises(ConflictError):
            store.publish(place.stage(store, b"2"), "x")
        left = [p.name for p in FOLDER.path().iterdir() if p.name != "lock"]
    assert [name for name in left if not name.startswith("x.")] == []
