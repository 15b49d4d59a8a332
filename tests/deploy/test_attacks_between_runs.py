"""Attacks that compare: each rebuilt rows, or read small cells, at sites as they were, and none does now."""

import hashlib
import shutil

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load

from bidro.core.errors import BidroError
from bidro.deploy.server.serve import run_job
from bidro.deploy.site import rows as site_side
from bidro.deploy.site.config import Site
from bidro.deploy.site.disclosure.rules import rarest_value
from bidro.deploy.site.rows import SiteRows, table_id
from bidro.deploy.site.state import KEY_FILE, write_key
from bidro.federated.engines.coordinator import InMemory
from bidro.federated.engines.wire import described, header_of, pack
from bidro.risk.inner import Exact
from bidro.solvers.bundle.algorithm import ExactMWDRO
from bidro.solvers.bundle.state import Broadcast
from tests.deploy.sites import answering, job, write_sites

pytestmark = pytest.mark.usefixtures("agreed_release")

ALL_ROWS = {"hold_out": 0.0, "personal": "none"}


def table(seed, rows=(110, 120), cell=None):
    """Two sites; with `cell`, so many rows of east are of ward b and smoke."""
    rng = np.random.default_rng(seed)
    parts = []
    for name, n in zip(("east", "west"), rows, strict=True):
        u, v = rng.normal(50, 12, n), rng.normal(2, 0.7, n)
        ward, smokes = rng.permutation(np.arange(n) % 2), rng.permutation(np.arange(n) % 2)
        if cell is not None and name == "east":
            ward, smokes = np.arange(n) % 2, np.arange(n) % 2 == 0
            smokes[np.flatnonzero(ward)[:cell]] = True
            smokes[np.flatnonzero(ward == 0)[: 4 * cell]] = False
        y = 0.1 * u - v + ward + rng.normal(size=n)
        words = {"ward": np.where(ward, "b", "a"), "smokes": np.where(smokes, "yes", "no")}
        parts.append(pd.DataFrame({"site": name, "u": u, "v": v, **words, "y": y}))
    return pd.concat(parts, ignore_index=True)


def forget(folder):
    """Sites as they were before they remembered anything, but for the keys that rows are dealt by: with a new
    one a fold may hold too few rows of a cell, and nothing be told at all."""
    keys = {path: path.read_bytes() for path in (folder / "state").rglob(KEY_FILE)}
    shutil.rmtree(folder / "state")
    for path, key in keys.items():
        path.parent.mkdir(parents=True)
        write_key(path.parent, key)
    for kept in (
        site_side.state_of,
        site_side.table_id,
        site_side.known_rows,
        site_side.holdout,
        site_side.training,
        site_side.releases,
    ):
        kept.cache_clear()


def run(folder, agreed, name, options=None, **parts):
    """[(request, reply)] of east in a run of software as it is; a run that is refused ends there."""
    answers, heard = answering(folder, ("east", "west")), []

    def listened(request):
        reply = answers["east"](request)
        heard.append((request, reply))
        return reply

    try:
        run_job(job(agreed, name, ("east", "west"), options={**ALL_ROWS, **(options or {})}, **parts),
                InMemory({**answers, "east": listened}), folder / "runs")  # fmt: skip
    except BidroError as error:
        return heard, str(error)
    return heard, None


def moments_in_table_units(heard, agreed):
    """[(rows, mean (m,), second moments (m, m) around 0)] of each fold's training rows, from the replies."""
    found = []
    for _, reply in heard:
        fields = load(reply)
        if "around" not in fields:
            continue
        units = agreed.standard
        scale, shift = np.append(units.spread, 1.0), np.append(units.mean, units.middle)
        for rows, mean, around in zip(fields["rows"], fields["mean"], fields["around"], strict=True):
            centre = mean * scale + shift
            found.append((rows, centre, around * np.outer(scale, scale) + np.outer(centre, centre)))
    return found


def totals(heard, agreed):
    """(rows, sum of every column) over all rows: each row trains on all folds but its own."""
    parts = moments_in_table_units(heard, agreed)
    return sum(n for n, _, _ in parts) / (len(parts) - 1), sum(n * m for n, m, _ in parts) / (len(parts) - 1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("remembers", [False, True])
def test_one_patient_added_between_two_ordinary_runs(seed, remembers, tmp_path):
    """Nobody hostile: the difference of two runs' moments is that patient, unless the site remembers."""
    whole = table(seed)
    patient = whole.iloc[[0]].assign(u=61.25, v=2.5, ward="b", smokes="no", y=7.75)
    agreed = write_sites(tmp_path, whole)
    first, refused = run(tmp_path, agreed, "first")
    assert refused is None
    if not remembers:
        forget(tmp_path)
    more = pd.concat([whole, patient], ignore_index=True)
    more[more["site"] == "east"].drop(columns="site").to_csv(tmp_path / "east.csv", index=False)
    second, refused = run(tmp_path, agreed, "second")
    (n, before), (m, after) = totals(first, agreed), totals(second, agreed)
    if remembers:
        # The patient waits, and the run is answered of the rows as they were, to the bit.
        assert refused is None
        told = [[reply for _, reply in heard if "around" in load(reply)] for heard in (first, second)]
        assert n == m == 110
        assert all(
            load(a)["around"].tobytes() == load(b)["around"].tobytes() for a, b in zip(*told, strict=True)
        )
        return
    assert (n, m) == (110, 111)
    spread = np.array([12.0, 0.7, 1.0, 1.0, 1.0])
    known = {"u": 61.25, "v": 2.5, "ward=b": 1.0, "smokes=yes": 0.0, "y": 7.75}
    truth = [known[name] for name in (*agreed.schema.features, "y")]
    assert np.all(np.abs(after - before - truth) < 0.1 * spread)


def smallest_cell_read(heard, agreed):
    """The smallest two-way cell of 0/1 columns that moments tell, of all rows and of what each fold leaves
    out; None where no moments were sent."""
    parts = moments_in_table_units(heard, agreed)
    if not parts:
        return None
    sums = np.array([n * np.pad(second, ((0, 1), (0, 1))) for n, _, second in parts])
    for one, (n, mean, _) in zip(sums, parts, strict=True):
        one[-1, :-1] = one[:-1, -1] = n * mean
        one[-1, -1] = n
    whole = sums.sum(axis=0) / (len(sums) - 1)
    names = list(agreed.schema.features)
    a, b, one = names.index("ward=b"), names.index("smokes=yes"), -1
    found = []
    for s in (whole, *(whole - sums)):
        both = s[a, b]
        cells = [both, s[a, one] - both, s[b, one] - both, s[one, one] - s[a, one] - s[b, one] + both]
        found += [round(cell) for cell in cells if cell > 0.5]
    return min(found)


@pytest.mark.parametrize("seed", range(3))
def test_second_moments_of_two_columns_of_0_and_1_are_a_two_way_table(seed, tmp_path, monkeypatch):
    whole = table(seed, cell=2)
    agreed = write_sites(tmp_path, whole)
    with monkeypatch.context() as without_the_rule:
        without_the_rule.setattr(Site, "min_cell", 1)
        heard, refused = run(tmp_path, agreed, "open")
    assert refused is None
    assert smallest_cell_read(heard, agreed) <= 2
    forget(tmp_path)
    write_sites(tmp_path, whole)
    heard, refused = run(tmp_path, agreed, "closed")
    assert smallest_cell_read(heard, agreed) is None
    assert "its min_cell" in refused
    # With enough in every cell, but not in what five folds leave out of it: fewer folds.
    forget(tmp_path)
    agreed = write_sites(tmp_path, table(seed))
    heard, refused = run(tmp_path, agreed, "fewer")
    assert refused is None
    assert smallest_cell_read(heard, agreed) >= 5
    assert 2 <= len(moments_in_table_units(heard, agreed)) < 5


def test_gradients_at_three_models_tell_cells_as_second_moments_do(tmp_path, monkeypatch):
    """The gradient of squared loss is linear in the model, so that its differences along two coordinates are
    two columns of the second moments."""
    whole, options = table(0, cell=2), {"weights": "fixed", "radius": 0.0, "gap": 1e-2}
    agreed = write_sites(tmp_path, whole, extra='release = "trusted"', release="trusted")
    with monkeypatch.context() as without_the_rule:
        without_the_rule.setattr(Site, "min_cell", 1)
        heard, refused = run(tmp_path, agreed, "open", options, release="trusted")
        tells_a_cell(heard, agreed, tmp_path)
    assert refused is None
    forget(tmp_path)
    write_sites(tmp_path, whole, extra='release = "trusted"', release="trusted")
    heard, refused = run(tmp_path, agreed, "closed", options, release="trusted")
    assert "its min_cell" in refused
    assert all("refused" in header_of(reply) for _, reply in heard)


def tells_a_cell(heard, agreed, folder):
    """Two rows in a cell are read off three gradients, which a server that is trusted may ask for."""
    asked = next(header for header in (header_of(request) for request, _ in heard) if "algorithm" in header)
    asked |= {"folds": 0, "round": 2, "ambiguity": {"kind": "WassersteinBall", "radius": 0.0}}
    asked["algorithm"] = described(ExactMWDRO(Exact(), False, 1e-2))
    names = list(agreed.schema.features)
    d, a, b = len(names) + 1, names.index("ward=b"), names.index("smokes=yes")

    def gradient(x, answer):
        reply = answer(pack(Broadcast(x, np.zeros(())), asked))
        return header_of(reply).get("refused"), load(reply).get("gradient")

    def column(k, answer):
        return (gradient(np.eye(d)[k], answer)[1] - gradient(np.zeros(d), answer)[1])[:d] / 2

    answer = answering(folder, ("east",))["east"]
    with_b, with_one = column(b, answer), column(d - 1, answer)
    units = agreed.standard
    (s_a, s_b), (m_a, m_b) = ([part[k] for k in (a, b)] for part in (units.spread, units.mean))
    share = s_a * s_b * with_b[a] + m_a * s_b * with_one[b] + m_b * s_a * with_one[a] + m_a * m_b
    assert 110 * share == pytest.approx(2.0, abs=1e-6)


def test_the_level_that_others_leave_is_a_sum_over_its_rows(tmp_path):
    """Of three levels in two columns the first is all rows less the others': here two rows, which a rule that
    looks at columns one by one does not see."""
    whole = table(0)
    east = whole.index[whole["site"] == "east"]
    whole.loc[east, "ward"] = np.where(np.arange(len(east)) % 2, "b", "c")
    whole.loc[east[:2], "ward"] = "a"
    agreed = write_sites(tmp_path, whole)
    rows = SiteRows.load(Site.read(tmp_path / "east.toml"))
    assert rarest_value(rows.whole(np.ones(len(rows.target), bool)), False) > 10
    heard, refused = run(tmp_path, agreed, "first")
    assert "with a level or class" in refused
    assert all("refused" in header_of(reply) for _, reply in heard)


def digest_of_before(features, target):
    """The 48 bits that stood for a table, until this test."""
    return float(int.from_bytes(hashlib.sha256(features.tobytes() + target.tobytes()).digest()[:6], "big"))


@pytest.mark.parametrize("seed", range(3))
def test_a_table_s_id_does_not_tell_a_record_to_who_knows_the_others(seed, tmp_path):
    write_sites(tmp_path, table(seed))
    site = Site.read(tmp_path / "east.toml")
    rows = SiteRows.load(site)
    rng = np.random.default_rng(100 + seed)
    unknown = rng.integers(len(rows.target))
    candidates = np.append(rng.normal(50, 12, 999), rows.features[unknown, 0])

    def matching(sent):
        found = []
        for value in candidates:
            features = rows.features.copy()
            features[unknown, 0] = value
            if digest_of_before(features, rows.target) == sent:
                found.append(value)
        return found

    assert matching(digest_of_before(rows.features, rows.target)) == [candidates[-1]]
    assert matching(table_id(site, rows)) == []
    # It is no function of the table at all: a site that begins anew has another for the same.
    before = table_id(site, rows)
    forget(tmp_path)
    assert table_id(site, rows) != before
