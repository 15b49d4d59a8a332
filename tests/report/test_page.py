"""The report page: what is in the file, and what it does in a real browser.

The browser is that of `tests/testbed/browser.py`; where there is none these tests are skipped.
"""

import base64
import hashlib
import html
import json
import re

import numpy as np
import pytest

from bidro.certify.row_promise import row_promise
from bidro.report.page import json_in_script, page_html
from bidro.workflow.page_content import of_rows_content
from tests.report import page_content
from tests.testbed.browser import axe, chromium, shown_as

CONTENTS = {
    "six clients": page_content.content(),
    "sixty clients": page_content.many(),
    "three classes": page_content.classes(),
    "little known": page_content.bare(),
    "hostile names": page_content.hostile(),
    "cross-validated radii": page_content.radii(),
    "pooled training": page_content.pooled(),
    "regret": page_content.regret(),
    "predictions alone": page_content.predictions(),
    "bounds alone": page_content.bounds(),
    "curves": page_content.curves(),
    "curves of classes at sites": page_content.curves(3, rows_here=False),
    "across machines": page_content.federated(),
    "times to an event": page_content.times(),
}
STATEMENTS = {
    "interval-lower": ("interval", "lower"),
    "interval-upper": ("interval", "upper"),
    "held-out-bound": ("held_out", "bound"),
    "clipped-bound": ("clipped", "bound"),
    "personal-bound": ("personal", "bound"),
    "shift-bound": ("shift", "bound"),
}


def inside(page, opening):
    return page.split(opening, 1)[1].split("</", 1)[0]


# ---- the file


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_the_content_is_in_the_page_and_parses_back(content):
    assert json.loads(inside(page_html(content), '<script type="application/json" id="content">')) == content


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_no_name_is_markup_and_no_address_is_named(content):
    page = page_html(content)
    for tag, times in {"<script": 2, "</script": 2, "<style": 1, "</style": 1, "<img": 0, "<!--": 0}.items():
        assert page.count(tag) == times, tag
    assert f"<title>{html.escape(content['title'])}</title>" in page
    assert not re.search(r"https?:|//\w+\.|[{]{2}(title|policy|style|content)[}]{2}", page)


def test_json_in_a_script_has_nothing_that_ends_it():
    text = json_in_script({"</script>": "a & b > c\u2028\u2029"})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"</script>": "a & b > c\u2028\u2029"}
    with pytest.raises(ValueError, match="JSON"):
        json_in_script(float("inf"))


def test_the_policy_allows_this_script_and_style_sheet_only():
    page = page_html(page_content.content())
    policy = inside(page, 'http-equiv="Content-Security-Policy" content="').split('"')[0]
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for directive, opening, closing in (
        ("script", "<script>", "</script>"),
        ("style", "<style>", "</style>"),
    ):
        text = page.split(opening, 1)[1].split(closing, 1)[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{directive}-src 'sha256-{digest}';" in policy


def test_the_script_never_makes_markup_of_text():
    page = page_html(page_content.content())
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert way not in page


# ---- the browser


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture
def visit(browser, tmp_path):
    """Opens the page of a content at a width, light or dark."""

    def opened(content, width=1280, height=900, scheme="light"):
        shown_as(browser, width, height, scheme)
        browser.get_log("browser")
        path = tmp_path / "page.html"
        path.write_text(page_html(content), encoding="utf-8")
        browser.get(path.as_uri())
        return browser

    return opened


def find(browser, selector):
    return browser.find_element("css selector", selector)


def keys(browser, *pressed):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(*pressed).perform()


def texts(browser, selector):
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent)"
    return browser.execute_script(script, selector)


def values(browser, selector):
    script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.dataset.value ?? null)"
    return [None if v is None else float(v) for v in browser.execute_script(script, selector)]


def in_table(browser, cell):
    """By client, in the order of the table."""
    names = browser.execute_script(
        "return [...document.querySelectorAll('#clients tbody tr')].map((e) => e.dataset.client)"
    )
    return dict(zip(names, values(browser, f"#clients tbody {cell}"), strict=True))


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_it_opens_in_silence_and_asks_for_nothing(visit, content):
    browser = visit(content)
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert "could not be drawn" not in find(browser, "header").text
    empty = [plot for plot in texts(browser, ".plot") if not plot]
    assert empty == []


def test_the_policy_stops_a_request(visit):
    browser = visit(page_content.content())
    stopped = browser.execute_async_script(
        "const done = arguments[0];"
        "addEventListener('securitypolicyviolation', (e) => done(e.effectiveDirective));"
        "fetch('file:///nothing').catch(() => {});"
    )
    assert stopped == "connect-src"


def test_the_confidence_changes_every_number_to_those_of_its_level(visit):
    from selenium.webdriver.common.keys import Keys

    content = page_content.content()
    browser = visit(content)
    control, said = find(browser, "#confidence"), set()
    assert control.get_attribute("value") == "3"
    control.send_keys(Keys.HOME)
    for k, level in enumerate(content["levels"]):
        if k:
            control.send_keys(Keys.ARROW_RIGHT)
        for name, (part, field) in STATEMENTS.items():
            assert values(browser, f"#{name}") == [level[part][field]]
        for cell, field in (("td.radius", "radii"), ("td.robust", "risks")):
            names = [client["name"] for client in content["clients"]]
            assert in_table(browser, cell) == dict(zip(names, level["interval"][field], strict=True))
        assert f"{100 * level['confidence']:g}%" in find(browser, "#statement").text
        assert level["promises"]["clipped"] in find(browser, "#statements").text
        assert control.get_attribute("aria-valuetext") == f"{100 * level['confidence']:g}% confidence"
        said.add(find(browser, "#certificate-figure").text)
    assert len(said) == len(content["levels"])
    control.send_keys(Keys.ARROW_LEFT)
    assert values(browser, "#interval-upper") == [content["levels"][3]["interval"]["upper"]]


def test_a_table_sorts_both_ways_and_says_so(visit):
    content = page_content.many()
    browser = visit(content)
    assert len(in_table(browser, "td.loss")) == 60
    sortings = "return [...document.querySelectorAll('#clients th')].map((e) => e.ariaSort).filter(Boolean)"
    heads = browser.find_elements("css selector", "#clients thead button")
    for head in (heads[0], heads[1], heads[-1]):
        for wanted in ("ascending", "descending"):
            head.click()
            assert browser.execute_script(sortings) == [wanted]
        down = list(in_table(browser, "td.robust").items())
        if head == heads[0]:
            assert [name for name, _ in down] == sorted((name for name, _ in down), reverse=True)
        if head == heads[-1]:
            assert [risk for _, risk in down] == sorted((risk for _, risk in down), reverse=True)
    find(browser, "#confidence").send_keys("\ue011")  # Home: the order follows the numbers
    risks = list(in_table(browser, "td.robust").values())
    assert risks == sorted(content["levels"][0]["interval"]["risks"], reverse=True)


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
def test_it_fits_small_and_large_screens_without_words_on_words(visit, content):
    clashes = """
      const charts = [...document.querySelectorAll("svg.chart")];
      return charts.flatMap((chart) => {
        const frame = chart.getBoundingClientRect();
        const texts = [...chart.querySelectorAll("text")];
        const words = texts.map((t) => [t.textContent, t.getBoundingClientRect()]);
        const outside = words.filter(([, b]) => b.left < frame.left - 1 || b.right > frame.right + 1);
        const on = ([, a], [, b]) => a.left < b.right - 1 && b.left < a.right - 1
          && a.top < b.bottom - 3 && b.top < a.bottom - 3;
        const onOthers = words.filter((w, i) => words.some((v, k) => k < i && on(w, v)));
        return [...outside, ...onOthers].map(([text]) => text);
      });"""
    for width, height in ((1280, 900), (390, 844), (320, 640)):
        browser = visit(content, width, height)
        wide = "return document.documentElement.scrollWidth > window.innerWidth"
        assert not browser.execute_script(wide), width
        assert browser.execute_script(clashes) == [], width


def test_it_redraws_when_the_window_changes(visit):
    browser = visit(page_content.content())
    before = find(browser, "#dots-figure svg.chart").get_dom_attribute("viewBox")
    size = {"width": 500, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_async_script("setTimeout(arguments[0], 150)")
    assert find(browser, "#dots-figure svg.chart").get_dom_attribute("viewBox") != before
    assert not browser.execute_script("return document.documentElement.scrollWidth > window.innerWidth")


def luminance(colour):
    shares = [int(c) / 255 for c in re.findall(r"\d+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_light_and_dark_have_contrast(visit):
    paint = (
        "const of = (s, p) => getComputedStyle(document.querySelector(s))[p];"
        "return [[of('body', 'backgroundColor'), of('.control', 'backgroundColor')],"
        "['body', '.note', 'a', 'caption', 'figcaption', 'summary', '.tag'].map((s) => of(s, 'color'))]"
    )
    papers = {}
    for scheme in ("light", "dark"):
        browser = visit(page_content.content(), scheme=scheme)
        backgrounds, inks = browser.execute_script(paint)
        papers[scheme] = luminance(backgrounds[0])
        for paper in map(luminance, backgrounds):
            for ink in map(luminance, inks):
                assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) > 4.5
    assert papers["dark"] < 0.05 < 0.9 < papers["light"]


def test_hostile_names_are_shown_and_run_nothing(visit):
    content = page_content.hostile()
    browser = visit(content)
    shown = texts(browser, "#clients tbody th")
    for client in content["clients"]:
        assert client["name"] + (" decides" if client["binding"] else "") in shown
    assert find(browser, "h1").text == content["title"]
    assert browser.execute_script("return document.querySelectorAll('img, script').length") == 2
    browser.switch_to.default_content()  # an open alert would raise here
    assert browser.get_log("browser") == []


def test_what_is_absent_says_why(visit):
    content = page_content.bare()
    browser = visit(content)
    page = texts(browser, "main")[0].lower()
    for name in ("interval", "held_out", "shift", "calibration", "worst_case"):
        assert content["absent"][name] in page
    # Statements that cannot be made take one line.
    assert not find(browser, "#not-stated dl").is_displayed()
    assert find(browser, "#not-stated summary").text.startswith("Not stated: interval, held-out bound")
    assert texts(browser, "#statements article") == []
    assert texts(browser, "#promised-words") == [
        "Nothing is promised of new rows: no rows were held out of training."
    ]
    assert "No statement can be made" in find(browser, "#statement").text
    assert values(browser, "td.radius, td.robust, td.loss, #interval-upper") == []
    assert texts(browser, "#dots-figure .legend span") == ["Loss in training"]
    assert not find(browser, "#confidence").is_displayed()
    # One reason, once.
    content = page_content.content()
    for one in content["clients"]:
        one["pooled"] = None
    words = texts(visit(content), "#gains-words")[0]
    assert words.startswith("There is nothing to compare with: pooled training was not cross-validated. ")


def test_a_part_of_the_certificate_can_be_absent(visit):
    content = page_content.content()
    for level in content["levels"]:
        level["interval"] |= {"lower": None}
        del level["held_out"]
    content["absent"]["held_out"] = "no declared support bounds the loss."
    browser = visit(content)
    assert texts(browser, "#not-stated dt") == ["Held-out bound"]
    assert texts(browser, "#not-stated dd") == ["No declared support bounds the loss."]
    assert values(browser, "#held-out-bound, #interval-lower") == []
    assert values(browser, "#clipped-bound") == [content["levels"][3]["clipped"]["bound"]]
    assert "NaN" not in find(browser, "body").text


def test_everything_that_can_be_used_is_reached_by_tab(visit):
    from selenium.webdriver.common.keys import Keys

    browser = visit(page_content.classes())
    count = browser.execute_script(
        "const all = 'a[href], button, input, select, summary, [tabindex=\"0\"]';"
        "window.usable = [...document.querySelectorAll(all)].filter((e) => e.checkVisibility());"
        " window.reached = new Set();"
        "addEventListener('focusin', (e) => window.reached.add(e.target)); return window.usable.length"
    )
    assert count > 40
    keys(browser, *[Keys.TAB] * (count + 5))
    missed = "return window.usable.filter((e) => !window.reached.has(e)).map((e) => e.outerHTML.slice(0, 90))"
    assert browser.execute_script(missed) == []


def test_marks_say_their_values_with_the_pointer_and_with_the_keyboard(visit):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    content = page_content.content()
    browser = visit(content)
    first = max(content["clients"], key=lambda client: client["loss"])
    marks = browser.find_elements("css selector", "#dots-figure .mark")
    assert len(marks) == 5 * len(content["clients"])
    browser.execute_script("document.querySelector('#dots-figure .mark').focus()")
    tooltip = find(browser, "#tooltip")
    assert tooltip.text.splitlines()[0] == first["name"]
    keys(browser, Keys.ARROW_RIGHT)
    assert f"{first['loss']:.4g} ± {first['se']:.4g}" in tooltip.text
    assert (
        find(browser, "#dots-figure .mark:focus title").get_attribute("textContent").startswith(first["name"])
    )
    keys(browser, Keys.ESCAPE)
    assert not tooltip.is_displayed()
    ActionChains(browser).move_to_element(marks[-1]).perform()
    assert "Robust risk" in tooltip.text


def test_with_many_clients_the_pictures_show_thirty_and_say_so(visit):
    browser = visit(page_content.many())
    assert "errors in stay of all 60 clients; the table scrolls." in texts(browser, "#plain-caption")[0]
    for figure in ("#dots-figure", "#binds-figure"):
        assert len(texts(browser, f"{figure} text.name")) == 30
        assert "30 clients with the" in find(browser, f"{figure} figcaption").text
        assert "of 60" in find(browser, f"{figure} figcaption").text


def test_a_choice_of_client_and_of_class_redraws(visit):
    from selenium.webdriver.support.select import Select

    content = page_content.classes()
    browser = visit(content)
    for select, figure, wanted in (
        ("#worst-client", "#worst-figure", "Harbour Road"),
        ("#class", "#coefficients-figure", "ward"),
    ):
        before = find(browser, figure).text
        Select(find(browser, select)).select_by_visible_text(wanted)
        after = find(browser, figure).text
        assert wanted in after
        assert after != before


def test_curves_are_drawn_the_most_important_first_and_read_under_the_pointer(visit):
    from selenium.webdriver.common.action_chains import ActionChains

    content = page_content.curves()
    browser = visit(content)
    names = [column["name"] for column in content["curves"]["columns"]]
    assert texts(browser, "#curves h3") == names[:12]
    assert browser.find_elements("css selector", "#h-coefficients") == []
    find(browser, "#curves-more button").click()
    assert texts(browser, "#curves h3") == names
    first, column = find(browser, "#curves figure svg"), content["curves"]["columns"][0]
    line = first.find_element("css selector", "polyline").get_attribute("points")
    points = [float(v) for v in re.split("[ ,]", line)]
    heights = np.array(points[1::2])
    # The upright axis is one and the same, and linear.
    slope, at = np.polyfit(column["values"], heights, 1)
    np.testing.assert_allclose(slope * np.array(column["values"]) + at, heights, atol=0.5)
    # In the middle between two knots the value is that of the line.
    box = first.rect
    middle = (points[6] + points[8]) / 2 - box["width"] / 2
    ActionChains(browser).move_to_element_with_offset(first, round(middle), -60).perform()
    said = find(browser, "#tooltip").text
    assert column["name"] in said
    read = float(said.split(": ")[1].split(" ")[0].replace("−", "-").replace("+", ""))
    assert read == pytest.approx((column["values"][3] + column["values"][4]) / 2, abs=0.05)


def test_bands_are_drawn_around_their_curves_on_the_same_axis(visit):
    column = page_content.curves()["curves"]["columns"][0]
    browser = visit(page_content.curves())
    first = find(browser, "#curves figure svg")
    curve, band = (
        np.array(re.split("[ ,]", first.find_element("css selector", part).get_attribute("points")), float)
        for part in ("polyline", "polygon.band")
    )
    slope, at = np.polyfit(column["values"], curve[1::2], 1)
    lower, upper = column["band"]["ends"]
    np.testing.assert_allclose(band[1::2], slope * np.array([*lower, *upper[::-1]]) + at, atol=0.5)
    np.testing.assert_allclose(band[::2], [*curve[::2], *curve[::2][::-1]], atol=0.01)
    assert "95% band of the curve: holds on average over it" in find(browser, "#curves-legend").text
    assert len(browser.find_elements("css selector", "#curves polygon.band")) == 2


def test_curves_say_their_values_with_the_keyboard_and_show_where_rows_lie(visit):
    from selenium.webdriver.common.keys import Keys

    content = page_content.curves()
    browser = visit(content)
    mark = find(browser, "#curves figure .mark[tabindex='0']")
    browser.execute_script("arguments[0].focus()", mark)
    keys(browser, Keys.ARROW_RIGHT)
    said = find(browser, "#tooltip").text
    assert "At −1:" in said
    assert "may bend" in said
    strips = texts(browser, "#curves figure:first-child .lies.middle")
    assert len(strips) == len(content["clients"])
    bars = texts(browser, "#curves figure:nth-child(2) rect.bar")
    assert len(bars) == 5
    assert "10% of all rows" in bars[0]


def test_the_curves_of_a_class_are_chosen(visit):
    from selenium.webdriver.support.ui import Select

    browser = visit(page_content.curves(3, rows_here=False))
    before = find(browser, "#curves polyline").get_attribute("points")
    Select(find(browser, "#curves-class")).select_by_visible_text("ward")
    assert find(browser, "#curves polyline").get_attribute("points") != before
    assert "Rows are at the sites" in find(browser, "#curves-words").text
    assert browser.find_elements("css selector", "#curves .lies") == []


def test_coefficients_are_listed_for_the_class_that_is_chosen(visit):
    from selenium.webdriver.support.select import Select

    content = page_content.classes()
    browser = visit(content)
    for k, name in enumerate(content["classes"]):
        Select(find(browser, "#class")).select_by_visible_text(name)
        assert texts(browser, "#coefficients-caption")[0].startswith(f"{name}: the coefficients.")
        listed = values(browser, "#coefficients td[data-label=Coefficient]")
        given = [f["coefficient"][k] for f in content["features"]] + [content["intercept"][k]]
        assert sorted(listed) == sorted(given)


def test_what_says_nothing_is_left_out(visit):
    """A picture of one round, robust risks without a radius, changes where pooled training is used."""
    content = page_content.pooled()
    for one in content["clients"]:
        one |= {"radius": 0.0, "has_personal": False}
    content["solver"] |= {"rounds": 1, "history": content["solver"]["history"][-1:]}
    browser = visit(content)
    assert browser.get_log("browser") == []
    heads = texts(browser, "#clients thead th")
    assert "Weight" in heads
    assert "Training took 1 round (method" in texts(browser, "#solver-words")[0]
    assert browser.find_elements("css selector", "#bounds-figure, #gap-figure") == []
    assert texts(browser, "#gains-words") == [
        "The shared model is that of pooled training, and no client has a personal one: nobody gains or "
        "loses by it."
    ]
    assert [word for word in texts(browser, "#gains-figure text.aside") if "%" in word] == []
    certified = 2 if content["levels"][0]["interval"] else 0
    assert sum(head in ("Radius", "Robust risk") for head in heads) == certified
    browser = visit(page_content.content())
    assert sum(head in ("Radius", "Robust risk") for head in texts(browser, "#clients thead th")) == 4
    assert len(browser.find_elements("css selector", "#bounds-figure, #gap-figure")) == 2


def test_it_has_landmarks_headings_and_captions(visit):
    browser = visit(page_content.content())
    assert [len(texts(browser, tag)) for tag in ("html[lang]", "h1", "header", "nav", "main", "footer")] == [
        1
    ] * 6
    assert len(texts(browser, "main h2")) == len(texts(browser, "main section[aria-labelledby]")) == 12
    assert [bool(caption) for caption in texts(browser, "table caption")] == [True] * 5
    assert texts(browser, "th:not([scope])") == []
    assert all(texts(browser, "figcaption"))
    assert find(browser, "#statement").get_attribute("aria-live") == "polite"
    assert [tag.strip() for tag in texts(browser, "#clients .tag")] == ["decides", "decides"]


def test_the_frontier_is_on_the_first_screen_and_marks_what_is_compared(visit):
    content = page_content.content()
    browser = visit(content)
    assert (
        "pays 1.4% on average; the worst tenth of the clients gains 9.0%" in texts(browser, "#cost-words")[0]
    )
    # AFL is far off, and so its numbers are beside it.
    labels = {"Any mixture (AFL): +71.0%, −20.0%", "Chosen", "Pooled training", "With personal models"}
    assert set(texts(browser, "#frontier-figure text.tagged")) == labels
    said = texts(browser, "#frontier-figure .mark title")
    assert len(said) == len(content["calibration"]["candidates"]) + 2  # personal models, and the largest cost
    assert any("Mean +1.4%. Worst tenth −9.0%" in words for words in said)
    assert "The largest cost. The mean may rise by at most 2%" in said
    # Shapes, and not colours alone, tell the marks apart.
    shapes = (
        "return [...document.querySelectorAll('#frontier-figure .legend .symbol')].map((e) => e.outerHTML)"
    )
    assert len({re.sub(r'class="[^"]*"', "", shape) for shape in browser.execute_script(shapes)}) == 5
    assert (
        find(browser, "#frontier-figure svg.chart")
        .get_attribute("aria-label")
        .startswith("Picture. What each")
    )


def test_a_frontier_with_pooled_training_chosen_and_one_with_no_max_cost(visit):
    content = page_content.pooled()
    browser = visit(content, 390, 844)
    labels = texts(browser, "#frontier-figure text.tagged")
    assert "Chosen: Pooled training" in labels
    assert "Personal: −50.0%, −62.5%" in labels
    assert texts(browser, "#concerns li") == content["concerns"]
    assert find(browser, "#concerns").is_displayed()
    content = page_content.radii()
    browser = visit(content)
    assert not find(browser, "#concerns").is_displayed()
    assert browser.find_elements("css selector", "#frontier-figure .band") == []
    assert "Any mixture (AFL)" in texts(browser, "#frontier-figure text.tagged")
    assert len(texts(browser, "#calibration tbody tr")) == len(content["calibration"]["candidates"]) == 28


def test_the_candidates_are_in_a_table(visit):
    content = page_content.content()
    browser = visit(content)
    scores = sorted(candidate["score"] for candidate in content["calibration"]["candidates"])
    assert sorted(values(browser, "#calibration td.score")) == scores
    assert texts(browser, "#calibration tbody tr:first-child th") == ["Pooled training"]
    assert texts(browser, "#calibration .tag") == ["chosen"]
    assert "+1.4%" in find(browser, "#calibration tr:has(.tag)").text
    rule = find(browser, "#calibration-words").text
    assert "by more than two standard errors" in rule
    assert "the rise of the mean loss plus one standard error (over the clients) is at most 2%" in rule


def test_losses_with_own_models_are_shown_where_some_client_has_one(visit):
    content = page_content.content()
    assert "Mean loss, personal models" in texts(visit(content), "#facts dt")
    for client in content["clients"]:
        client["has_personal"] = False
    browser = visit(content)
    assert not any("personal models" in title for title in texts(browser, "#facts dt"))
    assert "of the shared model" not in find(browser, "#about").text


def test_bounds_on_a_regret_are_not_called_those_of_a_loss(visit):
    browser = visit(page_content.content())
    assert "worst-case loss" in find(browser, "#bounds-figure figcaption").text
    content = page_content.regret()
    browser = visit(content)
    assert content["chosen"]["criterion"] in find(browser, "#about").text
    assert "The worst-case regret" in find(browser, "#bounds-figure figcaption").text
    assert "Upper bound: the model's worst-case regret" in texts(browser, "#bounds-figure .legend span")
    assert "has a worst-case regret lower" in find(browser, "#solver-words").text
    assert "relative to a regret" in find(browser, "#gap-figure figcaption").text


def test_bounds_on_a_surrogate_are_not_called_those_of_the_worst_case(visit):
    words = "every curve counts as steep everywhere as it is where it is steepest"
    content = page_content.content()
    browser = visit(content | {"solver": content["solver"] | {"surrogate": words}})
    assert "The surrogate that training minimises" in find(browser, "#bounds-figure figcaption").text
    legend = texts(browser, "#bounds-figure .legend span")
    assert {"Upper bound: the model's surrogate", "Lower bound: the surrogate of any model"} <= set(legend)
    assert f"{words}: the worst case of another model may be lower" in find(browser, "#solver-words").text
    assert "no model of this kind has" not in find(browser, "#solver-words").text


def test_who_gains_and_who_loses(visit):
    content = page_content.content()
    browser = visit(content)
    for cell, field in (("td.pooled", "pooled"), ("td.personal", "personal")):
        assert in_table(browser, cell) == {client["name"]: client[field] for client in content["clients"]}
    gaining = [client["name"] for client in content["clients"] if client["verdict"] == "gains"]
    losing = [client["name"] for client in content["clients"] if client["verdict"] == "loses"]
    assert gaining
    assert losing
    words = find(browser, "#gains-words").text
    assert f"{len(gaining)} clearly gain and {len(losing)} clearly lose" in words
    assert "vary 93% as much" in words
    shown = " ".join(texts(browser, "#gains-figure text.name"))
    assert shown.count("(gains)") == len(gaining)
    assert shown.count("(loses)") == len(losing)
    series = ["Pooled training", "Shared model", "Personal model", "Always the mean"]
    assert texts(browser, "#gains-figure .legend span") == series
    names = texts(browser, "#plain tbody th")
    plain = content["plainly"]["clients"]
    for cell, which in (("square", "pooled"), ("diamond", "shared"), ("circle", "guess")):
        shown = dict(zip(names, values(browser, f"#plain td.plain-{cell}"), strict=True))
        assert shown == {name: own[which] for name, own in plain.items()}
    browser = visit(page_content.bare())
    assert "no rows were held out of training" in find(browser, "#gains-words").text


def test_a_bound_that_says_nothing_is_called_too_few_rows(visit):
    content = page_content.bare()
    sentence = "There are too few rows to promise anything at confidence 0.95: 'a' has 4, and 60 would do."
    for level in content["levels"]:
        level["too_few"] = {"clipped": sentence}
        short = "'a' has 4, and 60 rows of the same mean loss would be enough for a promise"
        level["plainly"] = {"of": "clipped", "bound": None, "largest": None, "shortage": short}
        level["plainly"] |= page_content.BINDING
    browser = visit(content)
    assert sentence in texts(browser, "#not-stated dd")
    assert "too few rows to promise anything" in find(browser, "#statement").text
    assert "at most" not in find(browser, "#statement").text
    assert texts(browser, "#promised-words") == [
        f"Too few rows to promise anything with 95% confidence: {short}."
    ]
    assert texts(browser, "#promised-value") == []


OF_TRAINING = ("cost", "binds", "worst", "solver", "calibration", "coefficients")


def test_of_a_model_that_was_not_trained_here_nothing_is_said_about_training(visit):
    content = page_content.predictions()
    browser = visit(content)
    assert [h for h in OF_TRAINING if browser.find_elements("css selector", f"#h-{h}")] == []
    listed = texts(browser, "#contents a")
    assert listed == texts(browser, "main h2:not(.unseen)")
    assert "Against the other model" in listed
    page = browser.execute_script("return document.querySelector('main').textContent")
    for word in ("Radius", "obust risk", "Pooled", "Method of training", "undefined", "NaN"):
        assert word not in page, word
    assert "This model was not trained here" in find(browser, "#about").text
    assert content["origin"] in find(browser, "#about").text
    assert texts(browser, "#statements h3") == ["Held-out bound, losses clipped"]
    from selenium.webdriver.common.keys import Keys

    control = find(browser, "#confidence")
    control.send_keys(Keys.HOME)
    for k, level in enumerate(content["levels"]):
        if k:
            control.send_keys(Keys.ARROW_RIGHT)
        assert find(browser, "#against-words").text == level["against"]["promise"]
        shown = sorted(values(browser, "#against-clients td.difference-bound"))
        assert shown == sorted(level["against"]["clients"])


def test_a_page_of_predicted_classes(visit):
    content = page_content.predictions(classes=True)
    browser = visit(content)
    assert browser.get_log("browser") == []
    assert "could not be drawn" not in find(browser, "header").text
    assert texts(browser, "#statements h3") == ["Share of mistakes"]
    assert values(browser, "#mistakes-bound") == [content["levels"][3]["mistakes"]["bound"]]
    assert "Against the other model" not in texts(browser, "main h2")
    assert browser.find_elements("css selector", "#against") == []


FIRST_SCREEN = {
    "six clients": [
        "Predictions are typically off by 0.68",
        " in stay; always guessing the mean (6.4) is off by ",
    ],
    "three classes": ["% of predictions are right, against ", "by always guessing “ward”."],
    "predictions alone": ["Predictions are typically off by 0.38", " in stay."],
}


@pytest.mark.parametrize("name", FIRST_SCREEN)
def test_the_first_screen_speaks_of_what_people_have(visit, name):
    content = CONTENTS[name]
    browser = visit(content)
    words = texts(browser, "#well-words")[0]
    assert [part for part in FIRST_SCREEN[name] if part not in words] == []
    in_use = content["plainly"]["models"].get("personal", content["plainly"]["models"]["shared"])
    assert values(browser, "#well-value") == [in_use]
    level = content["levels"][content["default_level"]]
    assert values(browser, "#promised-value") == [(level.get("of_rows") or level["plainly"])["bound"]]
    first = find(browser, "header").text + find(browser, "#message").text
    # Units that nobody has, and the names of theorems, come later.
    for word in ("²", "nats", "loss is", "Wasserstein", "duality"):
        assert word not in first, word
    # The message is before the list of contents, on one screen.
    box = "const b = document.querySelector(arguments[0]).getBoundingClientRect(); return [b.top, b.bottom]"
    message, contents = (browser.execute_script(box, part) for part in ("#message", "nav"))
    assert message[1] <= contents[0]
    assert message[1] < 1000
    # The exact statement is one click away.
    find(browser, "#message a[href='#h-certificate']").click()
    assert abs(browser.execute_script(box, "#h-certificate")[0]) < 60


def test_what_the_target_is_counted_in_stands_behind_errors(visit):
    """Where it is said; the rest of the page is as without."""
    plain = texts(visit(page_content.content()), "#well-words, #promised-words, #promised-note")
    browser = visit(page_content.content() | {"target_unit": "days"})
    well, promised, note = texts(browser, "#well-words, #promised-words, #promised-note")
    in_use, bound = texts(browser, "#well-value, #promised-value")
    assert well.startswith(f"Predictions are typically off by {in_use} days; ")
    assert "always guessing the mean (6.4 days) is off by 0.858 days." in well
    assert f"predictions are typically off by at most {bound} days, for " in promised
    assert re.search(r"An error counts as at most [0-9.]+ days\.", note)
    said = " ".join([well, promised, note])
    without = re.sub(r"(off by [0-9.]+) days([;.])", r"\1 in stay\2", said).replace(" days", "")
    assert without == " ".join(plain)
    assert "Typical error in days" in find(browser, "#well-figure figcaption").text
    assert "Typical errors in days" in texts(browser, "#plain-caption")[0]
    assert "in stay" not in texts(browser, "main")[0]


def test_of_classes_nothing_is_counted_in_anything(visit):
    content = page_content.classes()
    assert texts(visit(content | {"target_unit": None}), "#message") == texts(visit(content), "#message")


def test_the_promise_follows_the_confidence(visit):
    from selenium.webdriver.common.keys import Keys

    content = page_content.content()
    browser = visit(content)
    find(browser, "#confidence").send_keys(Keys.HOME)
    level = content["levels"][0]
    assert values(browser, "#promised-value") == [level["plainly"]["bound"]]
    assert texts(browser, "#promised-words")[0].startswith("With 50% confidence")


def test_a_model_that_is_no_better_than_one_guess_is_called_that(visit):
    content = page_content.content()
    content["plainly"]["models"]["guess"] = content["plainly"]["models"]["personal"]
    assert "no better than always guessing the mean (6.4)." in texts(visit(content), "#well-words")[0]


@pytest.mark.parametrize("guess", [2.0, 0.5])
def test_what_is_promised_of_rows_leads(visit, guess):
    """In words from where it is stated, its amount in large letters unless one guess is promised as much."""
    rng, content = np.random.default_rng(0), page_content.content()
    errors = {name: np.abs(rng.normal(size=100)) for name in page_content.HOSPITALS}
    one_guess = {name: guess * own for name, own in errors.items()}
    promise = row_promise(errors, 0.95, guess=one_guess)
    content["levels"][content["default_level"]]["of_rows"] = of_rows_content(promise, "days")
    browser = visit(content)
    assert texts(browser, "#promised-words") == [promise.in_words("days")]
    assert texts(browser, "#promised-value") == [f"within {promise.bound:.3g} days"]
    assert texts(browser, "#promised-note")[0].startswith("It assumes that rows of a client are independent")
    large = browser.execute_script("return document.getElementById('promised-value').className")
    assert large == ("big" if guess > 1 else "")
    del errors[page_content.HOSPITALS[0]]
    few = row_promise({name: own[:5] for name, own in errors.items()}, 0.95)
    content["levels"][content["default_level"]]["of_rows"] = of_rows_content(few, "days")
    browser = visit(content)
    assert texts(browser, "#promised-words") == [few.in_words("days")]
    assert texts(browser, "#promised-value") == []


@pytest.mark.parametrize("better", [True, False])
def test_a_bound_that_a_guess_keeps_as_well_is_called_too_few_rows(visit, better):
    content = page_content.content()
    bound = content["levels"][3]["plainly"]["bound"]
    for own in content["plainly"]["clients"].values():
        own["guess"] = 0.5 * bound
    own["guess"] = bound * (1.01 if better else 0.99)
    browser = visit(content)
    assert ("Too few rows to promise anything of use." in texts(browser, "#promised-words")[0]) is not better
    note = texts(browser, "#promised-note")[0]
    assert "The bound is set by West Moor, with 44 rows held out" in note
    assert ("120 with the same mean loss would bring it half way to that loss." in note) is not better


def test_reports_of_older_versions_are_read(visit):
    content = page_content.content()
    del content["plainly"]
    for level in content["levels"]:
        del level["plainly"]
    browser = visit(content)
    assert browser.get_log("browser") == []
    assert "could not be drawn" not in find(browser, "header").text
    assert "mean squared error is" in texts(browser, "#well-words")[0]
    assert "the mean loss is bounded" in texts(browser, "#promised-words")[0]


@pytest.mark.parametrize("width", [390, 320])
def test_no_number_is_cut_on_a_phone(visit, width):
    """Tables are stacked: no cell reaches beyond the screen, and every one has its column's name."""
    browser = visit(page_content.federated(), width, 844)
    cut = browser.execute_script(
        "return [...document.querySelectorAll('td, th')].filter((e) => e.checkVisibility())"
        ".filter((e) => e.getBoundingClientRect().right > innerWidth || e.scrollWidth > e.clientWidth + 1)"
        ".map((e) => e.textContent)"
    )
    assert cut == []
    unnamed = "[role=table] tbody td:not([data-label]), [role=table] tbody td[data-label='']"
    assert texts(browser, unnamed) == []


@pytest.mark.parametrize(
    "name",
    ["sixty clients", "three classes", "little known", "curves of classes at sites", "across machines"],
)
def test_it_prints_on_two_pages(visit, name):
    browser = visit(CONTENTS[name])
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    assert len(re.findall(rb"/Type\s*/Page\b", base64.b64decode(printed))) <= 2


def test_what_left_each_site_is_shown_where_rows_are_elsewhere(visit):
    content = page_content.federated()
    browser = visit(content)
    words = texts(browser, "#federated-words")[0]
    for part in (
        "6 sites took part, in 9 rounds",
        "24 rows",
        "Far Field was lost (it did not answer for 300 s)",
    ):
        assert part in words
    assert "A reply of Northfield General was not accepted" in words
    left = content["federated"]["left"]
    said = texts(browser, "#left-figure .mark title")
    assert len(said) == sum(len(kind["sites"]) for kind in left) == 35
    assert "St Anne's: Second moments. 2.7 kB, 258 numbers in 2 messages" in said
    assert texts(browser, "#left-figure text.aside").count("nothing") == 1
    assert sorted(texts(browser, "#left tbody th")) == sorted(kind["what"] for kind in left)
    assert "sites do not send more" in texts(browser, "#well-figure figcaption")[0]
    assert texts(visit(page_content.content()), "#federated") == []


@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [
        ("across machines", 1280, "light"),
        ("three classes", 390, "dark"),
        ("curves", 1280, "dark"),
        ("predictions alone", 390, "light"),
    ],
)
def test_axe_finds_nothing(visit, name, width, scheme):
    browser = visit(CONTENTS[name], width, 900, scheme)
    browser.execute_script("document.querySelectorAll('details').forEach((d) => (d.open = true))")
    passed, found = axe(browser)
    assert passed > 20
    assert found == []


def test_what_would_be_without_a_site_is_shown_where_rows_are_elsewhere(visit):
    browser = visit(page_content.federated())
    assert "How much it rests on each site" in texts(browser, "main h2")
    assert "How much it rests on each site" in texts(browser, "#contents a")
    rows = texts(browser, "#influence tbody tr")
    assert len(rows) == 2
    assert rows[0].startswith("Northfield General")
    assert "31.0%" in rows[0].replace(" ", "")
    assert rows[0].endswith("St Anne's")
    assert rows[1].count("nobody") == 2
    unknown = page_content.federated()
    unknown["influence"] = {"words": "It is not known.", "sites": []}
    browser = visit(unknown)
    assert texts(browser, "#influence-words") == ["It is not known."]
    assert texts(browser, "#influence") == []
    browser = visit(page_content.content())
    assert "How much it rests on each site" not in texts(browser, "main h2")


def test_an_error_that_noise_hides_is_less_than_what_it_may_be(visit):
    """Neither nought nor the best: in the table, in words, and with the reason."""
    content = page_content.content()
    name = content["clients"][1]["name"]
    content["overall"]["pooled"] = None
    for one in content["plainly"]["clients"].values():
        del one["personal"], one["pooled"]
    for model in ("personal", "pooled"):
        del content["plainly"]["models"][model]
    for one in content["clients"]:
        one |= {
            "has_personal": False,
            "personal": one["loss"],
            "pooled": None,
            "personal_change": None,
            "verdict": None,
        }
    content["plainly"]["clients"][name]["shared"] = 0.0
    content["plainly"]["hidden_by_noise"] = {name: 2.75}
    browser = visit(content)
    cells = {row.split("\n")[0]: row for row in texts(browser, "#plain tbody tr")}
    assert "less than 2.75" in next(words for row, words in cells.items() if row.startswith(name))
    assert sum("less than" in words for words in cells.values()) == 1
    well = find(browser, "#well-words").text
    assert f"best for {name}" not in well
    assert "For 1 client the noise does not allow it to be said." in well
    assert "does not allow more to be said: there are too few of them" in find(browser, "#gains-figure").text


def test_where_rows_went_and_what_is_private_is_on_the_first_screen(visit):
    content = page_content.content() | {"federated": None}
    here = "All rows were read on one machine, and nothing was sent."
    assert texts(visit(content), "#private-words") == [here]
    content["chosen"] = {**content["chosen"], "privacy": "Private with epsilon = 1.", "noise": "It costs 2%."}
    browser = visit(content)
    assert texts(browser, "#private-words") == [f"{here} Private with epsilon = 1."]
    assert texts(browser, "#private-note") == ["It costs 2%."]
    assert "Trained on about" in find(browser, "#lead").text


def test_the_models_that_could_be_had_are_side_by_side_with_whom_they_serve_worst(visit):
    content = page_content.content()
    browser, plainly = visit(content), content["plainly"]
    for name in ("personal", "shared", "pooled", "robust", "guess"):
        (said,) = texts(browser, f"#well-figure text[data-model={name}]")
        worst = max(one[name] for one in plainly["clients"].values())
        numbers = [float(part) for part in re.findall(r"[\d.]+", said)]
        assert numbers == pytest.approx([plainly["models"][name], worst], rel=5e-3)
    assert len(texts(browser, "#well-figure line.worst")) == 5
    # A fit across sites does not know the robust one; where it is in use, it is the shared one.
    plainly["robust_in_use"] = True
    shown = texts(visit(content), "#well-figure text.aside, #well-figure text.tagged")
    assert "Shared model (the most robust one)" in shown
    assert not any("Robust to any mix" in words for words in shown)
