"""What a validation found, in the shape of the reference's ``validate --format json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct, field

from rivet_dagster.engine.errors import EnvironmentFault, IntegrityError

Depth = Literal["light", "sample", "full"]
#: fails: the data or its description is wrong. unverified: it could not be looked at. warns: worth a look.
Weight = Literal["fails", "unverified", "warns"]


class Kind(Struct, frozen=True):
    """One kind of finding: its stable code, what it does to the verdict, and its meaning for people."""

    code: str
    weight: Weight
    meaning: str


#: Name of a kind -> kind. The docs' table of verification codes is generated from this.
KINDS: Final[dict[str, Kind]] = {
    "manifest_missing_under_marker": Kind(
        "RIVET_VERIFY_MANIFEST_MISSING", "fails", "_SUCCESS is there and manifest.json is not."
    ),
    "manifest_read_error": Kind(
        "RIVET_VERIFY_MANIFEST_READ_ERROR", "unverified", "A manifest could not be read."
    ),
    "manifest_self_inconsistent": Kind(
        "RIVET_VERIFY_MANIFEST_INCONSISTENT", "fails", "A manifest is malformed or contradicts itself."
    ),
    "manifest_copy_differs": Kind(
        "RIVET_VERIFY_MANIFEST_COPY", "fails", "The run's own copy of the manifest is missing or differs."
    ),
    "foreign_manifest": Kind(
        "RIVET_VERIFY_FOREIGN_MANIFEST", "fails", "The manifest belongs to another export."
    ),
    "run_not_successful": Kind(
        "RIVET_VERIFY_RUN_NOT_SUCCESSFUL", "fails", "The manifest's run did not end in success."
    ),
    "success_marker_missing": Kind("RIVET_VERIFY_SUCCESS_MISSING", "fails", "There is no _SUCCESS."),
    "success_marker_malformed": Kind(
        "RIVET_VERIFY_SUCCESS_MALFORMED", "fails", "_SUCCESS holds something else than a fingerprint."
    ),
    "success_marker_stale": Kind(
        "RIVET_VERIFY_SUCCESS_STALE", "fails", "_SUCCESS names another manifest than the one there."
    ),
    "success_read_error": Kind(
        "RIVET_VERIFY_SUCCESS_READ_ERROR", "unverified", "_SUCCESS could not be read."
    ),
    "list_error": Kind("RIVET_VERIFY_LIST_ERROR", "unverified", "The prefix could not be listed."),
    "folder_inconsistent": Kind(
        "RIVET_VERIFY_FOLDER_INCONSISTENT",
        "fails",
        "The manifest or marker of a partition's folder does not agree with the run's manifest.",
    ),
    "part_missing": Kind("RIVET_VERIFY_PART_MISSING", "fails", "A part of the manifest is not there."),
    "part_size_mismatch": Kind("RIVET_VERIFY_PART_SIZE_MISMATCH", "fails", "A part has another size."),
    "part_checksum_mismatch": Kind(
        "RIVET_VERIFY_PART_CHECKSUM_MISMATCH", "fails", "A part's bytes are not the ones that were written."
    ),
    "part_read_error": Kind("RIVET_VERIFY_PART_READ_ERROR", "unverified", "A part could not be read."),
    "part_unreadable": Kind("RIVET_VERIFY_PART_UNREADABLE", "fails", "A part is no file of its format."),
    "part_row_count_mismatch": Kind(
        "RIVET_VERIFY_PART_ROW_COUNT", "fails", "A part holds another number of rows than declared."
    ),
    "schema_fingerprint_mismatch": Kind(
        "RIVET_VERIFY_SCHEMA_FINGERPRINT", "fails", "A part has other columns or types than declared."
    ),
    "value_checksum_mismatch": Kind(
        "RIVET_VERIFY_VALUE_CHECKSUM", "fails", "A column holds other values than were read from the source."
    ),
    "value_check_not_available": Kind(
        "RIVET_VERIFY_VALUE_CHECK_NOT_AVAILABLE", "warns", "The run carries no value checksum to compare."
    ),
    "untracked_object": Kind(
        "RIVET_VERIFY_UNTRACKED_OBJECT", "warns", "A file under the prefix is in no manifest."
    ),
    "superseded_object": Kind(
        "RIVET_VERIFY_SUPERSEDED_OBJECT", "warns", "A part that a later run replaced is still there."
    ),
}


class Finding(Struct, frozen=True):
    """One finding. details: JSON values that say where; never a value of a row."""

    kind: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def code(self) -> str:
        return KINDS[self.kind].code

    @property
    def weight(self) -> Weight:
        return KINDS[self.kind].weight

    @property
    def path(self) -> str | None:
        """The file in question, None where it is not about one."""
        details = self.details
        return details.get("path") or details.get("key") or details.get("name")

    def as_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.details, "code": self.code}

    def __str__(self) -> str:
        where = ", ".join(f"{key}={value}" for key, value in self.details.items())
        return f"{self.code} ({where})" if where else self.code


class ValidationReport(Struct, frozen=True):
    """Verdict about one prefix.

    legacy_run: no manifest and no marker, so nothing could be checked (M6). rows, bytes: what the
    manifest declares. parts_*: parts that were looked at (none at depth light). quarantined_*: what lies
    in ``_quarantine`` (0 at depth light).
    """

    export_name: str
    resolved_prefix: str
    depth: Depth
    run_id: str | None = None
    manifest_found: bool = False
    legacy_run: bool = False
    parts_verified: int = 0
    parts_md5_verified: int = 0
    parts_failed: int = 0
    success_marker_consistent: bool = False
    manifest_self_consistent: bool = False
    rows: int = 0
    bytes: int = 0
    quarantined_files: int = 0
    quarantined_bytes: int = 0
    findings: tuple[Finding, ...] = ()

    @property
    def parts(self) -> int:
        return self.parts_verified + self.parts_failed

    @property
    def status(self) -> Literal["pass", "fail", "unverified"]:
        """``unverified``: nothing is known to be wrong, but not everything could be looked at."""
        if self.passed:
            return "pass"
        return "fail" if any(f.weight == "fails" for f in self.findings) else "unverified"

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.weight != "warns")

    @property
    def warnings(self) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.weight == "warns")

    def count(self, kind: str) -> int:
        """Findings of one kind."""
        return sum(f.kind == kind for f in self.findings)

    @property
    def passed(self) -> bool:
        return self.manifest_found and not self.legacy_run and not self.failures

    def as_json(self) -> dict[str, Any]:
        """One entry of ``exports``; ``quarantine`` is an addition of ours."""
        return {
            "export_name": self.export_name,
            "resolved_prefix": self.resolved_prefix,
            "verification": {
                "manifest_found": self.manifest_found,
                "legacy_run": self.legacy_run,
                "parts_verified": self.parts_verified,
                "parts_md5_verified": self.parts_md5_verified,
                "parts_failed": self.parts_failed,
                "success_marker_consistent": self.success_marker_consistent,
                "manifest_self_consistent": self.manifest_self_consistent,
                "passed": self.passed,
                "failures": [finding.as_json() for finding in self.findings],
                "depth_level": self.depth,
                "run_id": self.run_id,
            },
            "quarantine": {"files": self.quarantined_files, "bytes": self.quarantined_bytes},
        }

    def raise_if_failed(self) -> None:
        """IntegrityError when the data is wrong, EnvironmentFault when it could not be looked at."""
        if self.passed:
            return
        wrong = [f for f in self.findings if f.weight == "fails"]
        listed = "; ".join(str(f) for f in (wrong or self.failures)[:5]) or "the prefix holds no manifest"
        text = f"{self.resolved_prefix}: {listed}"
        if wrong:
            raise IntegrityError(text, code="RIVET_VALIDATE_FAILED", export=self.export_name)
        raise EnvironmentFault(text, code="RIVET_VALIDATE_UNVERIFIED", export=self.export_name)


def reports_json(
    reports: Iterable[ValidationReport], errors: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The whole output of ``validate``. errors: ``{export_name, error}`` of exports without a report."""
    listed = list(reports)
    return {
        "exports": [report.as_json() for report in listed],
        "warnings": [
            {"export_name": report.export_name, "warning": finding.as_json()}
            for report in listed
            for finding in report.warnings
        ],
        "errors": [dict(error) for error in errors],
    }


__all__ = ["KINDS", "Depth", "Finding", "Kind", "ValidationReport", "Weight", "reports_json"]
