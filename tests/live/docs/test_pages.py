"""What the docs tell a reader to type works: every block of commands of every page is run, in its order."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import dagster as dg
import pytest

from rivet_dagster.cli import cli
from rivet_dagster.config import load_config
from tests.live.docs.pages import PAGES, ROOT, SILENT, Block, blocks
from tests.live.docs.reader import make_shop, reader
from tests.live.postgres.rig import read_parquet
from tests.services.postgres import TestServer, postgres_server

RUN: Final = ("bash", "sql")
#: From a newcomer's first command to files and a materialization.
MINUTES: Final = 5
#: Of all blocks of commands, those that the suite cannot run.
MOST_NOT_RUN: Final = 0.5
_PROGRAMS: Final = "rivet-dagster|dagster|make|pip|python|docker|sudo|systemctl|psql|rivet"
COMMAND: Final = re.compile(
    rf"^\s*\$?\s*(?:export \w+=|(?:{_PROGRAMS}) [a-z-])",
    flags=re.MULTILINE,
)
ALL: Final = [block for page in PAGES for block in blocks(page)]
READ: Final = [page for page in PAGES if any(b.language in RUN and b.reason is None for b in blocks(page))]
HEADER: Final = "source: {type: postgres, url_env: DATABASE_URL}\nexports:\n"


@pytest.fixture(scope="module")
def shop_server() -> Iterator[TestServer]:
    """A server of its own: the pages make roles and databases."""
    with postgres_server(17) as server:
        make_shop(server)
        yield server


@pytest.mark.parametrize("page", [page for page in READ if page != "docs/quickstart.md"])
def test_commands_of_a_page_run(page: str, shop_server: TestServer, tmp_path: Path) -> None:
    with reader(shop_server, tmp_path) as someone:
        someone.read(blocks(page))


def test_the_quickstart_leads_to_files_and_materializations(shop_server: TestServer, tmp_path: Path) -> None:
    started = time.monotonic()
    with reader(shop_server, tmp_path) as newcomer:
        newcomer.execute(
            "DROP TABLE events, order_lines"
        )  # two are enough, at seconds of Dagster's start each
        printed = newcomer.read(blocks("docs/quickstart.md"), timeout=MINUTES * 60)
    assert time.monotonic() - started < MINUTES * 60
    assert "rivet.yaml: 2 exports" in printed
    assert "orders: 20000 rows" in printed
    assert len(re.findall(r"\bpass\b", printed)) == 2
    with dg.DagsterInstance.from_config(str(tmp_path / "dagster_home")) as instance:
        for name, rows in (("orders", 20_000), ("customers", 500)):
            parts = sorted((tmp_path / "out" / name).glob("*.parquet"))
            assert read_parquet(parts, "count(*), count(DISTINCT id)") == [(rows, rows)]
            assert instance.get_latest_materialization_event(dg.AssetKey(["rivet", name])) is not None


def test_the_quickstart_is_three_commands() -> None:
    commands = [b.text for b in blocks("docs/quickstart.md") if b.text.startswith("rivet-dagster init")]
    assert [len(text.splitlines()) for text in commands] == [3]


def test_what_is_not_run_says_why() -> None:
    kept_out = [block for block in ALL if block.reason is not None]
    assert [block.where for block in kept_out if len(block.reason or "") < 10] == []
    assert [block.where for block in kept_out if block.language not in RUN] == []
    runnable = [block for block in ALL if block.language in RUN]
    for block in kept_out:
        if block.reason and (there := re.match(r"as in (\S+)", block.reason)):
            run = {line for b in blocks(there[1]) if b.reason is None for line in b.text.splitlines()}
            assert not {line.partition(" #")[0].rstrip() for line in block.text.splitlines()} - run, (
                block.where
            )
    assert len(kept_out) <= MOST_NOT_RUN * len(runnable), [f"{b.where}: {b.reason}" for b in kept_out]


def test_no_command_hides_in_a_block_that_nobody_runs() -> None:
    assert [b.where for b in ALL if b.language not in (*RUN, *SILENT)] == []
    silent = [b for b in ALL if b.language == "text"]
    assert [b.where for b in silent if COMMAND.search(b.text)] == []


@pytest.mark.parametrize("block", [b for b in ALL if b.is_config or b.is_exports], ids=lambda b: b.where)
def test_configs_load(block: Block, tmp_path: Path) -> None:
    text = block.text if block.is_config else HEADER + block.text
    (tmp_path / "rivet.yaml").write_text(text, encoding="utf-8")
    assert load_config(tmp_path / "rivet.yaml").exports


def test_the_exports_of_the_modes_page_run(shop_server: TestServer, tmp_path: Path) -> None:
    text = HEADER + "".join(b.text for b in blocks("docs/modes.md") if b.is_exports)
    whole = Block("docs/modes.md", 0, "yaml", "# rivet.yaml\n" + text, None)
    commands = "rivet-dagster run\nrivet-dagster validate\n"
    with reader(shop_server, tmp_path) as someone:
        someone.read([whole, Block("docs/modes.md", 0, "bash", commands, None)])
    for export in load_config(tmp_path / "rivet.yaml").exports:
        assert list((tmp_path / "out" / export.name).rglob("_SUCCESS")), export.name


def options_of(words: str) -> set[str]:
    """Every option that the verb which ``words`` begin with takes."""
    command: click.Command = cli
    context = click.Context(cli)
    taken = {name for option in cli.params for name in option.opts}
    for word in words.split():
        inner = command.get_command(context, word) if isinstance(command, click.Group) else None
        if inner is None:
            break
        command = inner
        taken |= {name for option in command.params for name in option.opts}
    return taken | {"--help"}


@pytest.mark.parametrize("page", PAGES)
def test_options_of_commands_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    calls = re.findall(r"rivet-dagster ((?:[a-z-]+ )[^`\n|;&>#]*)", text)
    wrong = [
        f"{call.strip()}: {option}"
        for call in calls
        for option in re.findall(r"(?<!\S)--?[a-z][a-z-]*", call)
        if option not in options_of(call)
    ]
    assert wrong == []


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*PAGES, "CONTEXT.md", "CHANGELOG.md"])
def test_links_lead_to_files_and_headings(page: str) -> None:
    here = ROOT / page
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", here.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        if "://" in name:
            continue
        target = (here.parent / name).resolve() if name else here
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []
