"""`python -m tests.docs.notebooks`: run the notebooks of the documentation anew and keep their outputs."""

import base64
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"


def _keep_first_picture(notebook, path: Path) -> None:
    """The README shows it."""
    outputs = [one for cell in notebook.cells if cell.cell_type == "code" for one in cell.outputs]
    picture = next(one.data["image/png"] for one in outputs if "image/png" in one.get("data", {}))
    path.write_bytes(base64.b64decode(picture))


def main() -> None:
    import nbformat
    from nbclient import NotebookClient

    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(FOLDER)}}).execute()
        for cell in notebook.cells:
            # When a cell ran, and on what, is of no use to readers and changes every time.
            cell.metadata.clear()
            if cell.cell_type == "code":
                cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
        notebook.metadata.pop("language_info", None)
        nbformat.write(notebook, path)
        if path.stem == "many_sites":
            _keep_first_picture(notebook, FOLDER.parent / "images" / "frontier.png")
        print(path.name)


if __name__ == "__main__":
    main()
