"""The site: every page is in its navigation, links lead somewhere, and it is read without a network."""

import ast
import json
import os
import re
import shutil
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import bidro
from tests.docs.notebooks import FOLDER

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = ROOT / "out" / "site"
PAGES = [
    path.relative_to(DOCS).as_posix() for end in ("md", "ipynb") for path in sorted(DOCS.rglob(f"*.{end}"))
]
# Pages that are files of the repository outside docs.
ELSEWHERE = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")


def navigation():
    """The files that the navigation names."""
    below = (ROOT / "mkdocs.yml").read_text("utf-8").split("\nnav:\n")[1]
    return re.findall(r"^ +- (?:[^:\n]+: )?(\S+\.(?:md|ipynb))$", below, flags=re.MULTILINE)


def test_every_page_is_in_the_navigation_once():
    named = navigation()
    assert sorted(named) == sorted([*PAGES, *ELSEWHERE])


def test_every_public_name_has_its_place_in_the_reference():
    placed = re.findall(
        r"^::: (\S+)$",
        "\n".join(p.read_text() for p in (DOCS / "reference").glob("*.md")),
        flags=re.MULTILINE,
    )
    homes = [f"{getattr(bidro, name).__module__}.{name}" for name in bidro.__all__ if name != "__version__"]
    assert len(placed) == len(set(placed))
    assert set(homes) <= set(placed)


@pytest.mark.parametrize("page", [*PAGES, *ELSEWHERE.values()])
def test_links_between_files_lead_to_files(page):
    """As they stand in the repository; in the built site MkDocs itself refuses what leads nowhere."""
    path = DOCS / page if page in PAGES else ROOT / page
    text = path.read_text("utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join(
            "".join(c["source"]) for c in json.loads(text)["cells"] if c["cell_type"] == "markdown"
        )
    for target, _ in LINK.findall(re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)):
        if target and not urlsplit(target).scheme:
            assert (path.parent / target).exists(), f"{page}: {target}"


def test_the_version_stands_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/bidro/__init__.py"
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert cited is not None
    assert cited[1] == bidro.__version__
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest is not None
    assert newest[1] == bidro.__version__


def code_of(notebook):
    cells = json.loads((FOLDER / f"{notebook}.ipynb").read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_notebooks_are_small_and_plain_python():
    for path in FOLDER.glob("*.ipynb"):
        assert path.stat().st_size < 200_000, path
        for code in code_of(path.stem):
            ast.parse(code)
        assert "Traceback" not in path.read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("notebook", ["many_sites", "paper", "rehearsal"])
def test_a_notebook_runs(notebook, tmp_path, monkeypatch):
    """Its cells one after the other, as a kernel runs them."""
    import matplotlib

    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    left = {"__name__": "__main__"}
    for code in code_of(notebook):
        exec(compile(code, notebook, "exec"), left)
    matplotlib.pyplot.close("all")


class _Assets(HTMLParser):
    """What a page loads, where its links go, and the places in it that links can go to."""

    def __init__(self):
        super().__init__()
        self.loaded, self.links, self.places = [], [], set()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video", "audio") and given.get("src"):
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev") and given.get("href"):
            self.loaded.append(given["href"])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        self.places |= {given[key] for key in ("id", "name") if given.get(key)}


def read(path):
    found = _Assets()
    found.feed(path.read_text("utf-8"))
    return found


@pytest.mark.site
def test_nothing_is_loaded_from_elsewhere():
    pages = [path for path in sorted(SITE.rglob("*.html")) if path.name != "404.html"]
    assert len(pages) > len(PAGES)
    for path in pages:
        for asset in read(path).loaded:
            parts = urlsplit(asset)
            assert parts.scheme in ("", "data"), f"{path.name}: {asset}"
            assert not parts.netloc, f"{path.name}: {asset}"
            assert parts.scheme or (path.parent / unquote(parts.path)).resolve().exists(), (
                f"{path.name}: {asset}"
            )
    for path in SITE.rglob("*.css"):
        assert not re.findall(r"url\(['\"]?https?:|@import", path.read_text("utf-8")), path


@pytest.mark.site
def test_no_link_is_dead():
    pages = {path.resolve(): read(path) for path in SITE.rglob("*.html")}
    for path, found in pages.items():
        if path.name == "404.html":
            continue
        for link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.name}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].places, f"{path.name}: {link}"


@pytest.mark.site
def test_the_search_knows_every_page():
    index = json.loads((SITE / "search" / "search_index.json").read_text("utf-8"))
    found = {entry["location"].split("#")[0] for entry in index["docs"]}
    wanted = {re.sub(r"\.(md|ipynb)$", ".html", page) for page in [*PAGES, *ELSEWHERE]}
    assert wanted <= found


@pytest.fixture(scope="module")
def browser():
    parts = {"chromium": shutil.which("chromium"), "chromedriver": shutil.which("chromedriver")}
    if missing := [name for name, found in parts.items() if not found]:
        words = f"the search is tested in a browser, and there is no {' and no '.join(missing)} here"
        (pytest.fail if os.environ.get("BIDRO_REQUIRE_BROWSER") == "1" else pytest.skip)(words)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = parts["chromium"]
    for flag in (
        "headless=new",
        "no-sandbox",
        "disable-dev-shm-usage",
        "disable-gpu",
        "window-size=1280,900",
    ):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(parts["chromedriver"]))
    yield started
    started.quit()


@pytest.mark.site
def test_the_search_finds_a_page_in_a_folder_without_a_network(browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get((SITE / "index.html").as_uri())
    wait = WebDriverWait(browser, 60)
    box = wait.until(lambda b: b.find_element(By.CSS_SELECTOR, "input.md-search__input"))
    wait.until(lambda b: box.is_displayed())
    box.click()
    box.send_keys("barycentre")
    found = wait.until(lambda b: b.find_elements(By.CSS_SELECTOR, ".md-search-result__link"))
    assert any("reference/algorithms.html" in link.get_attribute("href") for link in found)
    sent = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [one["params"]["request"]["url"] for one in sent if one["method"] == "Network.requestWillBeSent"]
    assert asked
    assert not [url for url in asked if urlsplit(url).scheme not in ("file", "data", "about")]
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
