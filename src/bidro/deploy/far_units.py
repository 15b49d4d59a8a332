"""Whether a site's columns are in the units that were agreed on: age in months, where years are meant, is
trained on like any other number, and nothing else would tell."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bidro.arrays import Floats
from bidro.deploy.agreed import Agreed, Unit
from bidro.standard import client_moments

# A site is warned about whose mean lies so many agreed spreads from the agreed centre, or whose deviation is
# so many times the agreed spread, or such a part of it.
_AWAY = 4.0
_RATIO = 4.0


class FarUnit(NamedTuple):
    """A column that lies far from what was agreed on."""

    column: str
    mean: float
    deviation: float
    agreed: Unit

    def in_words(self, numbers: bool) -> str:
        """With the site's own numbers where these stay, or are known already."""
        own = f" (mean {self.mean:.4g}, deviation {self.deviation:.4g})" if numbers else ""
        return (
            f"its column '{self.column}'{own} lies far from the agreed centre {self.agreed.centre:g} and "
            f"spread {self.agreed.spread:g}: is it in another unit?"
        )


def far_units(agreed: Agreed, mean: Floats, deviation: Floats) -> list[FarUnit]:
    """The numbers among the columns, of which these are the mean (m,) and the deviation (m,) at a site, the
    target last, that lie far from the agreed units. One that does not vary at all tells by its mean alone."""
    schema, found = agreed.schema, []
    names = [*schema.features, schema.target]
    for name, own, spread in zip(names, mean.tolist(), deviation.tolist(), strict=True):
        unit = agreed.units.get(name)
        if unit is None:
            continue  # of a level, or of classes
        ratio = spread / unit.spread
        if abs(own - unit.centre) > _AWAY * unit.spread or ratio > _RATIO or 0 < ratio < 1 / _RATIO:
            found.append(FarUnit(name, own, spread, unit))
    return found


def far_units_of(agreed: Agreed, features: Floats, target: Floats) -> list[FarUnit]:
    """The same of rows themselves, features (N, k) and target (N,)."""
    parts = [client_moments(part, [len(target)]) for part in (features, target[:, None])]
    mean, deviation = (np.concatenate([part[0] for part in both]) for both in zip(*parts, strict=True))
    return far_units(agreed, mean, deviation)
