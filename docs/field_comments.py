"""A Griffe extension: the comment behind a field of a dataclass or tuple is its description in the reference.

Fields of results are described where they are declared (`x: Floats  # (d,) final model`). The reference
shows them in the section Attributes of the class, so that they need not be written twice.
"""

from __future__ import annotations

from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Adds the section to classes whose docstring has none."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is None or "Attributes:" in cls.docstring.value:
            return
        lines = [
            f"    {name}: {said}"
            for name, member in cls.members.items()
            if member.is_attribute and not name.startswith("_") and (said := _comment(member))
        ]
        if lines:
            # Before the example, as in docstrings that have the section themselves.
            text, mark, example = cls.docstring.value.partition("\n\nExamples:")
            cls.docstring.value = "\n\n".join([text, "\n".join(["Attributes:", *lines])]) + mark + example


def _comment(member: Any) -> str | None:
    """What stands behind the field in its last line."""
    line = member.lines_collection[member.filepath][member.endlineno - 1]
    _, mark, comment = line.partition("  # ")
    return comment.strip() if mark and not comment.startswith("type:") else None
