"""Of all programs of up to five ops around one convolution none that is right on more than half of its positions is missed."""

from typing import Any

import pytest

from property_tests.support.every_program import EveryProgram, kind_of, listed_kinds
from property_tests.support.linear_programs import convolution

MORE_THAN_HALF = 0.501

CASES: dict[str, tuple[dict[str, Any], int, int]] = {  # a convolution, and how many programs and kinds there are
    "a row of taps": ({"x_shape": (2, 1, 4, 4), "w_shape": (1, 1, 1, 3), "pads": (0, 1, 0, 1)}, 96720, 24)
}
SLOW: dict[str, tuple[dict[str, Any], int, int]] = {
    "3 × 3": ({"x_shape": (2, 1, 4, 4), "w_shape": (1, 1, 3, 3)}, 330020, 4),
    "strides": ({"x_shape": (2, 1, 8, 4), "w_shape": (1, 1, 3, 3), "strides": (2, 1)}, 2807608, 7),
    "strides of a row": (
        {"x_shape": (2, 1, 4, 8), "w_shape": (1, 1, 1, 3), "pads": (0, 1, 0, 1), "strides": (1, 2)},
        620640,
        21,
    ),
    "no padding": ({"x_shape": (2, 1, 4, 6), "w_shape": (1, 1, 1, 3), "pads": (0, 0, 0, 0)}, 484240, 11),
    "three images": ({"x_shape": (3, 1, 2, 6), "w_shape": (1, 1, 1, 3), "pads": (0, 1, 0, 1)}, 195470, 40),
    "dilation 2": ({"x_shape": (1, 1, 8, 4), "w_shape": (1, 1, 3, 3), "pads": (2,) * 4, "dilations": (2, 2)}, 336503, 3),
    "groups": ({"x_shape": (2, 2, 4, 4), "w_shape": (2, 1, 1, 3), "pads": (0, 1, 0, 1), "groups": 2}, 5014577, 19),
    "channels": ({"x_shape": (2, 2, 4, 2), "w_shape": (2, 2, 1, 3), "pads": (0, 1, 0, 1)}, 4245967, 18),
    "one tap": ({"x_shape": (2, 2, 4, 2), "w_shape": (2, 2, 1, 1), "pads": (0,) * 4}, 773660, 31),
    "two filters of a row": ({"x_shape": (2, 1, 4, 8), "w_shape": (2, 1, 1, 3), "pads": (0, 1, 0, 1)}, 3592739, 30),
}


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_no_program_of_five_ops_is_missed(name: str) -> None:
    given, programs, kinds = (CASES | SLOW)[name]
    program = convolution(**given)
    every, listed = EveryProgram(program, MORE_THAN_HALF), listed_kinds(program, MORE_THAN_HALF)
    found = every.kinds()
    item = every.item
    own = kind_of(given["x_shape"], given["w_shape"], item["strides"], item["dilations"], item["pads"][:2], item["groups"])
    assert found.pop(own) == 1
    missed = {kind: best for kind, best in found.items() if listed.get(kind, 0) < best}
    assert not missed
    assert (every.computed, len(found)) == (programs, kinds)
