"""Units at sites: each deals its own whole, and all that is stated is what one process states."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bidro.certify.certificate import Certificate
from bidro.certify.statements import client_report
from bidro.core.errors import BidroError
from bidro.core.splits import label_ids
from bidro.data.tables import learn_schema
from bidro.deploy.agreement.agreement import Agreement, drafted, written
from bidro.deploy.agreement.job import Job
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.config import Site
from bidro.deploy.site.rows import SiteRows, holdout, table_id
from bidro.deploy.transport.rehearsal import split_by_client
from bidro.federated.engines.remote import Participant
from bidro.fit.network import LocalNetwork
from bidro.losses import losses_of
from bidro.model.model_file import Model, target_numbers
from bidro.workflow.options import TableColumns
from tests.deploy.sites import NAMES, QUICK, alone, carrier, job, table, write_sites


def visits(classes=False, seed=0, persons=40):
    """The sites' table with a person for every row, named alike at all sites."""
    whole = table(classes)
    rng = np.random.default_rng(seed)
    return whole.assign(person=rng.integers(0, persons, len(whole)))


@pytest.mark.parametrize(
    ("classes", "options"),
    [(False, {}), (True, {**QUICK, "gap": 1e-10}), (False, {**QUICK, "hold_out": 0.0})],
)
def test_federated_by_people_is_one_process_by_people(classes, options, tmp_path):
    whole = visits(classes, persons=80)
    agreed = write_sites(tmp_path, whole, extra="min_rows = 3", person="person")
    files = run_job(job(agreed, options=options), carrier(tmp_path), tmp_path / "runs")
    model = Model.from_bytes(files["model.safetensors"], "federated")
    calibration = json.loads(files["report.json"])["calibration"]
    # Sites allow fewer folds, so that what a fold leaves out is enough.
    folds = {} if calibration is None else {"folds": calibration["folds"]}
    here = alone(tmp_path, whole.sort_values("y"), **options, **folds)
    assert model.schema == here.model.schema
    assert model.schema.person == "person"
    np.testing.assert_allclose(model.x, here.model.x, rtol=0, atol=1e-5 if classes else 1e-9)
    ours, theirs = here.certificate, Certificate.from_json(files["certificate.json"].decode())
    if "hold_out" in options:
        assert theirs.clipped is None
        return
    assert theirs.clipped.people
    assert ours.clipped.rows == theirs.clipped.rows
    if classes:
        assert theirs.mistakes.kind == "betting"
        assert theirs.mistakes.bound == pytest.approx(ours.mistakes.bound, rel=1e-9)
    assert theirs.clipped.largest == ours.clipped.largest
    assert theirs.clipped.bound == pytest.approx(ours.clipped.bound, rel=1e-5)
    again = here.model.assessed
    rows = {name: SiteRows.load(Site.read(tmp_path / f"{name}.toml")) for name in NAMES}
    for name, own in rows.items():
        kept = holdout(Site.read(tmp_path / f"{name}.toml"), own)
        fresh = here.model.standard.rows(own.features[kept], own.target[kept])
        found = client_report(name, again.losses(fresh), again.limits, [0.05], people=own.people[kept])
        by_hand = found.bounds["clipped"][0]
        # Reported to a quarter of what one row adds to a mean, upwards, and so is the mean.
        largest = np.minimum(losses_of(again.loss, again.x, fresh), again.seen).max()
        step = 2.0 ** np.ceil(np.log2(largest)) / (4 * by_hand.rows)
        assert -1e-5 <= theirs.clipped.clients[name] - by_hand.bound <= 1.5 * step
        assert abs(by_hand.mean - theirs.clipped.means[name]) <= 0.5 * step + 1e-5


@pytest.mark.parametrize("seed", range(8))
def test_a_site_keeps_people_whole_and_as_one_process_does(seed, tmp_path):
    whole = visits(seed=seed)
    agreed = write_sites(tmp_path, whole, extra="min_rows = 3", person="person")
    schema = agreed.schema
    network = LocalNetwork.of(
        schema.matrix(whole), target_numbers(schema, whole), schema.clients(whole), ["u", "v", "ward=b", "y"],
        0.2, 0, schema.people(whole),
    )  # fmt: skip
    trained = whole.iloc[network.places]
    for name in NAMES:
        site = Site.read(tmp_path / f"{name}.toml")
        rows = SiteRows.load(site)
        kept = holdout(site, rows)
        assert not set(rows.people[kept]) & set(rows.people[~kept])
        expected = label_ids(trained.loc[trained["site"] == name, "person"].to_numpy().astype(str))
        assert sorted(rows.people[~kept]) == sorted(expected)


def test_folds_at_a_site_are_of_whole_people_and_of_enough_of_them(tmp_path, monkeypatch):
    """One person's many rows are not enough: what a fold leaves out would tell of that person alone."""
    whole = visits(persons=80)
    agreed = write_sites(tmp_path, whole, extra="min_rows = 3", person="person")
    dealt = []
    of = Participant.of.__func__

    def noted(cls, algorithm, here, *parts):
        found = of(cls, algorithm, here, *parts)
        if here.people is not None and found.rows.fold_ids is not None:
            dealt.append((here.people, found.rows.fold_ids))
        return found

    monkeypatch.setattr(Participant, "of", classmethod(noted))
    files = run_job(job(agreed), carrier(tmp_path), tmp_path / "runs")
    assert len(dealt) == len(NAMES)
    for people, fold_ids in dealt:
        pairs = set(zip(people.tolist(), fold_ids.tolist(), strict=True))
        assert len(pairs) == len(set(people.tolist()))
        assert min(len(set(people[fold_ids == fold])) for fold in set(fold_ids)) >= 3
    kinds = json.loads(files["audit.json"])["kinds"]
    certificate = Certificate.from_json(files["certificate.json"].decode())
    fewest = min(certificate.clipped.rows.values())
    assert {kind["question"]: kind["fewest_rows"] for kind in kinds}["bounds"] == fewest >= 3
    # Sites of eighteen persons, seven rows each: rows enough for five folds, persons for none.
    few, folder = visits(persons=18), tmp_path / "few"
    folder.mkdir()
    agreed = write_sites(folder, few, extra="min_rows = 5", person="person")
    with pytest.raises(BidroError, match="weights fixed, personal none"):
        run_job(job(agreed, "few", options={"hold_out": 0.0}), carrier(folder), folder / "runs")


def test_a_site_with_too_few_people_says_so(tmp_path):
    whole = visits()
    whole.loc[whole["site"] == "mid", "person"] = np.arange((whole["site"] == "mid").sum()) % 2
    agreed = write_sites(tmp_path, whole, extra="min_rows = 3", person="person")
    with pytest.raises(BidroError, match="'mid': it has 2 people, too few to keep some out"):
        run_job(job(agreed, options=QUICK), carrier(tmp_path), tmp_path / "runs")


def test_other_people_are_another_table_and_another_schema_is_refused(tmp_path):
    whole = visits()
    agreed = write_sites(tmp_path, whole, extra="min_rows = 3", person="person")
    site = Site.read(tmp_path / "west.toml")
    before = SiteRows.load(site)
    write_sites(tmp_path, whole.assign(person=whole["person"] + 1), person="person")
    assert table_id(site, SiteRows.load(site)) != table_id(site, before)
    write_sites(tmp_path, whole.drop(columns="person"))
    with pytest.raises(BidroError, match=r"its schema\.toml says something else"):
        run_job(Job("other", NAMES, agreed), carrier(tmp_path), tmp_path / "runs")
    (tmp_path / "schema.toml").write_text(written(agreed))
    with pytest.raises(BidroError, match="no column 'person', which is to name the person"):
        SiteRows.load(site)


def test_a_rehearsal_splits_a_table_with_its_people(tmp_path):
    whole = visits()
    whole.to_csv(tmp_path / "whole.csv", index=False)
    found = split_by_client(
        tmp_path / "whole.csv", TableColumns(client="site", target="y", person="person"), tmp_path / "sites"
    )
    assert found.agreed == Agreement.read(tmp_path / "sites" / "schema.toml")
    assert found.agreed.schema.person == "person"
    assert "person" not in found.agreed.schema.features
    for k, name in enumerate(found.clients):
        rows = SiteRows.load(Site.read(tmp_path / "sites" / f"site-{k}.toml"))
        assert len(set(rows.people)) == whole.loc[whole["site"] == name, "person"].nunique()


def test_the_agreed_schema_names_the_person(tmp_path):
    whole = visits()
    path = tmp_path / "schema.toml"
    agreed = drafted(learn_schema(whole, "site", "y", person="person"), whole)
    path.write_text(written(agreed))
    assert Agreement.read(path) == agreed
    assert Agreement.from_dict(agreed.to_dict()) == agreed
    assert agreed.digest != drafted(replace(agreed.schema, person=None), whole).digest
    path.write_text(written(agreed).replace('person = "person"', 'person = "u"'))
    with pytest.raises(BidroError, match="names 'u' twice"):
        Agreement.read(path)
    path.write_text(written(agreed).replace('person = "person"', "person = 3"))
    with pytest.raises(BidroError, match="must be the name of a column"):
        Agreement.read(path)
