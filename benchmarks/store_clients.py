"""The S3 client that we use against obstore, in Rust, request by request, on an S3 server of its own.

    pip install -e .[bench]
    python -m benchmarks.store_clients [ROUNDS]

Both sign what they send. The MD5 that is sent, or compared with the answer, is made outside of the times;
that of a file's pieces is in ours, and obstore makes none. CPU is that of the client's process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from rivet_dagster.engine.destinations.objects import ObjectStore
from tests.services.seaweed import BUCKET, KEY_ENV, SECRET_ENV, S3Server, seaweed

_MB: Final = 1 << 20
_KEYS: Final = 10_000
_HEADS: Final = 200
_SMALL_PUTS: Final = 24
#: A process that does nothing but a first request. Its arguments: the server's address.
_FIRST: Final = {
    "ours": """
import sys
from rivet_dagster.config.destination import DestinationConfig
from rivet_dagster.engine.destinations.s3 import S3Bucket
bucket = S3Bucket(DestinationConfig(type="s3", bucket=sys.argv[2], endpoint=sys.argv[1],
    access_key_env=sys.argv[3], secret_key_env=sys.argv[4]))
bucket.head("first")
""",
    "obstore": """
import rivet_dagster.config.destination
import os, sys
import obstore
from obstore.store import S3Store
store = S3Store(sys.argv[2], endpoint=sys.argv[1], access_key_id=os.environ[sys.argv[3]],
    secret_access_key=os.environ[sys.argv[4]], region="us-east-1", client_options={"allow_http": True})
store.head("first")
""",
    "nothing": "import rivet_dagster.config.destination",
}


class Ours:
    """Our requests; a whole file goes through the store above them."""

    def __init__(self, server: S3Server) -> None:
        self.bucket = server.bucket(BUCKET)
        self.store = ObjectStore(self.bucket, "", "s3://b")

    def put(self, key: str, data: bytes, md5: bytes) -> str:
        return self.bucket.put(key, data, md5, None).version

    def send(self, key: str, file: Path) -> None:
        self.store.publish(file, key)

    def head(self, key: str) -> int:
        return self.bucket.head(key).size

    def read(self, key: str, size: int) -> int:
        return len(self.bucket.read(key, 0, size))

    def list(self, prefix: str) -> int:
        return sum(1 for _ in self.bucket.list(prefix))


class Obstore:
    """The same requests. It has none for the pieces of an upload: it sends them, unconditionally."""

    def __init__(self, server: S3Server) -> None:
        from obstore.store import S3Store

        self.store = S3Store(
            BUCKET,
            endpoint=server.url,
            access_key_id=server.key,
            secret_access_key=server.secret,
            region="us-east-1",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )

    def put(self, key: str, data: bytes, md5: bytes) -> str:
        return str(self.store.put(key, data, mode="create", use_multipart=False)["e_tag"])

    def send(self, key: str, file: Path) -> None:
        self.store.put(key, file, use_multipart=True, chunk_size=16 * _MB, max_concurrency=4)
        file.unlink()

    def head(self, key: str) -> int:
        return int(self.store.head(key)["size"])

    def read(self, key: str, size: int) -> int:
        return len(self.store.get_range(key, start=0, end=size))

    def list(self, prefix: str) -> int:
        return sum(len(page) for page in self.store.list(prefix))


Client = Ours | Obstore


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with seaweed() as server, tempfile.TemporaryDirectory() as folder:
        ours = Ours(server)
        clients: dict[str, Client] = {
            "ours": ours,
            "obstore": Obstore(server),
        }
        with contextlib.closing(ours.store):
            for name, task in _tasks(ours, Path(folder)).items():
                _show(name, _measured(rounds, clients, task))
        _show("import, first request", _first(server, rounds))
    return 0


Task = Callable[[], Callable[[Client], object]]


def _tasks(ours: Ours, folder: Path) -> dict[str, Task]:
    """Each makes its data, then what is timed."""
    whole = os.urandom(48 * _MB)
    empty = hashlib.md5(b"").digest()
    ours.put("first", b"", empty)
    ours.put("whole", whole, hashlib.md5(whole).digest())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: ours.put(f"many/{n:06d}", b"", empty), range(_KEYS)))

    def put(size: int, times: int) -> Task:
        data = whole[: size * _MB]
        md5 = hashlib.md5(data).digest()
        return lambda: lambda client: [client.put(secrets.token_hex(8), data, md5) for _ in range(times)]

    def send() -> Callable[[Client], object]:
        file = folder / "part"
        with file.open("wb") as out:
            out.write(whole + whole + whole[: 32 * _MB])
        return lambda client: client.send(secrets.token_hex(8), file)

    def requests(work: Callable[[Client], object]) -> Task:
        return lambda: work

    return {
        f"PUT 1 MiB, {_SMALL_PUTS} times": put(1, _SMALL_PUTS),
        "PUT 24 MiB": put(24, 1),
        "PUT 48 MiB": put(48, 1),
        "a file of 128 MiB in pieces": send,
        f"HEAD, {_HEADS} times": requests(lambda client: [client.head("first") for _ in range(_HEADS)]),
        f"LIST {_KEYS} keys": requests(lambda client: client.list("many/")),
        "GET 48 MiB": requests(lambda client: client.read("whole", len(whole))),
    }


Times = dict[str, list[tuple[float, float]]]


def _measured(rounds: int, clients: dict[str, Client], task: Task) -> Times:
    """Seconds by the clock and of CPU, of each client in turn; the first round is not counted."""
    found: Times = {name: [] for name in clients}
    for number in range(rounds + 1):
        for name, client in clients.items():
            work = task()
            clock, cpu = time.perf_counter(), time.process_time()
            work(client)
            took = time.perf_counter() - clock, time.process_time() - cpu
            if number:
                found[name].append(took)
    return found


def _first(server: S3Server, rounds: int) -> Times:
    """Of whole processes."""
    found: Times = {name: [] for name in _FIRST}
    for number in range(rounds + 1):
        for name, program in _FIRST.items():
            clock, cpu = time.perf_counter(), _cpu_of_children()
            subprocess.run(
                [sys.executable, "-c", program, server.url, BUCKET, KEY_ENV, SECRET_ENV],
                env={**os.environ, **server.environment},
                check=True,
            )
            if number:
                found[name].append((time.perf_counter() - clock, _cpu_of_children() - cpu))
    return found


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _show(name: str, found: Times) -> None:
    for client, times in found.items():
        wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
        print(f"{name}; {client}: {wall * 1000:.0f} ms, CPU {cpu * 1000:.0f} ms", flush=True)


if __name__ == "__main__":
    sys.exit(main())
