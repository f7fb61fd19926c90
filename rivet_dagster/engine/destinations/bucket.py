"""What ``ObjectStore`` asks of a service: requests as they are, their failures told apart by type."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from rivet_dagster.engine.destinations.base import ConflictError, DestinationCapabilities
from rivet_dagster.engine.errors import EnvironmentFault, TransientError, UsageError

T = TypeVar("T")

PATIENCE_ENV: Final = "RIVET_DEST_PATIENCE_S"
TIMEOUT_ENV: Final = "RIVET_DEST_TIMEOUT_S"
_DEFAULT_PATIENCE_S: Final = 90.0
_DEFAULT_TIMEOUT_S: Final = 60.0
_SLOWEST: Final = 256 << 10
_FIRST_PAUSE_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 8.0


class NoObjectError(Exception):
    """There is no object of that key."""


class UnexplainedError(TransientError):
    """The service answered that it failed, and not why: it may pass, or it has no room."""

    default_code = "RIVET_DEST_UNAVAILABLE"


class Entry(Struct, frozen=True):
    """An object as the service describes it.

    version: what a conditional request compares, "" in listings of services that do not tell. md5: base64,
    "" when the service has none, or one of something else than the bytes.
    """

    key: str
    size: int  # bytes
    version: str = ""
    md5: str = ""


class Upload(Struct, frozen=True):
    """An object that is sent in pieces. id: the service's. size: bytes of the whole."""

    key: str
    id: str
    size: int


class Piece(Struct, frozen=True):
    """One piece of an upload. number: from 1. offset: where it starts. tag: what the service answered."""

    number: int
    offset: int
    md5: bytes
    tag: str = ""


class Bucket(Protocol):
    """One bucket or container of a service. Keys are whole, not relative to a prefix.

    Every call is one request, without retries, and may be made from any thread. Raises ``NoObjectError``,
    ``ConflictError`` for a condition that does not hold, TransientError for what may pass, EnvironmentFault
    for what does not.
    """

    capabilities: DestinationCapabilities
    #: Bytes of a piece at least, and how many of them may be under way at once.
    piece_bytes: int
    pieces_at_once: int
    #: Whether an object of pieces has an MD5 of the whole; else it is not made.
    whole_md5: bool
    #: When its credentials end, as far as they tell.
    expires: datetime | None

    def put(self, key: str, data: bytes, md5: bytes, over: str | None) -> Entry:
        """Write over the version ``over`` (None: only if there is none). The service checks ``md5``."""
        ...

    def begin(self, key: str, size: int, over: str | None) -> Upload: ...

    def send(self, upload: Upload, piece: Piece, data: bytes) -> Piece:
        """The piece with the service's tag; the service checks its MD5."""
        ...

    def complete(self, upload: Upload, pieces: Sequence[Piece], md5: bytes, over: str | None) -> Entry:
        """Make the object of its pieces, over that version. md5: of the whole, empty where it has none."""
        ...

    def composed(self, pieces: Sequence[Piece]) -> str:
        """The version of an object of these pieces, where it follows from them; else ""."""
        ...

    def abort(self, upload: Upload) -> None:
        """Give up the upload; one that is gone is fine."""
        ...

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """Those under way below a prefix, where the service tells. Sizes are 0."""
        ...

    def head(self, key: str) -> Entry: ...

    def read(self, key: str, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end`` (exclusive), fewer where the object ends."""
        ...

    def list(self, prefix: str) -> Iterator[Entry]:
        """All objects whose keys begin with ``prefix``, page by page."""
        ...

    def copy(self, key: str, target: str, size: int) -> None: ...

    def delete(self, key: str) -> None:
        """Remove; absent is fine."""
        ...

    def close(self) -> None: ...


def bucket_of(kind: str) -> DestinationCapabilities:
    """What these services promise: an object is there whole or not at all, and is written if absent."""
    return DestinationCapabilities(
        kind=kind,
        atomic_publish=True,
        idempotent_overwrite=True,
        retry_safe=True,
        partial_write_risk=False,
        conditional_writes=True,
    )


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 3600:
        raise UsageError(f"{name} takes 0 to 3600 seconds, not '{text}'", field=name)
    return seconds


def timeout_s() -> float:
    """How long a service may stay silent: ``RIVET_DEST_TIMEOUT_S``."""
    return _seconds(TIMEOUT_ENV, _DEFAULT_TIMEOUT_S) or _DEFAULT_TIMEOUT_S


def deadline_s(size: int) -> float:
    """Seconds for a whole request that moves ``size`` bytes: silence, and a line of 256 KB a second.

    The clients' own limits are for answers alone; one that takes no more bytes would be waited for.
    """
    return timeout_s() + size / _SLOWEST


def patience_s() -> float:
    """For how long a request is tried again before its unit fails: ``RIVET_DEST_PATIENCE_S``."""
    return _seconds(PATIENCE_ENV, _DEFAULT_PATIENCE_S)


def retried(ask: Callable[[], T], patience: float) -> T:
    """``ask()``, again after TransientErrors until ``patience`` seconds are over; the last one is raised.

    The pause doubles from 0.2 to 8 s, less up to half of it at random, and is at least what the service
    asked for. A condition that does not hold is an answer: it is never asked again.
    """
    deadline = time.monotonic() + patience
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return ask()
        except ConflictError:
            raise
        except TransientError as error:
            wait = max(error.retry_after_s, pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load
            if time.monotonic() + wait > deadline:
                error.retry_after_s = 0.0
                raise
        time.sleep(wait)
        pause = min(pause * 2, _LONGEST_PAUSE_S)


def http_fault(status: int, said: str, retry_after: str | None = None) -> Exception:
    """What an answer's status means when its code says nothing more. said: without secrets or URLs."""
    if status == 412:
        return ConflictError(said)
    if status in {404, 410}:
        return NoObjectError(said)
    if status == 401:
        return EnvironmentFault(said, code="RIVET_DEST_AUTH_FAILED")
    if status == 507:
        return EnvironmentFault(said, code="RIVET_DEST_FULL")
    if status == 500:
        return UnexplainedError(said, retry_after_s=retry_after_s(retry_after))
    if status in {408, 429} or status > 500:
        return TransientError(said, code="RIVET_DEST_UNAVAILABLE", retry_after_s=retry_after_s(retry_after))
    return EnvironmentFault(said, code="RIVET_DEST_NOT_WRITABLE")


def retry_after_s(header: str | None) -> float:
    """Seconds that a service asks to wait, at most a minute; 0 when it names none, or a date."""
    try:
        return min(60.0, max(0.0, float(header or 0)))
    except ValueError:
        return 0.0


def no_bucket(name: str) -> EnvironmentFault:
    return EnvironmentFault(f"there is no bucket or container {name}", code="RIVET_DEST_NOT_FOUND")
