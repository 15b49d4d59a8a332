"""What a site knows of what has left it, and says of its budget: exact sums before and after, a ledger or a
state that is gone, and a table of which nothing is told."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load

import bidro
from bidro.certify.certificate import TO_TRY, Certificate, Privacy
from bidro.core.errors import BidroError
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.config import Site
from bidro.deploy.site.ledger import EXACT_BEFORE, LEDGER, said_to_owner
from bidro.deploy.site.rows import SiteRows, state_of
from bidro.deploy.site.session import reply_of
from bidro.deploy.site.state import DATABASE
from bidro.deploy.transport.rehearsal import split_by_client
from bidro.federated.engines.coordinator import Nothing
from bidro.federated.engines.wire import header_of, pack
from bidro.privacy.terms import Terms
from bidro.workflow.options import TableColumns
from tests.cli.test_command import run
from tests.deploy.composition import CLIENT, begun, requests
from tests.deploy.sites import PAIR, PRIVACY, agree, carrier, job, private_sites, retrained, table


def rows_here():
    whole = table(sizes=(120,) * 5)
    return whole[whole["site"] == CLIENT].drop(columns="site").reset_index(drop=True)


def query(folder, request):
    site = Site.read(folder / f"{CLIENT}.toml")
    return reply_of(site, SiteRows.load(site), request)


def refused(folder, request):
    return header_of(query(folder, request)).get("refused")


def exactly(folder, agreed):
    """Ask for means, by an agreement that is not private; why that is refused."""
    public = agree(folder, retrained(agreed))
    header = {"version": bidro.__version__, "run": "exact", "question": "prepare", "round": 1}
    found = refused(folder, pack(Nothing(), {**header, "client": CLIENT, "agreed": public.digest}))
    agree(folder, agreed)
    return found


def with_privacy(folder, part):
    path = folder / f"{CLIENT}.toml"
    path.write_text(path.read_text().split("[privacy]")[0].replace('privacy = "given up"\n', "") + part)


def owner(folder):
    site = Site.read(folder / f"{CLIENT}.toml")
    return said_to_owner(site, state_of(site))


@pytest.fixture
def site(tmp_path):
    """(the folder, what is agreed on, its questions) of one site with a budget."""
    agreed = begun(tmp_path / "site", rows_here(), PRIVACY)
    return tmp_path / "site", agreed, requests(agreed, ("moments", "gradients"), "private")


def test_a_site_that_exact_sums_have_left_says_so_in_every_reply(site):
    folder, agreed, (first, second, *_) = site
    with_privacy(folder, "")
    assert exactly(folder, agreed) is None
    with_privacy(folder, PRIVACY)
    assert load(query(folder, first))["exact"] == 1
    assert owner(folder) == [EXACT_BEFORE]
    # Asked for what is in the ledger already, too.
    assert load(query(folder, first))["exact"] == 1
    assert load(query(folder, second))["exact"] == 1


def test_a_budget_is_given_up_by_a_word_of_its_owner_alone(site):
    folder, agreed, (first, *_) = site
    assert load(query(folder, first))["exact"] == 0
    assert owner(folder) == []
    with_privacy(folder, "")
    assert "its owner puts [privacy] back" in exactly(folder, agreed)
    assert owner(folder)[0].startswith("A run would be refused: sums of its rows were released under")
    with_privacy(folder, 'privacy = "given up"\n')
    assert exactly(folder, agreed) is None
    # What was released is said to be without the promise from then on, if it is asked for again.
    with_privacy(folder, PRIVACY)
    assert load(query(folder, first))["exact"] == 1


def test_without_a_release_a_budget_may_be_taken_out(site):
    folder, agreed, _ = site
    with_privacy(folder, "")
    assert exactly(folder, agreed) is None


def test_certificate_report_and_commands_say_what_no_budget_covers(capsys, tmp_path):
    agreed = private_sites(tmp_path, whole=table(sizes=(120,) * 5))
    with_privacy(tmp_path, "")
    assert exactly(tmp_path, agreed) is None
    with_privacy(tmp_path, PRIVACY)
    asking = job(agreed, "later", PAIR, privacy=agreed.privacy)
    files = run_job(asking, carrier(tmp_path, PAIR), tmp_path / "runs")
    privacy = Certificate.from_json(files["certificate.json"].decode()).privacy
    assert privacy.exact == ("east",)
    assert "What left 'east' in private runs, and so this model" in privacy.promise
    assert "Exact sums over rows have left 'east' in other runs" in privacy.promise
    assert "All that left 'west'" in privacy.promise
    assert "of all that it releases with noise, in every run" in privacy.promise
    assert json.loads(files["report.json"])["chosen"]["privacy"] == privacy.promise
    for command in (("ledger",), ("site", "check", "--site")):
        for name, says in (("east", True), ("west", False)):
            code, out, _ = run(capsys, *command, tmp_path / f"{name}.toml")
            assert code == 0
            assert (EXACT_BEFORE in out) is says
    found = json.loads(run(capsys, "site", "check", "--site", tmp_path / "east.toml", "--json")[1])
    assert found["promised"] == [EXACT_BEFORE]
    assert json.loads(run(capsys, "ledger", tmp_path / "east.toml", "--json")[1])["promised"] == [
        EXACT_BEFORE
    ]


def copied(folder, name, to):
    to.mkdir(exist_ok=True)
    for file in folder.glob(f"{name}*"):
        shutil.copy(file, to / file.name)


def put_back(folder, name, copy):
    for file in folder.glob(f"{name}*"):
        file.unlink()
    for file in copy.glob(f"{name}*"):
        shutil.copy(file, folder / file.name)
    state_of.cache_clear()


@pytest.mark.parametrize("name", [LEDGER, DATABASE])
def test_an_older_copy_of_a_file_is_noticed_and_the_newest_one_lets_it_go_on(name, site, tmp_path):
    folder, _, (first, second, third, *_) = site
    state = folder / "state" / CLIENT
    assert refused(folder, first) is None
    copied(state, name, tmp_path / "older")
    assert refused(folder, second) is None
    copied(state, name, tmp_path / "newest")
    put_back(state, name, tmp_path / "older")
    for request in (first, second, third):
        assert f"restores the newest {name} into" in refused(folder, request)
    assert f"restores the newest {name} into" in owner(folder)[0]
    put_back(state, name, tmp_path / "newest")
    assert refused(folder, third) is None
    assert owner(folder) == []


def test_a_state_from_before_releases_were_noted_goes_on_with_its_ledger_alone(site, tmp_path):
    folder, _, (first, second, third, *_) = site
    state = state_of(Site.read(folder / f"{CLIENT}.toml"))
    assert refused(folder, first) is None
    with state.transaction() as connection:
        connection.execute("DELETE FROM released")
    assert refused(folder, second) is None
    with state.transaction() as connection:
        connection.execute("DELETE FROM released")
    put_back(state.folder, LEDGER, tmp_path)
    assert f"restores the newest {LEDGER} into" in refused(folder, third)


def test_a_process_that_ends_between_any_two_steps_of_a_release_loses_nothing(site, monkeypatch):
    """After the note and before the charge, and after the charge and before the second note."""
    from bidro.deploy.site import answers as private_answers

    folder, _, (first, second, third, *_) = site
    honest = private_answers.end_release
    monkeypatch.setattr(private_answers, "end_release", lambda *parts: None)
    assert refused(folder, first) is None  # charged, and never said to have left
    monkeypatch.setattr(private_answers.PrivateClient, "gradients", lambda *parts: 1 / 0)
    assert "could not be followed" in refused(folder, second)  # noted, and never charged
    monkeypatch.undo()
    assert honest is private_answers.end_release
    for request in (first, second, third):
        assert refused(folder, request) is None
    assert owner(folder) == []


def test_a_question_that_the_budget_does_not_last_for_leaves_no_note(site):
    folder, agreed, questions = site
    for request in questions:
        assert refused(folder, request) is None
    header, message = header_of(questions[1]), requests(agreed, ("losses",), "private")[0]
    assert refused(folder, message) is None
    more = load(questions[1])
    asking = [pack(_at(more, x), header) for x in (0.25, 0.5)]
    for request in asking:
        assert "is new to this site" in refused(folder, request)
    state = state_of(Site.read(folder / f"{CLIENT}.toml"))
    with state.reading() as connection:
        assert connection.execute("SELECT COUNT(*) FROM released").fetchone()[0] == len(questions) + 1


def _at(parts, x):
    from bidro.fit.questions import GradientsQuery

    return GradientsQuery(**{**parts, "x": np.full_like(parts["x"], x)})


def test_whether_its_table_has_changed_is_not_told_under_a_budget(tmp_path):
    """By an agreement that is not private, of whose earlier runs a server knows the table's id."""
    here = rows_here()
    agreed = begun(tmp_path / "site", here, "")
    public = agree(
        tmp_path / "site", retrained(agreed, {"radius": 0.1, "personal": "none", "weights": "fixed"})
    )
    heard = []

    def listening(name, answer):
        def reply(request):
            heard.append(request)
            return answer(request)

        return {name: reply}

    from bidro.federated.engines.coordinator import InMemory
    from tests.deploy.sites import answering

    answers = answering(tmp_path / "site", (CLIENT,))
    run_job(job(public, "exact", (CLIENT,)), InMemory(listening(CLIENT, answers[CLIENT])), tmp_path / "runs")
    with_privacy(tmp_path / "site", PRIVACY)
    about = [one for one in heard if "table" in header_of(one)]
    assert about
    same = {refused(tmp_path / "site", one) for one in about}
    here.iloc[1:].to_csv(tmp_path / "site" / f"{CLIENT}.csv", index=False)
    assert {refused(tmp_path / "site", one) for one in about} == same
    assert len(same) == 1
    assert "answers private runs alone" in same.pop()


def test_units_that_a_table_drafted_promise_nothing(tmp_path):
    """One row far out moves them; so long as nobody has confirmed them a private run is to try out."""
    whole = table(sizes=(60,) * 5)
    moved = whole.copy()
    moved.loc[0, "v"] = 1e5
    units = []
    for name, rows in (("usual", whole), ("moved", moved)):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        sites = split_by_client(
            tmp_path / f"{name}.csv", TableColumns(client="site", target="y"), tmp_path / name
        )
        units.append(sites.agreed.units["v"])
        assert sites.agreed.units_drafted
    assert units[0] != units[1]
    budgets = {"east": (3.0, 1e-6, 1)}
    assert Privacy(budgets, 0.0, True, drafted=True).promise == TO_TRY
    assert "epsilon" not in TO_TRY
    assert "epsilon = 3" in Privacy(budgets, 0.0, True).promise
    # Who confirms them agrees on another thing.
    confirmed = replace(sites.agreed, units_drafted=False, release="private", privacy=Terms())
    assert confirmed.digest != replace(confirmed, units_drafted=True).digest
    assert not confirmed.fit_options.units_drafted


@pytest.mark.parametrize("word", ["'given'", "3", "true"])
def test_a_budget_is_given_up_by_one_word_alone(word, site):
    folder, _, _ = site
    with_privacy(folder, f"privacy = {word}\n")
    with pytest.raises(BidroError, match='privacy = "given up"'):
        Site.read(folder / f"{CLIENT}.toml")
