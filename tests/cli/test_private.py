"""`bidro fit --epsilon` and `bidro ledger`."""

import json

from bidro.deploy.server.serve import run_job
from bidro.model.model_file import load_model
from tests.cli.test_command import run
from tests.deploy.sites import carrier, job, private_sites, table


def test_a_private_fit_in_one_process(capsys, tmp_path):
    table(sizes=(300, 350, 300, 350, 350)).to_csv(tmp_path / "whole.csv", index=False)
    asked = ("fit", tmp_path / "whole.csv", "--epsilon", 3, "--out", tmp_path / "model")
    code, _, err = run(capsys, *asked, "--client", "site", "--target", "y")
    assert code == 1
    assert "needs units that are public: draft them with `bidro schema" in err
    assert not (tmp_path / "model").exists()
    drafted = "--client", "site", "--target", "y", "--out", tmp_path / "schema.toml"
    assert run(capsys, "schema", tmp_path / "whole.csv", *drafted)[0] == 0
    schema = "--schema", tmp_path / "schema.toml"
    code, out, _ = run(capsys, *asked, *schema, "--delta", 1e-5, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["gap"] is None
    assert found["certificate"]["privacy"]["budgets"]["east"] == [3.0, 1e-5, 1]
    # The draft's units are read off these rows, so that nothing is promised yet, wherever it would be said.
    assert found["certificate"]["privacy"]["drafted"]
    assert found["chosen"]["privacy"] == found["certificate"]["privacy"]["promise"]
    written = ("report.json", "report.html", "certificate.json")
    for shown in (out, *((tmp_path / "model" / name).read_text() for name in written)):
        assert "To try out, not private" in shown
        assert "is differentially private" not in shown
    # Its owner confirms them by taking a line out.
    text = (tmp_path / "schema.toml").read_text()
    assert text.count("\nunits_drafted = true\n") == 1
    (tmp_path / "schema.toml").write_text(text.replace("\nunits_drafted = true\n", "\n"))
    code, out, _ = run(capsys, *asked, *schema, "--delta", 1e-5, "--json", "--force")
    found = json.loads(out)
    assert "epsilon = 3 and delta = 1e-05, for adding or removing a row" in found["chosen"]["privacy"]
    assert "It counts this run alone" in found["chosen"]["privacy"]
    # No row's fingerprint is in the folder, and what was asked is, to be asked again.
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert "trained_rows.json" not in names
    options = (tmp_path / "model" / "run.toml").read_text()
    assert "epsilon = 3" in options
    assert load_model(tmp_path / "model").settings["chosen"]["privacy"] == found["chosen"]["privacy"]
    # What noise hides of a client is not shown as if it were known.
    report = json.loads((tmp_path / "model" / "report.json").read_text())
    hidden = {one["name"] for one in report["clients"] if one["loss"] < 2 * one["se"]}
    assert set(report["plainly"]["hidden_by_noise"]) == hidden
    code, out, _ = run(capsys, *asked, *schema, "--force", "--verbose")
    assert code == 0
    assert "Training took 9 rounds." in out
    # A schema of private runs says that a budget is needed.
    text = (tmp_path / "schema.toml").read_text()
    text = text.replace('release = "moments"', 'release = "private"')
    (tmp_path / "schema.toml").write_text(text + "\n[privacy]\n")
    code, _, err = run(capsys, "fit", tmp_path / "whole.csv", *schema, "--out", tmp_path / "other")
    assert code == 1
    assert "say how private it is to be with --epsilon" in err
    for wrong in (("--epsilon", -1), ("--delta", 2.0), ("--rows-per-person", 3)):
        again = ("fit", tmp_path / "whole.csv", *schema, "--epsilon", 3, *wrong, "--out", tmp_path / "other")
        code, _, err = run(capsys, *again)
        assert code == 1
        assert "must be" in err or "whose a row is" in err


def test_what_a_site_has_released(capsys, tmp_path):
    clients = ("east", "west")
    agreed = private_sites(tmp_path, without=("mid",))
    code, out, _ = run(capsys, "ledger", tmp_path / "east.toml")
    assert code == 0
    assert out.startswith("Nothing was released.")
    asking = job(agreed, "stay-2026", clients, privacy=agreed.privacy)
    run_job(asking, carrier(tmp_path, clients), tmp_path / "runs")
    code, out, _ = run(capsys, "ledger", tmp_path / "east.toml")
    assert code == 0
    assert "training rows, 14.0% of the budget" in out
    assert "losses 1 to run 'stay-2026'" in out
    assert "held-out rows, 30.0% of the budget" in out
    assert "100.0% spent (epsilon = 3), 0.0% left" in out
    found = json.loads(run(capsys, "ledger", tmp_path / "east.toml", "--json")[1])
    assert len(found["releases"]) == 10
    assert found["budget"] == {"epsilon": 3.0, "delta": 1e-6, "rows_per_person": 1, "most_rows": 1}
    log = run(capsys, "site", "log", "--site", tmp_path / "east.toml")[1]
    assert "moments 1: answered with noise" in log
    checked = run(capsys, "site", "check", "--site", tmp_path / "east.toml")[1]
    assert "private runs are answered whatever rows it has" in checked
    code, _, err = run(capsys, "ledger", tmp_path / "mid.toml")
    assert code == 1
    assert "has no privacy budget" in err
