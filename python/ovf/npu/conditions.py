"""The three Python functions of torch_npu that the check changes, and the gate beside them.

In ``torch_npu/npu/utils.py`` the functions ``get_npu_overflow_flag``, ``npu_check_overflow`` and
``clear_npu_overflow_flag`` each ask ``is_support_inf_nan()`` once. They are found in the syntax
tree, not by lines. Everything added is an insertion.
"""

from __future__ import annotations

import ast

from ovf.npu.call_site import Insertion, StructureError

PATH = "torch_npu/npu/utils.py"
FUNCTIONS = ("get_npu_overflow_flag", "npu_check_overflow", "clear_npu_overflow_flag")
CONDITION = " and not is_force_overflow_check()"
EXPORT = '"is_force_overflow_check", '
IMPORT = "import os  # for FORCE_OVERFLOW_CHECK\n"

#: The same rule as ForceOverflowCheckVersion.h, which says why it is not the tree's
#: ``_is_gte_cann_version``.
GATE = '''

def _is_cann_release_at_least_910():
    import ctypes
    import re
    try:
        query = ctypes.CDLL("libascendcl.so").aclsysGetCANNVersion
    except (OSError, AttributeError):
        return False
    answer = ctypes.create_string_buffer(1024)
    if query(0, answer) != 0:
        return False
    version = answer.value.decode(errors="replace")
    release = re.fullmatch(r"([0-9]{1,9})[.]([0-9]{1,9})[.][0-9]{1,9}", version)
    return release is not None and (int(release.group(1)), int(release.group(2))) >= (9, 1)


def is_force_overflow_check():
    r"""Whether FORCE_OVERFLOW_CHECK=1 is set and CANN is 9.1.0 or newer."""
    return os.environ.get("FORCE_OVERFLOW_CHECK", "0") == "1" and _is_cann_release_at_least_910()
'''


class _Offsets:
    """Turns the syntax tree's line and UTF-8 column into an offset of the text."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")  # as ast counts them; splitlines() would also cut at form feeds
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def at(self, line: int, column: int) -> int:
        prefix = self._lines[line - 1].encode()[:column]
        return self._starts[line - 1] + len(prefix.decode())

    def after_line(self, line: int) -> int:
        return self._starts[line]


def _function(tree: ast.Module, name: str) -> ast.FunctionDef:
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    if len(found) != 1:
        raise StructureError(f"found {len(found)} definitions of {name}, expected one")
    return found[0]


def _asks_inf_nan(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "is_support_inf_nan"
        and not node.args
        and not node.keywords
    )


def _condition(tree: ast.Module, name: str) -> ast.expr:
    """Find the one plain question in a function, and be sure that it is asked only once."""
    function = _function(tree, name)
    asked = [node for node in ast.walk(function) if _asks_inf_nan(node)]
    tests = [node.test for node in ast.walk(function) if isinstance(node, ast.If) and _asks_inf_nan(node.test)]
    if len(tests) != 1 or len(asked) != 1:
        raise StructureError(f"{name} does not ask is_support_inf_nan() exactly once, as the whole of an if")
    return tests[0]


def _export(tree: ast.Module, offsets: _Offsets) -> list[Insertion]:
    """Name the gate in ``__all__`` in front of its sibling; without ``__all__`` all is exported."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and [getattr(t, "id", None) for t in node.targets] == ["__all__"]:
            if isinstance(node.value, (ast.List, ast.Tuple)):
                for element in node.value.elts:
                    if isinstance(element, ast.Constant) and element.value == "is_support_inf_nan":
                        return [Insertion(offsets.at(element.lineno, element.col_offset), EXPORT)]
            raise StructureError('__all__ does not list "is_support_inf_nan"')
    return []


def plan(text: str) -> list[Insertion]:
    """Work out what to insert into utils.py.

    Args:
        text: The whole file, with line feeds.

    Returns:
        The insertions: the gate, its export, and one extra operand in each of the three conditions.

    Raises:
        StructureError: A function is missing or does not have the expected condition.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise StructureError(f"does not parse: line {error.lineno}: {error.msg}") from error
    offsets = _Offsets(text)
    insertions = _export(tree, offsets)
    for name in FUNCTIONS:
        test = _condition(tree, name)
        assert test.end_lineno is not None  # noqa: S101 - ast.parse always fills it
        assert test.end_col_offset is not None  # noqa: S101
        insertions.append(Insertion(offsets.at(test.end_lineno, test.end_col_offset), CONDITION))
    sibling = _function(tree, "is_support_inf_nan")
    assert sibling.end_lineno is not None  # noqa: S101
    insertions.append(Insertion(offsets.after_line(sibling.end_lineno), GATE))
    imports = [alias for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    if not any(alias.name == "os" and alias.asname in (None, "os") for alias in imports):
        statements = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
        # Nothing may stand before an import from __future__.
        first = next((n for n in statements if not (isinstance(n, ast.ImportFrom) and n.module == "__future__")), None)
        if first is None:
            raise StructureError("imports nothing: where to import os is not known")
        insertions.append(Insertion(offsets.at(first.lineno, 0), IMPORT))
    return insertions


def without(text: str) -> str:
    """Take out what :func:`plan` would have inserted."""
    for inserted in (GATE, IMPORT, EXPORT):
        text = text.replace(inserted, "", 1)
    return text.replace(CONDITION, "", len(FUNCTIONS))
