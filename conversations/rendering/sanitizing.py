"""The last word on what reaches a page: nh3 with the only elements, attributes, classes and schemes there are."""

import nh3

TEXT = {"a", "blockquote", "br", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p",
        "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"}  # fmt: skip
MATH = {"math", "menclose", "mfrac", "mi", "mn", "mo", "mover", "mphantom", "mroot", "mrow", "mspace", "msqrt",
        "mstyle", "msub", "msubsup", "msup", "mtable", "mtd", "mtext", "mtr", "munder", "munderover"}  # fmt: skip
ELEMENTS = TEXT | MATH
ATTRIBUTES = {
    "a": {"href"},
    "ol": {"start"},
    "mfrac": {"linethickness"},
    "mi": {"mathvariant"},
    "mo": {"fence", "form", "largeop", "maxsize", "minsize", "movablelimits", "separator", "stretchy"},
    "mover": {"accent"},
    "mspace": {"width"},
    "mstyle": {"displaystyle", "scriptlevel"},
    "mtable": {"columnspacing", "rowspacing"},
    "mtd": {"columnalign"},
    "munder": {"accentunder"},
}
VALUES = {
    "math": {"display": {"block", "inline"}},
    "menclose": {"notation": {"box", "circle", "downdiagonalstrike", "horizontalstrike", "updiagonalstrike"}},
    "td": {"align": {"left", "center", "right"}},
    "th": {"align": {"left", "center", "right"}},
}
TOKENS = ("attribute", "builtin", "comment", "constant", "deleted", "heading", "inserted", "keyword", "name", "number",
          "prompt", "string", "tag")  # fmt: skip
CLASSES = {
    "code": {"md-math"},
    "div": {"code", "code-head", "md-table"},
    "p": {"md-raw"},
    "pre": {"md-plain"},
    "span": {"md-formula", "md-task", *(f"md-{token}" for token in TOKENS)},
}
SCHEMES = {"http", "https", "mailto"}
REL = "noopener noreferrer nofollow"

_cleaner = nh3.Cleaner(
    tags=ELEMENTS,
    attributes=ATTRIBUTES,
    tag_attribute_values=VALUES,
    allowed_classes=CLASSES,
    url_schemes=SCHEMES,
    url_relative="deny",
    link_rel=REL,
    set_tag_attribute_values={
        "a": {"target": "_blank"},
        # Their marks and columns stand where their text begins.
        **{container: {"dir": "auto"} for container in ("blockquote", "ol", "table", "ul")},
    },
    strip_comments=True,
)


def clean(block: str) -> str:
    """`block` with nothing in it that is not listed here, well formed; may be empty."""
    return _cleaner.clean(block).strip()
