"""click itself, or rich-click when help is asked for.

rich-click takes longer to import than most dumps to read, and only help needs it. click itself imports `inspect`, which
takes a fifth of its time, for the indentation of help texts: while click is imported, something that gets `inspect`
when it is needed stands in its place.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

_INSPECT = "inspect"


class _Later(ModuleType):
    """The module `inspect`, imported when more of it is needed than the help text of one line."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the module holds
        """Get it from the module."""
        import importlib  # noqa: PLC0415 - seldom needed

        if sys.modules.get(_INSPECT) is self:
            del sys.modules[_INSPECT]
        return getattr(importlib.import_module(_INSPECT), name)

    def cleandoc(self, doc: str) -> str:
        """As `inspect.cleandoc`: a text of one line has no indentation but its own."""
        if "\n" not in doc and "\t" not in doc:
            return doc.lstrip()
        cleaned: str = self.__getattr__("cleandoc")(doc)
        return cleaned


if TYPE_CHECKING:
    import rich_click as click
    from rich_click import RichGroup as Group
elif len(sys.argv) > 1 and not {"-h", "--help"} & set(sys.argv):
    if not {"click", _INSPECT} & set(sys.modules):
        later = sys.modules[_INSPECT] = _Later(_INSPECT)
        try:
            import click
        finally:
            if sys.modules.get(_INSPECT) is later:
                del sys.modules[_INSPECT]
    import click
    from click import Group
else:
    import rich_click as click
    from rich_click import RichGroup as Group

    click.rich_click.TEXT_MARKUP = "markdown"

__all__ = ["Group", "click"]
