"""Azure Blob Storage through adlfs: its client, with the requests of block blobs."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qs

from adlfs import AzureBlobFileSystem
from azure.core import MatchConditions
from azure.core import exceptions as azure
from azure.storage.blob import BlobBlock, ContentSettings
from fsspec.asyn import sync
from fsspec.exceptions import FSTimeoutError
from msgspec.structs import replace

from rivet_dagster.engine.destinations.base import ConflictError
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
from rivet_dagster.engine.destinations.secrets import named, required
from rivet_dagster.engine.errors import EnvironmentFault, TransientError

if TYPE_CHECKING:
    from rivet_dagster.config.destination import DestinationConfig

T = TypeVar("T")

AZURE: Final = bucket_of("azure")

#: The account of every emulator; its key is public.
_EMULATOR: Final = "devstoreaccount1"
_EMULATOR_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_WIRE: Final = (
    azure.ServiceRequestError,
    azure.ServiceResponseError,
    azure.IncompleteReadError,
    asyncio.TimeoutError,
    FSTimeoutError,
    OSError,
)
_CREDENTIALS: Final = frozenset(
    {
        "AuthenticationFailed",
        "AuthorizationFailure",
        "InvalidAuthenticationInfo",
        "NoAuthenticationInformation",
    }
)
_COPY_POLL_S: Final = 0.2


class AzureBucket:
    """One container. Credentials: the account's key or a SAS token, from the named variable."""

    capabilities = AZURE
    piece_bytes = 16 << 20
    pieces_at_once = 4
    whole_md5 = True

    def __init__(self, destination: DestinationConfig) -> None:
        self._name = required(destination.bucket)
        account = required(destination.account_name)
        endpoint = destination.endpoint or f"https://{account}.blob.core.windows.net"
        if "://" not in endpoint:
            endpoint = f"http://{endpoint}"
        parts = [f"BlobEndpoint={endpoint.rstrip('/')}", f"AccountName={account}"]
        key = named(destination.account_key_env, "account_key_env")
        sas = named(destination.sas_token_env, "sas_token_env")
        if destination.allow_anonymous and account == _EMULATOR:
            key = _EMULATOR_KEY
        if key is not None:
            parts.append(f"AccountKey={key}")
        self.expires: datetime | None = None if sas is None else _end_of(sas)
        if sas is not None:
            parts.append(f"SharedAccessSignature={sas.removeprefix('?')}")
        self._fs = AzureBlobFileSystem(
            account_name=account,
            connection_string=";".join(parts),
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        self._container = self._fs.service_client.get_container_client(self._name)
        # its own retries are off: ours are told apart by type
        self._once: dict[str, Any] = {
            "retry_total": 0,
            "connection_timeout": 10,
            "read_timeout": timeout_s(),
        }

    def put(self, key: str, data: bytes, md5: bytes, over: str | None) -> Entry:
        sent = self._run(
            lambda: self._container.get_blob_client(key).upload_blob(
                io.BytesIO(data),
                length=len(data),
                overwrite=over is not None,
                validate_content=True,
                content_settings=ContentSettings(content_md5=bytearray(md5)),
                **_condition(over),
                **self._once,
            ),
            len(data),
        )
        return Entry(key, len(data), sent["etag"], self._checked(key, sent, md5))

    def begin(self, key: str, size: int, over: str | None) -> Upload:
        return Upload(key, "", size)  # blocks need no beginning

    def send(self, upload: Upload, piece: Piece, data: bytes) -> Piece:
        tag = f"{piece.number:06d}"
        blob = self._container.get_blob_client(upload.key)
        self._run(
            lambda: blob.stage_block(tag, io.BytesIO(data), len(data), validate_content=True, **self._once),
            len(data),
        )
        return replace(piece, tag=tag)

    def complete(self, upload: Upload, pieces: Sequence[Piece], md5: bytes, over: str | None) -> Entry:
        blob = self._container.get_blob_client(upload.key)
        made = self._run(
            lambda: blob.commit_block_list(
                [BlobBlock(piece.tag) for piece in pieces],
                content_settings=ContentSettings(content_md5=bytearray(md5)),
                **(_condition(over) or {"match_condition": MatchConditions.IfMissing}),
                **self._once,
            ),
            upload.size,
        )
        return Entry(upload.key, upload.size, made["etag"], _b64(md5))

    def composed(self, pieces: Sequence[Piece]) -> str:
        return ""

    def abort(self, upload: Upload) -> None:
        """Blocks that belong to no blob go by themselves after a week."""

    def uploads(self, prefix: str) -> Iterator[Upload]:
        return iter(())

    def head(self, key: str) -> Entry:
        return _entry(
            self._run(lambda: self._container.get_blob_client(key).get_blob_properties(**self._once))
        )

    def read(self, key: str, start: int, end: int) -> bytes:
        async def read() -> bytes:
            blob = self._container.get_blob_client(key)
            stream = await blob.download_blob(offset=start, length=end - start, **self._once)
            data: bytes = await stream.readall()
            return data

        try:
            return self._run(read, end - start)
        except _EmptyRangeError:
            return b""

    def list(self, prefix: str) -> Iterator[Entry]:
        async def listed() -> tuple[Entry, ...]:
            pages = self._container.list_blobs(name_starts_with=prefix, **self._once)
            return tuple([_entry(found) async for found in pages])

        yield from self._run(listed)

    def copy(self, key: str, target: str, size: int) -> None:
        async def copied() -> None:
            blob = self._container.get_blob_client(target)
            source = self._container.get_blob_client(key).url
            state = (await blob.start_copy_from_url(source, **self._once))["copy_status"]
            while state == "pending":
                await asyncio.sleep(_COPY_POLL_S)
                state = (await blob.get_blob_properties(**self._once)).copy.status
            if state != "success":
                raise TransientError(f"container {self._name}: a copy is {state}")

        self._run(copied, size)

    def delete(self, key: str) -> None:
        try:
            self._run(lambda: self._container.get_blob_client(key).delete_blob(**self._once))
        except NoObjectError:
            return

    def close(self) -> None:
        sync(self._fs.loop, self._fs.service_client.close, timeout=5)

    def _checked(self, key: str, sent: dict[str, Any], md5: bytes) -> str:
        found = sent.get("content_md5")
        if found is not None and bytes(found) != md5:
            raise TransientError(
                f"the store has {key} with another MD5 than was sent", code="RIVET_DEST_CONTENT_DIFFERS"
            )
        return _b64(md5)

    def _run(self, work: Callable[[], Awaitable[T]], size: int = 0) -> T:
        """size: bytes that the request moves, here or at the service."""
        try:
            done: T = sync(self._fs.loop, work, timeout=deadline_s(size))
        except azure.HttpResponseError as error:
            code = getattr(error, "error_code", None)
            code = str(getattr(code, "value", code) or "")
            status = error.status_code or 0
            if status == 0:  # cut off in the middle of an answer
                raise TransientError(
                    f"container {self._name}: {type(error).__name__}", code="RIVET_DEST_UNAVAILABLE"
                ) from None
            # never the message: it may hold the URL, and that a token
            said = f"container {self._name}: {code} ({status})"
            if code == "ContainerNotFound":
                raise no_bucket(self._name) from None
            if status == 416:
                raise _EmptyRangeError from None
            if code in {"Md5Mismatch", "OperationTimedOut", "ContainerBeingDeleted", "ServerBusy"}:
                raise TransientError(said, code="RIVET_DEST_UNAVAILABLE") from None
            if code in {"BlobAlreadyExists", "InvalidBlockList"}:
                raise ConflictError(said) from None
            if code in _CREDENTIALS:
                raise EnvironmentFault(said, code="RIVET_DEST_AUTH_FAILED") from None
            headers = getattr(error.response, "headers", {})
            raise http_fault(status, said, headers.get("Retry-After")) from None
        except _WIRE as error:
            raise TransientError(
                f"container {self._name}: {type(error).__name__}", code="RIVET_DEST_UNAVAILABLE"
            ) from None
        return done


class _EmptyRangeError(Exception):
    """A range that begins at or after the end."""


def _end_of(sas: str) -> datetime | None:
    """When a token ends; None when it does not say, as one of a stored policy."""
    try:
        end = datetime.fromisoformat(parse_qs(sas.removeprefix("?"))["se"][0])
    except (KeyError, ValueError):
        return None
    return end if end.tzinfo else end.replace(tzinfo=UTC)


def _b64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _condition(over: str | None) -> dict[str, Any]:
    return {} if over is None else {"etag": over, "match_condition": MatchConditions.IfNotModified}


def _entry(found: Any) -> Entry:
    md5 = found.content_settings.content_md5
    # properties have the ETag in quotes, listings have it without
    tag = f'"{found.etag.strip(chr(34))}"'
    return Entry(found.name, found.size, tag, _b64(bytes(md5)) if md5 else "")
