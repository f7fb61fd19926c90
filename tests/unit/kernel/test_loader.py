"""Finding the kernel and psycopg's libpq, and what is said when either is not there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rivet_dagster.engine.errors import EnvironmentFault
from rivet_dagster.engine.sources.postgres import kernel
from rivet_dagster.engine.sources.postgres.kernel import Wire


@pytest.fixture(autouse=True)
def _fresh_caches() -> Iterator[None]:
    kernel.load.cache_clear()
    yield
    kernel.load.cache_clear()


def missing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> EnvironmentFault:
    monkeypatch.setattr(kernel, "__file__", str(folder / "kernel.py"))
    with pytest.raises(EnvironmentFault) as caught:
        kernel.load()
    assert caught.value.code == "RIVET_KERNEL_MISSING"
    return caught.value


def test_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "without a C compiler" in missing(monkeypatch, tmp_path).message


def test_library_of_something_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "_kernel.abi3.so").write_bytes(b"not a library")
    assert "_kernel.abi3.so" in missing(monkeypatch, tmp_path).message


#: What an older kernel had otherwise: file, text, replacement.
OLDER = {
    "version": ("kernel.h", "#define RIVET_ABI 2", "#define RIVET_ABI 1"),
    "struct": ("kernel.h", "int64_t raw;", "int64_t raw, more;"),
    "function": ("checksum.c", "rivet_widest(", "rivet_wide("),
    "nothing": ("kernel.h", "", ""),
}


@pytest.mark.parametrize("change", OLDER)
def test_library_of_other_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: str) -> None:
    """A checkout moved on, and the library in it did not."""
    sources = Path(kernel.__file__).parent
    file, before, after = OLDER[change]
    for path in sources.glob("*.[ch]"):
        text = path.read_text()
        assert path.name != file or before in text
        (tmp_path / path.name).write_text(text.replace(before, after) if path.name == file else text)
    compiler = shutil.which("cc")
    assert compiler is not None
    files = [path.name for path in sources.glob("*.c")]
    command = [compiler, "-w", "-std=c11", "-shared", "-fPIC", *files]
    subprocess.run([*command, "-o", "_kernel.abi3.so"], cwd=tmp_path, check=True)
    if change == "nothing":
        monkeypatch.setattr(kernel, "__file__", str(tmp_path / "kernel.py"))
        assert kernel.load()
        return
    message = missing(monkeypatch, tmp_path).message
    assert "was built from other sources than this package" in message
    assert str(tmp_path / "_kernel.abi3.so") in message
    assert "build_ext --inplace" in message


def test_wire_codes_are_those_of_the_header() -> None:
    header = (Path(kernel.__file__).parent / "kernel.h").read_text()
    names = [n.strip().split(" ")[0] for n in header.split("WIRE_BOOL = 1,")[1].split("}")[0].split(",")]
    expected = [f"WIRE_{w.name.removesuffix('128')}" for w in Wire if w is not Wire.BOOL]
    assert names == expected


def test_libpq_is_psycopgs_own_even_beside_another() -> None:
    """psycopg2 brings a libpq of its own; a connection handed to the wrong one would be a crash."""
    code = (
        "import psycopg2, psycopg\n"
        "from rivet_dagster.engine.sources.postgres.kernel import libpq\n"
        "pq = libpq()\n"
        "spans = [l.split() for l in open('/proc/self/maps') if 'libpq' in l]\n"
        "homes = {s[-1] for s in spans for a, b in [s[0].split('-')] "
        "if int(a, 16) <= pq.get_copy_data < int(b, 16)}\n"
        "print(len({s[-1] for s in spans}), *homes)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    libraries, *homes = done.stdout.split()
    assert int(libraries) == 2
    assert len(homes) == 1
    assert "psycopg_binary" in homes[0]
