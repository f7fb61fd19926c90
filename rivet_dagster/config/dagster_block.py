"""``dagster:``: how an export shows in Dagster. An addition of this project to the reference's language.

The rules are Dagster's own, checked here so that a mistake names its line instead of failing a deploy.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import date
from typing import Annotated, Any, Final
from zoneinfo import available_timezones

from pydantic import BeforeValidator, Field

from rivet_dagster.config.base import Context, Flag, Int, Problem, Section, Text, TextList, plain_values
from rivet_dagster.config.sizes import parse_duration

_NAME = re.compile(r"[A-Za-z0-9_]+")
_GROUP = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*")
_EMAIL = re.compile(r"[^\s@]+@[^\s@]+\.[^\s@]+")
_TAG_KEY = re.compile(r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}")
_KIND = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MACROS: Final = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly", "@annually", "@midnight")
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
#: field, lowest, highest, names that count from the lowest
_FIELDS: Final = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of month", 1, 31, ()),
    ("month", 1, 12, _MONTHS),
    ("day of week", 0, 7, _DAYS),
)
#: As much as the reference gives a group of exports.
DEFAULT_MEMORY_MB: Final = 4096
_ENTRY = re.compile(r"(?P<low>\*|[a-z0-9]+)(-(?P<high>[a-z0-9]+))?(/(?P<step>[0-9]+))?")

EXECUTORS: Final = frozenset({"in_process", "multiprocess", "celery", "k8s"})


def cron_fault(text: str) -> str | None:
    """Why ``text`` is not a cron line of five fields (or a macro like @daily); None if it is one."""
    if text.strip() in _MACROS:
        return None
    fields = text.split()
    if len(fields) != 5:
        return f"a cron line has five fields, this one has {len(fields)}"
    for (name, low, high, words), field in zip(_FIELDS, fields, strict=True):
        if not all(_entry_fits(entry, low, high, words) for entry in field.lower().split(",")):
            return f"the {name} field of the cron line is wrong (it takes {low} to {high})"
    return None


def _entry_fits(entry: str, low: int, high: int, words: tuple[str, ...]) -> bool:
    found = _ENTRY.fullmatch(entry)
    if not found or (found["step"] and int(found["step"]) < 1):
        return False
    if found["low"] == "*":
        return found["high"] is None
    ends = [_number(word, low, words) for word in (found["low"], found["high"]) if word is not None]
    return all(end is not None and low <= end <= high for end in ends) and (
        len(ends) < 2 or (ends[0] or 0) <= (ends[1] or 0)
    )


def _number(word: str, low: int, words: tuple[str, ...]) -> int | None:
    if word in words:
        return words.index(word) + low
    return int(word) if word.isdecimal() else None


class FreshnessConfig(Section):
    """Either ``fail_after`` (``warn_after``): durations since the table was last materialized; or ``by``: a
    cron line, by which it was to be materialized, not longer than ``within`` before."""

    fail_after: Text | None = None
    warn_after: Text | None = None
    by: Text | None = None
    within: Text | None = None

    def problems(self, context: Context) -> Iterator[Problem]:
        if self.given("fail_after") == self.given("by"):
            yield Problem((), "freshness is `fail_after` or `by`", "set exactly one of them")
        for key, needs in (("warn_after", "fail_after"), ("within", "by")):
            if self.given(key) and not self.given(needs):
                yield Problem((key,), f"`{key}` needs `{needs}`", f"add `{needs}` or remove `{key}`")
        if self.given("by") and not self.given("within"):
            yield Problem((), "`by` needs `within`", "add how long before a table may be made, e.g. `3h`")
        if self.by is not None and (fault := cron_fault(self.by)):
            yield Problem(("by",), fault, 'write five fields, e.g. "0 6 * * *"')
        seconds: dict[str, int] = {}
        for key in ("fail_after", "warn_after", "within"):
            if (text := getattr(self, key)) is None:
                continue
            try:
                seconds[key] = parse_duration(text)
            except ValueError:
                yield Problem(
                    (key,), f"`{key}` is not a duration", "write a number and s, m, h or d, e.g. `26h`"
                )
                continue
            if seconds[key] < 60:
                yield Problem((key,), "Dagster looks once a minute", "write at least `1m`")
        if "fail_after" in seconds and seconds.get("warn_after", 0) >= seconds["fail_after"]:
            yield Problem(("warn_after",), "not before `fail_after`", "make it shorter than `fail_after`")


class ExportDagster(Section):
    """deps: asset keys as ``a/b``. schedule: cron. pool: a Dagster concurrency pool.

    partitions_start: the first day of time partitions, ``YYYY-MM-DD``. automation: ``eager``
    or a cron line. timezone: of all cron lines here. workers: processes that share a run, each a step
    of the export's job.
    """

    group: Text | None = None
    owners: TextList = ()
    tags: Mapping[Text, Text] = {}
    description: Text | None = None
    kinds: TextList = ()
    deps: TextList = ()
    schedule: Text | None = None
    sensor: Flag = False
    pool: Text | None = None
    partitions_start: Text | None = None
    workers: Annotated[Int, Field(ge=1)] = 1
    automation: Text | None = None
    timezone: Text = "UTC"
    freshness: FreshnessConfig | None = None

    @property
    def start_day(self) -> date | None:
        """``partitions_start``. Raises ValueError for what is no day."""
        if self.partitions_start is None:
            return None
        if not _DAY.fullmatch(self.partitions_start):
            raise ValueError(self.partitions_start)
        return date.fromisoformat(self.partitions_start)

    def problems(self, context: Context) -> Iterator[Problem]:
        yield from group_problem(self.group)
        for at, owner in enumerate(self.owners):
            if not (_EMAIL.fullmatch(owner) or (owner.startswith("team:") and len(owner) > 5)):
                yield Problem(
                    ("owners", at),
                    "an owner is an email address or `team:<name>`",
                    "write it as one of these",
                )
        for key, value in self.tags.items():
            if not _TAG_KEY.fullmatch(key) or not _TAG_VALUE.fullmatch(value):
                yield Problem(
                    ("tags", key),
                    "not a tag that Dagster takes",
                    "use letters, digits, `_`, `-`, `.` (63 at most, one `/` in the key)",
                )
        yield from self._lists()
        if self.schedule is not None and (fault := cron_fault(self.schedule)):
            yield Problem(("schedule",), fault, 'write five fields, e.g. "0 3 * * *"')
        if self.pool is not None and not re.fullmatch(r"\S+", self.pool):
            yield Problem(("pool",), "a pool name has no spaces", "use letters, digits, `_`, `-`, `/`")
        yield from self._automation(context)
        try:
            _ = self.start_day
        except ValueError:
            yield Problem(("partitions_start",), "not a day", "write the first day like `2024-01-31`")

    def _automation(self, context: Context) -> Iterator[Problem]:
        if self.automation is not None and self.automation != "eager":
            if " " not in self.automation and not self.automation.startswith("@"):
                yield Problem(
                    ("automation",),
                    "neither a condition nor a cron line",
                    'write `eager` or five fields, e.g. "0 3 * * *"',
                )
            elif fault := cron_fault(self.automation):
                yield Problem(("automation",), fault, 'write five fields, e.g. "0 3 * * *"')
            elif self.schedule is not None:
                yield Problem(
                    ("automation",), "two cron lines would run the export twice", "remove it or `schedule`"
                )
        if self.timezone != "UTC" and self.timezone not in available_timezones():
            yield Problem(("timezone",), "not a time zone", "write one like `Europe/Berlin`")
        if self.freshness is not None:
            yield from (p.under("freshness") for p in self.freshness.problems(context))

    def _lists(self) -> Iterator[Problem]:
        if len(self.kinds) > 8:  # Dagster takes ten, two are the source and the format
            yield Problem(("kinds",), "more than eight kinds", "name at most eight")
        for at, kind in enumerate(self.kinds):
            if not _KIND.fullmatch(kind):
                yield Problem(
                    ("kinds", at), "not a kind that Dagster takes", "use letters, digits, `_`, `-`, `.`"
                )
        for at, dep in enumerate(self.deps):
            if not dep or not all(part.strip() for part in dep.split("/")):
                yield Problem(
                    ("deps", at), "not an asset key", "write it as `prefix/name`, without empty parts"
                )


class RootDagster(Section):
    """key_prefix: what every asset key starts with. group: default of the exports.

    source_pool_limit: steps that read the source at a time, all exports together. executor: one of
    ``EXECUTORS`` -> its config as Dagster takes it; None: multiprocess.
    max_connections, max_memory_mb: what the exports that one run of ``export_all`` has going may hold
    together.
    """

    key_prefix: TextList = ("rivet",)
    group: Text | None = None
    source_pool_limit: Annotated[Int, Field(ge=1)] | None = None
    executor: Annotated[Mapping[str, Any], BeforeValidator(plain_values)] | None = None
    max_connections: Annotated[Int, Field(ge=1)] | None = None
    max_memory_mb: Annotated[Int, Field(ge=1)] = DEFAULT_MEMORY_MB

    def problems(self, context: Context) -> Iterator[Problem]:
        for at, part in enumerate(self.key_prefix):
            if not _NAME.fullmatch(part):
                yield Problem(
                    ("key_prefix", at),
                    "not a part of an asset key",
                    "use letters, digits and underscores only",
                )
        yield from group_problem(self.group)
        if self.executor is not None and (len(self.executor) != 1 or not set(self.executor) <= EXECUTORS):
            yield Problem(
                ("executor",),
                "not one of Dagster's executors",
                f"name one, with its config: {', '.join(sorted(EXECUTORS))}",
            )


def group_problem(group: str | None) -> Iterator[Problem]:
    if group is not None and not _GROUP.fullmatch(group):
        yield Problem(
            ("group",), "not a group name that Dagster takes", "use letters, digits and underscores only"
        )
