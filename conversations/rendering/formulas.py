"""LaTeX to MathML: latex2mathml's tree, written by us.

Its own writing unescapes what it wrote, so that `\\text{<b>}` would come out as an element; and its tree may carry
addresses, styles and lengths that move a formula over the page. Only what `sanitizing` lists and short lengths are
written.
"""

import html
import re
from xml.etree.ElementTree import Element

from latex2mathml import exceptions
from latex2mathml.converter import Converter

from conversations.rendering.budget import Budget
from conversations.rendering.sanitizing import ATTRIBUTES, MATH, VALUES

LONGEST = 1_500  # code points of one formula
MOST = 10_000  # of all formulas of one text
DEEPEST = 40  # elements
LENGTHS = {"columnspacing", "linethickness", "maxsize", "minsize", "rowspacing", "width"}

_DEFINES = re.compile(r"\\(?:def|newcommand|newenvironment|DeclareMathOperator)")
_WORD = re.compile(r"[a-z0-9-]{1,20}")
_LENGTH = re.compile(r"\+?\d?(?:\.\d{1,4})?(?:em|ex|pt|px)?")
_REFUSED = (
    exceptions.DenominatorNotFoundError, exceptions.DoubleSubscriptsError, exceptions.DoubleSuperscriptsError,
    exceptions.ExtraLeftOrMissingRightError, exceptions.InvalidAlignmentError, exceptions.InvalidStyleForGenfracError,
    exceptions.InvalidWidthError, exceptions.LimitsMustFollowMathOperatorError, exceptions.MissingEndError,
    exceptions.MissingSuperScriptOrSubscriptError, exceptions.NoAvailableTokensError,
    exceptions.NumeratorNotFoundError,
    # What it raises for LaTeX that it does not understand.
    ArithmeticError, AttributeError, LookupError, RuntimeError, StopIteration, TypeError, ValueError,
)  # fmt: skip


class Allowance:
    """How much of one text may still be set as formulas."""

    def __init__(self, budget: Budget) -> None:
        self._left = MOST
        self._budget = budget

    def mathml(self, source: str, block: bool) -> str | None:
        """A `math` element; None for what is no formula, or defines macros: those grow without bound."""
        if len(source) > min(LONGEST, self._left) or self._budget.is_spent() or _DEFINES.search(source):
            return None
        self._left -= len(source)
        with self._budget.spending():
            try:
                return _written(Converter(display="block" if block else "inline").convert_to_element(source))
            except _REFUSED:
                return None


class _TooDeep(ValueError):
    pass


def _written(node: Element, depth: int = 0) -> str:
    if depth > DEEPEST:
        raise _TooDeep
    inside = html.escape(html.unescape(node.text or ""), quote=False)
    inside += "".join(_written(child, depth + 1) for child in node)
    if node.tag not in MATH:
        return f"<mrow>{inside}</mrow>"
    given = "".join(f' {name}="{value}"' for name, value in node.attrib.items() if _allowed(node.tag, name, value))
    return f"<{node.tag}{given}>{inside}</{node.tag}>"


def _allowed(tag: str, name: str, value: str) -> bool:
    if name in VALUES.get(tag, {}):
        return value in VALUES[tag][name]
    fits = _LENGTH.fullmatch(value) if name in LENGTHS else _WORD.fullmatch(value)
    return name in ATTRIBUTES.get(tag, set()) and bool(fits)
