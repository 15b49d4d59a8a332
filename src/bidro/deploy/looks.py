"""At which knots a site has looked whether its rows bear curves, and which of them it bears.

Whether a site answers for some knots depends on where its rows lie, so that each answer tells a little. Knots
that nobody has looked at are refused in rounds without a look; looks are for the question "bends", and there
are so many of them, in all runs together.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from bidro.deploy.bends import Knots, within
from bidro.deploy.rules import RefusedError
from bidro.deploy.site_state import SiteState

# Knots that a site looks at, in all runs together.
LOOKS = 24


@dataclass(frozen=True)
class Looks:
    state: SiteState
    coding: str  # of the columns

    def allow(self, knots: Knots) -> None:
        """Raise RefusedError where these knots are not known, and as many others as there may be are."""
        with self.state.reading() as connection:
            known = connection.execute("SELECT knots FROM looked WHERE coding = ?", (self.coding,)).fetchall()
        if len(known) >= LOOKS and (_text(knots),) not in known:
            raise RefusedError(
                f"it has been asked about {LOOKS} sets of knots, all that it looks at; use the knots of an "
                "earlier run."
            )

    def keep(self, knots: Knots, borne: Knots) -> None:
        """Of these knots those are borne."""
        with self.state.transaction() as connection:
            what = (self.coding, _text(knots), _text(borne))
            connection.execute("INSERT OR REPLACE INTO looked VALUES (?, ?, ?)", what)

    def require(self, knots: Knots, released: Callable[[], Knots]) -> None:
        """Raise RefusedError for knots that are not among those borne, nor among those `released` before."""
        with self.state.reading() as connection:
            asked = "SELECT borne FROM looked WHERE coding = ?"
            found = [json.loads(text) for (text,) in connection.execute(asked, (self.coding,))]
        if not any(within(knots, borne) for borne in found) and not within(knots, released()):
            raise RefusedError("it was asked about curves whose knots it has not been asked about before.")


def _text(knots: Knots) -> str:
    return json.dumps({column: list(own) for column, own in sorted(knots.items()) if own})
