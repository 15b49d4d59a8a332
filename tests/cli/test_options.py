"""Every option is checked before any work begins, and no result replaces another without being asked to."""

import os
import threading

import pytest

from bidro.core.errors import BidroError
from bidro.data import tables
from bidro.model.model_file import load_model
from bidro.workflow import fit as workflow
from bidro.workflow.options import FitOptions
from tests.cli.test_command import run, visits

COLUMNS = ("--client", "hospital", "--target", "stay")


@pytest.fixture
def untouched(monkeypatch):
    """Whoever reads a table has begun to work."""

    def begun(*_: object) -> None:
        raise AssertionError("work began before the options were checked")

    monkeypatch.setattr(workflow, "read", begun)
    monkeypatch.setattr(tables, "read", begun)
    monkeypatch.setattr(tables, "read_one", begun)


@pytest.mark.parametrize(
    ("option", "values", "word"),
    [
        ("--confidence", ("0", "1.0", "95", "nan"), "strictly between 0 and 1"),
        ("--gap", ("0", "-1", "inf", "nan"), "positive number"),
        ("--shift", ("-1", "inf", "nan"), "at least 0"),
        ("--hold-out", ("1", "-0.1", "nan"), "share from 0 to below 1"),
        ("--folds", ("1", "-3"), "at least 2"),
        ("--radius", ("odd",), "'cross-validate', 'bootstrap' or 'explicit'"),
        ("--radius", ("-1", "inf", "nan"), "finite number of at least 0"),
        ("--weights", ("odd",), "'auto', 'simplex' or 'fixed'"),
        ("--weights", ("0.5", "inf", "nan"), "finite number of at least 1"),
        ("--metric", ("odd",), "'features' or 'joint'"),
        ("--label-cost", ("0", "inf"), "positive number"),
        ("--quantile", ("0", "1", "nan"), "strictly between 0 and 1"),
        ("--seed", ("-1",), "from 0 to below"),
        ("--task", ("odd",), "regression, classification"),
        ("--missing", ("odd",), "refuse, median"),
        ("--loss", ("odd",), "squared, absolute, huber, pinball, logistic, smoothed hinge"),
    ],
)
def test_an_option_of_fit_that_stands_for_nothing(untouched, tmp_path, capsys, option, values, word):
    for value in values:
        code, _, err = run(
            capsys, "fit", "visits.csv", *COLUMNS, "--out", tmp_path / "new", f"{option}={value}"
        )
        assert code == 1
        assert word in err
        assert len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("fit", "t.csv", *COLUMNS, "--out", "new", "--task", "regression", "--loss", "logistic"), "squared"),
        (("fit", "t.csv", *COLUMNS, "--out", "file/below"), "cannot be written"),
        (("fit", "t.csv", *COLUMNS, "--out", "file"), "not a model folder"),
        (("fit", "t.csv", *COLUMNS, "--out", "old"), "--force"),
        (("fit", "t.csv", "--config", "threshold.toml", *COLUMNS, "--out", "new"), "threshold"),
        (("fit", "t.csv", "--config", "list.toml", *COLUMNS, "--out", "new"), "a list of names"),
        (("certify", "old", "t.csv", "--confidence", "1"), "strictly between"),
        (("certify", "old", "t.csv", "--shift", "-1"), "at least 0"),
        (("plan", "old", "t.csv", "--width", "0"), "positive"),
        (("plan", "old", "t.csv", "--width", "1", "--confidence", "1"), "strictly between"),
        (("plan", "old", "t.csv", "--width", "1", "--delta", "-1"), "delta"),
        (("plan", "old", "t.csv", "--width", "1", "--radius", "1"), "one target"),
        (("compare", "t.csv", *COLUMNS, "--methods", "FedAvg,odd"), "there are FedAvg, AFL"),
        (("compare", "t.csv", *COLUMNS, "--task", "odd"), "regression, classification"),
        (("federate", "--local", "t.csv", *COLUMNS, "--out", "old"), "--force"),
        (("federate", "--local", "t.csv", *COLUMNS, "--out", "file/below"), "cannot be written"),
        (("federate", "--local", "t.csv", *COLUMNS, "--out", "new", "--engine", "odd"), "flare or flower"),
        (("schema", "t.csv", "--target", "stay", "--out", "old"), "is a folder"),
        (("predict", "old", "t.csv", "--out", "file/below.csv"), "cannot be written"),
    ],
)
def test_other_commands_say_it_before_they_work(untouched, tmp_path, capsys, monkeypatch, arguments, word):
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "threshold.toml").write_text("threshold = 0\n")
    (tmp_path / "list.toml").write_text("features = 3\n")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "model.safetensors").write_text("years of work")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    code, _, err = run(capsys, *arguments)
    assert code == 1, err
    assert word in err
    assert sorted(tmp_path.rglob("*")) == before


def test_options_come_back_from_the_file_that_a_run_writes(tmp_path):
    options = FitOptions(("a.csv",), weights=3.0, radius={"north": 0.1}, support={"age": [0, 120]})
    (tmp_path / "run.toml").write_text(options.to_toml())
    assert FitOptions.from_toml(tmp_path / "run.toml") == options
    with pytest.raises(BidroError, match="'simplex' is without one"):
        FitOptions(weights=float("inf"))


def test_a_model_is_replaced_only_when_asked_to_and_links_stay(tmp_path, capsys):
    visits().to_csv(tmp_path / "visits.csv", index=False)
    quick = ("--radius", "0.1", "--gap", "1e-2", "--hold-out", "0")
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept" / "model")
    fit = ("fit", tmp_path / "visits.csv", *COLUMNS, *quick, "--out", tmp_path / "link")
    assert run(capsys, *fit)[0] == 0
    first = load_model(tmp_path / "kept" / "model").x
    code, _, err = run(capsys, *fit, "--features", "age")
    assert (code, "--force" in err) == (1, True)
    assert load_model(tmp_path / "link").x.tolist() == first.tolist()
    assert run(capsys, *fit, "--features", "age", "--force")[0] == 0
    assert (tmp_path / "link").is_symlink()
    assert len(load_model(tmp_path / "kept" / "model").x) < len(first)
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["model"]

    # Predictions go through a pipe, and what is said of them does not get among them.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    code, out, err = run(capsys, "predict", tmp_path / "link", tmp_path / "visits.csv", "--out", pipe)
    reader.join(10)
    assert code == 0
    assert read[0].splitlines()[0] == "prediction"
    assert len(read[0].splitlines()) == 131
    assert (out, "130 predictions" in err) == ("", True)
    assert pipe.is_fifo()


def test_the_version(capsys):
    import bidro

    code, out, _ = run(capsys, "--version")
    assert (code, out) == (0, f"bidro {bidro.__version__}\n")


def test_every_option_that_few_people_need_stands_in_a_panel():
    from bidro.cli import options

    first = {"client", "target", "target_unit", "person"}
    assert set(options._KNOWN) == first | set(options._PANEL_OF)
