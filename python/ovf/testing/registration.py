"""Tells Hypothesis how to draw the types of `ovf.testing`, when it first draws one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def register_types() -> None:
    """Register strategies for `st.from_type`; the entry point that Hypothesis calls while it is imported.

    The strategies themselves are imported when one is drawn: Hypothesis is not ready before.
    """
    from hypothesis import strategies as st  # noqa: PLC0415 - only Hypothesis calls this

    from ovf.testing import Encoding, Layout, Op, Scalar, Step, TensorStat  # noqa: PLC0415 - as above

    def later(name: str) -> Callable[[Any], Any]:
        def draw(_: Any) -> Any:  # noqa: ANN401 - a strategy of the type that was asked for
            from ovf.testing import strategies  # noqa: PLC0415 - as above

            return getattr(strategies, name)()

        return draw

    rows: dict[type[Any], str] = {
        TensorStat: "tensor_stats",
        Scalar: "scalars",
        Op: "ops",
        Encoding: "encodings",
        Layout: "layouts",
        Step: "steps",
    }
    for kind, name in rows.items():
        st.register_type_strategy(kind, later(name))
