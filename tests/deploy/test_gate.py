"""Numbers leave a site in one place, and what fits in one process knows nothing of it."""

import ast
from pathlib import Path

import bidro

SOURCE = Path(bidro.__file__).parent


def functions_that_call(name, folder):
    """(module, function) of every function in a folder that calls one of this name."""
    found = []
    for path in sorted((SOURCE / folder).rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
            if any(getattr(call, "id", getattr(call, "attr", "")) == name for call in calls):
                found.append((path.relative_to(SOURCE).as_posix(), function.name))
    return found


def test_one_function_of_a_site_encodes_replies():
    assert functions_that_call("reply_message", "deploy") == [("deploy/site/session.py", "_replied")]


def test_a_fit_imports_nothing_of_sites():
    for room in ("fit", "selection", "solvers", "risk", "certify", "privacy"):
        for path in sorted((SOURCE / room).rglob("*.py")):
            names = [
                name
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Import | ast.ImportFrom)
                for name in [getattr(node, "module", None) or "", *(a.name for a in node.names)]
            ]
            assert not [name for name in names if name.startswith("bidro.deploy")], path
