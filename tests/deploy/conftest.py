"""What tests of sites have in common."""

import pytest

from tests.deploy import sites


@pytest.fixture(params=["moments", "trusted"])
def agreed_release(request, monkeypatch):
    """Sites that train squared loss agree on each kind of exact release: an attack succeeds under neither."""
    monkeypatch.setattr(sites, "AGREED", [request.param])
    return request.param
