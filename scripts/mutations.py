"""Small changes of a module, each of which a good test should notice.

``Mutations(tree)`` lists them in the order of the source; ``apply`` puts one into the tree. Not changed, and counted in
``skipped``: docstrings, annotations and type aliases, imports, decorators, texts (of errors, in f-strings, or with a
space in them), ``__slots__``, ``__all__``, ``if TYPE_CHECKING`` and the patterns of ``case``.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import shorten

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_ORDERINGS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
}  # fmt: skip
_CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
_SKIPPED_FIELDS = {
    "decorator_list": "decorators",
    "annotation": "annotations",
    "returns": "annotations",
    "pattern": "patterns",
}
_REMOVABLE = (ast.Expr, ast.AugAssign, ast.Delete, ast.Raise, ast.Assert, ast.Continue, ast.Break)


Change = tuple[str, ast.AST | None]
"""The kind of change, and the new node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    tree: ast.Module
    line: int
    where: str
    """The function or class it is in."""
    operator: str
    before: str
    after: str
    owner: ast.AST
    field: str
    index: int | None
    """Of a field that is a list."""
    new: ast.AST | None
    """What takes the place; None: nothing."""

    def apply(self) -> None:
        """Put it into its tree, for good."""
        if self.index is None:
            setattr(self.owner, self.field, self.new)
        elif self.new is None:
            for field in {self.field, "keys"} if isinstance(self.owner, ast.Dict) else {self.field}:
                del getattr(self.owner, field)[self.index]
        else:
            getattr(self.owner, self.field)[self.index] = self.new
        ast.fix_missing_locations(self.owner)


class Mutations:
    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self.skipped: Counter[str] = Counter()
        self._names: list[str] = []
        self._bound: set[str] = set()
        """Names the function has by now."""
        self.found = list(self._children(tree))

    def _children(self, node: ast.AST) -> Iterator[Mutation]:
        for field, value in ast.iter_fields(node):
            items = value if isinstance(value, list) else [value]
            children = [(index, child) for index, child in enumerate(items) if isinstance(child, ast.AST)]
            if field in _SKIPPED_FIELDS:
                self.skipped[_SKIPPED_FIELDS[field]] += len(children)
                continue
            for index, child in children:
                yield from self._visit(node, field, index if isinstance(value, list) else None, child)

    def _visit(self, owner: ast.AST, field: str, index: int | None, node: ast.AST) -> Iterator[Mutation]:
        if (reason := _skip(owner, field, node, is_module=not self._names)) is not None:
            self.skipped[reason] += 1
            return
        is_scope = isinstance(node, ast.FunctionDef | ast.ClassDef)
        if is_scope:
            self._names.append(node.name)
            self._bound = {argument.arg for argument in ast.walk(node) if isinstance(argument, ast.arg)}
        _mark_tables(node, is_module=not self._names)
        for operator, new in self._replacements(owner, field, node):
            yield Mutation(
                tree=self._tree,
                line=getattr(node, "lineno", 0),
                where=".".join(self._names) or "module",
                operator=operator,
                before=_text(node),
                after=_text(new),
                owner=owner,
                field=field,
                index=index,
                new=new,
            )
        yield from self._children(node)
        if is_scope:
            self._names.pop()

    def _replacements(self, owner: ast.AST, field: str, node: ast.AST) -> Iterator[Change]:
        if _is_condition(owner, field) and isinstance(node, ast.expr) and not _has_opposite(node):
            yield "negated condition", ast.UnaryOp(ast.Not(), node)
        if getattr(owner, "is_table", False) and field in ("elts", "values"):
            yield "removed element", None
        match node:
            case ast.Slice(lower=lower, upper=upper):
                yield from [("dropped bound", ast.Slice(None, upper, node.step))] if lower else []
                yield from [("dropped bound", ast.Slice(lower, None, node.step))] if upper else []
            case ast.expr():
                yield from _of_expression(node)
            case ast.stmt():
                yield from _of_statement(node)
                yield from self._of_assignment(node)
            case ast.match_case() if isinstance(owner, ast.Match) and len(owner.cases) > 1:
                yield "removed case", None

    def _of_assignment(self, node: ast.stmt) -> Iterator[Change]:
        """Without its first value a name is only missed: that says nothing about the tests."""
        if isinstance(node, ast.Assign):
            targets = [name for target in node.targets for name in getattr(target, "elts", [target])]
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            if names <= self._bound:
                yield "removed statement", ast.Pass()
            self._bound |= names


def _text(node: ast.AST | None) -> str:
    if node is None:
        return "nothing"
    text = ast.unparse(node) if not isinstance(node, ast.match_case) else f"case {ast.unparse(node.pattern)}"
    return shorten(" ".join(text.split()), 110, placeholder=" ...")


def _skip(owner: ast.AST, field: str, node: ast.AST, *, is_module: bool) -> str | None:
    """Why nothing in this node is changed."""
    match node:
        case ast.Import() | ast.ImportFrom():
            return "imports"
        case ast.Expr(value=ast.Constant(value=str())):
            return "docstrings"
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return "TYPE_CHECKING"
        case ast.Assign(targets=[ast.Name(id="__slots__" | "__all__" as name)]):
            return name
        case ast.Assign(value=ast.Subscript() | ast.Call(func=ast.Name(id="NewType"))) if is_module:
            return "annotations"
        case ast.Constant(value=str(text)) if isinstance(owner, ast.JoinedStr) or " " in text:
            return "texts"
    if isinstance(owner, ast.FormattedValue) and field == "format_spec":
        return "texts"
    if isinstance(owner, ast.Raise) or (isinstance(owner, ast.Assert) and field == "msg"):
        return "texts"
    return None


def _is_condition(owner: ast.AST, field: str) -> bool:
    return (field == "test" and not isinstance(owner, ast.Assert)) or field == "ifs"


def _has_opposite(node: ast.expr) -> bool:
    """Whether another change of it is its negation."""
    is_equality = isinstance(node, ast.Compare) and len(node.ops) == 1 and not isinstance(node.ops[0], _ORDERINGS)
    return is_equality or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))


def _mark_tables(node: ast.AST, *, is_module: bool) -> None:
    """Tables of a module, ``in (a, b)`` and the keys of a sort: each element is there for a reason."""
    displays: list[ast.expr] = []
    match node:
        case ast.Assign(value=ast.Call(args=displays)) | ast.AnnAssign(value=ast.Call(args=displays)) if is_module:
            pass
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) if is_module:
            displays = [value]
        case ast.Compare(comparators=comparators):
            displays = comparators
        case ast.Lambda(body=body):
            displays = [body]
    for display in displays:
        if isinstance(display, ast.Set | ast.Tuple | ast.List | ast.Dict):
            elements = display.values if isinstance(display, ast.Dict) else display.elts
            display.is_table = len(elements) > 1  # type: ignore[union-attr]


def _of_expression(node: ast.expr) -> Iterator[Change]:
    match node:
        case ast.Compare():
            yield from _of_comparison(node)
        case ast.BoolOp(op=op, values=values):
            yield "swapped and/or", ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
            for index in range(len(values)):
                rest = values[:index] + values[index + 1 :]
                yield "dropped operand", rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            yield "arithmetic", ast.BinOp(left, _ARITHMETIC[type(op)](), right)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "dropped sign", operand
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.Constant(value=str(value)):
            yield "constant", ast.Constant(value + "X")
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords) if name in _CALLS:
            kept = [] if name == "sorted" else keywords
            yield "other function", ast.Call(ast.Name(_CALLS[name], ast.Load()), arguments, kept)


def _of_comparison(node: ast.Compare) -> Iterator[Change]:
    for index, op in enumerate(node.ops):
        ops = [*node.ops[:index], _COMPARISONS[type(op)](), *node.ops[index + 1 :]]
        yield "comparison", ast.Compare(node.left, ops, node.comparators)


def _of_statement(node: ast.stmt) -> Iterator[Change]:
    match node:
        case ast.Return(value=None):
            yield "removed statement", ast.Pass()
        case ast.Return(value=value) if not (isinstance(value, ast.Constant) and value.value in (None, True, False)):
            yield "returned None", ast.Return(ast.Constant(None))
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in _ARITHMETIC:
            yield "arithmetic", ast.AugAssign(target, _ARITHMETIC[type(op)](), value)
    is_nothing = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    if isinstance(node, _REMOVABLE) and not is_nothing:
        yield "removed statement", ast.Pass()
