"""Tables of several sites as numbers: reading, the schema that people agree on, and what does not fit it."""

from bidro.data.tables.cells import as_words, require_numbers, row_name
from bidro.data.tables.databases import Query, query_in
from bidro.data.tables.files import (
    Source,
    as_csv,
    as_meant,
    cells_bytes,
    memory_here,
    read,
    read_on_disk,
    read_one,
    tables_in,
)
from bidro.data.tables.learned import learn_schema, learn_survival, usable_rows
from bidro.data.tables.on_disk import TableOnDisk
from bidro.data.tables.schema import (
    Column,
    Schema,
    UnseenLevelsWarning,
    bounds_of,
    require_declared,
    require_every_class,
)

__all__ = [
    "Column",
    "Query",
    "Schema",
    "Source",
    "TableOnDisk",
    "UnseenLevelsWarning",
    "as_csv",
    "as_meant",
    "as_words",
    "bounds_of",
    "cells_bytes",
    "learn_schema",
    "learn_survival",
    "memory_here",
    "query_in",
    "read",
    "read_on_disk",
    "read_one",
    "require_declared",
    "require_every_class",
    "require_numbers",
    "row_name",
    "tables_in",
    "usable_rows",
]
