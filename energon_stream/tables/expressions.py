"""Expressions over columns: filters such as ``clip > 0.28 and not duplicate``, formulas such as ``width *
height``.

An expression is data. Python's parser reads it, and it is never compiled: this module understands the nodes
that it names, and refuses all others. No function, attribute, index or file can be named.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from energon_stream.errors import ConfigError
from energon_stream.imports import LazyModule

pa: Any = LazyModule("pyarrow", "parquet")
pc: Any = LazyModule("pyarrow.compute", "parquet")

_Evaluate: TypeAlias = Callable[[Mapping[str, Any]], Any]
"""Returns the value of an expression, given those of its names."""

_DEEPEST = 64
_COMPARISONS = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True, slots=True)
class Expression:
    """A filter or formula. A picklable value."""

    kind: Literal["filter", "formula"]  # which of the two
    text: str  # the expression as it was given
    names: tuple[str, ...]  # names of the columns that it has

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Return the value of each row, given those of each name.

        A filter takes Arrow arrays and returns a ``BooleanArray``, with null where a null decides. A formula
        takes and returns ``float64``; a division by 0 gives no finite number. Raises ConfigError if values of
        these types cannot be compared, or the result is no truth value.
        """
        parser = _PARSERS[self.kind](self.text)
        try:
            with np.errstate(all="ignore"):
                return parser.parse()(values)
        except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
            types = ", ".join(f"{name} is {array.type}" for name, array in values.items())
            raise parser.refused(f"{' '.join(str(error).split()):.200} ({types})") from error


def parse_filter(text: Any) -> Expression:
    """Check a filter, without the columns that it names.

    Example:
        >>> parse_filter("clip > 0.28 and not duplicate and lang in ['en', 'de']").names
        ('clip', 'duplicate', 'lang')
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"the filter is {text!r:.80}", hint=_FilterParser.hint)
    return _parsed("filter", text)


def parse_formula(text: str) -> Expression:
    """Check a formula. Raises ConfigError if it names nothing, or has more than numbers, names, operators.

    Example:
        >>> formula = parse_formula("-(-width // 14) * -(-height // 14)")
        >>> formula.names
        ('width', 'height')
        >>> formula.evaluate({"width": np.array([28.0, 29.0]), "height": np.array([14.0, 14.0])}).tolist()
        [2.0, 3.0]
    """
    return _parsed("formula", text)


def _parsed(kind: Literal["filter", "formula"], text: str) -> Expression:
    parser = _PARSERS[kind](text)
    parser.parse()
    return Expression(kind, text, tuple(parser.names))


class _ExpressionParser:
    """Makes a function of the nodes of an expression, and collects its names."""

    kind: ClassVar[str]
    longest: ClassVar[int]  # characters
    hint: ClassVar[str]

    def __init__(self, text: str) -> None:
        self._text = text
        self.names: dict[str, None] = {}

    def parse(self) -> _Evaluate:
        if len(self._text) > self.longest:
            raise self.refused(f"it has {len(self._text):,} characters, and {self.longest:,} are allowed")
        try:
            tree = ast.parse(self._text.strip(), mode="eval").body
        except (SyntaxError, ValueError) as error:
            raise self.refused(f"{error}") from None
        except (RecursionError, MemoryError):
            raise self.refused("it is nested too deeply") from None
        found = self._of(tree, 0)
        if not self.names:
            raise self.refused("it names nothing")
        return found

    def refused(self, why: str) -> ConfigError:
        return ConfigError(f"{self._text!r:.200} is no {self.kind}: {why}", hint=self.hint)

    def _of(self, node: ast.expr, depth: int) -> _Evaluate:
        raise self.refused(f"a {type(node).__name__} is not allowed")

    def _inner(self, nodes: Iterable[ast.expr], depth: int) -> list[_Evaluate]:
        if depth == _DEEPEST:
            raise self.refused("it is nested too deeply")
        return [self._of(node, depth + 1) for node in nodes]

    def _name(self, node: ast.Name) -> _Evaluate:
        self.names[node.id] = None
        return operator.itemgetter(node.id)


class _FormulaParser(_ExpressionParser):
    kind, longest = "formula", 1000
    hint = "use names, numbers, + - * / // and parentheses"

    def _of(self, node: ast.expr, depth: int) -> _Evaluate:
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            left, right = self._inner((node.left, node.right), depth)
            join = _OPERATORS[type(node.op)]
            return lambda values: join(left(values), right(values))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            (inner,) = self._inner((node.operand,), depth)
            return lambda values: -inner(values)
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
            if isinstance(node.value, bool) or not abs(node.value) < 1e300:
                raise self.refused(f"{node.value} is not allowed")
            number = np.float64(node.value)
            return lambda values: number
        return super()._of(node, depth)


class _FilterParser(_ExpressionParser):
    kind, longest = "filter", 10_000
    hint = (
        "use comparisons of columns with numbers, texts or columns (== != < <= > >=, in [...], is None), "
        "joined by and, or, not"
    )

    def _of(self, node: ast.expr, depth: int) -> _Evaluate:
        """Return a function that makes truth values."""
        if isinstance(node, ast.Name):
            column = self._name(node)
            return lambda values: self._truth(node.id, column(values))
        if isinstance(node, ast.BoolOp):
            parts = self._inner(node.values, depth)
            join = "and_kleene" if isinstance(node.op, ast.And) else "or_kleene"
            return lambda values: reduce(getattr(pc, join), (part(values) for part in parts))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            (inner,) = self._inner((node.operand,), depth)
            return lambda values: pc.invert(inner(values))
        if not isinstance(node, ast.Compare):
            return super()._of(node, depth)
        places = [node.left, *node.comparators]
        if len(node.ops) > 1 and not all(type(each) in _COMPARISONS for each in node.ops):
            raise self.refused("`in` and `is` cannot be chained with other comparisons")
        if not any(isinstance(part, ast.Name) for part in places[:2]):
            raise self.refused("a comparison names no column")
        steps = [self._compare(*step) for step in zip(places, node.ops, node.comparators, strict=False)]
        return lambda values: reduce(pc.and_kleene, (step(values) for step in steps))

    def _truth(self, name: str, values: Any) -> Any:
        if pa.types.is_boolean(values.type):
            return values
        raise self.refused(f"the column {name!r} is {values.type} and no truth value; compare it")

    def _compare(self, left: ast.expr, how: ast.cmpop, right: ast.expr) -> _Evaluate:
        one = self._operand(left)
        if isinstance(how, (ast.Is, ast.IsNot)):
            if not isinstance(right, ast.Constant) or right.value is not None:
                raise self.refused("after `is`, None is needed")
            test = "is_null" if isinstance(how, ast.Is) else "is_valid"
            return lambda values: getattr(pc, test)(one(values))
        if isinstance(how, (ast.In, ast.NotIn)):
            elements = right.elts if isinstance(right, (ast.List, ast.Tuple, ast.Set)) else [right]
            if elements == [right] or not all(map(_is_constant, elements)):
                raise self.refused("after `in`, a list of numbers or texts is needed")
            items, is_in = [ast.literal_eval(item) for item in elements], isinstance(how, ast.In)
            return lambda values: _contained(one(values), items, is_in)
        other, test = self._operand(right), _COMPARISONS[type(how)]
        return lambda values: getattr(pc, test)(*_alike(one(values), other(values)))

    def _operand(self, node: ast.expr) -> _Evaluate:
        if isinstance(node, ast.Name):
            return self._name(node)
        if not _is_constant(node):
            raise self.refused(f"a {type(node).__name__} is not allowed")
        value = ast.literal_eval(node)
        return lambda values: value


_PARSERS: Mapping[str, type[_ExpressionParser]] = {"filter": _FilterParser, "formula": _FormulaParser}


def _is_constant(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        node = node.operand
        return isinstance(node, ast.Constant) and type(node.value) in (int, float)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float, str, bool)


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    """Return two operands as Arrow has them; an integer gets the type of the column if it fits."""
    column = left if hasattr(left, "type") else right
    return _scalar(left, column), _scalar(right, column)


def _scalar(value: Any, column: Any) -> Any:
    if hasattr(value, "type"):
        return value
    if pa.types.is_integer(getattr(column, "type", pa.null())):
        value = int(value) if isinstance(value, float) and value.is_integer() else value
        if type(value) is int:
            with suppress(pa.ArrowInvalid, OverflowError):  # Arrow compares what the column cannot have
                return pa.scalar(value, column.type)
    return pa.scalar(value)


def _contained(values: Any, items: list[Any], is_in: bool) -> Any:
    """Return whether each value is one of the items, by the rules of ``==``."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    for item in {type(item): item for item in items}.values():
        pc.equal(values.slice(0, 0), _scalar(item, values))  # raises for a type that cannot be compared
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        found = pc.is_in(values, value_set=pa.array(items, values.type))
    elif pa.types.is_integer(values.type):  # the others are no values of such a column
        scalars = [_scalar(item, values) for item in items]
        kept = [item.as_py() for item in scalars if item.type == values.type]
        found = pc.is_in(values, value_set=pa.array(kept, values.type))
    else:
        none = pa.repeat(pa.scalar(False), len(values))
        found = reduce(pc.or_, (pc.equal(values, pa.scalar(item)) for item in items), none)
    return pc.if_else(pc.is_valid(values), found if is_in else pc.invert(found), pa.scalar(None, pa.bool_()))
