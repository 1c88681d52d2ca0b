"""A strategy of spellings."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from hypothesis import strategies as st

from ovf.testing.encoding import Encoding, NonFinite, Numbers, StackLayout

if TYPE_CHECKING:
    from hypothesis.strategies import DrawFn

HEADER = ("task", "level", "framework", "dump_data_dir", "data")


@st.composite
def encodings(draw: DrawFn) -> Encoding:
    """Draw a spelling.

    Args:
        draw: given by Hypothesis.

    Returns:
        Any spelling that a writer of dumps has used, with header keys in any order.
    """
    header = draw(st.permutations(HEADER))
    return Encoding(
        indent=draw(st.sampled_from((1, 2, 4, None))),
        non_finite=draw(st.sampled_from(get_args(NonFinite))),
        numbers=draw(st.sampled_from(get_args(Numbers))),
        stack=draw(st.sampled_from(get_args(StackLayout))),
        construct=draw(st.booleans()),
        header=tuple(header if draw(st.booleans()) else HEADER),
    )
