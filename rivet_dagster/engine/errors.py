"""Every failure of the engine: one tree, one registry, one error object.

    RivetError
    ├── UsageError            fix the config or the call            exit 1  never retried
    │   └── ConfigError       rivet.yaml is wrong (file, line, export, key)
    ├── EnvironmentFault      fix the surroundings (role, disk)     exit 1  never retried
    ├── TransientError        a re-run may succeed                  exit 2  retried
    │   └── BusyError         another run holds the export          exit 2  retried
    ├── IntegrityError        data would be, or is, wrong           exit 3  never retried
    ├── SchemaDriftError      the source changed its shape          exit 4  never retried
    ├── RefusalError          it would not be safe to go on         exit 5  never retried
    ├── InternalError         a defect of ours                      exit 6  never retried
    └── CrashedError          a process died without a word         no exit code, retried once

A consumer reads ``retryable`` of the error object, never text. Classification is by type and
SQLSTATE, never by a message, which may hold a user's names (seed ADR-0039, D1 and D2).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

from msgspec import Struct

from rivet_dagster.engine.redact import redact

Kind = Literal["usage", "environment", "transient", "busy", "integrity", "refusal", "internal"]
ErrorClass = Literal[
    "generic", "retryable", "data_integrity", "schema_drift", "refusal", "internal", "crashed"
]

#: Which failure of several represents a run: higher wins (ADR-0039, D2).
STOP_RANK: Final[dict[str, int]] = {
    "data_integrity": 6,
    "internal": 5,
    "refusal": 4,
    "schema_drift": 3,
    "retryable": 2,
    "generic": 1,
    "crashed": 0,
}

EXIT_CODE: Final[dict[str, int | None]] = {
    "generic": 1,
    "retryable": 2,
    "data_integrity": 3,
    "schema_drift": 4,
    "refusal": 5,
    "internal": 6,
    "crashed": None,
}


class CodeEntry(Struct, frozen=True):
    """One stable code: what kind of failure it is and what a person does about it."""

    kind: Kind
    action: str


#: Code -> entry. The docs' table of errors is generated from this.
REGISTRY: Final[dict[str, CodeEntry]] = {
    # usage: the config or the call
    "RIVET_CONFIG_INVALID": CodeEntry("usage", "Correct the named key in rivet.yaml."),
    "RIVET_CONFIG_UNREADABLE": CodeEntry("usage", "Point RIVET_CONFIG at a readable rivet.yaml."),
    "RIVET_CONFIG_UNKNOWN_KEY": CodeEntry("usage", "Remove the key or spell it as the schema does."),
    "RIVET_CONFIG_NO_EXPORTS": CodeEntry("usage", "List at least one export under `exports:`."),
    "RIVET_CONFIG_DUPLICATE_EXPORT": CodeEntry("usage", "Give every export its own name."),
    "RIVET_CONFIG_CHUNK_COUNT_INVALID": CodeEntry("usage", "Set chunk_count to 1 or more."),
    "RIVET_CONFIG_CHUNK_BY_DAYS_INVALID": CodeEntry("usage", "Set chunk_by_days to 1 or more."),
    "RIVET_CONFIG_NOT_BUILT": CodeEntry("usage", "Leave the feature out; this version does not have it yet."),
    "RIVET_CONFIG_SOURCE_URL_SCHEME_MISMATCH": CodeEntry("usage", "Use a URL of the source's own scheme."),
    "RIVET_CONFIG_ENV_UNSET": CodeEntry("usage", "Set the named environment variable for the process."),
    "RIVET_CONFIG_CURSOR_COLUMN_CASE": CodeEntry("usage", "Write the column exactly as the table spells it."),
    "RIVET_CONFIG_COLUMN_OVERRIDE_CASE": CodeEntry(
        "usage", "Write the column exactly as the table spells it."
    ),
    "RIVET_CONFIG_COLUMN_UNKNOWN": CodeEntry("usage", "Name a column that the table has."),
    "RIVET_CONFIG_CHUNK_KEY_UNSUITABLE": CodeEntry(
        "usage", "Choose an integer chunk_column, or a NOT NULL unique chunk_by_key, or mode: full."
    ),
    "RIVET_TYPE_UNSAFE_MAPPING": CodeEntry(
        "usage", "Override the column's type in `columns:` or leave it out."
    ),
    "RIVET_STATE_URL_SCHEME_UNSUPPORTED": CodeEntry(
        "usage", "Set RIVET_STATE_URL to postgresql://... or sqlite:<absolute directory>."
    ),
    "RIVET_CLI_EXPORT_UNKNOWN": CodeEntry("usage", "Name an export of the config."),
    "RIVET_CLI_RUN_UNKNOWN": CodeEntry("usage", "Name a run that `rivet-dagster state runs` lists."),
    "RIVET_CLI_USAGE": CodeEntry("usage", "Read `rivet-dagster VERB --help`."),
    "RIVET_CHECK_REVIEW": CodeEntry("usage", "Read the review notes; change the export or drop --strict."),
    "RIVET_INIT_FILE_EXISTS": CodeEntry("usage", "Name another file with -o, or move the old one away."),
    "RIVET_INIT_NOTHING_FOUND": CodeEntry("usage", "Name a schema or tables that the role can see."),
    "RIVET_PLAN_INVALID": CodeEntry("usage", "Make the plan anew: `rivet-dagster plan -e EXPORT -o FILE`."),
    "RIVET_PARTITION_UNKNOWN": CodeEntry("usage", "Select partitions that the latest plan has."),
    # environment: the surroundings
    "RIVET_SOURCE_AUTH_FAILED": CodeEntry("environment", "Correct the user or password of the source."),
    "RIVET_SOURCE_DATABASE_NOT_FOUND": CodeEntry("environment", "Name an existing database of the server."),
    "RIVET_SOURCE_PERMISSION_DENIED": CodeEntry(
        "environment", "Grant SELECT on the table (and USAGE on its schema) to the extraction role."
    ),
    "RIVET_SOURCE_STATEMENT_TIMEOUT": CodeEntry(
        "environment", "Make the units smaller, or raise tuning.statement_timeout_s."
    ),
    "RIVET_SOURCE_CANCELLED": CodeEntry(
        "environment", "Ask whoever cancelled the statement at the server, then run again."
    ),
    "RIVET_SOURCE_QUERY_FAILED": CodeEntry("environment", "Read the SQLSTATE; run the statement by hand."),
    "RIVET_SOURCE_TLS_FAILED": CodeEntry(
        "environment", "Check tls.mode, the CA file and the host name against the server's certificate."
    ),
    "RIVET_SOURCE_VERSION_UNSUPPORTED": CodeEntry("environment", "Use PostgreSQL 12 or newer."),
    "RIVET_DEST_FULL": CodeEntry("environment", "Free space at the destination, then run again."),
    "RIVET_DEST_NOT_WRITABLE": CodeEntry("environment", "Give the process write access to the destination."),
    "RIVET_DEST_NOT_FOUND": CodeEntry("environment", "Make the bucket or container, or correct its name."),
    "RIVET_DEST_AUTH_FAILED": CodeEntry(
        "environment", "Give the process credentials that the destination accepts."
    ),
    "RIVET_CLI_OUTPUT_UNWRITABLE": CodeEntry("environment", "Name a file that can be written."),
    "RIVET_STATE_NOT_WRITABLE": CodeEntry("environment", "Give the process write access to the state."),
    "RIVET_STATE_CORRUPT": CodeEntry(
        "environment", "Put a backup of the state in its place, or move the file away to start anew."
    ),
    "RIVET_STATE_MIGRATION_LOCKED": CodeEntry("environment", "Wait for the migration that is running."),
    "RIVET_PACKAGE_MISSING": CodeEntry("environment", "Install rivet-dagster again, with what it needs."),
    "RIVET_KERNEL_MISSING": CodeEntry(
        "environment", "Install a C compiler (Debian: gcc, libc6-dev) and install the package again."
    ),
    "RIVET_VALIDATE_UNVERIFIED": CodeEntry("environment", "Make the files readable and validate again."),
    # refusal: going on would not be safe
    "RIVET_SOURCE_TABLE_NOT_FOUND": CodeEntry("refusal", "Name an existing table; names are case-sensitive."),
    "RIVET_SOURCE_ROW_SECURITY": CodeEntry(
        "refusal", "Use a role with BYPASSRLS, or the owner, so that no row is hidden."
    ),
    "RIVET_SOURCE_TLS_REQUIRED": CodeEntry("refusal", "Add a `tls:` block (mode: disable opts out)."),
    "RIVET_SOURCE_VALUE_UNREPRESENTABLE": CodeEntry(
        "refusal", "Override the column to `text`, or correct the value at the source."
    ),
    "RIVET_SOURCE_UNDECODABLE": CodeEntry(
        "refusal", "Report it: the server sent what its catalog rules out."
    ),
    "RIVET_VALUE_TOO_LARGE": CodeEntry("refusal", "Raise tuning.max_value_mb or leave the column out."),
    "RIVET_BATCH_TOO_LARGE": CodeEntry(
        "refusal", "Raise tuning.max_batch_memory_mb, or set on_batch_memory_exceeded: auto_shrink."
    ),
    "RIVET_PLAN_CHUNK_KEY_SPARSE": CodeEntry("refusal", "Use chunk_by_key or mode: full for this table."),
    "RIVET_PLAN_SCAN_REFUSED": CodeEntry("refusal", "Create the index, or set `allow_scan: true`."),
    "RIVET_PLAN_BOUNDS_UNREADABLE": CodeEntry("refusal", "Read the note; bounds could not be trusted."),
    "RIVET_PLAN_TAMPERED": CodeEntry("refusal", "Make the plan anew; a sealed plan is never edited."),
    "RIVET_PLAN_STALE": CodeEntry("refusal", "Make the plan anew, or apply it with --force."),
    "RIVET_PLAN_DRIFT": CodeEntry("refusal", "Make the plan anew: what it was made for has changed."),
    "RIVET_STATE_SCHEMA_NEWER": CodeEntry(
        "refusal", "Upgrade rivet_dagster to the version that wrote the state."
    ),
    "RIVET_STATE_CURSOR_OWNER_MISMATCH": CodeEntry(
        "refusal", "Reset the export's cursor, or restore the cursor column that it belongs to."
    ),
    "RIVET_STATE_URL_TLS_REQUIRED": CodeEntry("refusal", "Add sslmode=verify-full to RIVET_STATE_URL."),
    "RIVET_STATE_BACKUP_FAILED": CodeEntry("refusal", "Make room for a backup of the state beside it."),
    "RIVET_STATE_FOREIGN": CodeEntry("refusal", "Point RIVET_STATE_URL at this source's own state."),
    "RIVET_STATE_EPHEMERAL": CodeEntry(
        "refusal", "Set RIVET_STATE_URL to a PostgreSQL URL: a worker's own disk goes with the worker."
    ),
    "RIVET_SCHEMA_DRIFT": CodeEntry("refusal", "Accept the new shape, or restore the old one."),
    # integrity
    "RIVET_VALIDATE_FAILED": CodeEntry("integrity", "Read the listed failures; run repair or a fresh pass."),
    "RIVET_VERIFY_MANIFEST_INCONSISTENT": CodeEntry(
        "integrity", "Restore the manifest from its copy of the run, or run the export afresh."
    ),
    "RIVET_VERIFY_SUCCESS_MALFORMED": CodeEntry("integrity", "Remove the _SUCCESS file and validate again."),
    "RIVET_RECONCILE_MISMATCH": CodeEntry("integrity", "Run the repair job of the export."),
    "RIVET_QUALITY_FAILED": CodeEntry(
        "integrity", "Correct the rows at the source, or the gate in `quality:`, and run again."
    ),
    "RIVET_UNIT_COUNT_MISMATCH": CodeEntry("integrity", "Report it; the unit was not committed."),
    # busy and transient
    "RIVET_STATE_RUN_IN_PROGRESS": CodeEntry("busy", "Wait for the other run, or raise lock_wait."),
    "RIVET_STATE_LOCK_TIMEOUT": CodeEntry("busy", "Wait for the other run, or raise lock_wait."),
    "RIVET_STATE_LEASE_LOST": CodeEntry("busy", "Nothing: the run that took over goes on."),
    "RIVET_STATE_CLAIM_LOST": CodeEntry("busy", "Nothing: the worker that took the unit over goes on."),
    "RIVET_STATE_UNAVAILABLE": CodeEntry(
        "transient", "Nothing: it is tried again. Look at the state database."
    ),
    "RIVET_SOURCE_UNAVAILABLE": CodeEntry("transient", "Nothing: it is tried again. Look at the server."),
    "RIVET_SOURCE_CONFLICT": CodeEntry("transient", "Nothing: it is tried again with less at a time."),
    "RIVET_SOURCE_YIELDED": CodeEntry(
        "transient", "Nothing: it is tried again when the migration has had the table."
    ),
    "RIVET_SOURCE_SCHEMA_CHANGED": CodeEntry("transient", "Run again: the plan is made from the new shape."),
    "RIVET_SOURCE_SNAPSHOT_LOST": CodeEntry("transient", "Nothing: the next attempt plans afresh."),
    "RIVET_DEST_UNAVAILABLE": CodeEntry("transient", "Nothing: it is tried again."),
    "RIVET_DEST_CONFLICT": CodeEntry(
        "transient", "Nothing: it is tried again. If it repeats, look for another writer of the prefix."
    ),
    "RIVET_DEST_CONTENT_DIFFERS": CodeEntry(
        "transient", "Nothing: the unit is written again. If it repeats, examine the destination."
    ),
    # internal
    "RIVET_INTERNAL": CodeEntry("internal", "Report it with the run id."),
}


class RivetError(Exception):
    """Base of the tree. ``message`` is for people and goes to logs only, redacted."""

    error_class: ClassVar[ErrorClass] = "generic"
    default_code: ClassVar[str] = "RIVET_INTERNAL"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        export: str | None = None,
        field: str | None = None,
        sqlstate: str | None = None,
        unit: int | None = None,
        stops_run: bool = True,
        retry_after_s: float = 0.0,
        counts: bool = True,
    ) -> None:
        self.code = code or self.default_code
        # a typo in a code is a defect, found by the first test that raises it
        if self.code not in REGISTRY and self.error_class != "crashed":
            raise KeyError(self.code)
        self.message = redact(message)
        self.export = export
        self.field = field
        self.sqlstate = sqlstate
        self.unit = unit
        #: False: other units may still succeed (a value, not the surroundings, is at fault)
        self.stops_run = stops_run
        #: seconds to wait beyond the backoff before the next attempt
        self.retry_after_s = retry_after_s
        #: False: the next attempt differs from this one, which shall not use up the unit's attempts
        self.counts = counts
        #: what the run had found out by then, under the keys of ``RunOutcome.details``
        self.details: dict[str, Any] = {}
        super().__init__(self.message)

    @property
    def retryable(self) -> bool:
        return self.error_class in ("retryable", "crashed")

    @property
    def exit_code(self) -> int | None:
        return EXIT_CODE[self.error_class]

    def __str__(self) -> str:
        where = f" (export {self.export})" if self.export else ""
        return f"[{self.code or self.error_class}] {self.message}{where}"


class UsageError(RivetError):
    error_class = "generic"
    default_code = "RIVET_CONFIG_INVALID"


class ConfigError(UsageError):
    """rivet.yaml is wrong. Carries where: ``file``, ``line`` (1-based), ``export``, ``field``, ``fix``.

    ``others``: what else is wrong with the same file, in its order.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "RIVET_CONFIG_INVALID",
        file: str | None = None,
        line: int | None = None,
        export: str | None = None,
        field: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.file, self.line, self.fix = file, line, fix
        self.others: list[ConfigError] = []
        place = f"{file or 'rivet.yaml'}:{line}" if line else (file or "")
        parts = [place, f"export '{export}'" if export else "", f"key `{field}`" if field else ""]
        head = ", ".join(p for p in parts if p)
        tail = f" Fix: {fix}" if fix else ""
        super().__init__(
            f"{head}: {message}{tail}" if head else message + tail, code=code, export=None, field=field
        )
        self.export = export

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}"


class EnvironmentFault(RivetError):
    error_class = "generic"
    default_code = "RIVET_SOURCE_QUERY_FAILED"


class TransientError(RivetError):
    error_class = "retryable"
    default_code = "RIVET_SOURCE_UNAVAILABLE"


class BusyError(TransientError):
    default_code = "RIVET_STATE_RUN_IN_PROGRESS"


class IntegrityError(RivetError):
    error_class = "data_integrity"
    default_code = "RIVET_VALIDATE_FAILED"


class SchemaDriftError(RivetError):
    error_class = "schema_drift"
    default_code = "RIVET_SCHEMA_DRIFT"


class RefusalError(RivetError):
    error_class = "refusal"
    default_code = "RIVET_SOURCE_TABLE_NOT_FOUND"


class InternalError(RivetError):
    error_class = "internal"
    default_code = "RIVET_INTERNAL"


class CrashedError(RivetError):
    """A process died without a word: nobody inside said why, so there is no code and no exit code."""

    error_class = "crashed"
    default_code = ""


def error_object(error: BaseException, *, with_message: bool = True) -> dict[str, Any]:
    """The one error object of ADR-0039 D1, from its one producer: 7 keys, always present.

    ``with_message=False`` is the form for Dagster metadata and other stores that keep what they are
    given: it holds no text that could carry a row's value or a name from the source.
    """
    error = as_rivet_error(error)
    entry = REGISTRY.get(error.code)
    return {
        "code": error.code or None,
        "kind": entry and entry.kind,
        "class": error.error_class,
        "exit_code": error.exit_code,
        "retryable": error.retryable,
        "action": entry and entry.action,
        "message": str(error) if with_message else None,
    }


def as_rivet_error(error: BaseException) -> RivetError:
    """Wrap what no layer classified: it is a defect of ours until somebody classifies it."""
    if isinstance(error, RivetError):
        return error
    return InternalError(f"{type(error).__name__}: {error}")


def representative(errors: list[RivetError]) -> RivetError:
    """The failure that stands for a run: the highest stop rank, among equals the last (D2)."""
    best = errors[0]
    for error in errors[1:]:
        if STOP_RANK[error.error_class] >= STOP_RANK[best.error_class]:
            best = error
    return best


__all__ = [
    "EXIT_CODE",
    "REGISTRY",
    "STOP_RANK",
    "BusyError",
    "CodeEntry",
    "ConfigError",
    "CrashedError",
    "EnvironmentFault",
    "IntegrityError",
    "InternalError",
    "RefusalError",
    "RivetError",
    "SchemaDriftError",
    "TransientError",
    "UsageError",
    "as_rivet_error",
    "error_object",
    "representative",
]
