"""Amazon S3 through s3fs: its session finds the credentials, its client sends each request."""

from __future__ import annotations

import asyncio
import base64
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import s3fs
from aiobotocore.session import AioSession
from botocore import exceptions as boto
from botocore import loaders
from fsspec.asyn import sync
from fsspec.exceptions import FSTimeoutError

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
    retry_after_s,
    timeout_s,
)
from rivet_dagster.engine.destinations.secrets import named, required
from rivet_dagster.engine.errors import EnvironmentFault, TransientError

if TYPE_CHECKING:
    from rivet_dagster.config.destination import DestinationConfig

S3: Final = bucket_of("s3")

#: By the code of the answer, where its status alone says too little.
_PASSING: Final = frozenset(
    {
        "SlowDown",
        "ServiceUnavailable",
        "RequestTimeout",
        "RequestTimeTooSkewed",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "OperationAborted",
        "ConditionalRequestConflict",
        "BadDigest",  # damaged on its way
        "IncompleteBody",
        "XAmzContentSHA256Mismatch",
    }
)
_FULL: Final = frozenset({"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull", "StorageFull"})
_CREDENTIALS: Final = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
)
_NO_CREDENTIALS: Final = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.ProfileNotFound,
    boto.TokenRetrievalError,
    boto.SSOError,
)
_WIRE: Final = (
    boto.ConnectionError,
    boto.HTTPClientError,
    boto.IncompleteReadError,
    aiohttp.ClientError,
    asyncio.TimeoutError,
    FSTimeoutError,
    OSError,
)
_COPY_LIMIT: Final = 5 << 30


class S3Bucket:
    """One bucket. Credentials: those of the named variables, else the profile's, else the usual chain."""

    capabilities = S3
    piece_bytes = 16 << 20
    pieces_at_once = 4
    whole_md5 = False
    expires: datetime | None = None

    def __init__(self, destination: DestinationConfig) -> None:
        self._name = required(destination.bucket)
        endpoint = destination.endpoint
        if endpoint is not None and "://" not in endpoint:
            endpoint = f"http://{endpoint}"
        config: dict[str, Any] = {
            "retries": {"total_max_attempts": 1},  # ours are told apart by type
            "connect_timeout": min(10.0, timeout_s()),
            "read_timeout": timeout_s(),
            "max_pool_connections": 32,
            # the endpoint is rivet.yaml's alone to say
            "ignore_configured_endpoint_urls": True,
        }
        if endpoint is not None:
            config["s3"] = {"addressing_style": "path"}
        region = destination.region or ("us-east-1" if endpoint is not None else None)
        key = named(destination.access_key_env, "access_key_env")
        session = AioSession(profile=destination.aws_profile)
        session.register_component("data_loader", _descriptions())
        self._fs = s3fs.S3FileSystem(
            anon=destination.allow_anonymous and key is None,
            key=key,
            secret=named(destination.secret_key_env, "secret_key_env"),
            token=named(destination.session_token_env, "session_token_env"),
            endpoint_url=endpoint,
            client_kwargs={} if region is None else {"region_name": region},
            config_kwargs=config,
            use_listings_cache=False,
            skip_instance_cache=True,
            session=session,
        )

    def put(self, key: str, data: bytes, md5: bytes, over: str | None) -> Entry:
        answer = self._call(
            "put_object", len(data), Key=key, Body=data, ContentMD5=_b64(md5), **_condition(over)
        )
        found = _tag_md5(answer, md5.hex(), key)
        return Entry(key, len(data), answer["ETag"], _b64(md5) if found else "")

    def begin(self, key: str, size: int, over: str | None) -> Upload:
        return Upload(key, self._call("create_multipart_upload", Key=key)["UploadId"], size)

    def send(self, upload: Upload, piece: Piece, data: bytes) -> Piece:
        answer = self._call(
            "upload_part",
            len(data),
            Key=upload.key,
            UploadId=upload.id,
            PartNumber=piece.number,
            Body=data,
            ContentMD5=_b64(piece.md5),
        )
        _tag_md5(answer, piece.md5.hex(), upload.key)
        return Piece(piece.number, piece.offset, piece.md5, answer["ETag"])

    def complete(self, upload: Upload, pieces: Sequence[Piece], md5: bytes, over: str | None) -> Entry:
        parts = [{"PartNumber": piece.number, "ETag": piece.tag} for piece in pieces]
        answer = self._call(
            "complete_multipart_upload",
            upload.size,
            Key=upload.key,
            UploadId=upload.id,
            MultipartUpload={"Parts": parts},
            **_condition(over),
        )
        _tag_md5(answer, self.composed(pieces).strip('"'), upload.key)
        return Entry(upload.key, upload.size, answer["ETag"])

    def composed(self, pieces: Sequence[Piece]) -> str:
        """The tag of an object of these pieces: the MD5 of their MD5s, and their number."""
        digest = hashlib.md5(b"".join(piece.md5 for piece in pieces), usedforsecurity=False)
        return f'"{digest.hexdigest()}-{len(pieces)}"'

    def abort(self, upload: Upload) -> None:
        try:
            self._call("abort_multipart_upload", Key=upload.key, UploadId=upload.id)
        except (NoObjectError, ConflictError):
            return

    def uploads(self, prefix: str) -> Iterator[Upload]:
        more: dict[str, Any] = {}
        while True:
            page = self._call("list_multipart_uploads", Prefix=prefix, **more)
            for found in page.get("Uploads", ()):
                yield Upload(found["Key"], found["UploadId"], 0)
            if not page.get("IsTruncated"):
                return
            more = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def head(self, key: str) -> Entry:
        found = self._call("head_object", Key=key)
        return Entry(key, found["ContentLength"], found["ETag"], _md5_of(found["ETag"]))

    def read(self, key: str, start: int, end: int) -> bytes:
        try:
            found: bytes = self._run(end - start, self._read, key, f"bytes={start}-{end - 1}")
        except _EmptyRangeError:
            return b""
        return found

    async def _read(self, key: str, span: str) -> bytes:
        client = await self._fs.set_session()
        answer = await client.get_object(Bucket=self._name, Key=key, Range=span)
        async with answer["Body"] as body:
            data: bytes = await body.read()
        return data

    def list(self, prefix: str) -> Iterator[Entry]:
        more: dict[str, Any] = {}
        while True:
            page = self._call("list_objects_v2", Prefix=prefix, **more)
            for found in page.get("Contents", ()):
                yield Entry(found["Key"], found["Size"], found["ETag"], _md5_of(found["ETag"]))
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def copy(self, key: str, target: str, size: int) -> None:
        if size > _COPY_LIMIT:  # what one request copies
            path = f"{self._name}/{key}", f"{self._name}/{target}"
            self._run(size, self._fs._copy_managed, *path, size)
            return
        self._call("copy_object", size, Key=target, CopySource={"Bucket": self._name, "Key": key})

    def delete(self, key: str) -> None:
        self._call("delete_object", Key=key)

    def close(self) -> None:
        if self._fs._s3 is not None:
            sync(self._fs.loop, self._fs._s3.close, timeout=5)
            self._fs._s3 = None

    def _call(self, method: str, size: int = 0, /, **arguments: Any) -> Any:
        """One request. size: bytes that it moves, here or at the service."""
        return self._run(size, self._request, method, arguments)

    async def _request(self, method: str, arguments: dict[str, Any]) -> Any:
        client = await self._fs.set_session()
        return await getattr(client, method)(Bucket=self._name, **arguments)

    def _run(self, size: int, work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return sync(self._fs.loop, work, *arguments, timeout=deadline_s(size))
        except boto.ClientError as error:
            raise _fault(error, self._name) from None
        except _NO_CREDENTIALS as error:
            raise EnvironmentFault(
                f"bucket {self._name}: no usable credentials ({type(error).__name__})",
                code="RIVET_DEST_AUTH_FAILED",
            ) from None
        except _WIRE as error:
            raise TransientError(
                f"bucket {self._name}: {type(error).__name__}", code="RIVET_DEST_UNAVAILABLE"
            ) from error
        except boto.BotoCoreError as error:
            raise EnvironmentFault(
                f"bucket {self._name}: {type(error).__name__}", code="RIVET_DEST_NOT_WRITABLE"
            ) from error


@functools.cache
def _descriptions() -> Any:
    """Of the service, from which a client is made: read once a process, not once an export."""
    return loaders.create_loader(os.environ.get("AWS_DATA_PATH"))


class _EmptyRangeError(Exception):
    """A range that begins at or after the end."""


def _b64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _condition(over: str | None) -> dict[str, str]:
    return {"IfNoneMatch": "*"} if over is None else {"IfMatch": over}


def _md5_of(tag: str) -> str:
    """An ETag as base64 of an MD5, "" for one that is of pieces."""
    text = tag.strip('"')
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        return ""
    return _b64(digest) if len(digest) == 16 else ""


def _tag_md5(answer: dict[str, Any], expected: str, key: str) -> bool:
    """Whether the answer's tag is what we computed. Raises TransientError when it should be and is not."""
    if answer["ETag"].strip('"') == expected:
        return True
    if answer.get("ServerSideEncryption", "AES256") != "AES256" or answer.get("SSECustomerAlgorithm"):
        return False  # a tag of the encrypted bytes; the service compared the MD5 that we sent
    raise TransientError(
        f"the store has {key} with the checksum {answer['ETag']}, not {expected}",
        code="RIVET_DEST_CONTENT_DIFFERS",
    )


def _fault(error: boto.ClientError, bucket: str) -> Exception:
    """By the code and the status of the answer; its text may hold names of the user."""
    code = str(error.response.get("Error", {}).get("Code", ""))
    meta = error.response.get("ResponseMetadata", {})
    status = int(meta.get("HTTPStatusCode") or 0)
    said = f"bucket {bucket}: {code} ({status}) for {error.operation_name}"
    if code == "NoSuchBucket":
        return no_bucket(bucket)
    if code in _FULL:
        return EnvironmentFault(said, code="RIVET_DEST_FULL")
    if code in {"PreconditionFailed", "NoSuchUpload"}:
        return ConflictError(said)
    if code in _CREDENTIALS:
        return EnvironmentFault(said, code="RIVET_DEST_AUTH_FAILED")
    after = meta.get("HTTPHeaders", {}).get("retry-after")
    if code in _PASSING:
        return TransientError(said, code="RIVET_DEST_UNAVAILABLE", retry_after_s=retry_after_s(after))
    if status == 416:
        return _EmptyRangeError(said)
    # some answers begin with 200 and turn out to be this one
    return http_fault(500 if code == "InternalError" else status, said, after)
