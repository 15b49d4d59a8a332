"""The owner's page: what it shows, what it does in a real browser, and who cannot use it."""

import html
import http.client
import threading
from urllib.parse import urlencode

import pytest

from bidro.cli import main
from bidro.core.errors import BidroError
from bidro.deploy.agreement.agreement import Agreement
from bidro.deploy.site.config import Site
from bidro.deploy.site.page import Page, decide, page_html, what_would_leave
from bidro.deploy.site.rows import site_log
from bidro.deploy.site.state import Question
from tests.deploy.sites import private_sites, table, write_sites
from tests.testbed.browser import axe, chromium, shown_as


@pytest.fixture
def site(tmp_path):
    """A site that asks, with a run that waits, one that was answered, and one that its owner has refused."""
    write_sites(tmp_path, table(), extra='approve = "ask"')
    return asked(Site.read(tmp_path / "east.toml"))


def asked(site):
    log = site_log(site)
    log.refused(Question("earlier", "solve", 1, "d1"), "its owner has refused <b>this</b> run", False)
    with log.state.transaction() as connection:
        connection.execute("INSERT INTO waiting VALUES ('stay-2026', '2026-11-18T10:00:00+00:00')")
        connection.execute(
            "INSERT INTO asked (time, run, question, round, digest, models, outcome, times, rows, bytes) "
            "VALUES ('2026-11-17T09:00:00+00:00', 'earlier', 'prepare', 1, 'd0', 0, 'answered', 2, 96, 1234)"
        )
    log.refuse("unwanted")
    return site


@pytest.fixture
def served(site):
    with Page(site, certificate_days=21) as page:
        thread = threading.Thread(target=page.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield page
        page.shutdown()


def ask(page, method, path, form=None, **headers):
    """(status, headers, text) as a program asks; `None` takes a header away."""
    connection = http.client.HTTPConnection("127.0.0.1", page.server_port, timeout=10)
    own = {"Host": f"127.0.0.1:{page.server_port}"}
    body = None
    if form is not None:
        body = urlencode(form)
        own |= {"Origin": f"http://127.0.0.1:{page.server_port}", "Content-Length": str(len(body))}
        own["Content-Type"] = "application/x-www-form-urlencoded"
    sent = {k: v for k, v in {**own, **{k.replace("_", "-"): v for k, v in headers.items()}}.items() if v}
    connection.putrequest(method, path, skip_host=True)
    for name, value in sent.items():
        connection.putheader(name, value)
    connection.endheaders(body.encode() if body else None)
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read().decode()
    connection.close()
    return found


def form(page, **changed):
    return {"token": page.token, "run": "stay-2026", "what": "approve", "days": "7", **changed}


def test_it_shows_what_waits_what_would_leave_and_what_has_left(served):
    status, headers, text = ask(served, "GET", served.root)
    assert status == 200
    for words in (
        "stay-2026",
        "Waiting for you: 1",
        "valid for 21 more days",
        "1,234",
        "unwanted",
        "wait for you",
    ):
        assert words in text
    for _, what, reveals in what_would_leave(Agreement.read(served.site.schema)):
        assert what[:40] in html.unescape(text)
        assert reveals[:40] in html.unescape(text)
    assert "<b>this</b>" not in text
    assert "&lt;b&gt;this&lt;/b&gt;" in text
    assert "<script" not in text
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["Cache-Control"] == "no-store"
    assert "Set-Cookie" not in headers


def test_a_decision_is_that_of_the_command(served, site):
    log = site_log(site)
    status, headers, _ = ask(served, "POST", f"{served.root}decide", form(served))
    assert (status, headers["Location"]) == (303, f"{served.root}?said=approve&run=stay-2026")
    (approved,) = [one for one in log.decisions() if one.run == "stay-2026"]
    assert log.waiting() == []
    assert "Run stay-2026: approved." in ask(served, "GET", headers["Location"])[2]
    decide(site, "approve", "other", 7)
    (other,) = [one for one in log.decisions() if one.run == "other"]
    assert (other.outcome, other.agreed, other.table) == (approved.outcome, approved.agreed, approved.table)
    assert ask(served, "POST", f"{served.root}decide", form(served, what="withdraw"))[0] == 303
    assert {one.run for one in log.decisions()} == {"unwanted", "other"}
    assert ask(served, "POST", f"{served.root}decide", form(served, what="refuse"))[0] == 303
    assert [one.outcome for one in log.decisions() if one.run == "stay-2026"] == ["refused"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"days": "0"}, "1 to 366 days"),
        ({"days": "x"}, "whole number"),
        ({"what": "delete"}, "no such decision"),
        ({"run": "../../x"}, "no run&#x27;s name"),
        ({"run": "never", "what": "withdraw"}, "neither approved nor refused"),
    ],
)
def test_what_cannot_be_decided_is_said(changed, words, served, site):
    before = site_log(site).decisions()
    status, _, text = ask(served, "POST", f"{served.root}decide", form(served, **changed))
    assert status == 400
    assert words in text
    assert site_log(site).decisions() == before


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {}),
        ("/decide", {}),
        ("{root}../", {}),
        ("/{other}/", {}),
        ("{root}", {"Host": "evil.example:80"}),  # a name that was pointed here
        ("{root}", {"Host": "127.0.0.1.evil.example:80"}),
        ("{root}", {"Host": None}),
        ("{root}", {"Sec_Fetch_Site": "cross-site"}),
        ("{root}", {"Sec_Fetch_Site": "same-site"}),  # another port of this machine
    ],
)
def test_nobody_else_sees_it(path, headers, served):
    place = path.format(root=served.root, other="A" * len(served.secret))
    status, _, text = ask(served, "GET", place, **headers)
    assert (status, text) == (404, "There is nothing here.\n")


@pytest.mark.parametrize(
    ("changed", "headers", "expected"),
    [
        ({"token": ""}, {}, 403),
        ({"token": "x" * 43}, {}, 403),
        ({}, {"Origin": "http://evil.example"}, 403),
        ({}, {"Origin": "null"}, 403),
        ({}, {"Origin": None}, 403),
        ({}, {"Origin": "http://127.0.0.1:1"}, 403),  # a page of another user of this machine
        ({}, {"Sec_Fetch_Site": "same-site"}, 403),
        ({}, {"Host": "evil.example", "Origin": "http://evil.example"}, 404),
        ({}, {"Content_Length": "100000000"}, 404),
        ({}, {"Content_Length": "-1"}, 404),
        ({}, {"Content_Length": None}, 404),
    ],
)
def test_nobody_else_decides(changed, headers, expected, served, site):
    assert ask(served, "POST", f"{served.root}decide", form(served, **changed), **headers)[0] == expected
    assert [one.run for one in site_log(site).decisions()] == ["unwanted"]
    assert site_log(site).waiting() != []


def test_a_get_decides_nothing(served, site):
    assert ask(served, "GET", f"{served.root}decide?{urlencode(form(served))}")[0] == 404
    assert site_log(site).waiting() != []


def test_the_secret_is_in_no_answer_to_others_and_differs(served, site):
    with Page(site) as second:
        assert second.secret != served.secret
        assert len(second.secret) == 43
    for path in ("/", "/x"):
        _, headers, text = ask(served, "GET", path)
        assert served.secret not in text + str(headers)
    with pytest.raises(BidroError, match="cannot be served at port"):
        Page(site, served.server_port)


def test_a_budget_is_shown(tmp_path):
    private_sites(tmp_path)
    with Page(Site.read(tmp_path / "east.toml")) as page:
        assert "100.0% of epsilon = 3 is left" in page_html(page)


def test_the_command_says_the_address_and_ends(site, monkeypatch, capsys):
    def at_once(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Page, "serve_forever", at_once)
    path = site.schema.parent / "east.toml"
    monkeypatch.setattr("sys.argv", ["bidro", "site", "page", "--site", str(path)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert "tell it to nobody: http://127.0.0.1:" in out
    assert "closed" in out


# ---- in a browser


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


def test_an_owner_decides_in_a_browser(browser, served, site):
    shown_as(browser, 1280)
    browser.get_log("browser")
    browser.get(served.address)
    days = browser.find_element("css selector", 'input[name="days"]')
    days.clear()
    days.send_keys("12")
    browser.find_element("css selector", '[aria-label="Approve run stay-2026"]').click()
    assert "Run stay-2026: approved." in browser.find_element("css selector", '[role="status"]').text
    assert "No run waits" in browser.find_element("tag name", "main").text
    browser.find_element("css selector", '[aria-label="Withdraw run stay-2026"]').click()
    assert [one.run for one in site_log(site).decisions()] == ["unwanted"]
    assert [one for one in browser.get_log("browser") if one["level"] == "SEVERE"] == []


def test_another_page_in_the_same_browser_decides_nothing(browser, served, site, tmp_path):
    """Not even one that has learnt the address and the token, or that is served at another port here."""
    fields = "".join(f'<input name="{k}" value="{v}">' for k, v in form(served).items())
    page = f'<form id="f" method="post" action="{served.address}decide">{fields}</form>'
    (tmp_path / "evil.html").write_text(f"{page}<script>document.getElementById('f').submit()</script>")
    browser.get((tmp_path / "evil.html").as_uri())
    assert "nothing was decided" in browser.find_element("tag name", "body").text
    assert site_log(site).waiting() != []


@pytest.mark.parametrize(
    ("width", "scheme"), [(390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")]
)
def test_axe_finds_nothing(width, scheme, browser, served):
    shown_as(browser, width, 900, scheme)
    browser.get(served.address)
    passed, found = axe(browser)
    assert passed > 15
    assert found == []
    # Nothing is wider than the window but tables, which scroll.
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
