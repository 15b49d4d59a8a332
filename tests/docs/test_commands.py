"""What pages name exists: commands, their options, and the questions that sites are asked."""

import re
from functools import cache
from pathlib import Path

import click
import pytest
import typer

from bidro.cli import app
from bidro.deploy.messages.queries import QUERIES

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
CODE = re.compile(r"^```[a-z]*\n(.*?)^```|`([^`]+)`", flags=re.DOTALL | re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*)")
# Options of other programs that stand by themselves in a page: Flower's, FLARE's kit's, and those of studies.
OTHERS = {
    "docs/networks.md": {"--flower"},
    "docs/privacy_cost.md": {"--epsilons", "--repeats", "--losses"},
}


@cache
def whole() -> click.Command:
    return typer.main.get_command(app)


def command(*path: str) -> click.Command | None:
    """The command of this name, or one below a group; None where there is none."""
    found = whole()
    for name in path:
        below = found.commands if isinstance(found, click.Group) else {}
        if name not in below:
            return None
        found = below[name]
    return found


def options(found: click.Command) -> set[str]:
    own = {name for one in found.params for name in (*one.opts, *one.secondary_opts) if name.startswith("--")}
    return own | {"--help"}


@cache
def every_option() -> set[str]:
    def below(found: click.Command) -> set[str]:
        more = found.commands.values() if isinstance(found, click.Group) else ()
        return options(found).union(*map(below, more))

    return below(whole())


def said(text: str) -> tuple[list[str], list[str]]:
    """(the command lines of bidro in a page, the options that stand by themselves)."""
    lines, alone = [], []
    for block, inline in CODE.findall(text):
        code = (block or inline).replace("\\\n", " ")
        if inline:
            code = " ".join(code.split())
        for line in code.splitlines():
            plain = re.sub(r"(^|\s)#.*", "", line)
            parts = [part.strip() for part in re.split(r"\s(?:&&|\|\|?|;)\s", plain)]
            lines += [part for part in parts if re.match(r"(\$ )?bidro [a-z-]", part)]
        if inline and code.startswith("--"):
            alone += OPTION.findall(code)
    return lines, alone


def wrong_with(line: str) -> str | None:
    """Why this is no command line of bidro; None where it is one."""
    words = line.removeprefix("$ ").split()[1:]
    path: tuple[str, ...] = ()
    while words and command(*path, words[0]) is not None:
        path += (words.pop(0),)
    found = command(*path)
    assert found is not None
    if isinstance(found, click.Group) and words and not words[0].startswith("-"):
        return f"there is no command 'bidro {' '.join((*path, words[0]))}'"
    unknown = [one for one in OPTION.findall(" ".join(words)) if one not in options(found)]
    return f"'bidro {' '.join(path)}' has no option {unknown[0]}" if unknown else None


def rows_of_commands(text: str) -> list[str]:
    """In tables with a command in their first cell: that command with the options that its row names."""
    rows = re.findall(r"^\| `(bidro [^`]*)` \|(.*)$", text, flags=re.MULTILINE)
    return [
        f"{line} {' '.join(OPTION.findall(' '.join(re.findall('`(--[^`]*)`', rest))))}" for line, rest in rows
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_and_options_that_a_page_names_exist(page):
    text = page.read_text("utf-8")
    lines, alone = said(text)
    lines += rows_of_commands(text)
    assert [f"{line}: {wrong}" for line in lines if (wrong := wrong_with(line))] == []
    name = page.relative_to(ROOT).as_posix()
    assert sorted(set(alone) - every_option() - OTHERS.get(name, set())) == []


def test_a_page_that_names_what_does_not_exist_would_be_noticed():
    lines, alone = said("Say `bidro federate --config a.toml`, `bidro site ask`, or `--replies gradient`.")
    assert [wrong_with(line) for line in lines] == [
        "'bidro federate' has no option --config",
        "there is no command 'bidro site ask'",
    ]
    assert set(alone) - every_option() == {"--replies"}
    (line,) = rows_of_commands("| `bidro site check` | says more by `--hold-out 0.2` |")
    assert wrong_with(line) == "'bidro site check' has no option --hold-out"


def words(page: str) -> int:
    """Of a page, without the marks of its tables."""
    return len((ROOT / "docs" / page).read_text("utf-8").replace("|", " ").split())


@pytest.mark.parametrize("page", ["install.md", "operate.md", "threats.md", "privacy.md"])
def test_who_runs_a_consortium_reads_short_pages(page):
    assert words(page) <= 1500


def test_the_page_of_threats_names_every_attack_that_is_tried():
    """And no file that is not there."""
    named = set(re.findall(r"`(test_\w+\.py)`", (ROOT / "docs/threats.md").read_text("utf-8")))
    there = {path.name for path in (ROOT / "tests/deploy").glob("test_*.py")}
    assert {name for name in there if name.startswith("test_attacks")} <= named <= there


def test_the_page_of_messages_names_every_question_and_no_other():
    text = (ROOT / "docs/messages.md").read_text("utf-8")
    table = text.split("| question |")[1].split("\n\n")[0]
    first = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert sorted(re.findall(r"`(\w+)`", " ".join(first))) == sorted(QUERIES)
