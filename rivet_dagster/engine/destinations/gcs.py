"""Google Cloud Storage through gcsfs: its session and credentials, the JSON API's requests."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import aiohttp
import google.auth.exceptions
import yarl
from fsspec.asyn import sync
from fsspec.exceptions import FSTimeoutError
from gcsfs.core import GCSFileSystem
from msgspec import Struct
from msgspec.structs import replace

from rivet_dagster.engine.destinations.bucket import (
    Entry,
    NoObjectError,
    Piece,
    Upload,
    bucket_of,
    deadline_s,
    http_fault,
    no_bucket,
    timeout_s,
)
from rivet_dagster.engine.destinations.secrets import required
from rivet_dagster.engine.errors import EnvironmentFault, TransientError

if TYPE_CHECKING:
    from rivet_dagster.config.destination import DestinationConfig

GCS: Final = bucket_of("gcs")

_PUBLIC: Final = "https://storage.googleapis.com"
_WIRE: Final = (
    aiohttp.ClientError,
    asyncio.TimeoutError,
    FSTimeoutError,
    google.auth.exceptions.TransportError,
    OSError,
)
#: What it answers to the removal of an upload.
_CANCELLED: Final = 499
_GO_ON: Final = 308
_FIELDS: Final = "nextPageToken,items(name,size,generation,md5Hash)"


class _Answer(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body or b"{}")
        return found


class GcsBucket:
    """One bucket. Credentials: the file's, else those that Google's libraries find."""

    capabilities = GCS
    piece_bytes = 16 << 20
    pieces_at_once = 1  # a resumable upload is one stream
    whole_md5 = True
    expires: datetime | None = None

    def __init__(self, destination: DestinationConfig) -> None:
        self._name = required(destination.bucket)
        endpoint = destination.endpoint or _PUBLIC
        self._url = endpoint.rstrip("/") if "://" in endpoint else f"http://{endpoint.rstrip('/')}"
        token = "anon" if destination.allow_anonymous else destination.credentials_file or "google_default"
        try:
            # not the class that gcsfs exports, which asks another service what kind of bucket it is
            self._fs = GCSFileSystem(
                project="",
                token=token,
                endpoint_url=self._url,
                use_listings_cache=False,
                skip_instance_cache=True,
            )
        except (google.auth.exceptions.GoogleAuthError, OSError, ValueError) as error:
            raise EnvironmentFault(
                f"bucket {self._name}: no usable credentials ({type(error).__name__})",
                code="RIVET_DEST_AUTH_FAILED",
            ) from None
        self._timeout = aiohttp.ClientTimeout(total=None, connect=10, sock_read=timeout_s())

    def put(self, key: str, data: bytes, md5: bytes, over: str | None) -> Entry:
        border = f"rivet-{secrets.token_hex(16)}"
        head = json.dumps({"name": key, "md5Hash": _b64(md5)})
        body = b"".join(
            (
                f"--{border}\r\nContent-Type: application/json; charset=UTF-8\r\n\r\n{head}\r\n".encode(),
                f"--{border}\r\nContent-Type: application/octet-stream\r\n\r\n".encode(),
                data,
                f"\r\n--{border}--".encode(),
            )
        )
        answer = self._ask(
            "POST",
            f"/upload/storage/v1/b/{quote(self._name)}/o",
            {"uploadType": "multipart", **_condition(over)},
            headers={"Content-Type": f"multipart/related; boundary={border}"},
            data=body,
            of_bucket=True,
        )
        return self._as_sent(_entry(answer.json), md5)

    def begin(self, key: str, size: int, over: str | None) -> Upload:
        answer = self._ask(
            "POST",
            f"/upload/storage/v1/b/{quote(self._name)}/o",
            {"uploadType": "resumable", "name": key, **_condition(over)},
            headers={"Content-Type": "application/json", "X-Upload-Content-Length": str(size)},
            data=json.dumps({"name": key}).encode(),
            of_bucket=True,
        )
        return Upload(key, answer.headers["Location"], size)

    def send(self, upload: Upload, piece: Piece, data: bytes) -> Piece:
        end = piece.offset + len(data)
        start = piece.offset
        while True:
            answer = self._ask(
                "PUT",
                upload.id,
                {},
                headers={"Content-Range": f"bytes {start}-{end - 1}/{upload.size}"},
                data=data[start - piece.offset :],
                fine=(_GO_ON,),
            )
            if answer.status != _GO_ON:
                return replace(piece, tag=answer.body.decode())
            kept = int(answer.headers.get("Range", "bytes=0--1").rpartition("-")[2] or -1) + 1
            if kept >= end:
                return piece
            if kept < start:
                raise TransientError(
                    f"bucket {self._name}: {start} bytes were sent, {kept} are kept",
                    code="RIVET_DEST_UNAVAILABLE",
                )
            start = kept

    def complete(self, upload: Upload, pieces: Sequence[Piece], md5: bytes, over: str | None) -> Entry:
        # the last piece made the object
        return self._as_sent(_entry(json.loads(pieces[-1].tag)), md5)

    def composed(self, pieces: Sequence[Piece]) -> str:
        return ""

    def abort(self, upload: Upload) -> None:
        try:
            self._ask("DELETE", upload.id, {}, fine=(_CANCELLED,))
        except (NoObjectError, EnvironmentFault):  # done or given up before
            return

    def uploads(self, prefix: str) -> Iterator[Upload]:
        """The service does not tell; it drops them after a week and bills nothing for them."""
        return iter(())

    def head(self, key: str) -> Entry:
        return _entry(self._ask("GET", self._path(key), {}).json)

    def read(self, key: str, start: int, end: int) -> bytes:
        span = {"Range": f"bytes={start}-{end - 1}"}
        answer = self._ask(
            "GET", self._path(key), {"alt": "media"}, headers=span, fine=(416,), size=end - start
        )
        return b"" if answer.status == 416 else answer.body

    def list(self, prefix: str) -> Iterator[Entry]:
        more: dict[str, str] = {}
        while True:
            asked = {"prefix": prefix, "maxResults": "1000", "fields": _FIELDS, **more}
            page = self._ask("GET", f"/storage/v1/b/{quote(self._name)}/o", asked, of_bucket=True).json
            yield from (_entry(item) for item in page.get("items", ()))
            if not page.get("nextPageToken"):
                return
            more = {"pageToken": page["nextPageToken"]}

    def copy(self, key: str, target: str, size: int) -> None:
        where = f"{self._path(key)}/rewriteTo/b/{quote(self._name)}/o/{quote(target, safe='')}"
        more: dict[str, str] = {}
        while True:
            done = self._ask("POST", where, more, size=size).json
            if done.get("done", True):
                return
            more = {"rewriteToken": done["rewriteToken"]}

    def delete(self, key: str) -> None:
        try:
            self._ask("DELETE", self._path(key), {})
        except NoObjectError:
            return

    def close(self) -> None:
        if self._fs._session is not None:
            sync(self._fs.loop, self._fs._session.close, timeout=5)
            self._fs._session = None

    def _path(self, key: str) -> str:
        return f"/storage/v1/b/{quote(self._name)}/o/{quote(key, safe='')}"

    def _as_sent(self, found: Entry, md5: bytes) -> Entry:
        """Raises TransientError, the object removed, when the service has other bytes."""
        if found.md5 in ("", _b64(md5)):
            return found
        self._ask("DELETE", self._path(found.key), {"generation": found.version})
        raise TransientError(
            f"the store has {found.key} with the MD5 {found.md5}, not {_b64(md5)}",
            code="RIVET_DEST_CONTENT_DIFFERS",
        )

    def _ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        fine: tuple[int, ...] = (),
        of_bucket: bool = False,
        size: int = 0,
    ) -> _Answer:
        """One request. size: bytes that it moves beside ``data``. of_bucket: 404 speaks of the bucket."""
        try:
            answer: _Answer = sync(
                self._fs.loop,
                self._request,
                method,
                path,
                dict(params),
                dict(headers or {}),
                data,
                timeout=deadline_s(len(data or b"") or size),
            )
        except google.auth.exceptions.TransportError as error:
            raise TransientError(
                f"bucket {self._name}: {type(error).__name__}", code="RIVET_DEST_UNAVAILABLE"
            ) from error
        except google.auth.exceptions.GoogleAuthError as error:
            raise EnvironmentFault(
                f"bucket {self._name}: {type(error).__name__}", code="RIVET_DEST_AUTH_FAILED"
            ) from None
        except _WIRE as error:
            raise TransientError(
                f"bucket {self._name}: {type(error).__name__}", code="RIVET_DEST_UNAVAILABLE"
            ) from error
        if answer.status < 300 or answer.status in fine:
            return answer
        if of_bucket and answer.status == 404:
            raise no_bucket(self._name)
        said = f"bucket {self._name}: {answer.status} for {method}"
        raise http_fault(answer.status, said, answer.headers.get("Retry-After"))

    async def _request(
        self, method: str, path: str, params: dict[str, str], headers: dict[str, str], data: bytes | None
    ) -> _Answer:
        await self._fs._set_session()
        url = yarl.URL(path if "://" in path else self._url + path, encoded=True)
        if params:
            url = url.update_query(params)
        async with self._fs.session.request(
            method,
            url,
            headers=self._fs._get_headers(headers),
            # bare bytes of some size are sent in one go, which holds up the loop
            data=None if data is None else io.BytesIO(data),
            timeout=self._timeout,
            allow_redirects=False,
        ) as answer:
            return _Answer(answer.status, answer.headers, await answer.read())


def _b64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _condition(over: str | None) -> dict[str, str]:
    return {"ifGenerationMatch": over or "0"}


def _entry(found: Mapping[str, Any]) -> Entry:
    return Entry(found["name"], int(found["size"]), str(found["generation"]), found.get("md5Hash", ""))
