"""A made-up table of hospital visits, to try things on."""

from __future__ import annotations

import numpy as np
import pandas as pd

# The rows of every hospital, and its habit: days of stay for a year of age, on top of those of all hospitals.
# A hospital keeps its habit whatever the seed, so that other seeds give fresh rows of the same hospitals.
_HOSPITALS = {
    "north": (300, 0.006),
    "south": (800, 0.010),
    "east": (1200, -0.017),
    "west": (450, -0.015),
    "harbour": (240, 0.010),
    "university": (1900, 0.009),
}
# A walking test times how frail a patient is, with an error of so many minutes; harbour's device is worn, and
# reads something else half of the time. A nurse's score of the same is rougher, and alike everywhere.
_ERROR, _WORN = 0.2, {"harbour": 0.5}
# A year later: harbour sees three times as many patients, and west has taken over a worn device.
_LATER_ROWS, _LATER_WORN = {"harbour": 3.0}, {"harbour": 0.5, "west": 0.5}


def example_visits(seed: int = 0, later: bool = False) -> pd.DataFrame:
    """A made-up table of 4,890 visits to six hospitals, to try things out on.

    Hospitals differ in whom they see and in how long they keep people; nothing in it is real. How frail a
    patient is shows in a walking test, which is exact but for one small hospital, whose device is worn, and
    in a nurse's score, which is rougher and alike everywhere: a model that is good on average trusts the
    first, one that is good everywhere the second.

    Args:
        seed: another one gives other rows, drawn from the same distribution of every hospital.
        later: rows of a year later instead: the hospital with the worn device has three times as many
            patients, and another hospital has such a device, too.

    Returns:
        A data frame: hospital, age, ward, bmi, earlier visits, minutes of the walking test, the nurse's
        score of frailty, and the length of the stay in days.

    Raises:
        ValueError: for a negative seed.

    Examples:
        >>> from bidro import example_visits
        >>> example_visits().shape
        (4890, 8)
    """
    rng = np.random.default_rng(seed)
    worn = _LATER_WORN if later else _WORN
    parts = []
    for k, (name, (rows, habit)) in enumerate(_HOSPITALS.items()):
        rows = int(rows * _LATER_ROWS.get(name, 1.0)) if later else rows
        age = np.clip(rng.normal(48 + 4 * k, 14, rows), 18, 95)
        bmi = np.clip(rng.normal(26 + 0.4 * k, 4, rows), 15, 50)
        earlier = rng.poisson(1 + 0.3 * k, rows)
        ward = rng.choice(["medicine", "surgery", "trauma"], rows, p=[0.5, 0.3, 0.2])
        stay = 1 + (0.05 + habit) * age + 0.05 * bmi + 0.4 * earlier + 1.5 * (ward == "trauma")
        frail = rng.normal(size=rows)
        read = np.where(rng.random(rows) < worn.get(name, 0.0), rng.normal(size=rows), frail)
        walk = 6 + read + _ERROR * rng.normal(size=rows)
        score = np.clip(5 + 2 * (frail + 0.5 * rng.normal(size=rows)), 0, 10)
        stay = np.clip(stay + 1.2 * frail + rng.gamma(2.0, 0.6, rows), 0, 60).round(1)
        parts.append(
            pd.DataFrame(
                {
                    "hospital": name,
                    "age": age.round(0),
                    "ward": ward,
                    "bmi": bmi.round(1),
                    "earlier": earlier,
                    "walk": walk.round(2),
                    "frailty": score.round(0),
                    "stay": stay,
                }
            )
        )
    return pd.concat(parts).sample(frac=1, random_state=seed).reset_index(drop=True)
