"""The changes that are tried, found in a file's syntax tree.

Not changed: documentation, annotations, protocols and assertions (they are for the type checker), texts and
what is raised with them, loops' conditions, which would mostly run for ever, and `strict` of `zip`, which
asserts what cannot be otherwise.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_OPPOSITES = {"min": "max", "minimum": "maximum", "argmin": "argmax", "any": "all"}
_OPPOSITES |= {other: one for one, other in _OPPOSITES.items()}


@dataclass(frozen=True)
class Change:
    """One place of a file's text, and what is put there instead."""

    line: int  # from 1
    text: str  # that line, without the spaces around it
    before: str
    after: str
    changed: str  # the whole file

    @property
    def what(self) -> str:
        return f"{self.before} -> {self.after}"

    @property
    def text_after(self) -> str:
        """That line as it is then; of a change over several lines, the first."""
        return self.changed.splitlines()[self.line - 1].strip()


def changes(source: str) -> list[Change]:
    """All changes of a file's text, in the order of their lines."""
    lines = source.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    content = source.encode()

    def place(line: int, column: int) -> int:
        return starts[line - 1] + column

    found, seen = [], set()
    for node, after in _replacements(ast.parse(source)):
        begin = place(node.lineno, node.col_offset)
        end = place(node.end_lineno, node.end_col_offset)
        changed = (content[:begin] + after.encode() + content[end:]).decode()
        before = " ".join(content[begin:end].decode().split())
        if changed in seen or before == after:
            continue
        seen.add(changed)
        found.append(Change(node.lineno, lines[node.lineno - 1].strip(), before, after, changed))
    return sorted(found, key=lambda change: change.line)


def _replacements(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """(part of the tree, the text that takes its place)."""
    yield from _of(node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        if isinstance(node, ast.While) and name == "test":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _passed_over(child):
                yield from _replacements(child)


def _passed_over(node: ast.AST) -> bool:
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases):
        return True
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return True
    return isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom)


def _of(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    match node:
        case ast.Compare(left, [operator], [right]):
            for other in _COMPARISONS[type(operator)]:
                yield node, _written(ast.Compare(left, [other()], [right]))
        case ast.Compare(left, operators, rights):
            # a < b < c: one boundary at a time.
            for k, operator in enumerate(operators):
                other = _COMPARISONS[type(operator)][0]()
                yield node, _written(ast.Compare(left, [*operators[:k], other, *operators[k + 1 :]], rights))
        case ast.BinOp(left, operator, right) if type(operator) in _ARITHMETIC and not _of_texts(left, right):
            yield node, _written(ast.BinOp(left, _ARITHMETIC[type(operator)](), right))
        case ast.AugAssign(target, operator, value) if type(operator) in _ARITHMETIC:
            yield node, ast.unparse(ast.AugAssign(target, _ARITHMETIC[type(operator)](), value))
        case ast.BoolOp(operator, values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield node, _written(ast.BoolOp(other, values))
        case ast.UnaryOp(ast.Not() | ast.Invert() | ast.USub(), operand):
            yield node, _written(operand)
        case ast.Constant(bool() as value):
            yield node, str(not value)
        case ast.Constant(int() | float() as value):
            for other in dict.fromkeys((2 * value, 0, value + 1)):
                if other != value:
                    yield node, repr(type(value)(other))
        case ast.Call(function, [_, *_] as given, _):
            yield from _of_call(function, given)
        case ast.If(test) | ast.IfExp(test):
            yield test, "True"
            yield test, "False"
        case ast.Expr(ast.Call()):
            yield node, "pass"


def _of_call(function: ast.expr, given: list[ast.expr]) -> Iterator[tuple[ast.AST, str]]:
    """Its opposite, by name (`min`, `jnp.minimum`); of `where` the branches swapped."""
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    if name in _OPPOSITES:
        other = _OPPOSITES[name]
        if isinstance(function, ast.Attribute):
            yield function, f"{ast.unparse(function.value)}.{other}"
        else:
            yield function, other
    if name == "where" and len(given) == 3:
        # From the second argument to the third, as one place.
        both = ast.copy_location(ast.Tuple([given[1], given[2]], ast.Load()), given[1])
        both.end_lineno, both.end_col_offset = given[2].end_lineno, given[2].end_col_offset
        yield both, f"{ast.unparse(given[2])}, {ast.unparse(given[1])}"


def _of_texts(*parts: ast.expr) -> bool:
    return any(
        isinstance(part, ast.JoinedStr) or (isinstance(part, ast.Constant) and isinstance(part.value, str))
        for part in parts
    )


def _written(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"
