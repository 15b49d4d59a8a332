"""Times to an event across machines: three sites are as one process."""

import numpy as np
import pandas as pd
import pytest

from bidro.core.errors import BidroError
from bidro.core.splits import key_of_seed
from bidro.data.tables import learn_survival
from bidro.deploy.agreement.agreement import Agreement, drafted
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.state import write_key
from bidro.model.model_file import Model
from tests.deploy.sites import agree, alone, carrier, job

SITES = ("east", "mid", "west")
GRID = (90.0, 180.0, 365.0)


def patients(people=900, seed=0):
    rng = np.random.default_rng(seed)
    parts = []
    for i, name in enumerate(SITES):
        age, sex = rng.uniform(30, 90, people).round(), rng.choice(["f", "m"], people)
        time = rng.exponential(250 * np.exp(-0.02 * (age - 60) - 0.3 * (sex == "m") - 0.5 * i))
        watched = rng.uniform(0, 700, people)
        parts.append(
            pd.DataFrame(
                {
                    "site": name,
                    "age": age,
                    "sex": sex,
                    "days": np.minimum(time, watched).round(1),
                    "died": (time <= watched).astype(int),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def write(folder, whole, privacy="", **parts):
    schema = learn_survival(whole, "site", "died", "days", GRID)
    training = {"curves": "none", "weights": "simplex", "folds": 3}
    agreed = agree(folder, drafted(schema, whole, None, training, **{"release": "trusted", **parts}))
    for name, own in whole.groupby("site"):
        own.drop(columns="site").to_csv(folder / f"{name}.csv", index=False)
        lines = [f'client = "{name}"', f'data = "{name}.csv"', 'schema = "schema.toml"']
        lines += [f'state = "state/{name}"', *(['release = "trusted"'] if not privacy else []), privacy, ""]
        (folder / f"{name}.toml").write_text("\n".join(lines))
        state = folder / "state" / str(name)
        state.mkdir(parents=True)
        write_key(state, key_of_seed(0))
    return agreed


def test_three_sites_are_as_one_process(tmp_path):
    whole = patients()
    agreed = write(tmp_path, whole)
    assert Agreement.read(tmp_path / "schema.toml").digest == agreed.digest
    assert Agreement.from_dict(agreed.to_dict()).digest == agreed.digest
    files = run_job(job(agreed, clients=SITES), carrier(tmp_path, SITES), tmp_path / "runs")
    found, one = Model.from_bytes(files["model.safetensors"], "model"), alone(tmp_path, whole)
    np.testing.assert_allclose(found.x, one.model.x, atol=1e-6)
    fresh = patients(20, 1)
    one_shared = Model(**{**vars(one.model), "personal": {}})
    np.testing.assert_allclose(found.survival_curves(fresh), one_shared.survival_curves(fresh), atol=1e-6)
    # Every site has split its people as one process does, whatever their number of periods.
    sizes = one.trained.problem.federation.sizes
    assert found.settings["rows"] == dict(zip(SITES, sizes, strict=True))


def test_what_a_site_says_otherwise_is_refused(tmp_path):
    whole = patients()
    write(tmp_path, whole)
    table = pd.read_csv(tmp_path / "mid.csv")
    table.assign(died=np.where(table.died == 1, "yes", "no")).to_csv(tmp_path / "mid.csv", index=False)
    with pytest.raises(BidroError, match="'died' is 'yes', and it was agreed that '1' is the event and 0"):
        alone(tmp_path, pd.concat([pd.read_csv(tmp_path / "mid.csv").assign(site="mid")]))
