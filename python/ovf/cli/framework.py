"""click itself, or rich-click when help is asked for.

rich-click takes longer to import than most dumps to read, and only help needs it. A third of click's own time goes to
modules of the standard library that a run without help hardly needs: while click is imported, small things stand in
their place, that get the module itself when more is wanted of them. Other importers always get the module.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Later(ModuleType):
    """Stands in place of the module of its name."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the module holds
        """Get it from the module itself; what the import system asks every module for it has not."""
        if name.startswith("__"):
            raise AttributeError(name)
        import importlib  # noqa: PLC0415 - seldom needed

        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class _Inspect(_Later):
    def cleandoc(self, doc: str) -> str:
        """A text of one line has no indentation but its own: so are the help texts of options."""
        if "\n" not in doc and "\t" not in doc:
            return doc.lstrip()
        cleaned: str = self.__getattr__("cleandoc")(doc)
        return cleaned


class _Gettext(_Later):
    """The words of click as they are: ovf speaks one language, and binds no catalogue of another."""

    @staticmethod
    def gettext(message: str) -> str:
        """The message."""
        return message

    @staticmethod
    def ngettext(one: str, many: str, count: int) -> str:
        """One of both messages."""
        return one if count == 1 else many


class _Uuid(_Later):
    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the module holds
        """While click is imported `UUID` is but the parameter of a generic type."""
        if name == "UUID" and sys.modules.get(self.__name__) is self:
            return object
        return super().__getattr__(name)


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Put them where the module is not imported yet."""
    makers = {"inspect": _Inspect, "gettext": _Gettext, "uuid": _Uuid}
    made = {name: make(name) for name, make in makers.items() if name not in sys.modules}
    sys.modules.update(made)
    try:
        yield
    finally:
        for name, module in made.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


if TYPE_CHECKING:
    import rich_click as click
    from rich_click import RichGroup as Group
elif len(sys.argv) > 1 and not {"-h", "--help"} & set(sys.argv):
    with _stand_ins():
        import click
    from click import Group
else:
    import rich_click as click
    from rich_click import RichGroup as Group

    click.rich_click.TEXT_MARKUP = "markdown"

__all__ = ["Group", "click"]
