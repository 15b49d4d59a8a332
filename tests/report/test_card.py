"""The model card has the numbers of the page, and nothing that a name holds is markup."""

import json

from bidro import example_visits
from bidro.report.card import model_card
from tests.cli.test_command import run
from tests.report import page_content


def test_the_card_says_what_the_page_says(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example_visits()[:1200].to_csv("visits.csv", index=False)
    asked = ("--client", "hospital", "--target", "stay", "--target-unit", "days", "--curves", "none")
    code, _, err = run(capsys, "fit", "visits.csv", *asked, "--out", "model")
    assert code == 0, err
    code, out, err = run(capsys, "report", "model", "--card", "card.md")
    assert code == 0, err
    assert "The model card is card.md" in out
    card = (tmp_path / "card.md").read_text()
    page = json.loads((tmp_path / "model" / "report.json").read_text())
    plain = page["plainly"]
    for name, words in (("pooled", "pooled training"), ("personal", "each client's own model")):
        worst = max(one[name] for one in plain["clients"].values())
        assert f"| {words} | {plain['models'][name]:.3g} | {worst:.3g} |" in card
    level = page["levels"][page["default_level"]]
    assert all(words[:40] in card for words in level["promises"].values())
    worst = max(plain["clients"], key=lambda name: plain["clients"][name]["personal"])
    assert card.split("Worst served")[1].split("\n- ")[1].startswith(worst)
    assert "The rows were in one place" in card


def test_every_page_has_a_card_and_no_markup_of_others():
    for content in (page_content.content(), page_content.hostile()):
        card = model_card(content)
        assert card.startswith("# Model card: ")
        assert "<script" not in card.replace("\\<", "")
