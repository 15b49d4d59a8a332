"""The options of `bidro fit` as one object, read from and written to TOML.

The options of a table's columns are those of every command that reads one. As in `fit.settings`, what
takes long to import is imported where it is used, so that the command's help is instant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bidro.core.errors import BidroError, listed
from bidro.core.files import read_toml
from bidro.fit.settings import FitSettings, check_settings, names, names_in, setting, settings_of

if TYPE_CHECKING:
    import pandas as pd

    from bidro.data.tables import Schema, Source
    from bidro.fit.fitted import Options
    from bidro.privacy.terms import Budget, Terms

# The levels of confidence that the report can show.
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
# What a fit takes whatever its table, and for each row of a table that is read in batches: measured, rounded
# up.
LEAST_MEMORY, MEMORY_OF_A_ROW = 800_000_000, 80
# A fit with the table in memory takes so many times what its cells do.
MEMORY_OF_CELLS = 4


def _task(name: str, value: Any) -> None:
    from bidro.losses.registry import TASKS

    if value is not None and value not in TASKS:
        raise BidroError(f"{name} must be one of {', '.join(TASKS)}; got {value!r}.")


def _flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise BidroError(f"{name} must be true or false; got {value!r}.")


def _missing(name: str, value: Any) -> None:
    from bidro.data.tables.learned import require_filling

    require_filling(value)


def _missing_values(usual: str) -> Any:
    return setting(
        usual,
        "median: fill numbers by their median, tell which in a column of its own, and give categories a "
        "level 'missing'; median-alone: fill numbers by their median and categories by their commonest "
        "level; refuse: take no table with missing values.",
        _missing,
    )


def _measure(name: str, value: Any) -> None:
    from bidro.data.tables.schema import require_measure

    if value is not None:
        require_measure(value)


def _grid(name: str, value: Any) -> None:
    from bidro.data.tables.survival import Grid

    if value:
        Grid(tuple(value))


def _end(text: Any) -> float:
    try:
        return float(text)
    except (TypeError, ValueError) as error:
        raise BidroError(f"time_grid is a list of numbers such as 30,90,180,365; got {text!r}.") from error


def _memory(name: str, value: Any) -> None:
    if value is not None:
        bytes_in(value)


def bytes_in(text: str) -> int:
    """ "2GB" as a number of bytes. Raises BidroError for what is none, and for too little to begin with."""
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([MGT])i?B?\s*", str(text), re.IGNORECASE)
    if parts is None:
        raise BidroError(f"memory must be a number of MB, GB or TB, such as 2GB; got {text!r}.")
    found = float(parts[1]) * 10 ** {"M": 6, "G": 9, "T": 12}[parts[2].upper()]
    if found < LEAST_MEMORY:
        least = f"{LEAST_MEMORY / 1e9:g}GB"
        raise BidroError(f"memory must be at least {least}, which any fit takes; got {text!r}.")
    return int(found)


@dataclass(frozen=True, kw_only=True)
class TableColumns:
    """What the columns of a table are. Raises BidroError for what stands for nothing, before one is read."""

    client: str | None = setting(None, "Column that names the client; without it, a file's name does.")
    target: str | None = setting(None, "Column to be predicted.")
    target_unit: str | None = setting(
        None, "What the target is counted in, such as days: for the report page.", _measure
    )
    schema: str | None = setting(
        None,
        "schema.toml that sites agree on: columns, units and all of training are as it says, as in `bidro "
        "federate`.",
        option=Path,
        from_option=str,
    )
    event: str | None = setting(
        None,
        "In place of --target: column of whether an event happened, such as died, or died=yes; with --time "
        "and --time-grid.",
    )
    time: str | None = setting(
        None, "Column of how long a row was watched: until the event, or until nobody watched any longer."
    )
    time_grid: tuple[float, ...] = setting(
        (),
        "Ends of the periods in which the event is counted, such as 30,90,180,365.",
        _grid,
        from_option=names_in,
        from_file=lambda ends: tuple(map(_end, ends)),
    )
    entry: str | None = setting(None, "Column of when watching began, where that was not at 0.")
    task: str | None = setting(None, "regression or classification; guessed if not given.", _task)
    features: tuple[str, ...] | None = names("Columns to use, separated by commas; all by default.", None)
    categories: tuple[str, ...] = names(
        "Columns that are categories whatever their cells look like, separated by commas."
    )
    drop: tuple[str, ...] = names("Columns to leave out, separated by commas.")
    dates: tuple[str, ...] = names(
        "Columns of dates, separated by commas; they count as days since 1970-01-01."
    )
    person: str | None = setting(
        None,
        "Column of the person or thing that a row is of: rows of one stay together, and it is no feature.",
    )
    missing: str = _missing_values("refuse")

    def __post_init__(self) -> None:
        check_settings(self)
        self._check_times()

    def _check_times(self) -> None:
        """Raise BidroError for a time to an event of which a part is missing, or that is something else."""
        given = (self.event, self.time, self.time_grid or None)
        if any(given) != all(given) or (self.entry is not None and self.event is None):
            raise BidroError(
                "A time to an event needs three things: --event COLUMN, whether it happened, --time COLUMN, "
                "until when that was watched, and --time-grid, the ends of periods such as 30,90,180,365."
            )
        if self.event is None:
            return
        for name, value in (("target", self.target), ("task", self.task)):
            if value is not None:
                raise BidroError(f"--event is what is predicted; leave --{name} out.")

    def require_target(self) -> str:
        """The column to be predicted, or of the event."""
        if self.target is None and self.event is None:
            raise BidroError("Name the column to be predicted: --target COLUMN.")
        return self.event if self.target is None else self.target  # type: ignore[return-value]

    def learned(self, table: pd.DataFrame, client: str) -> Schema:
        """The schema of a table whose clients are named in this column."""
        from bidro.data.tables import learn_schema, learn_survival

        kinds = (self.categories, self.drop, self.dates)
        if self.event is not None and self.time is not None:
            more = (self.entry, self.features, self.missing, self.person)
            found = learn_survival(table, client, self.event, self.time, self.time_grid, *more, *kinds)
            return replace(found, target_unit=self.target_unit)
        of_columns = (self.features, self.task, self.missing, self.person)
        found = learn_schema(table, client, self.require_target(), *of_columns, *kinds)
        return replace(found, target_unit=self.target_unit)


@dataclass(frozen=True)
class FitOptions(FitSettings, TableColumns):
    """See `bidro fit --help`. `support` has [lower, upper] by column."""

    tables: tuple[str, ...] = names(option=None)
    # What sites agree on says what becomes of gaps; a fit of one's own table does what most people would.
    _: KW_ONLY
    missing: str = _missing_values("median")
    database: str | None = setting(
        None,
        "In place of tables: a database, duckdb:///visits.duckdb or postgresql://user:${VARIABLE}@host/name.",
    )
    query: str | None = setting(None, "Of the database: the query that gives the rows, 'select ...'.")
    memory: str | None = setting(
        None,
        "How much memory a fit may take, such as 2GB: a table that needs more is laid out in a scratch file "
        "and read in batches. By default half of this machine's.",
        _memory,
    )
    promise_each: bool = setting(
        False,
        "Hold out of every client at least as many rows as a promise of its own takes (29 at 95%), up to "
        "half of them.",
        _flag,
        option=bool,
    )
    refit: bool = setting(
        False,
        "After the certificate, train again on all rows, held-out ones too: the model in the folder is that "
        "one, and what is promised is of the procedure, trained without them.",
        _flag,
        option=bool,
    )
    epsilon: float | None = setting(  # in one process; between sites it is each site's own
        None, "Privacy budget of every client, to try a private fit: needs --schema.", option=float
    )
    delta: float = setting(1e-6, "Of the privacy budget.", option=float)
    rows_per_person: int = setting(
        1, "Rows that a person may have: needs the column `person` in the schema.", option=int
    )

    honest: float | None = setting(
        None,
        "In place of noise at every client for itself: noise that clients share, of whom at least this share "
        "keep theirs to themselves, such as 0.5.",
        option=float,
    )

    def __post_init__(self) -> None:
        """Whether the loss is one of the task's is said here only where the task is given."""
        self._check_times()
        from bidro.losses.registry import require_word
        from bidro.risk.transport import require_distances

        super().__post_init__()
        self.sources()
        for name in ("refit", "promise_each"):
            if getattr(self, name) and (
                self.hold_out == 0 or self.epsilon is not None or self.schema is not None
            ):
                raise BidroError(
                    f"--{name.replace('_', '-')} is of rows in this process that are held out for the "
                    "certificate: it needs a hold_out above 0, and goes with no schema and no privacy budget."
                )
        if self.radius == "bootstrap" or (self.support is not None and self.metric == "joint"):
            require_distances()
        self.budget()
        if self.loss is not None:
            require_word(self.loss, self.task)

    @property
    def least_held_out(self) -> int:
        """Of every client's rows, or people, where a promise of its own is wanted of each."""
        if not self.promise_each:
            return 0
        from bidro.certify.row_promise import needed_for

        return needed_for(self.confidence, self.person is not None)

    def sources(self) -> list[Source]:
        """Where the rows are: files, or a query. Raises BidroError where both are named, or half a query."""
        from bidro.data.tables.databases import query_in

        found = query_in({"database": self.database, "query": self.query}, Path(), "A fit")
        if found is None:
            return [Path(path) for path in self.tables]
        if self.tables:
            raise BidroError("Give tables, or a database with a query, and not both.")
        return [found]

    def budget(self) -> Budget | None:
        """The privacy budget of every client; None where the fit is not private. Raises BidroError for what
        is none, and where units would be read off the rows."""
        from bidro.privacy.terms import Budget

        if self.epsilon is None:
            if self.honest is not None:
                raise BidroError("honest is of shared noise, which needs a budget: give --epsilon, too.")
            return None
        if self.schema is None:
            raise BidroError(
                "A private fit needs units that are public: draft them with `bidro schema TABLE --target "
                "COLUMN --out schema.toml`, see to it that they tell nothing of the rows, and give --schema "
                "schema.toml."
            )
        return Budget(self.epsilon, self.delta, self.rows_per_person)

    def private_terms(self, agreed: Terms | None) -> Terms | None:
        """What a fit in one process releases under a budget: as agreed, or by default. Raises BidroError
        where a private run was agreed on and there is no budget."""
        from bidro.privacy.terms import SharedNoise, Terms

        if self.epsilon is None:
            if agreed is not None:
                raise BidroError(
                    "The schema is of a private run: say how private it is to be with --epsilon, such as "
                    "--epsilon 1."
                )
            return None
        terms, shared = agreed or Terms(), None
        honest = self.honest if terms.shared is None else terms.shared.honest
        if honest is not None:
            shared = SharedNoise(self.epsilon, self.delta, self.rows_per_person, honest)
        return replace(terms, shared=shared)

    def learned(self, table: pd.DataFrame, client: str) -> Schema:
        """The schema of a table, with the exposure marked as one."""
        found = super().learned(table, client)
        if self.exposure is None:
            return found
        if self.exposure not in found.read:
            raise BidroError(
                f"There is no feature '{self.exposure}' for --exposure; there are {listed(found.read)}."
            )
        marked = (
            replace(c, exposure=True, filler=None) if c.name == self.exposure else c for c in found.columns
        )
        return replace(found, columns=tuple(marked))

    def requested(self, schema: Schema, **more: Any) -> Options:
        """What `fit` is to do with a table of this schema; `more` are fields of `Options`, and
        `moments_alone`. Raises BidroError where the schema and the options have no loss."""
        from bidro.data.tables import bounds_of
        from bidro.fit.fitted import Options
        from bidro.selection.segments import with_a_line

        settings = replace(
            self,
            curves=with_a_line(_with_categories(self.curves, schema), schema.exposure, schema.features),
            exposure=schema.exposure,
            pairs=_pairs_with_categories(self.pairs, schema),
            moments_alone=more.pop("moments_alone", self.moments_alone),
            held_still=() if schema.survival is None else schema.columns_of(schema.survival.time),
        )
        loss = self.loss_choice(None if schema.classes is None else len(schema.classes))
        support = None if self.support is None else bounds_of(self.support, schema)
        return Options(loss, settings, support, LEVELS, **more)

    def to_toml(self) -> str:
        content = self.in_file()
        columns = dict.fromkeys(("tables", *(field.name for field, _ in settings_of(TableColumns))))
        return "\n".join([*toml_lines({name: content[name] for name in {**columns, **content}}), ""])

    @classmethod
    def from_toml(cls, path: Path, **given: Any) -> Self:
        """From a file, with what was `given` in place of what it says."""
        return cls.from_file(read_toml(path), f"'{path}'", **given)


def toml_lines(content: Mapping[str, Any], part: str = "", mark: str = "") -> list[str]:
    """Entries of a TOML file, those that are tables last, each as a part of its own below `part`; None is
    left out. `mark` begins every line that is no table's."""
    lines, tables = [], []
    for name, value in content.items():
        if isinstance(value, Mapping):
            tables += ["", f"[{part}{name}]", *(f"{toml(str(k))} = {toml(v)}" for k, v in value.items())]
        elif value is not None:
            lines.append(f"{mark}{name} = {toml(value)}")
    return [*lines, *tables]


def toml(value: Any) -> str:
    """Text, finite numbers and lists of them are the same in TOML as in JSON."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml(str(name))} = {toml(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _categories(schema: Schema) -> dict[str, Any]:
    """By name, of which numbers have a column for each level but the first."""
    from bidro.data.splines import Category

    return {
        column.name: Category(column.name, column.coded, column.levels)
        for column in schema.columns
        if column.levels is not None
    }


def _pairs_with_categories(pairs: Any, schema: Schema) -> Any:
    """Pairs that name a category are of all its columns."""
    if isinstance(pairs, str) or not isinstance(pairs, list | tuple):
        return pairs
    known = _categories(schema)
    return tuple(tuple(known.get(name, name) for name in one) for one in pairs)


def _with_categories(curves: Any, schema: Schema) -> Any:
    """Curves by level name a category, of which numbers have a column for each level but the first."""
    if not isinstance(curves, dict):
        return curves
    known = _categories(schema)
    return {
        name: (one[0], known.get(one[1], one[1])) if isinstance(one, tuple) else one
        for name, one in curves.items()
    }
