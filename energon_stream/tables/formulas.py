"""Arithmetic over named numbers, such as ``width * height / 196``.

A formula is data, as a filter of :mod:`energon_stream.tables.expressions` is: it is parsed by Python's parser
and never compiled, and only names, numbers, ``+ - * / //`` and parentheses are understood.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from energon_stream.errors import ConfigError

if TYPE_CHECKING:
    from energon_stream.arrays import Float64Array

_LONGEST = 1000
_DEEPEST = 64
_OPERATORS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


@dataclass(frozen=True, slots=True)
class Formula:
    """A parsed formula.

    Attributes:
        text: The formula as it was given.
        names: Names of its numbers.
    """

    text: str
    names: tuple[str, ...]

    def evaluate(self, values: Mapping[str, Float64Array]) -> Float64Array:
        """Return the value of each row. A division by 0 gives no finite number.

        Args:
            values: ``float64``, the values of each name, all of one length.
        """
        with np.errstate(all="ignore"):
            found: Float64Array = _value(_parse(self.text), values)
        return found


def parse_formula(text: str) -> Formula:
    """Check a formula.

    Raises:
        ConfigError: It cannot be parsed, names nothing, or has more than numbers, names and operators.

    Example:
        >>> formula = parse_formula("-(-width // 14) * -(-height // 14)")
        >>> formula.names
        ('width', 'height')
        >>> formula.evaluate({"width": np.array([28.0, 29.0]), "height": np.array([14.0, 14.0])}).tolist()
        [2.0, 3.0]
    """
    tree = _parse(text)
    _check(text, tree, 0)
    names = dict.fromkeys(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    if not names:
        raise _refused(text, "it names nothing")
    return Formula(text, tuple(names))


def _refused(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"{text!r:.200} is no formula: {why}", hint="use names, numbers, + - * / // and parentheses"
    )


def _parse(text: str) -> ast.expr:
    if len(text) > _LONGEST:
        raise _refused(text, f"it has {len(text):,} characters, and {_LONGEST:,} are allowed")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise _refused(text, f"{error}") from None
    except (RecursionError, MemoryError):
        raise _refused(text, "it is nested too deeply") from None


def _check(text: str, node: ast.expr, depth: int) -> None:
    if depth > _DEEPEST:
        raise _refused(text, "it is nested too deeply")
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        _check(text, node.left, depth + 1)
        _check(text, node.right, depth + 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        _check(text, node.operand, depth + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        if isinstance(node.value, bool) or not abs(node.value) < 1e300:
            raise _refused(text, f"{node.value} is not allowed")
    elif not isinstance(node, ast.Name):
        raise _refused(text, f"a {type(node).__name__} is not allowed")


def _value(node: ast.expr, values: Mapping[str, Float64Array]) -> Any:
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_value(node.left, values), _value(node.right, values))
    if isinstance(node, ast.UnaryOp):
        return -_value(node.operand, values)
    if isinstance(node, ast.Name):
        return values[node.id]
    assert isinstance(node, ast.Constant)
    return np.float64(node.value)  # type: ignore[arg-type]
