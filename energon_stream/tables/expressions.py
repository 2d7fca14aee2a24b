"""Filters over the columns of tables: ``clip > 0.28 and not duplicate``.

An expression is data. It is parsed by Python's parser and never compiled: only the nodes that this module
names are understood, and each becomes a call of a comparison of Arrow. No function, attribute, index or
file can be named.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from energon_stream.errors import ConfigError
from energon_stream.imports import LazyModule

if TYPE_CHECKING:
    from types import ModuleType

pa: ModuleType | Any = LazyModule("pyarrow", "parquet")
pc: ModuleType | Any = LazyModule("pyarrow.compute", "parquet")

_LONGEST = 10_000
_DEEPEST = 64
_COMPARISONS = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
_HINT = (
    "use comparisons of columns with numbers, texts or columns (== != < <= > >=, in [...], is None), "
    "joined by and, or, not"
)


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed expression. A picklable value.

    Attributes:
        text: The expression as it was given.
        columns: Names of the columns that it compares.
    """

    text: str
    columns: tuple[str, ...]

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """Return for each row whether it passes, as a ``BooleanArray``; null where a null decides.

        Args:
            values: Arrow array of each column, all of one length.

        Raises:
            ConfigError: Values of these types cannot be compared, or the result is no truth value.
        """
        tree = _parse(self.text)
        try:
            found = _Evaluation(self.text, values).of(tree)
        except (pa.ArrowException, OverflowError) as error:
            types = ", ".join(f"{name} is {array.type}" for name, array in values.items())
            raise _refused(self.text, f"{' '.join(str(error).split()):.200} ({types})") from error
        return found


def parse_filter(text: Any) -> Filter:
    """Check an expression, without the columns that it names.

    Raises:
        ConfigError: It is no filter: it cannot be parsed, or has a call, an attribute or anything else
            that is
            no comparison.

    Example:
        >>> parse_filter("clip > 0.28 and not duplicate and lang in ['en', 'de']").columns
        ('clip', 'duplicate', 'lang')
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"the filter is {text!r:.80}", hint=_HINT)
    tree = _parse(text)
    _check(text, tree, 0, is_truth=True)
    columns = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    if not columns:
        raise _refused(text, "it names no column")
    return Filter(text, tuple(columns))


def _refused(text: str, why: str) -> ConfigError:
    return ConfigError(f"{text!r:.200} is no filter: {why}", hint=_HINT)


def _parse(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise _refused(text, f"it has {len(text):,} characters, and {_LONGEST:,} are allowed")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise _refused(text, f"{error}") from None
    except (RecursionError, MemoryError):
        raise _refused(text, "it is nested too deeply") from None


def _check(text: str, node: ast.expr, depth: int, *, is_truth: bool) -> None:
    """Refuse all nodes but those that :class:`_Evaluation` understands. ``is_truth``: a truth value is
    needed."""
    if depth > _DEEPEST:
        raise _refused(text, "it is nested too deeply")
    if isinstance(node, ast.Name):
        return
    if isinstance(node, ast.BoolOp) and is_truth:
        for value in node.values:
            _check(text, value, depth + 1, is_truth=True)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not) and is_truth:
        _check(text, node.operand, depth + 1, is_truth=True)
    elif isinstance(node, ast.Compare) and is_truth:
        _check_compare(text, node, depth)
    elif is_truth or not _is_constant(node):
        raise _refused(text, f"a {type(node).__name__} is not allowed")


def _check_compare(text: str, node: ast.Compare, depth: int) -> None:
    _check(text, node.left, depth + 1, is_truth=False)
    for operator, right in zip(node.ops, node.comparators, strict=True):
        if isinstance(operator, (ast.In, ast.NotIn)):
            if not isinstance(right, (ast.List, ast.Tuple, ast.Set)) or not all(
                map(_is_constant, right.elts)
            ):
                raise _refused(text, "after `in`, a list of numbers or texts is needed")
        elif isinstance(operator, (ast.Is, ast.IsNot)):
            if not isinstance(right, ast.Constant) or right.value is not None:
                raise _refused(text, "after `is`, None is needed")
        else:
            _check(text, right, depth + 1, is_truth=False)
    parts = [node.left, *node.comparators]
    if len(node.ops) > 1 and not all(type(operator) in _COMPARISONS for operator in node.ops):
        raise _refused(text, "`in` and `is` cannot be chained with other comparisons")
    if not any(isinstance(part, ast.Name) for part in parts[:2]):
        raise _refused(text, "a comparison names no column")


def _is_constant(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        node = node.operand
        return isinstance(node, ast.Constant) and type(node.value) in (int, float)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float, str, bool)


class _Evaluation:
    """Evaluates the nodes of a checked expression on columns."""

    def __init__(self, text: str, values: Mapping[str, Any]) -> None:
        self._text, self._values = text, values

    def of(self, node: ast.expr) -> Any:
        """Return the truth values of a node."""
        if isinstance(node, ast.BoolOp):
            join: Callable[[Any, Any], Any] = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
            found, *others = map(self.of, node.values)
            for other in others:
                found = join(found, other)
            return found
        if isinstance(node, ast.UnaryOp):
            return pc.invert(self.of(node.operand))
        if isinstance(node, ast.Name):
            column = self._values[node.id]
            if not pa.types.is_boolean(column.type):
                raise _refused(
                    self._text, f"the column {node.id!r} is {column.type} and no truth value; compare it"
                )
            return column
        if not isinstance(node, ast.Compare):
            raise TypeError(f"a {type(node).__name__}")
        found, left = None, node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            one = self._compare(operator, left, right)
            found = one if found is None else pc.and_kleene(found, one)
            left = right
        return found

    def _compare(self, operator: ast.cmpop, left: ast.expr, right: ast.expr) -> Any:
        one = self._value(left)
        if isinstance(operator, (ast.Is, ast.IsNot)):
            return pc.is_null(one) if isinstance(operator, ast.Is) else pc.is_valid(one)
        if isinstance(operator, (ast.In, ast.NotIn)):
            items = [ast.literal_eval(item) for item in right.elts]  # type: ignore[attr-defined]
            found = pc.is_in(one, value_set=pa.array(items, one.type))
            found = pc.invert(found) if isinstance(operator, ast.NotIn) else found
            return pc.if_else(pc.is_valid(one), found, pa.scalar(None, pa.bool_()))
        return getattr(pc, _COMPARISONS[type(operator)])(one, self._value(right))

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self._values[node.id]
        return pa.scalar(ast.literal_eval(node))
