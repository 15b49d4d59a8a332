"""A column in another unit than was agreed on is warned about, at its site and at the server."""

import json

import numpy as np
import pytest

from bidro.data.tables import Column, Schema
from bidro.deploy.agreement.agreement import Agreement, Unit, far_units
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.check import check_site
from bidro.deploy.site.config import Site
from tests.cli.test_command import run
from tests.deploy.sites import PAIR, SHORT, carrier, job, table, write_sites

SCHEMA = Schema("site", "stay", None, (Column("age"), Column("ward", ("a", "b"))))
AGREED = Agreement.of(SCHEMA, {"age": Unit(60.0, 20.0), "stay": Unit(5.0, 3.0)}, release="moments")


@pytest.mark.parametrize(
    ("mean", "deviation", "far"),
    [
        (66.0, 14.0, False),
        (720.0, 168.0, True),  # months
        (5.0, 1.2, True),  # decades: by the spread
        (60.0, 81.0, True),
        (139.0, 20.0, False),
        (141.0, 20.0, True),
        (60.0, 0.0, False),  # a site at which all are sixty
    ],
)
def test_what_is_far_from_the_agreed_units(mean, deviation, far):
    found = far_units(AGREED, np.array([mean, 0.99, 5.0]), np.array([deviation, 0.1, 3.0]))
    assert [one.column for one in found] == (["age"] if far else [])


def test_a_factor_of_twelve_at_one_site_is_said_everywhere_and_its_numbers_at_the_site_alone(
    capsys, tmp_path
):
    whole = table()
    agreed = write_sites(tmp_path, whole)
    for name in ("east", "west"):
        assert check_site(Site.read(tmp_path / f"{name}.toml"), rehearse=False).warnings == ()
    own = whole[whole["site"] == "west"].drop(columns="site")
    own.assign(v=12 * own["v"]).to_csv(tmp_path / "west.csv", index=False)
    where = "--site", tmp_path / "west.toml"
    out = run(capsys, "site", "check", "--quick", *where)[1]
    assert "WARNING: its column 'v' (mean 1" in out
    assert "lies far from the agreed centre 10 and spread 5: is it in another unit?" in out
    files = run_job(job(agreed, clients=PAIR, options=SHORT), carrier(tmp_path, PAIR), tmp_path / "runs")
    said = (tmp_path / "runs" / "test" / "progress.txt").read_text()
    words = "its column 'v' lies far from the agreed centre 10 and spread 5: is it in another unit?"
    assert f"WARNING: client 'west': {words}\n" in said
    assert "client 'east': its column" not in said
    concerns = json.loads(files["report.json"])["concerns"]
    assert concerns[0] == f"Of client 'west', {words}"
    assert "WARNING: its column 'v' (mean 1" in run(capsys, "site", "log", *where)[1]
    assert "WARNING" not in run(capsys, "site", "log", "--site", tmp_path / "east.toml")[1]
