"""Makes mutants: copies of a source text with one small mistake each. No files, no tests.

A mutant differs in one comparison, one operator, one condition, one constant or one statement. The
mistakes are those that people make: the wrong side of a limit, a check that is missing, a step that
was forgotten.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One mistake: what stands where, and what replaces it."""

    line: int
    start: int
    end: int
    before: str
    after: str

    def apply(self, text: str) -> str:
        return text[: self.start] + self.after + text[self.end :]

    def __str__(self) -> str:
        before, after = (" ".join(part.split()) for part in (self.before, self.after))
        return f"line {self.line}: {_shortened(before)} -> {_shortened(after)}"


def _shortened(text: str, limit: int = 60) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def mutants_of(text: str, suffix: str, functions: tuple[str, ...] = ()) -> list[Mutant]:
    """Every mutant of a Python or Lua text. ``functions``: only inside of these (Python)."""
    make: Callable[[], Iterator[Mutant]] = {
        ".py": lambda: _of_python(text, functions),
        ".lua": lambda: _of_lua(text),
    }[suffix]
    return sorted(set(make()), key=lambda mutant: (mutant.start, mutant.end, mutant.after))


# -- Python -------------------------------------------------------------------------------------

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}


def _of_python(text: str, functions: tuple[str, ...]) -> Iterator[Mutant]:
    tree = ast.parse(text)
    places = _Places(text)
    roots = [tree] if not functions else _functions_of(tree, functions)
    for root in roots:
        for node in ast.walk(root):
            if not isinstance(node, ast.Module):
                yield from _of_node(node, places)


def _functions_of(tree: ast.Module, names: tuple[str, ...]) -> list[ast.AST]:
    found: dict[str, ast.AST] = {}

    def visit(node: ast.AST, around: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{around}{child.name}"
                found[name] = child
                visit(child, f"{name}.")

    visit(tree, "")
    missing = set(names) - found.keys()
    if missing:
        raise LookupError(f"no such function: {', '.join(sorted(missing))}")
    return [found[name] for name in names]


class _Places:
    """Offsets in a text, from the lines and columns of ``ast``, which counts UTF-8 bytes."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        before = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(before)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.offset(node.lineno, node.col_offset),
            self.offset(node.end_lineno, node.end_col_offset),
        )

    def replace(self, node: ast.expr | ast.stmt, after: str) -> Mutant:
        start, end = self.span(node)
        return Mutant(node.lineno, start, end, self.text[start:end], after)

    def between(self, left: ast.expr, right: ast.expr, after: str) -> Mutant:
        """Replace the operator between two operands."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.text[start:end]
        # Brackets around an operand belong to the gap: keep them.
        operator = re.search(r"[^\s()\\#][^()\n#]*[^\s()]|[^\s()]", gap)
        assert operator is not None
        line = left.end_lineno or left.lineno
        return Mutant(
            line, start + operator.start(), start + operator.end(), operator.group(), after
        )

    def source(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.text[start:end]


def _of_node(node: ast.AST, places: _Places) -> Iterator[Mutant]:
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            operands = [left, *comparators]
            for index, op in enumerate(ops):
                after = _COMPARISONS[type(op)]
                yield places.between(operands[index], operands[index + 1], after)
        case ast.BoolOp(op=op, values=values):
            for first, second in itertools.pairwise(values):
                yield places.between(first, second, "or" if isinstance(op, ast.And) else "and")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield places.replace(node, f"({places.source(operand)})")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            if not (_is_text(left) or _is_text(right)):
                yield places.between(left, right, _ARITHMETIC[type(op)])
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not (
                isinstance(test, ast.Compare | ast.Constant) or _is_not(test) or _is_for_types(test)
            ):
                yield places.replace(test, f"(not ({places.source(test)}))")
        case ast.Constant(value=bool() as value):
            yield places.replace(node, str(not value))
        case ast.Call(func=ast.Name(id=name) as func) if name in _FUNCTIONS:
            yield places.replace(func, _FUNCTIONS[name])
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield places.replace(node, "pass")
        case ast.Raise():
            yield places.replace(node, "pass")


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _is_not(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)


def _is_for_types(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "TYPE_CHECKING"


# -- Lua ----------------------------------------------------------------------------------------

_LUA_OPERATORS = (
    (r"==", "~="),
    (r"~=", "=="),
    (r"<=", "<"),
    (r">=", ">"),
    (r"(?<![<>=~])<(?!=)", "<="),
    (r"(?<![<>=~-])>(?!=)", ">="),
    (r"\band\b", "or"),
    (r"\bor\b", "and"),
    (r"\bnot\s+(?=\w)", ""),
    (r"(?<= )\+(?= )", "-"),
    (r"(?<= )-(?= )", "+"),
)
_LUA_STATEMENT = re.compile(r"^\s*(?:redis\.)?call\(.*\)$")
_LUA_RETURN = re.compile(r"(?<=\breturn )(-?\d+)$")


def _of_lua(text: str) -> Iterator[Mutant]:
    start = 0
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        code = line.rstrip("\n")
        if code.strip() and not code.lstrip().startswith("--"):
            for mutant in _of_lua_line(code):
                yield Mutant(
                    number, start + mutant.start, start + mutant.end, mutant.before, mutant.after
                )
        start += len(line)


def _of_lua_line(code: str) -> Iterator[Mutant]:
    code = re.sub(r"\s+--.*$", "", code)  # without a comment at its end
    quoted = [match.span() for match in re.finditer(r"'[^']*'", code)]
    for pattern, after in _LUA_OPERATORS:
        for match in re.finditer(pattern, code):
            if not any(start < match.start() < end for start, end in quoted):
                yield Mutant(0, match.start(), match.end(), match.group(), after)
    if _LUA_STATEMENT.match(code):
        yield Mutant(0, 0, len(code), code, "")
    for match in _LUA_RETURN.finditer(code):
        yield Mutant(0, match.start(), match.end(), match.group(), str(int(match.group()) + 1))
