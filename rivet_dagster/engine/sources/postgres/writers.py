"""Transactions that may still bring a row below a cursor's last value, and waiting until they are over.

A value that the server gave inside a transaction (``now()``, ``nextval``) is at or below a value that is
already visible only when its transaction has begun by then. Once all that were open after that look have
ended, every row up to that value is visible. ``pg_locks`` shows them to every role.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

#: Seconds that a run waits for others; what is not over by then holds the cursor back.
PATIENCE_S: Final = 10.0
#: A transaction's time is that of its first message, a moment before others can see it.
_UNSEEN_S: Final = 0.1
_PAUSE_S: Final = (0.02, 0.5)
_SHOWN: Final = 3

#: Numbers of a sequence: whoever has drawn one holds this lock on the sequence, and on the table that the
#: row goes to, until the end. Readers, dumps and vacuum hold weaker ones.
_WRITING: Final = """
SELECT DISTINCT l.virtualtransaction, l.pid, NULL
FROM pg_catalog.pg_locks l
WHERE l.locktype = 'relation' AND l.granted AND l.mode = 'RowExclusiveLock'
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
  AND l.relation::bigint = ANY ('{{{relations}}}'::bigint[])"""

#: Any other value may have been set before its transaction touched the table: all that are open in this
#: database, without autovacuum (no role) and our own, which only read. Their begin is hidden (NULL) without
#: pg_read_all_stats, and unknown for prepared ones.
_OPEN: Final = """
SELECT l.virtualtransaction, l.pid, a.xact_start::text
FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock'
  AND a.datname = pg_catalog.current_database() AND a.usesysid IS NOT NULL
  AND a.pid <> pg_catalog.pg_backend_pid()
  AND a.application_name IS DISTINCT FROM pg_catalog.current_setting('application_name')
  AND a.application_name IS DISTINCT FROM 'rivet_dagster state'
UNION ALL
SELECT l.virtualtransaction, NULL, NULL
FROM pg_catalog.pg_prepared_xacts p JOIN pg_catalog.pg_locks l ON l.transactionid = p.transaction
WHERE p.database = pg_catalog.current_database() AND l.locktype = 'transactionid' AND l.pid IS NULL
ORDER BY 3 NULLS FIRST"""


class Open(Struct, frozen=True):
    """A transaction of somebody else; preparing it leaves its name.

    pid: None when it is prepared. since: its begin, None if not known. timed: it was asked for.
    """

    name: str
    pid: int | None
    since: str | None
    timed: bool


class Cap(Struct, frozen=True):
    """How far a run may read. upto: the cursor's last value when the wait began. open: transactions that
    did not end. since: begin of the oldest of them; None when it is not known of all."""

    upto: str
    open: tuple[Open, ...] = ()

    @property
    def since(self) -> str | None:
        return self.open[0].since if self.open else None

    @property
    def shown(self) -> str:
        pids = [f"pid {t.pid}" if t.pid else "a prepared one" for t in self.open[:_SHOWN]]
        more = f" and {len(self.open) - _SHOWN} more" if len(self.open) > _SHOWN else ""
        hidden = any(t.pid and t.timed and t.since is None for t in self.open)
        grant = "; granted pg_read_all_stats, the role would see since when" if hidden else ""
        return (
            f"transactions are open that may bring rows below those of now ({', '.join(pids)}{more}){grant}"
        )


#: Runs a statement in a transaction of its own.
Rows = Callable[[str], list[tuple[Any, ...]]]


def wait_for_writers(
    rows: Rows, upto: str, relations: Sequence[int] | None, patience_s: float | None = None
) -> Cap:
    """Return when all who could write a value up to ``upto`` are over, or when the patience is.

    relations: oids of the sequences and tables of a cursor that takes its numbers from sequences; None for
    any other cursor. What is read must be read in a snapshot taken after this.
    """
    statement = _OPEN
    if relations is None:
        time.sleep(_UNSEEN_S)
    else:
        statement = _WRITING.format(relations=",".join(str(int(oid)) for oid in relations))

    def look() -> tuple[Open, ...]:
        return tuple(Open(str(name), pid, since, relations is None) for name, pid, since in rows(statement))

    patience_s = PATIENCE_S if patience_s is None else patience_s
    left, end, (pause, most) = look(), time.monotonic() + patience_s, _PAUSE_S
    while left and time.monotonic() < end:
        time.sleep(pause)
        pause = min(2 * pause, most)
        names = {t.name for t in look()}
        left = tuple(t for t in left if t.name in names)
    return Cap(upto, left)
