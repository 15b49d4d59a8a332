"""Files that were written before settings got their names of today still load (`files.RENAMED`)."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bidro import Certificate, load_model
from bidro.core.errors import BidroError
from bidro.core.files import RENAMED, renamed
from bidro.deploy.agreement.agreement import Agreement
from bidro.deploy.agreement.job import Config
from bidro.deploy.site.config import Site
from bidro.workflow.options import FitOptions

EARLIER = Path(__file__).parent / "earlier"


def test_an_earlier_options_file():
    options = FitOptions.from_toml(EARLIER / "run.toml")
    assert (options.target_unit, options.max_cost, options.personal) == ("days", 0.1, "auto")
    assert options.person == "patient"


def test_an_earlier_model_folder():
    model = load_model(EARLIER)
    assert (model.schema.target_unit, model.schema.person) == ("days", "patient")
    rows = pd.DataFrame({"site": ["east", "west", "new"], "x": [1.0, -1.0, 2.0], "ward": ["a", "a", "b"]})
    assert (model.settings["max_weight_ratio"], model.settings["mixing"]) == (1.0, 1.0)
    assert (model.settings["max_cost"], model.settings["robustness_cost"]["pooled"]) == (0.1, True)
    assert model.settings["personal"]["clients"] == list(model.personal) == ["east", "mid", "west"]
    # As the version that wrote the folder predicted them.
    found = model.predict(rows)["prediction"]
    np.testing.assert_allclose(found, [3.691325, 2.268643, 13.278899], atol=1e-6)
    stated = Certificate.from_json((EARLIER / "certificate.json").read_text())
    assert (stated.personal.bound, stated.clipped.personal, stated.clipped.people) == (106.0, False, True)


def test_an_earlier_agreement_and_configuration(tmp_path):
    with pytest.raises(BidroError, match=r"must say what leaves the sites, .*: bidro 0\.1\.0 of before this"):
        Agreement.read(EARLIER / "schema.toml")
    schema = tmp_path / "schema.toml"
    schema.write_text('release = "moments"\n' + (EARLIER / "schema.toml").read_text())
    agreed = Agreement.read(schema)
    assert (agreed.options.target_unit, agreed.options.max_cost) == ("days", 0.1)
    assert agreed.options.personal == "offset"
    assert agreed.schema.person == agreed.options.person == "patient"
    path = tmp_path / "federate.toml"
    path.write_text(f'schema = "{schema}"\nclients = ["east"]\n[network]\nlost = "continue"\n')
    assert Config.read(path, "stay").job.policy.on_client_loss == "continue"
    site = tmp_path / "site.toml"
    site.write_text('client = "east"\ndata = "rows.csv"\nschema = "schema.toml"\nown = "kept"\n')
    with pytest.raises(BidroError, match="says own, of an earlier version: personal models stand in"):
        Site.read(site)


def test_a_name_of_today_goes_before_an_old_one():
    assert not set(RENAMED) & set(RENAMED.values())
    old, new = next(iter(RENAMED.items()))
    assert (
        renamed({new: 1, old: 2, "client": 3})
        == renamed({old: 2, new: 1, "client": 3})
        == {new: 1, "client": 3}
    )
    assert renamed({old: 2}) == {new: 2}
