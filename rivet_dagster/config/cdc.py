"""``cdc``: change capture from the log of the source."""

from typing import Annotated, Literal

from pydantic import Field

from rivet_dagster.config.base import Flag, Int, Section, Text, TextList

DEFAULT_SLOT = "rivet_slot"
DEFAULT_SERVER_ID = 4271


class CdcConfig(Section):
    initial: Literal["snapshot"] | None = None
    checkpoint: Text | None = None
    until_current: Flag = True
    max_events: Annotated[Int, Field(ge=1)] | None = None
    rollover: Annotated[Int, Field(ge=1)] | None = None
    rollover_memory_mb: Annotated[Int, Field(ge=1)] | None = None
    server_id: Annotated[Int, Field(ge=1, le=2**32 - 1)] | None = None
    slot: Text | None = None
    capture_instance: Text | None = None
    backfill: Literal["auto"] | TextList | None = None
