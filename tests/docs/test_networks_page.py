"""The agreement on a network that docs/networks.md shows, followed by sites whose table has a category."""

import re
import tomllib
from pathlib import Path

import pytest

from bidro.deploy.agreement.agreement import NetworkAgreement, ScoresAgreement
from bidro.deploy.site.check import check_site
from bidro.deploy.site.config import Site
from bidro.model.model_file import NETWORK_FILE
from tests.deploy.networks import FACTORY, network_sites, run
from tests.deploy.sites import table

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"


def sites(folder, rounds):
    """What the page's two files say, but for the package, which is a test's, and the number of rounds; and
    what is agreed on."""
    text = PAGE.read_text("utf-8").replace("hospital_nets.stay:make", FACTORY)
    agreement, site = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    parts = tomllib.loads(agreement)
    network = NetworkAgreement(**{**parts["neural_network"], "rounds": rounds})
    whole = table(sizes=(300, 300, 300, 300, 300))
    agreed = network_sites(folder, network, whole, ScoresAgreement(**parts["scores"]), extra=site)
    assert any(column.levels for column in agreed.schema.columns)
    return agreed


def test_a_site_with_categories_would_answer_the_agreement_of_the_page(tmp_path):
    sites(tmp_path, 2)
    assert check_site(Site.read(tmp_path / "east.toml")).refused is None


@pytest.mark.slow
def test_sites_with_categories_train_the_network_of_the_page(tmp_path):
    assert {NETWORK_FILE, "certificate.json"} <= set(run(tmp_path, sites(tmp_path, 2)))
