"""``tuning``: how hard the source is worked. Export over source over profile, key by key."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from rivet_dagster.config.base import Context, Flag, Int, Problem, Section

Profile = Literal["fast", "balanced", "safe"]
MemoryPolicy = Literal["warn", "fail", "auto_shrink"]


class TuningConfig(Section):
    profile: Profile | None = None
    batch_size: Annotated[Int, Field(ge=1)] | None = None
    batch_size_memory_mb: Annotated[Int, Field(ge=1)] | None = None
    throttle_ms: Annotated[Int, Field(ge=0)] | None = None
    statement_timeout_s: Annotated[Int, Field(ge=0)] | None = None
    max_retries: Annotated[Int, Field(ge=0)] | None = None
    retry_backoff_ms: Annotated[Int, Field(ge=0)] | None = None
    lock_timeout_s: Annotated[Int, Field(ge=0)] | None = None
    memory_threshold_mb: Annotated[Int, Field(ge=0)] | None = None
    max_batch_memory_mb: Annotated[Int, Field(ge=0)] | None = None
    on_batch_memory_exceeded: MemoryPolicy | None = None
    adaptive: Flag | None = None
    min_parallel: Annotated[Int, Field(ge=1)] | None = None
    max_value_mb: Annotated[Int, Field(ge=1)] | None = None

    def problems(self, context: Context) -> Iterator[Problem]:
        if self.batch_size is not None and self.batch_size_memory_mb is not None:
            yield both_sizes(("batch_size",))


def both_sizes(path: tuple[str, ...]) -> Problem:
    return Problem(
        path,
        "`batch_size` and `batch_size_memory_mb` are both set (here or by the source's tuning)",
        "keep one of the two",
    )


@dataclass(frozen=True, slots=True)
class Tuning:
    """Concrete tuning of one export. Suffixes give the unit; 0 means no limit or no pause.

    batch_size: rows of a batch. batch_size_memory_mb: when not None, batches are sized by memory and
    ``batch_size`` is only where sizing starts from.
    """

    profile: Profile
    batch_size: int
    batch_size_memory_mb: int | None
    throttle_ms: int
    statement_timeout_s: int
    max_retries: int
    retry_backoff_ms: int
    lock_timeout_s: int
    memory_threshold_mb: int
    max_value_mb: int = 256
    max_batch_memory_mb: int | None = None
    on_batch_memory_exceeded: MemoryPolicy = "warn"
    adaptive: bool = False
    min_parallel: int = 1


PROFILES: Final[dict[Profile, Tuning]] = {
    "fast": Tuning("fast", 50_000, 64, 0, 0, 1, 1000, 0, 0),
    "balanced": Tuning("balanced", 10_000, 32, 50, 300, 3, 2000, 30, 4096),
    "safe": Tuning("safe", 2_000, None, 500, 120, 10, 5000, 10, 2048),
}


def merged_values(source: TuningConfig | None, export: TuningConfig | None) -> dict[str, Any]:
    """What the file sets, the export's value before the source's."""
    values: dict[str, Any] = {}
    for block in (source, export):
        if block is not None:
            values |= {k: v for k, v in block.model_dump(exclude_unset=True).items() if v is not None}
    return values


def merge(source: TuningConfig | None, export: TuningConfig | None, default: Profile) -> Tuning:
    """Export over source over profile. An explicit batch_size turns the profile's memory sizing off."""
    values = merged_values(source, export)
    base = PROFILES[values.pop("profile", default)]
    if "batch_size" in values and "batch_size_memory_mb" not in values:
        values["batch_size_memory_mb"] = None
    fields = {name: getattr(base, name) for name in base.__slots__}
    return Tuning(**(fields | values))
