"""Find the operator that first turned finite numbers into NaN or Inf in a training step's msProbe dumps.

    >>> import ovf
    >>> report = ovf.find_first_overflow("dump/step0")
    >>> report.verdict
    'overflow'
    >>> report.first.rank, report.first.op_name
    (1, 'Torch.exp.0.forward')

Importing this package is cheap: the analysis is loaded when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing itself takes longer to import than a small dump to read
if TYPE_CHECKING:
    from typing import Any

    from ovf._core import DumpFormatError, OvfError, RulesError
    from ovf.analyzer import cross_rank, find_first_overflow, op_table, steps, trace_rank
    from ovf.evidence import Note, RankSummary, Unreadable
    from ovf.extra import Levels, NearMiss
    from ovf.finding import Before, Finding, Frame, Hint, Value
    from ovf.report import Report
    from ovf.spread import Communication, PathStep
    from ovf.step import StepSummary
    from ovf.summaries import summarize

__version__ = "0.1.0"

_HOME = {
    "DumpFormatError": "ovf._core",
    "OvfError": "ovf._core",
    "RulesError": "ovf._core",
    "cross_rank": "ovf.analyzer",
    "find_first_overflow": "ovf.analyzer",
    "op_table": "ovf.analyzer",
    "steps": "ovf.analyzer",
    "summarize": "ovf.summaries",
    "trace_rank": "ovf.analyzer",
    "Before": "ovf.finding",
    "Communication": "ovf.spread",
    "Finding": "ovf.finding",
    "Frame": "ovf.finding",
    "Hint": "ovf.finding",
    "Levels": "ovf.extra",
    "NearMiss": "ovf.extra",
    "Note": "ovf.evidence",
    "PathStep": "ovf.spread",
    "RankSummary": "ovf.evidence",
    "Report": "ovf.report",
    "Unreadable": "ovf.evidence",
    "StepSummary": "ovf.step",
    "Value": "ovf.finding",
}

__all__ = [
    "Before",
    "Communication",
    "DumpFormatError",
    "Finding",
    "Frame",
    "Hint",
    "Levels",
    "NearMiss",
    "Note",
    "OvfError",
    "PathStep",
    "RankSummary",
    "Report",
    "RulesError",
    "StepSummary",
    "Unreadable",
    "Value",
    "__version__",
    "cross_rank",
    "find_first_overflow",
    "op_table",
    "steps",
    "summarize",
    "trace_rank",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the names are typed above
    """Load a public name when it is first asked for (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        msg = f"module 'ovf' has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib  # noqa: PLC0415 - only when a name is used

    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
