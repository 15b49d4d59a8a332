"""Runs in which sites share their noise: what leaves is masked, a server that does not follow the protocol
gets nothing and is named, and whoever is killed in whichever round goes on and pays once."""

import json
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load
from typer.testing import CliRunner

import bidro
from bidro.certify.certificate import Certificate
from bidro.cli import app
from bidro.core.errors import BidroError
from bidro.data.tables import learn_schema
from bidro.deploy.agreement.agreement import Agreement, draft
from bidro.deploy.agreement.job import Job
from bidro.deploy.server.serve import run_job
from bidro.deploy.site.answers import ledger_of
from bidro.deploy.site.check import check_site
from bidro.deploy.site.config import Site
from bidro.deploy.site.ledger import in_words, spent_content
from bidro.deploy.site.masked import site_key
from bidro.deploy.site.rows import state_of
from bidro.federated.engines.coordinator import Delivered, Nothing, Policy
from bidro.federated.engines.wire import header_of, pack
from bidro.fit.questions import GradientsQuery
from bidro.privacy.accounting import honest_sites, of_one_share
from bidro.privacy.masking import sum_of_masked
from bidro.privacy.mechanisms import JOINT_STEPS, MOMENT_STEPS
from bidro.privacy.terms import MASKED, Budget, Plan, SharedNoise, Terms
from bidro.workflow.folder import write_folder
from tests.deploy.sites import NAMES, SIZES, agree, answering, job, private_sites, table

SHARED = SharedNoise(3.0)


def sharing(folder, shared=SHARED, privacy="[privacy]\nepsilon = 6.0\n", names=NAMES, **how):
    """Sites that have agreed on shared noise and on each other's keys."""
    agreed = private_sites(folder, privacy=privacy, **how)
    keys = {name: site_key(Site.read(folder / f"{name}.toml")).public.hex() for name in names}
    terms = Terms(gradients=3, shared=replace(shared, keys=keys))
    return agree(folder, replace(agreed, privacy=terms))


def job_of(agreed, run="test", **parts):
    return job(agreed, run, privacy=agreed.privacy, **parts)


class Listening:
    """A carrier that notes what every site sent, and loses some of it."""

    def __init__(self, folder, lose=lambda name, question, number: None):
        self.sites, self.sent, self.lose = answering(folder), [], lose

    def absent(self, names):
        return frozenset()

    def exchange(self, messages, timeout):
        found = Delivered({}, {})
        for name, message in messages.items():
            header = header_of(message)
            fault = self.lose(name, header["question"], header["round"])
            if fault == "server":
                raise KeyboardInterrupt
            if fault == "before":
                found.failures[name] = "it died"
                continue
            reply = self.sites[name](message)
            self.sent.append((name, header, message, reply))
            if fault == "after":
                found.failures[name] = "it died"
            else:
                found.replies[name] = reply
        return found


def releases(folder, names=NAMES):
    found = {}
    for name in names:
        ledger = ledger_of(Site.read(folder / f"{name}.toml"))
        found[name] = [(one.key, one.rho) for one in ledger.releases()]
    return found


def payload(folder, name, key):
    """What a site's ledger keeps of a release: its sums with its own noise, for its own eyes."""
    return ledger_of(Site.read(folder / f"{name}.toml")).release(
        key, "", 1, 10**9, {"run": "", "question": "", "round": ""}, lambda: pytest.fail("not known")
    )


def masks_are_used_once(sent):
    """By site and release no two messages, and by site no two releases with equal numbers in one place."""
    by_release = {}
    for name, header, message, reply in sent:
        if header["question"] in MASKED and "values" in load(reply):
            key = name, header["run"], header["question"], header["round"], tuple(header["roster"]), message
            by_release.setdefault(key, set()).add(load(reply)["values"].tobytes())
    assert by_release
    assert all(len(found) == 1 for found in by_release.values())
    for name in {key[0] for key in by_release}:
        first = [next(iter(v))[:8] for key, v in by_release.items() if key[0] == name]
        assert len(set(first)) == len(first)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    agreed = sharing(folder)
    listening = Listening(folder)
    return folder, agreed, run_job(job_of(agreed), listening, folder / "runs"), listening


def test_what_leaves_is_masked_and_adds_up_to_what_the_ledgers_keep(ran):
    folder, _, _, listening = ran
    asked = [h["question"] for name, h, *_ in listening.sent if name == "east"]
    assert asked == ["moments", "counts", "gradients", "gradients", "gradients", "losses"]
    known = releases(folder)
    for k, (question, number) in enumerate(
        [("moments", 1), ("counts", 1), ("gradients", 1), ("gradients", 2)]
    ):
        told, kept = [], []
        for name, header, _, reply in listening.sent:
            if (header["question"], header["round"]) == (question, number):
                assert header["roster"] == sorted(NAMES)
                told.append(load(reply)["values"])
                kept.append(load(payload(folder, name, known[name][k][0]))["values"])
        same = [np.any(a == b) for a, b in zip(told, kept, strict=True)]
        assert all(same) if question == "counts" else not any(same)
        np.testing.assert_array_equal(sum_of_masked(np.stack(told)), sum_of_masked(np.stack(kept)))
    masks_are_used_once(listening.sent)


def test_a_run_costs_what_was_agreed_on_and_the_certificate_says_both_figures(ran):
    folder, agreed, files, _ = ran
    for spent in releases(folder).values():
        assert sum(rho for _, rho in spent) == SHARED.budget.rho
    privacy = Certificate.from_json(files["certificate.json"].decode()).privacy
    plan = agreed.plan
    assert plan.sites == 5
    assert privacy.shared == (3, 5, 3.0, plan.alone.epsilon, 1e-6)
    assert "as long as 3 of the 5 clients" in privacy.promise
    assert privacy.kept
    site = Site.read(folder / "east.toml")
    found = spent_content(ledger_of(site), site.privacy)
    assert found["epsilon"] == pytest.approx(3.0, rel=1e-6)
    assert found["alone"] == pytest.approx(plan.alone.epsilon, rel=1e-6)
    assert f"whatever all others do, epsilon = {plan.alone.epsilon:.3g}" in in_words(found)


def test_another_run_gets_the_same_for_nothing_under_other_masks(ran):
    folder, agreed, _, first = ran
    before, again = releases(folder), Listening(folder)
    assert run_job(job_of(agreed, "again"), again, folder / "runs")["model.safetensors"]
    assert releases(folder) == before
    masks_are_used_once(first.sent + again.sent)
    sums = []
    for run in (first, again):
        told = [load(reply)["values"] for _, h, _, reply in run.sent if h["question"] == "moments"]
        sums.append(sum_of_masked(np.stack(told)))
    np.testing.assert_array_equal(*sums)


def test_without_a_site_that_is_lost_all_is_asked_and_paid_again_with_fresh_masks_and_noise(tmp_path):
    """Nobody can prove that the lost message never arrived; and who lost it may have been honest, so that one
    less is relied on."""
    agreed = sharing(tmp_path)

    def lose(name, question, number):
        return "after" if (name, question, number) == ("mid", "gradients", 2) else None

    listening = Listening(tmp_path, lose)
    policy = Policy(timeout=1.0, on_client_loss="continue", min_clients=3, patience=0.1)
    files = run_job(job_of(agreed, policy=policy), listening, tmp_path / "runs")
    found = Certificate.from_json(files["certificate.json"].decode())
    assert found.names == ("east", "north", "south", "west")
    assert found.privacy.shared[:2] == (2, 4)
    masks_are_used_once(listening.sent)
    rosters = {tuple(h["roster"]) for _, h, *_ in listening.sent}
    assert rosters == {tuple(sorted(NAMES)), ("east", "north", "south", "west")}
    whole, fewer = agreed.plan, agreed.plan.over(4)
    assert (whole.shares, fewer.shares) == (honest_sites(0.5, 5), 2)
    budget = Budget(6.0)
    expected = sum(
        plan.cost("moments", budget).rho + n * plan.cost("gradients", budget).rho
        for plan, n in ((whole, 2), (fewer, 3))
    )
    expected += whole.cost("counts", budget).rho + whole.cost("losses", budget).rho
    assert sum(rho for _, rho in releases(tmp_path)["east"]) == expected
    # Fresh noise: what the ledger keeps of the two rosters differs by more than masks.
    east = [key for key, _ in releases(tmp_path)["east"]]
    first, second = (load(payload(tmp_path, "east", east[k]))["values"] for k in (0, 4))
    deviation = np.sqrt(float(whole.moments_scale(budget).variance[0]))
    assert np.abs(first - second).max() > deviation / 10
    # More noise a site, as fewer are relied on.
    assert fewer.moments_scale(budget).variance[0] > whole.moments_scale(budget).variance[0]


@pytest.fixture
def asked(tmp_path):
    """(agreed, the answer of 'east' to a question of a server that says what it likes)."""
    agreed = sharing(tmp_path)
    reply = answering(tmp_path)["east"]
    header = header_for(agreed, "other")

    def ask(question="moments", message=None, **changed):
        whole = {**header, "question": question, **changed}
        return reply(request_of(whole, message))

    return tmp_path, agreed, ask


def header_for(agreed, run):
    about = {"version": bidro.__version__, "agreed": agreed.digest, "run": run, "round": 1}
    return {**about, "question": "moments", "client": "east", "roster": sorted(NAMES)}


def request_of(header, message):
    return pack(Nothing() if message is None else message, header)


def refusal(reply):
    return str(header_of(reply).get("refused") or header_of(reply))


def gradients(shift=0.0, features=3):
    d = features + 1
    return GradientsQuery(np.full(d, shift), np.eye(d), np.array(2.0), np.array(4.0))


def test_a_server_that_does_not_follow_the_protocol_is_refused_and_named(asked):
    folder, _, ask = asked
    before = releases(folder)["east"]
    for roster, words in (
        (["east", "north"], "at least 3 sites"),
        (["east"], "at least 3 sites"),
        (["mid", "north", "south"], "and the one that is asked"),
        (["east", "north", "mid"], "every site once, in order"),
        (["east", "east", "mid"], "every site once"),
        (["east", "mid", "phantom"], "Site 'phantom' has no key"),
        ("east", "a list of sites' names"),
        ([1, 2, 3], "a list of sites' names"),
    ):
        assert words in refusal(ask(roster=roster)), roster
    # Before what comes first; nothing was paid for any of it.
    assert "the server asks for gradients 1 of run 'other' without moments 1" in refusal(
        ask("gradients", gradients())
    )
    assert "without gradients 1" in refusal(ask("gradients", gradients(), round=2))
    assert releases(folder)["east"] == before
    # In order it is answered, once; another model in its place is not.
    assert "values" in load(ask())
    first = ask("gradients", gradients())
    assert load(first)["values"].tobytes() == load(ask("gradients", gradients()))["values"].tobytes()
    paid = releases(folder)["east"]
    said = refusal(ask("gradients", gradients(0.1)))
    assert "the server has asked for gradients 1 of run 'other' before, with another message" in said
    assert "without gradients 2" in refusal(ask("gradients", gradients(), round=3))
    assert releases(folder)["east"] == paid


def test_sites_that_were_shown_different_things_leave_random_numbers(asked):
    """Each answers what it was asked; the sum is nothing."""
    folder, agreed, _ = asked
    answers, names = answering(folder), sorted(NAMES)
    header = header_for(agreed, "shown")

    def told(rosters, runs):
        each = [
            load(answers[n](request_of({**header, "client": n, "roster": r, "run": run}, None)))["values"]
            for n, r, run in zip(names, rosters, runs, strict=True)
        ]
        return sum_of_masked(np.stack(each)).astype(float)

    same = told([names] * 5, ["shown"] * 5)
    rows = sum(SIZES) * 0.8
    unit = agreed.plan.moments_scale(SHARED.budget).unit[0]
    assert abs(same[-4] * unit) < 20 * rows
    for rosters, runs in (
        ([names] * 5, ["shown"] * 4 + ["another"]),
        ([names] * 4 + [[n for n in names if n != "east"]], ["shown"] * 5),
    ):
        assert np.median(np.abs(told(rosters, runs))) > 2**58


def test_a_site_s_own_word_on_whom_it_relies_is_what_it_charges(tmp_path):
    agreed = sharing(tmp_path, privacy="[privacy]\nepsilon = 9.0\nhonest = 0.0\n")
    run_job(job_of(agreed), Listening(tmp_path), tmp_path / "runs")
    plan, budget = agreed.plan, SHARED.budget
    together = plan.cost("moments", budget).rho + 3 * plan.cost("gradients", budget).rho
    spent = sum(rho for _, rho in releases(tmp_path)["east"])
    assert spent == budget.rho - together + 3 * together
    # No less than its share alone costs.
    assert spent >= budget.rho - together + of_one_share(together, 3)


def test_what_cannot_be_is_refused_before_anything_is_released(tmp_path):
    agreed = sharing(tmp_path, without=("mid",))
    assert check_site(Site.read(tmp_path / "east.toml")).refused is None
    assert "it has no privacy budget" in check_site(Site.read(tmp_path / "mid.toml")).refused
    with pytest.raises(BidroError, match="noise is shared by agreement, and it has no privacy budget"):
        run_job(job_of(agreed), Listening(tmp_path), tmp_path / "runs")
    keyless = agree(tmp_path, replace(agreed, privacy=Terms(shared=SHARED)))
    with pytest.raises(BidroError, match="Site 'east' has no key in"):
        run_job(job_of(keyless, "keyless"), Listening(tmp_path), tmp_path / "runs")
    others = dict(agreed.privacy.shared.keys)
    others["east"] = "9" * 64
    wrong = agree(tmp_path, replace(agreed, privacy=Terms(shared=replace(SHARED, keys=others))))
    assert "has not this site's key" in check_site(Site.read(tmp_path / "east.toml")).refused
    with pytest.raises(BidroError, match=r"has not this site's key|no privacy budget"):
        run_job(job_of(wrong, "wrong"), Listening(tmp_path), tmp_path / "runs")


@pytest.mark.parametrize("lost", [("ledger.sqlite", "state.sqlite"), ("ledger.sqlite",)])
def test_a_site_whose_ledger_is_gone_is_not_the_site_that_others_have_pinned(lost, tmp_path):
    """With both files gone its budget would look full, and the same question be answered with other noise
    under the same mask: the server could average, and see the difference."""
    agreed = sharing(tmp_path)
    reply = answering(tmp_path)["east"]
    asked = request_of(header_for(agreed, "lost"), None)
    assert "values" in load(reply(asked))
    for name in lost:
        for path in (tmp_path / "state" / "east").glob(f"{name}*"):
            path.unlink()
    state_of.cache_clear()
    assert "has not this site's key" in refusal(answering(tmp_path)["east"](asked))
    assert not releases(tmp_path, ("east",))["east"]
    assert "has not this site's key" in check_site(Site.read(tmp_path / "east.toml")).refused


@pytest.mark.parametrize("sites", [3, 4, 5, 6, 7])
def test_no_roster_and_no_colluders_leave_less_noise_than_is_charged(sites):
    """A server that shows one roster after another, and solves their sums for a site's own: whoever colludes
    with it, of at most as many sites as need not be honest, what the honest ones of a roster add is no less
    than what that roster was charged for pays for. So are all rosters together, as costs add up."""
    names = [f"site-{i}" for i in range(sites)]
    keys = tuple((name, f"{i}{i}" * 32) for i, name in enumerate(names))
    for honest in (0.3, 0.5, 0.75, 1.0):
        shared = SharedNoise(1.0, honest=honest, keys=keys)
        least = honest_sites(honest, sites)
        budget = Budget(50.0)
        for count in range(3, sites + 1):
            plan = Plan.of(Terms(shared=shared), "squared", 3, sites=count)
            for query, sensitivity, scale in (
                ("moments", MOMENT_STEPS**2, plan.moments_scale(budget)),
                ("gradients", JOINT_STEPS, plan.gradients_scale(budget, 1.0, 1.0)),
            ):
                # All that are left out, and all others of the roster that may, are against one's own site.
                of_roster = max(1, least - (sites - count))
                noise = of_roster * max(scale.variance)
                assert Fraction(sensitivity**2) / (2 * noise) <= plan.cost(query, budget).rho


def test_the_agreement_with_keys_comes_back_from_its_file(tmp_path):
    agreed = sharing(tmp_path)
    back = Agreement.read(tmp_path / "schema.toml")
    assert back.privacy == agreed.privacy
    assert back.digest == agreed.digest
    assert Agreement.from_dict(agreed.to_dict()).digest == agreed.digest
    with pytest.raises(BidroError, match="64 hexadecimal digits"):
        SharedNoise(1.0, keys={"east": "abc"})
    # An agreement without shared noise is what it was.
    assert "shared" not in replace(agreed, privacy=Terms()).to_dict()["privacy"]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_killed_anywhere_a_run_goes_on_to_the_same_sums_and_pays_once(seed, tmp_path):
    """Sites that die before or after they have released, and a server that dies, in any round, again and
    again: what comes of it is what an undisturbed run of the same sites gives, no mask is used twice, and the
    ledgers are charged for one run."""
    agreed, rng = sharing(tmp_path), random.Random(seed)
    sent, left = [], 12

    def lose(name, question, number):
        nonlocal left
        if left == 0 or rng.random() > 0.25:
            return None
        left -= 1
        return rng.choice(["before", "after", "server"])

    policy, files = Policy(timeout=1.0, patience=0.01), None
    for attempt in range(40):
        listening = Listening(tmp_path, lose)
        try:
            files = run_job(
                job_of(agreed, "killed", policy=policy, resume=attempt > 0), listening, tmp_path / "runs"
            )
        except (BidroError, KeyboardInterrupt):
            continue
        finally:
            sent += listening.sent
        break
    assert files is not None
    assert left < 12
    masks_are_used_once(sent)
    for spent in releases(tmp_path).values():
        assert len(spent) == 6
        assert sum(rho for _, rho in spent) == SHARED.budget.rho
    again = run_job(job_of(agreed, "undisturbed"), Listening(tmp_path), tmp_path / "runs")
    for name in ("model.safetensors", "certificate.json"):
        assert files[name] == again[name]


def test_in_one_process_a_consortium_of_classes_has_the_same_noise(tmp_path):
    """A private run of classes needs no trust in the server: sums alone, and a bound of mistakes."""
    agreed = sharing(tmp_path, whole=table(classes=True, sizes=SIZES))
    assert all(Site.read(tmp_path / f"{n}.toml").release == "moments" for n in NAMES)
    files = run_job(job_of(agreed), Listening(tmp_path), tmp_path / "runs")
    found = Certificate.from_json(files["certificate.json"].decode())
    assert 0 < found.mistakes.bound < 1


def test_curves_on_agreed_knots_across_sites(tmp_path):
    """What leaves are sums over the columns of curves, masked; the model predicts by them."""
    agreed = sharing(tmp_path, training={"curves": {"u": 4}})
    assert agreed.plan.columns == 3 + 3 + 2
    listening = Listening(tmp_path)
    files = run_job(job_of(agreed), listening, tmp_path / "runs")
    masks_are_used_once(listening.sent)
    write_folder(tmp_path / "model", files)
    model = bidro.load_model(tmp_path / "model")
    assert model.loss.basis.most_segments.tolist() == [4, 1, 1, 1][: model.loss.basis.features]


def test_the_key_is_shown_and_a_check_says_what_is_left(tmp_path):
    """By the command; and a site that has paid for a run says so, and what another would cost."""
    agreed = sharing(tmp_path, privacy="[privacy]\nepsilon = 4.0\n")
    shown = CliRunner().invoke(app, ["site", "key", "--site", str(tmp_path / "east.toml")])
    assert shown.output.strip() == f'"east" = "{dict(agreed.privacy.shared.keys)["east"]}"'
    run_job(job_of(agreed), Listening(tmp_path), tmp_path / "runs")
    site = Site.read(tmp_path / "east.toml")
    assert check_site(site).refused is None
    terms = replace(agreed.privacy, degree=5)
    agree(tmp_path, replace(agreed, privacy=terms))
    assert "of its privacy budget, of which" in check_site(site).refused


def test_a_draft_for_classes_proposes_noise_and_says_what_epsilon_is(tmp_path):
    """And what it shows of shared noise, without its marks, is an agreement."""
    whole = pd.concat([table(classes=True, sizes=SIZES)] * 4)
    text = draft(learn_schema(whole, "site", "y", None, None, "refuse"), whole)
    assert 'release = "private"' in text
    lines = text.replace("\n# ", " ")
    assert "a factor of e^1 = 2.7 in the odds that anybody can tell whether a person took part" in lines
    begin = text.index("# [privacy.shared]")
    end = text.index("\n\n", begin)
    keys = {name: f"{i}{i}" * 32 for i, name in enumerate(NAMES)}
    shown = text[begin:end].replace("# ", "").replace('"a site" = "64 hexadecimal digits"', "")
    shown += "\n".join(f'{name} = "{key}"' for name, key in keys.items())
    (tmp_path / "schema.toml").write_text(text[:begin] + shown + text[end:])
    assert Agreement.read(tmp_path / "schema.toml").privacy.shared == SharedNoise(1, keys=keys)
    assert "[privacy.shared]" not in draft(learn_schema(table(), "site", "y", None, None, "refuse"), table())


def test_table_one_across_sites_is_that_of_all_rows_by_masked_sums(tmp_path):
    """With noise of a known size; it costs what a run costs, and the same again nothing."""
    agreed = sharing(tmp_path)
    listening = Listening(tmp_path)
    what = replace(job_of(agreed, "describe"), describe=True)
    assert Job.from_text(what.to_text()) == what
    files = run_job(what, listening, tmp_path / "runs")
    assert set(files) == {"table1.csv", "table1.html", "table1.json", "audit.json"}
    assert [h["question"] for name, h, *_ in listening.sent if name == "east"] == ["describe"]
    masks_are_used_once(listening.sent)
    content, whole = json.loads(files["table1.json"]), table(sizes=SIZES)
    found = {(one["column"], one["level"]): one for one in content["columns"]}
    noise = found["ward", "a"]["noise"]
    assert 0 < noise < 60
    for level, rows in whole["ward"].value_counts().items():
        assert abs(found["ward", level]["rows"] - rows) < 5 * noise
    for name in ("u", "v", "y"):
        of_mean = 5 * 4 * agreed.units[name].spread * noise / len(whole)
        assert abs(found[name, ""]["mean"] - whole[name].mean()) < of_mean + 0.05 * agreed.units[name].spread
    assert "keep their noise to themselves" in content["said"][2]
    before = releases(tmp_path)
    assert all([rho for _, rho in spent] == [SHARED.budget.rho] for spent in before.values())
    again = replace(job_of(agreed, "again"), describe=True)
    assert run_job(again, Listening(tmp_path), tmp_path / "runs")["table1.csv"] == files["table1.csv"]
    assert releases(tmp_path) == before
    plain = replace(agreed, privacy=Terms())
    with pytest.raises(BidroError, match=r"agree on \[privacy.shared\]"):
        run_job(replace(job_of(agree(tmp_path, plain), "bare"), describe=True), Listening(tmp_path), tmp_path)
