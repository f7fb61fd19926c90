"""Amazon S3 through botocore: its session finds the credentials, its client sends each request."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from botocore import UNSIGNED, loaders
from botocore import exceptions as boto
from botocore.config import Config
from botocore.parsers import ResponseParserError
from botocore.session import Session

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
from rivet_dagster.engine.destinations.wire import bounded, within
from rivet_dagster.engine.errors import EnvironmentFault, RivetError, TransientError

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
    ResponseParserError,  # an answer that was cut
    OSError,
)
_COPY_LIMIT: Final = 5 << 30  # what one request copies
_COPIED_AT_ONCE: Final = 1 << 30


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
        _keep_quiet()
        key = named(destination.access_key_env, "access_key_env")
        secret = named(destination.secret_key_env, "secret_key_env")
        token = named(destination.session_token_env, "session_token_env")
        config: dict[str, Any] = {
            "retries": {"total_max_attempts": 1},  # ours are told apart by type
            "max_pool_connections": 64,
            # an MD5 goes with every object
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            # the endpoint is rivet.yaml's alone to say
            "ignore_configured_endpoint_urls": True,
        }
        if endpoint is not None:
            config["s3"] = {"addressing_style": "path"}
        if destination.allow_anonymous and key is None:
            config["signature_version"] = UNSIGNED
        with _faults(self._name):
            session = Session(profile=destination.aws_profile)
            session.register_component("data_loader", _descriptions())
            # for the services that give credentials, too
            limits = Config(connect_timeout=min(10.0, timeout_s()), read_timeout=timeout_s())
            session.set_default_client_config(limits)
            self._client = session.create_client(
                "s3",
                region_name=destination.region or ("us-east-1" if endpoint is not None else None),
                endpoint_url=endpoint,
                aws_access_key_id=key,
                aws_secret_access_key=secret,
                aws_session_token=token,
                config=Config(**config),
            )
        bounded(self._client)

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
        span = f"bytes={start}-{end - 1}"
        try:
            with _faults(self._name), within(deadline_s(end - start)):
                answer = self._client.get_object(Bucket=self._name, Key=key, Range=span)
                with contextlib.closing(answer["Body"]) as body:
                    data: bytes = body.read()
        except _EmptyRangeError:
            return b""
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
        source = {"Bucket": self._name, "Key": key}
        if size <= _COPY_LIMIT:
            self._call("copy_object", size, Key=target, CopySource=source)
            return
        upload = self.begin(target, size, None)
        named = {"Key": target, "UploadId": upload.id}
        parts = []
        try:
            for number, start in enumerate(range(0, size, _COPIED_AT_ONCE), 1):
                end = min(start + _COPIED_AT_ONCE, size)
                span = {"CopySource": source, "CopySourceRange": f"bytes={start}-{end - 1}"}
                answer = self._call("upload_part_copy", end - start, PartNumber=number, **span, **named)
                parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
            self._call("complete_multipart_upload", size, MultipartUpload={"Parts": parts}, **named)
        except BaseException:
            with contextlib.suppress(RivetError):
                self.abort(upload)
            raise

    def delete(self, key: str) -> None:
        self._call("delete_object", Key=key)

    def close(self) -> None:
        self._client.close()

    def _call(self, method: str, size: int = 0, /, **arguments: Any) -> Any:
        """One request. size: bytes that it moves, here or at the service."""
        with _faults(self._name), within(deadline_s(size)):
            return getattr(self._client, method)(Bucket=self._name, **arguments)


@contextlib.contextmanager
def _faults(bucket: str) -> Iterator[None]:
    """What botocore raises, by what the caller does about it."""
    try:
        yield
    except boto.ClientError as error:
        raise _fault(error, bucket) from None
    except _NO_CREDENTIALS as error:
        raise EnvironmentFault(
            f"bucket {bucket}: no usable credentials ({type(error).__name__})",
            code="RIVET_DEST_AUTH_FAILED",
        ) from None
    except _WIRE as error:
        raise TransientError(
            f"bucket {bucket}: {type(error).__name__}", code="RIVET_DEST_UNAVAILABLE"
        ) from error
    except (boto.BotoCoreError, ValueError) as error:  # an endpoint that is no URL is a ValueError
        raise EnvironmentFault(
            f"bucket {bucket}: {type(error).__name__}", code="RIVET_DEST_NOT_WRITABLE"
        ) from error


def _keep_quiet() -> None:
    """What botocore logs for its debugging has session tokens and signatures in it."""
    logger = logging.getLogger("botocore")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)


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
