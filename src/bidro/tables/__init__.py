"""Tables of several sites as numbers: reading, the schema that people agree on, and what does not fit it."""

from bidro.tables.cells import as_words, require_numbers
from bidro.tables.columns import Column
from bidro.tables.declared import bounds_of, require_declared
from bidro.tables.files import forget_read, read, read_one
from bidro.tables.holdout import require_every_class
from bidro.tables.learned import learn_schema
from bidro.tables.places import row_name
from bidro.tables.schema import Schema, UnseenLevelsWarning
from bidro.tables.written import as_csv, as_meant

__all__ = [
    "Column",
    "Schema",
    "UnseenLevelsWarning",
    "as_csv",
    "as_meant",
    "as_words",
    "bounds_of",
    "forget_read",
    "learn_schema",
    "read",
    "read_one",
    "require_declared",
    "require_every_class",
    "require_numbers",
    "row_name",
]
