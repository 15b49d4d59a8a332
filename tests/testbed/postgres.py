"""A PostgreSQL of the tests' own, in a folder and on a port of its own: Debian's, by `make postgres`.

Where it is missing, what needs it is skipped, unless BIDRO_REQUIRE_POSTGRES=1.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from bidro.deploy.transport.local import HOST, free_port

# Whatever an address may hold that means something in one.
PASSWORD = "p@ss/w:rd%3F?#${x}"


def _programs() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        words = "queries are tested on PostgreSQL, which is not here; `make postgres` installs Debian's"
        (pytest.fail if os.environ.get("BIDRO_REQUIRE_POSTGRES") == "1" else pytest.skip)(words)
    return found[-1].parent


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a server's database `visits`, without a password; its user's is PASSWORD."""
    programs, user = _programs(), "postgres" if os.getuid() == 0 else None  # it does not run as root
    folder = Path(tempfile.mkdtemp(prefix="bidro-postgres-"))
    try:
        secret = folder / "password"
        secret.write_text(PASSWORD)
        if user is not None:
            for path in (folder, secret):
                shutil.chown(path, user)
        data, port = folder / "data", free_port()

        def call(program: str, *arguments: object) -> None:
            command = [str(programs / program), *map(str, arguments)]
            done = subprocess.run(
                command, user=user, capture_output=True, text=True, cwd=folder, timeout=60, check=False
            )
            assert done.returncode == 0, f"{program}: {done.stdout}{done.stderr}"

        call("initdb", "-D", data, "-U", "keeper", "-A", "scram-sha-256", f"--pwfile={secret}", "-N")
        ways = f"-h {HOST} -p {port} -k {folder} -F"
        call("pg_ctl", "-D", data, "-w", "-o", ways, "-l", folder / "log", "start")
        try:
            with connected(f"{HOST}:{port}/postgres") as connection:
                connection.execute("CREATE DATABASE visits")
            yield f"{HOST}:{port}/visits"
        finally:
            call("pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder)


def connected(place: str):
    """A connection of the tests themselves."""
    import psycopg

    return psycopg.connect(f"postgresql://keeper:{quote(PASSWORD, safe='')}@{place}", autocommit=True)
