"""What MkDocs does not do by itself: pages that live elsewhere in the repository, and notebooks.

README.md, CONTRIBUTING.md and CHANGELOG.md are pages of the site as they are; a notebook is a page with the
outputs that it was saved with; a source file that a page links to is a page with its code.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# Pages of the site that are files of the repository outside docs.
ELSEWHERE = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md"}
_LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?(\))")
_CODE = re.compile(r"```.*?```", re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are not Markdown files of docs/."""
    # Links are as in the repository's own folders until `on_page_markdown` turns them.
    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        path = ROOT / "docs" / notebook.src_uri
        files.remove(notebook)
        files.append(File.generated(config, _page_of(notebook.src_uri), content=notebook_page(path)))
    for source in sorted(_linked_sources()):
        code = f"# {source}\n\n```python\n{(ROOT / source).read_text('utf-8')}```\n"
        shown = File.generated(config, f"source/{source.removeprefix('src/')}.md", content=code)
        files.append(shown)
    files.append(File.generated(config, "CITATION.cff", content=(ROOT / "CITATION.cff").read_text("utf-8")))
    return files


def on_config(config: Any) -> Any:
    """The navigation names notebooks by their files; their pages have other names."""
    config.nav = json.loads(re.sub(r'(notebooks/\w+)\.ipynb"', r'\1.md"', json.dumps(config.nav)))
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files of the repository to those between pages of the site."""
    here = posixpath.dirname(ELSEWHERE.get(page.file.src_uri, f"docs/{page.file.src_uri}"))
    out = posixpath.dirname(page.file.src_uri)

    def turned(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[2]))
        found = _place(target) if "://" not in link[2] and not link[2].startswith("data:") else None
        return (
            link[0] if found is None else f"{link[1]}{posixpath.relpath(found, out)}{link[3] or ''}{link[4]}"
        )

    parts, end = [], 0
    for block in _CODE.finditer(markdown):
        parts += [_LINK.sub(turned, markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, _LINK.sub(turned, markdown[end:])])


def notebook_page(path: Path) -> str:
    """A notebook as Markdown: its text, its code, and the outputs saved with it."""
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        for output in cell["outputs"]:
            parts.append(_shown(output))
    name = path.name
    return "\n\n".join(
        [*parts, f"*This page is the notebook `docs/notebooks/{name}`, as it was last run.*\n"]
    )


def _shown(output: dict[str, Any]) -> str:
    """One output of a cell: a picture, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        alt = "".join(data.get("text/plain", "A figure"))
        return f"![{alt.strip('<>')}](data:image/png;base64,{data['image/png'].strip()})"
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```"


def _page_of(notebook: str) -> str:
    return notebook.removesuffix(".ipynb") + ".md"


def _place(target: str) -> str | None:
    """The page of the site for a file of the repository, or None where it has none."""
    for page, source in ELSEWHERE.items():
        if target == source:
            return page
    if target == "CITATION.cff":
        return target
    if target.startswith("src/") and target.endswith(".py"):
        return f"source/{target.removeprefix('src/')}.md"
    if target.startswith("docs/"):
        inside = target.removeprefix("docs/")
        return _page_of(inside) if inside.endswith(".ipynb") else inside
    return None


def _linked_sources() -> set[str]:
    """The source files that pages link to, from the top of the repository."""
    found = set()
    for path in [ROOT / name for name in ELSEWHERE.values()] + sorted((ROOT / "docs").rglob("*.md")):
        for link in _LINK.finditer(_CODE.sub("", path.read_text("utf-8"))):
            target = posixpath.normpath(posixpath.join(path.parent.relative_to(ROOT).as_posix(), link[2]))
            if target.startswith("src/") and target.endswith(".py"):
                found.add(target)
    return found
