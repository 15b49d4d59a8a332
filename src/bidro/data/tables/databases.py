"""Tables that a query of a database gives: DuckDB files by DuckDB, all else by SQLAlchemy and its drivers.

Passwords stand in no file and no command line: an address names the environment variable that holds one,
`postgresql://bidro:${VISITS_PASSWORD}@db.example.org/visits`, or leaves it to the driver (`~/.pgpass`). So
what repeats a fit (run.toml), and what a log says, holds none; and from what a driver says of an error, the
values of these variables are taken out.

Nothing is written: DuckDB opens its file for reading, PostgreSQL begins a transaction that reads, and every
transaction is rolled back.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pandas as pd

from bidro.core.arrays import machine_memory
from bidro.core.errors import BidroError, one_line, require_package
from bidro.data.tables.cells import remember_files
from bidro.data.tables.schema import require_single_columns

# So many rows are fetched at a time.
BATCH = 100_000
_DUCKDB = "duckdb:///"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
# What begins an address with a user and a password: nothing in a password ends it but the last @.
_PASSWORD = re.compile(r"^[^:/]+://[^@]*?:(?P<password>.*)@", re.DOTALL)
_SECRET = re.compile(r"pass|pwd|secret|token|key|credential", re.IGNORECASE)
_EXAMPLE = "postgresql://bidro:${VISITS_PASSWORD}@db.example.org/visits"
_HIDDEN = "***"


@dataclass(frozen=True)
class Query:
    """The table that a query of a database gives.

    database: "duckdb:///visits.duckdb" (a path relative to `folder`; four slashes for an absolute one), or
        what SQLAlchemy understands, such as "postgresql://user@host/name".
    query: one statement that gives rows, "select ...".
    folder: of the file that names the database.

    Raises BidroError for what is no address, and for one with a password in it.
    """

    database: str
    query: str
    folder: Path = field(default=Path(), compare=False)

    def __post_init__(self) -> None:
        if not self.query.strip():
            raise BidroError('A database needs a query that gives the rows: query = "select * from visits".')
        if "://" not in self.database:
            raise BidroError(
                "A database is named by its address, duckdb:///visits.duckdb or postgresql://user@host/name."
            )
        _require_no_password(self.database)

    def __str__(self) -> str:
        """How errors name it: without what is behind a question mark, or what variables hold."""
        return self.database.split("?")[0]

    def read(self) -> pd.DataFrame:
        """All rows. Raises BidroError, without a password in it, for a database that cannot be reached, a
        query that fails or gives no columns, and rows that do not fit into memory."""
        parts, size, room = [], 0, machine_memory() or 2**40
        for part in self.frames():
            size += int(part.memory_usage(deep=False).sum())
            if size > room:
                raise BidroError(
                    f"The query of '{self}' gives more than {size / 2**30:,.1f} GiB, and this machine has "
                    f"{room / 2**30:,.1f} GiB of memory; ask for fewer rows or columns."
                )
            parts.append(part)
        table = parts[0] if len(parts) == 1 else pd.concat(parts, ignore_index=True)
        remember_files(table, [(self, len(table))])
        return table

    def frames(self, rows: int = BATCH) -> Iterator[pd.DataFrame]:
        """The rows, so many at a time: at least one frame, which has no rows where the query gives none. In
        the order in which the database gives them. Raises as `read`."""
        try:
            parts = self._of_duckdb(rows) if self.database.startswith("duckdb:") else self._of_others(rows)
            first = True
            for part in parts:
                if first:
                    require_single_columns([str(name) for name in part.columns], f"The query of '{self}'")
                first = False
                yield part
        except BidroError:
            raise
        except Exception as error:
            # Not as its cause: what the driver says may hold the address.
            raise BidroError(f"'{self}' did not give a table: {self._said(error)}.") from None

    def _of_duckdb(self, rows: int) -> Iterator[pd.DataFrame]:
        if not self.database.startswith(_DUCKDB) or not self.database.removeprefix(_DUCKDB):
            raise BidroError(f"A database of DuckDB is a file: {_DUCKDB}visits.duckdb; got '{self}'.")
        require_package("duckdb", "database", f"Reading '{self}'")
        require_package("pyarrow", "database", f"Reading '{self}'")
        import duckdb
        import pyarrow as arrow

        path = self.folder / _filled(self.database, quoted=False).removeprefix(_DUCKDB)
        if not path.is_file():
            raise BidroError(f"There is no database '{path}'.")
        with closing(duckdb.connect(str(path), read_only=True)) as connection:
            found = connection.sql(self.query)
            if found is None:
                raise BidroError(f"The query of '{self}' gives no rows: it must be a select.")
            reader = found.to_arrow_reader(rows)
            empty = True
            for batch in reader:
                empty = False
                yield _as_frame(arrow.Table.from_batches([batch]))
            if empty:
                yield _as_frame(reader.schema.empty_table())

    def _of_others(self, rows: int) -> Iterator[pd.DataFrame]:
        require_package("sqlalchemy", "database", f"Reading '{self}'")
        import sqlalchemy

        address = sqlalchemy.engine.make_url(_filled(self.database))
        if address.drivername in ("postgres", "postgresql"):
            address = address.set(drivername="postgresql+psycopg")
        if address.drivername == "sqlite" and address.database:
            path = self.folder / address.database
            if not path.is_file():
                raise BidroError(f"There is no database '{path}'.")
            address = address.set(database=str(path))
        # A query without parameters: what looks like one of them is the query's own.
        how: dict[str, Any] = {"stream_results": True, "no_parameters": True}
        if address.get_backend_name() == "postgresql":
            how["postgresql_readonly"] = True
        engine = sqlalchemy.create_engine(address, poolclass=sqlalchemy.pool.NullPool, hide_parameters=True)
        with engine.connect().execution_options(**how) as connection, warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            yield from pd.read_sql_query(self.query, connection, chunksize=rows, coerce_float=True)

    def _said(self, error: Exception) -> str:
        """The first line of what a driver says, without what the address' variables hold."""
        cause = getattr(error, "orig", None) or error  # SQLAlchemy adds the statement, and links
        told = [line for line in str(cause).splitlines() if line.strip()]
        words = one_line(told[0] if told else type(error).__name__).rstrip(".")
        for name in _VARIABLE.findall(self.database):
            value = os.environ.get(name, "")
            for form in {value, quote(value, safe=""), quote_plus(value), one_line(value)} - {""}:
                words = words.replace(form, _HIDDEN)
        return words


def _as_frame(table: Any) -> pd.DataFrame:
    """A table of Arrow with numbers of a fixed precision as floating-point ones: by their digits, as a file's
    are read, since Arrow's own conversion is off in the last bit."""
    import pyarrow as arrow

    for place, one in enumerate(table.schema):
        if arrow.types.is_decimal(one.type):
            digits = table.column(place).cast(arrow.string())
            table = table.set_column(place, one.name, digits.cast(arrow.float64()))
    return table.to_pandas()


def query_in(content: Mapping[str, Any], folder: Path, where: str) -> Query | None:
    """The query that `database` and `query` of a file name; None where it names neither. Raises BidroError
    where it names one of them."""
    named = {name: content.get(name) for name in ("database", "query")}
    if not any(value is not None for value in named.values()):
        return None
    for name, value in named.items():
        if not isinstance(value, str):
            raise BidroError(
                f'{where}: rows of a database need both, database = "duckdb:///visits.duckdb" and query = '
                f'"select ...", each a text; {name} is none.'
            )
    try:
        return Query(**named, folder=folder)  # type: ignore[arg-type]
    except BidroError as error:
        raise BidroError(f"{where}: {error}") from None


def _filled(address: str, quoted: bool = True) -> str:
    """The address with the values of its variables, quoted as parts of one. Raises BidroError for one that is
    not set."""

    def value(found: re.Match[str]) -> str:
        if (held := os.environ.get(found[1])) is None:
            raise BidroError(
                f"The environment variable {found[1]}, which the database's address names, is not set."
            )
        return quote(held, safe="") if quoted else held

    return _VARIABLE.sub(value, address)


def _require_no_password(address: str) -> None:
    """Raise BidroError, which does not show it, for a password that stands in an address."""
    found = _PASSWORD.match(address.split("?")[0])
    parts = [pair.partition("=") for pair in address.partition("?")[2].split("&")]
    secrets = [found["password"]] if found else []
    secrets += [value for name, _, value in parts if _SECRET.search(name)]
    if any(secret and not _VARIABLE.fullmatch(secret) for secret in secrets):
        raise BidroError(
            "The database's address holds a password, which would be copied with it; put it into an "
            f"environment variable, and name that: {_EXAMPLE}."
        )
