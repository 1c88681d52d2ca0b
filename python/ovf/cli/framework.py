"""click itself, or rich-click when help is asked for.

rich-click takes longer to import than most dumps to read, and only help needs it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich_click as click
    from rich_click import RichGroup as Group
elif len(sys.argv) > 1 and not {"-h", "--help"} & set(sys.argv):
    import click
    from click import Group
else:
    import rich_click as click
    from rich_click import RichGroup as Group

    click.rich_click.TEXT_MARKUP = "markdown"

__all__ = ["Group", "click"]
