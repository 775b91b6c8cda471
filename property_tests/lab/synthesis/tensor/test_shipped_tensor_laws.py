"""The shipped laws of whole tensors fire where they hold, and nowhere else; groups of any length follow from them."""

from functools import cache, reduce

import numpy as np
import pytest

from mirage_eg.egraph.rule_files import packaged_files
from mirage_eg.lab.synthesis.derivation import SaturationEffort
from mirage_eg.lab.synthesis.tensor.derivability import TensorQuestion, TensorSession

Shapes = dict[str, tuple[int, ...]]
MATRICES: Shapes = {
    "x": (7, 5),
    "o": (7, 3),
    **{f"w{k}": (5, 11 + k) for k in range(4)},
    **{f"b{k}": (3, 11 + k) for k in range(4)},
}
IMAGES: Shapes = {"x": (2, 4, 9, 8), "y": (6, 4, 3, 3), "z": (8, 4, 3, 3), "u": (6, 4, 1, 1), "s": ()}
HALVES: Shapes = {"x": (2, 4, 9, 8), "y": (6, 2, 3, 3), "z": (8, 2, 3, 3)}  # filters for two groups


@cache
def session() -> TensorSession:
    [_, found] = packaged_files("tensor")  # the laws that `mirage-eg rewrite` loads
    rules = [line for line in found.text.splitlines() if line.startswith("(rewrite")]
    return TensorSession(rules)


def derives(start: str, goal: str, shapes: Shapes) -> bool:
    def ground(term: str) -> str:
        return " ".join(
            f'(Input "{it}")' if it in shapes else it for it in term.replace("(", " ( ").replace(")", " ) ").split()
        )

    return session().derives([TensorQuestion(ground(start), ground(goal), tuple(shapes.items()))], SaturationEffort(3, 20_000))


def joined(axis: int, parts: list[str]) -> str:
    return reduce(lambda left, right: f"(Concat {axis} {left} {right})", parts)


@pytest.mark.parametrize("number", [2, 3, 4])
def test_groups_of_products_are_one_product(number: int) -> None:
    weights = [f"w{k}" for k in range(number)]
    assert derives(joined(1, [f"(Matmul x {w})" for w in weights]), f"(Matmul x {joined(1, weights)})", MATRICES)


@pytest.mark.parametrize("number", [2, 3])
def test_groups_of_products_with_biases_are_one_product(number: int) -> None:
    """A row b of biases is the product of a column o of ones with it."""
    weights, biases = ([f"{name}{k}" for k in range(number)] for name in "wb")
    members = [f"(Add (Matmul x {w}) (Matmul o {b}))" for w, b in zip(weights, biases, strict=True)]
    whole = f"(Add (Matmul x {joined(1, weights)}) (Matmul o {joined(1, biases)}))"
    assert derives(joined(1, members), whole, MATRICES)


def test_members_of_a_group_are_slices_of_its_product() -> None:
    whole = "(Matmul x (Concat 1 (Concat 1 w0 w1) w2))"
    assert derives(f"(Split1 1 23 {whole})", "(Matmul x w2)", MATRICES)
    assert derives(f"(Split1 1 11 (Split0 1 23 {whole}))", "(Matmul x w1)", MATRICES)
    assert not derives(f"(Split1 1 22 {whole})", "(Matmul x w2)", MATRICES)


def test_groups_of_convolutions_are_one_convolution() -> None:
    def goal(window: str) -> tuple[str, str]:
        parts = [f'(Conv2d {window} 1 "none" x {w})' for w in ("y", "z")]
        return joined(1, parts), f'(Conv2d {window} 1 "none" x (Concat 0 y z))'

    for window in ("(Same)", "(Padded 2 2 1 1 1 1 1 1)"):
        assert derives(*goal(window), IMAGES)


def test_filters_of_other_extents_are_not_joined() -> None:
    parts = '(Concat 1 (Conv2d (Same) 1 "none" x y) (Conv2d (Same) 1 "none" x u))'
    assert not derives(parts, '(Conv2d (Same) 1 "none" x (Concat 0 y u))', IMAGES)


def test_grouped_convolutions_are_not_joined() -> None:
    parts = '(Concat 1 (Conv2d (Same) 2 "none" x y) (Conv2d (Same) 2 "none" x z))'
    assert not derives(parts, '(Conv2d (Same) 2 "none" x (Concat 0 y z))', HALVES)


def test_the_joined_grouped_convolution_is_another_function() -> None:
    """Of two groups the first half of the output channels reads the first half of the input: joined filters move the halves."""

    def grouped(x: np.ndarray, w: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return np.concatenate([half @ part.T for half, part in zip(np.split(x, 2, 1), np.split(w, 2), strict=True)], 1)

    draw = np.random.default_rng(0)
    x, y, z = (draw.integers(-5, 6, shape) for shape in ((3, 4), (6, 2), (8, 2)))
    assert not np.array_equal(np.concatenate((grouped(x, y), grouped(x, z)), 1), grouped(x, np.concatenate((y, z))))


def test_kernels_are_enlarged_only_where_the_plane_stays() -> None:
    def enlarged(window: str) -> bool:
        return derives(f'(Conv2d {window} 1 "none" x (Enlarge 3 3 u))', f'(Conv2d {window} 1 "none" x u)', IMAGES)

    assert enlarged("(Same)")
    assert not enlarged("(Padded 2 2 1 1 1 1 1 1)")  # explicit pads: the larger kernel reads elsewhere


def test_factors_pass_products_and_not_relu() -> None:
    assert derives('(Smul (Conv2d (Same) 1 "none" x y) s)', '(Conv2d (Same) 1 "none" x (Smul y s))', IMAGES)
    for function in ("Relu", "MaxPool (Same) 3 3"):
        assert not derives(f"(Smul ({function} x) s)", f"({function} (Smul x s))", IMAGES)


def test_sums_of_kernels_need_equal_extents() -> None:
    def summed(other: str) -> bool:
        goal = f'(Conv2d (Same) 1 "none" x (Add y {other}))'
        return derives(
            f'(Add (Conv2d (Same) 1 "none" x y) (Conv2d (Same) 1 "none" x {other}))', goal, IMAGES | {"v": (6, 4, 3, 3)}
        )

    assert summed("v")
    assert not summed("u")
