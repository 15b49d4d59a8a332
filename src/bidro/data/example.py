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
    "harbour": (240, 0.030),
    "university": (1900, 0.009),
}


def example_visits(seed: int = 0) -> pd.DataFrame:
    """A made-up table of 4,890 visits to six hospitals, to try things out on.

    Hospitals differ in whom they see and in how long they keep people; nothing in it is real.

    Args:
        seed: another one gives other rows, drawn from the same distribution of every hospital.

    Returns:
        A data frame: hospital, age, ward, bmi, earlier visits, and the length of the stay in days.

    Raises:
        ValueError: for a negative seed.

    Examples:
        >>> from bidro import example_visits
        >>> example_visits().shape
        (4890, 6)
    """
    rng = np.random.default_rng(seed)
    parts = []
    for k, (name, (rows, habit)) in enumerate(_HOSPITALS.items()):
        age = np.clip(rng.normal(48 + 4 * k, 14, rows), 18, 95)
        bmi = np.clip(rng.normal(26 + 0.4 * k, 4, rows), 15, 50)
        earlier = rng.poisson(1 + 0.3 * k, rows)
        ward = rng.choice(["medicine", "surgery", "trauma"], rows, p=[0.5, 0.3, 0.2])
        stay = 1 + (0.05 + habit) * age + 0.05 * bmi + 0.4 * earlier + 1.5 * (ward == "trauma")
        stay = np.clip(stay + rng.gamma(2.0, 0.6, rows), 0, 60).round(1)
        parts.append(
            pd.DataFrame(
                {
                    "hospital": name,
                    "age": age.round(0),
                    "ward": ward,
                    "bmi": bmi.round(1),
                    "earlier": earlier,
                    "stay": stay,
                }
            )
        )
    return pd.concat(parts).sample(frac=1, random_state=seed).reset_index(drop=True)
