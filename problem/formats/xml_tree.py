"""XML from untrusted files as a small tree with line numbers.

Entities are refused, not expanded (they can grow without end or read other files), and no document type is fetched.
Knows syntax only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from problem.errors import BadInput
from problem.formats.content import Content

MAX_DEPTH = 200
"""Elements inside elements; deeper files are not machine descriptions."""


@dataclass
class Element:
    """An element: its tag, attributes, children and line in the file."""

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def each(self, tag: str = "") -> Iterator[Element]:
        """Yield this element and all below it in document order, or those with a tag."""
        stack = [self]
        while stack:
            found = stack.pop()
            if not tag or found.tag == tag:
                yield found
            stack.extend(reversed(found.children))


class _Builder:
    """Handlers of the parser; the stack holds the open elements."""

    def __init__(self, source: str, parser: expat.XMLParserType) -> None:
        self.root: Element | None = None
        self._source, self._parser = source, parser
        self._open: list[Element] = []
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.EntityDeclHandler = self.entity

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        element = Element(tag, attributes, self._parser.CurrentLineNumber)
        if len(self._open) >= MAX_DEPTH:
            raise BadInput(f"{self._source}:{element.line}", tag, "nested", f"at most {MAX_DEPTH} elements deep")
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def end(self, tag: str) -> None:
        self._open.pop()

    def entity(self, name: str, *rest: object) -> None:
        where = f"{self._source}:{self._parser.CurrentLineNumber}"
        raise BadInput(where, f"entity {name}", "declared", "XML without entity declarations")


def read_xml(content: Content) -> Element:
    """Return the root element of an XML file.

    Raises
    ------
    BadInput
        On broken XML, entity declarations, or elements that are nested too deep.
    """
    parser = expat.ParserCreate()
    builder = _Builder(content.source, parser)
    try:
        with content.open() as stream:
            parser.ParseFile(stream)
    except expat.ExpatError as error:
        raise BadInput(
            f"{content.source}:{error.lineno}", "document", expat.ErrorString(error.code), "valid XML"
        ) from None
    assert builder.root is not None  # expat refuses a document without elements
    return builder.root
