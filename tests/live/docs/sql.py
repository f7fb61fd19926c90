"""What a superuser types into psql: statements from stdin, one by one, on the database of ``ADMIN_DSN``."""

from __future__ import annotations

import os
import re
import sys

import psycopg


def main() -> None:
    # a statement of the docs ends with its line
    statements = re.split(r";\s*(?:--.*)?$", sys.stdin.read(), flags=re.MULTILINE)
    with psycopg.connect(os.environ["ADMIN_DSN"], autocommit=True) as connection:
        for statement in statements:
            if statement.strip():
                connection.execute(statement.encode())


if __name__ == "__main__":
    main()
