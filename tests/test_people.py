"""Rows of one person or thing stay together: one side of the hold-out, one fold, one draw in statements."""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bidro import Federation
from bidro.certify.held_out import client_bound
from bidro.core.errors import BidroError
from bidro.core.splits import choose_holdout, label_ids
from bidro.data.tables import learn_schema
from bidro.experiments.compare import grouped_from
from bidro.experiments.splits import Split
from bidro.fit.client_side import error_by_person
from bidro.fit.fit import fit
from bidro.fit.fitted import ClientLoss, Options
from bidro.fit.network import LocalNetwork
from bidro.fit.settings import FitSettings
from bidro.losses.registry import LossChoice
from tests.small import classifier, regressor

SHARE = 0.25


def table(seed=0, people=(12, 20, 30)):
    """Rows of persons of 1 to 9 visits each, named from p0 on at every client, and in random order."""
    rng = np.random.default_rng(seed)
    parts = []
    for k, count in enumerate(people):
        person = np.repeat([f"p{i}" for i in range(count)], rng.integers(1, 10, count))
        own = rng.normal(size=count)[[int(name[1:]) for name in person]]
        u = own + 0.1 * rng.normal(size=len(person))
        y = (1 + 0.2 * k) * u + own + 0.3 * rng.normal(size=len(person))
        parts.append(pd.DataFrame({"site": f"c{k}", "person": person, "u": u, "v": own**2, "y": y}))
    return pd.concat(parts).sample(frac=1, random_state=seed).reset_index(drop=True)


def arrays(whole):
    """(clients, features, target, people) of the table."""
    columns = whole[["u", "v"]].to_numpy(), whole["y"].to_numpy()
    return whole["site"].to_numpy(str), *columns, label_ids(whole["person"].to_numpy(str))


def kept_out(whole, seed, share=SHARE):
    """Whether each row is held out, and the persons (client, name) that are."""
    clients, features, target, people = arrays(whole)
    kept = choose_holdout(clients, features, target, share, seed, people)
    return kept, set(map(tuple, whole.loc[kept, ["site", "person"]].to_numpy()))


def federation_of(whole):
    ordered = whole.sort_values("site", kind="stable")
    clients, features, target, people = arrays(ordered)
    names, sizes = np.unique(clients, return_counts=True)
    rows = np.column_stack([features, target])
    return ordered, Federation.from_samples(rows, sizes.tolist(), "unbounded", names.tolist(), people=people)


@pytest.mark.parametrize("seed", range(30))
def test_no_person_is_on_both_sides_nor_in_two_folds(seed):
    whole = table(seed)
    kept, people = kept_out(whole, seed)
    assert not people & set(map(tuple, whole.loc[~kept, ["site", "person"]].to_numpy()))
    ordered, federation = federation_of(whole)
    ordered = ordered.assign(fold=federation.folds(4, seed))
    assert (ordered.groupby(["site", "person"])["fold"].nunique() == 1).all()
    for name, own in ordered.groupby("site"):
        # A fold has at least half as many persons as are its fair share.
        persons = own.groupby("fold")["person"].nunique()
        assert persons.min() >= own["person"].nunique() / 8, name


def test_neither_order_nor_other_clients_decide_and_seeds_do():
    whole = table(3)
    kept, people = kept_out(whole, 5)
    for order in ("u", "y", "person", "site"):
        assert kept_out(whole.sort_values(order, kind="stable"), 5)[1] == people
    for name in ("c0", "c1", "c2"):
        own = (whole["site"] == name).to_numpy()
        assert np.array_equal(kept_out(whole[own], 5)[0], kept[own])
    assert kept_out(whole, 6)[1] != people
    # A person at two clients is two people.
    names = [{person for site, person in people if site == name} for name in ("c1", "c2")]
    assert names[0] != names[1]
    ordered, federation = federation_of(whole)
    folds = ordered.assign(fold=federation.folds(3, 5)).set_index(["site", "person"])["fold"].to_dict()
    moved, again = federation_of(whole.sort_values("u"))
    assert moved.assign(fold=again.folds(3, 5)).set_index(["site", "person"])["fold"].to_dict() == folds
    one, alone = federation_of(whole[whole["site"] == "c1"])
    assert one.assign(fold=alone.folds(3, 5)).set_index(["site", "person"])["fold"].to_dict() == {
        key: fold for key, fold in folds.items() if key[0] == "c1"
    }
    assert np.any(federation.folds(3, 5) != federation.folds(3, 6))
    assert len(set(federation.pooled().people)) == sum(federation.draw_counts)


def test_people_of_many_rows_are_kept_out_as_often_as_others():
    """Taking people until enough rows are held out would favour the large: here it is a sample of people."""
    sizes = np.array([60, *[2] * 19])
    person = np.repeat(np.arange(20), sizes)
    ids, target = label_ids(person.astype(str)), np.arange(len(person), dtype=float)
    drawn = [
        choose_holdout(np.full(len(person), "a"), target[:, None], target, SHARE, seed, ids)[0]
        for seed in range(600)
    ]
    assert np.mean(drawn) == pytest.approx(SHARE, abs=4 * math.sqrt(SHARE * (1 - SHARE) / 600))


@pytest.mark.parametrize(
    ("people", "work", "word"),
    [
        ((2, 9), lambda w: kept_out(w, 0), r"'c0' has 2 people, too few to keep some out .* more people"),
        ((3, 9), lambda w: federation_of(w)[1].folds(5), r"'c0' has 3 people, fewer than the 5 folds"),
        ((3, 9), lambda w: learn_schema(w, "site", "y", person="site"), "A column has one role"),
        ((3, 9), lambda w: learn_schema(w, "site", "y", person="y"), "A column has one role"),
        (
            (3, 9),
            lambda w: learn_schema(w, "site", "y", ["person"], person="person"),
            "A column has one role",
        ),
        ((3, 9), lambda w: learn_schema(w, "site", "y", person="pupil"), "no column 'pupil'"),
        (
            (3, 9),
            lambda w: Federation.from_arrays([[[1.0]]], "unbounded", people=np.zeros(2, np.uint64)),
            "1 rows but 2 people",
        ),
    ],
)
def test_what_cannot_be_dealt_by_people_is_said(people, work, word):
    with pytest.raises(BidroError, match=word):
        work(table(0, people))


def test_a_person_column_is_no_feature_and_is_known_in_every_row():
    whole = table()
    schema = learn_schema(whole, "site", "y", person="person")
    assert schema.features == ("u", "v")
    assert type(schema).from_dict(schema.to_dict()) == schema
    assert list(schema.people(whole)) == list(whole["person"])
    whole.loc[7, "person"] = None
    with pytest.raises(BidroError, match="Row 8 below the header has no 'person'"):
        schema.people(whole)
    with pytest.raises(BidroError, match="no column 'person'"):
        schema.people(whole.drop(columns="person"))


def fitted(whole, by_people=True, **choices):
    labels = whole["person"].to_numpy(str) if by_people else None
    clients, features, target, _ = arrays(whole)
    network = LocalNetwork.of(features, target, clients, ["u", "v", "y"], SHARE, 1, labels)
    return network, fit(network, Options(LossChoice("squared", None), FitSettings(**choices)))


def test_a_fit_by_people_is_the_same_from_a_sorted_table_and_states_people():
    whole = table(2)
    network, found = fitted(whole)
    for order in ("u", "person"):
        assert np.array_equal(fitted(whole.sort_values(order))[1].trained.x, found.trained.x)
    people = set(map(tuple, whole.iloc[network.places][["site", "person"]].to_numpy()))
    assert people == set(map(tuple, whole[["site", "person"]].to_numpy())) - kept_out(whole, 1)[1]
    certificate = found.certificates[0.95]
    assert certificate.clipped.people
    persons = Counter(site for site, _ in kept_out(whole, 1)[1])
    assert dict(certificate.clipped.rows) == persons
    assert found.held_out_rows == len(whole) - len(network.places)
    assert "a mean of people" in certificate.clipped.promise
    rows = fitted(whole, by_people=False)[1].certificates[0.95].clipped
    assert not rows.people


def test_radii_that_need_independent_rows_are_refused():
    with pytest.raises(BidroError, match="takes these as independent draws"):
        fitted(table(), radius="bootstrap")
    X, y, site, person = (table()[c] for c in (["u", "v"], "y", "site", "person"))
    declared = {"support": ([-9.0, -9.0, -30.0], [9.0, 90.0, 30.0]), "metric": "joint", "radius": 0.1}
    model = regressor("absolute", gap=1e-3, **declared).fit(X, y, clients=site, people=person)
    assert "rows of one person are not independent" in model.certificate_.absent["interval"]
    with pytest.raises(BidroError, match="rows of one person are not independent"):
        model.set_params(radius="explicit").fit(X, y, clients=site, people=person)


def test_estimators_take_people():
    whole, fresh = table(4), table(14)
    X, y, site, person = (whole[c].to_numpy() for c in (["u", "v"], "y", "site", "person"))
    model = regressor().fit(X, y, clients=site, people=person)
    federation = model._fitted.clients.federation
    assert federation.draw_counts == (12, 20, 30)
    plain = regressor().fit(X, y, clients=site)
    assert np.any(model.calibration_.losses != plain.calibration_.losses)
    # Persons differ more than their visits do, so that rows of one in training and test flatter a model.
    assert model.calibration_.losses.mean() > plain.calibration_.losses.mean()
    new = fresh[["u", "v"]].to_numpy(), fresh["y"].to_numpy()
    with pytest.raises(BidroError, match="fitted with `people`"):
        model.certify(*new, clients=fresh["site"])
    found = model.certify(*new, clients=fresh["site"], people=fresh["person"])
    assert dict(found.clipped.rows) == {"c0": 12, "c1": 20, "c2": 30}
    with pytest.raises(BidroError, match="person labels"):
        regressor().fit(X, y, clients=site, people=person[1:])
    with config_context(enable_metadata_routing=True):
        routed = classifier(radius=0.1, gap=1e-3).set_fit_request(clients=True, people=True)
        search = GridSearchCV(
            make_pipeline(StandardScaler(), routed), {"robustclassifier__weights": ["simplex", "fixed"]}, cv=2
        )
        search.fit(X, y > 0, clients=site, people=person)
        assert search.best_estimator_[-1]._fitted.clients.federation.draw_counts == (12, 20, 30)


def test_compared_methods_are_split_by_people():
    whole = table(5)
    grouped = grouped_from(learn_schema(whole, "site", "y", person="person"), whole)
    split = Split.of(grouped, 3)
    federation = split.problem.federation
    owner = np.repeat(np.arange(federation.n), federation.sizes)
    for key in set(zip(owner.tolist(), federation.people.tolist(), strict=True)):
        mine = (owner == key[0]) & (federation.people == key[1])
        assert len(set(split.of_row[mine])) == 1
    # Rows stand by fold in the problem, and all as one client's in the other.
    pooled = split.pooled.federation
    assert len(set(zip(pooled.people.tolist(), split.of_pooled_row.tolist(), strict=True))) == len(
        set(pooled.people.tolist())
    )
    assert len(split.test) == kept_out(whole, 3, 0.3)[0].sum()


def test_standard_errors_by_person():
    rng = np.random.default_rng(0)
    losses = rng.gamma(2.0, size=50)
    single = ClientLoss.of(losses, people=np.arange(50))
    assert single.se == pytest.approx(ClientLoss.of(losses).se, rel=1e-12)
    # Two people of two rows: deviations of their sums from those of the mean are 2 and -2.
    assert error_by_person(np.array([1.0, 3.0, 0.0, 0.0]), np.array([0, 0, 1, 1])) == pytest.approx(
        math.sqrt((2**2 + 2**2) * 2) / 4
    )
    assert ClientLoss.of(losses, people=np.zeros(50)).se is None
    means, errors = [], []
    for _ in range(2000):
        sizes = rng.integers(1, 8, 40)
        person = np.repeat(np.arange(40), sizes)
        drawn = rng.normal(size=40)[person] + 0.2 * rng.normal(size=len(person))
        means.append(drawn.mean())
        errors.append(error_by_person(drawn, person))
    # The estimated error is a little small with few people, as usual.
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(np.std(means), rel=0.08)


def test_bounds_cover_where_rows_of_a_person_are_alike_and_without_people_they_do_not():
    """Losses are nearly those of the person, and persons with many visits have larger ones."""
    repetitions, confidence = 400, 0.9

    def population(rng, people):
        visits = rng.integers(5, 40, people)
        own = rng.beta(1.0, 2.0 + 4.0 * (visits < 20), people)
        person = np.repeat(np.arange(people), visits)
        return person, np.clip(own[person] + 0.02 * rng.normal(size=len(person)), 0, 1)

    person, losses = population(np.random.default_rng(0), 200_000)
    by_person = (np.bincount(person, losses) / np.bincount(person)).mean()
    truth = {"people": by_person, "rows": losses.mean()}
    held = dict.fromkeys(truth, 0)
    for k in range(repetitions):
        person, losses = population(np.random.default_rng([1, k]), 24)
        client = np.full(len(person), "a")
        ids = label_ids(person.astype(str))
        kept = choose_holdout(client, losses[:, None], losses, 0.5, k, ids)
        bound = client_bound("a", losses[kept], 1 - confidence, 1.0, "betting", people=ids[kept]).bound
        held["people"] += bound >= truth["people"]
        kept = choose_holdout(client, losses[:, None], losses, 0.5, k)
        held["rows"] += client_bound("a", losses[kept], 1 - confidence, 1.0, "betting").bound >= truth["rows"]
    allowed = 3 * math.sqrt(confidence * (1 - confidence) / repetitions)
    assert held["people"] / repetitions >= confidence - allowed
    assert held["rows"] / repetitions < confidence - allowed
