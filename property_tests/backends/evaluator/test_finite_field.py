"""The finite field is a field, its matrix products are exact, and exp turns sums into products."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_eg.backends.evaluator.elementwise_kernels import in_chunks
from mirage_eg.backends.evaluator.evaluate import evaluate
from mirage_eg.backends.evaluator.field_semantics import Component, rational
from mirage_eg.backends.evaluator.finite_field import FieldAlgebra, FieldValue
from mirage_eg.backends.evaluator.modular_arithmetic import (
    PRIMES,
    longest_product,
    modulus,
    primitive_root,
    residues,
    residues_of_sums,
)
from mirage_eg.ir.builder import KernelGraph, Tensor
from mirage_eg.ir.graph import Graph

SEEDS = st.integers(0, 2**32 - 1)
LEVELS = pytest.mark.parametrize("k", [0, 1, 2])
RATIONALS = st.fractions(max_denominator=1000)


def draws(seed: int, shape: tuple[int, ...] = (4, 5)) -> tuple[FieldAlgebra, list[FieldValue]]:
    algebra = FieldAlgebra.of(seed)
    return algebra, [algebra.input(place, shape) for place in range(3)]


def apply(algebra: FieldAlgebra, op: str, *operands: FieldValue, **attributes: Any) -> FieldValue:
    return algebra.elementwise(op, operands, attributes)


def same(algebra: FieldAlgebra, x: FieldValue, y: FieldValue, k: int = 0) -> bool:
    """Equal where both are defined, which is nearly everywhere."""
    left, right = algebra.read([x, y], k)
    defined = ~(mask(left) | mask(right))
    assert defined.mean() > 0.5
    return bool((left.residues == right.residues)[defined].all())


def mask(component: Component) -> np.ndarray:
    return np.zeros(component.residues.shape, bool) if component.undefined is None else component.undefined


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def test_the_primes_form_a_chain_and_are_3_modulo_4() -> None:
    p, q, r = PRIMES
    assert (p, q) == (2 * q + 1, 2 * r + 1)
    assert all(is_prime(prime) and prime % 4 == 3 for prime in PRIMES)


@LEVELS
def test_a_primitive_root_makes_every_residue_but_zero(k: int) -> None:
    assert len({pow(primitive_root(PRIMES[k]), e, PRIMES[k]) for e in range(PRIMES[k] - 1)}) == PRIMES[k] - 1


@given(SEEDS, st.sampled_from([0, 1, 2]))
def test_addition_and_multiplication_are_those_of_a_field(seed: int, k: int) -> None:
    algebra, (x, y, z) = draws(seed)

    def add(a: FieldValue, b: FieldValue) -> FieldValue:
        return apply(algebra, "add", a, b)

    def mul(a: FieldValue, b: FieldValue) -> FieldValue:
        return apply(algebra, "mul", a, b)

    assert same(algebra, add(x, y), add(y, x), k) and same(algebra, mul(x, y), mul(y, x), k)
    assert same(algebra, add(add(x, y), z), add(x, add(y, z)), k)
    assert same(algebra, mul(mul(x, y), z), mul(x, mul(y, z)), k)
    assert same(algebra, mul(x, add(y, z)), add(mul(x, y), mul(x, z)), k)
    assert same(algebra, add(apply(algebra, "sub", x, y), y), x, k)
    assert same(algebra, mul(apply(algebra, "div", x, y), y), x, k)
    assert same(algebra, apply(algebra, "square", x), mul(x, x), k)
    assert not same(algebra, add(x, y), mul(x, y), k)


@given(SEEDS, st.sampled_from([0, 1, 2]), RATIONALS, RATIONALS)
def test_exact_constants_keep_their_arithmetic(seed: int, k: int, a: Fraction, b: Fraction) -> None:
    algebra, (x, *_) = draws(seed)

    def scaled(c: Fraction) -> FieldValue:
        return apply(algebra, "scale", x, factor=c)

    def shifted(c: Fraction) -> FieldValue:
        return apply(algebra, "shift", x, offset=c)

    assert same(algebra, apply(algebra, "add", scaled(a), scaled(b)), scaled(a + b), k)
    assert same(algebra, apply(algebra, "scale", scaled(a), factor=b), scaled(a * b), k)
    assert same(algebra, apply(algebra, "shift", shifted(a), offset=b), shifted(a + b), k)
    if a != b:
        assert not same(algebra, scaled(a), scaled(b), k) and not same(algebra, shifted(a), shifted(b), k)


@given(RATIONALS, st.sampled_from(PRIMES))
def test_a_constant_is_numerator_over_denominator(value: Fraction, prime: int) -> None:
    residue = rational(value, prime)
    assert residue is not None and (residue * value.denominator - value.numerator) % prime == 0


def test_a_constant_whose_denominator_the_prime_divides_is_undefined() -> None:
    algebra, (x, *_) = draws(0)
    [component] = algebra.read([apply(algebra, "scale", x, factor=Fraction(1, PRIMES[0]))])
    assert mask(component).all()


@given(SEEDS, st.integers(-9, 9))
def test_whole_powers_are_repeated_products(seed: int, exponent: int) -> None:
    algebra, (x, *_) = draws(seed)
    product = apply(algebra, "div", x, x)
    for _ in range(abs(exponent)):
        product = apply(algebra, "mul" if exponent > 0 else "div", product, x)
    assert same(algebra, apply(algebra, "pow", x, exponent=Fraction(exponent)), product)


@given(SEEDS, st.sampled_from([0, 1]))
def test_exp_turns_sums_into_products(seed: int, k: int) -> None:
    algebra, (x, y, _) = draws(seed)
    left = apply(algebra, "exp", apply(algebra, "add", x, y))
    assert same(algebra, left, apply(algebra, "mul", apply(algebra, "exp", x), apply(algebra, "exp", y)), k)
    assert not same(algebra, left, apply(algebra, "add", apply(algebra, "exp", x), apply(algebra, "exp", y)), k)


@given(SEEDS)
def test_exp_is_never_undefined_zero_or_one_of_too_few_values(seed: int) -> None:
    algebra, (x, *_) = draws(seed, (50, 50))
    [component] = algebra.read([apply(algebra, "exp", x)])
    assert component.undefined is None and bool((component.residues > 0).all())
    assert len(np.unique(component.residues)) > 2400


@given(SEEDS, st.sampled_from([0, 1]))
def test_sigmoid_and_silu_are_what_exp_makes_them(seed: int, k: int) -> None:
    algebra, (x, *_) = draws(seed)
    exponential = apply(algebra, "exp", apply(algebra, "scale", x, factor=Fraction(-1)))
    denominator = apply(algebra, "shift", exponential, offset=Fraction(1))
    one = apply(algebra, "div", x, x)
    assert same(algebra, apply(algebra, "sigmoid", x), apply(algebra, "div", one, denominator), k)
    assert same(algebra, apply(algebra, "silu", x), apply(algebra, "div", x, denominator), k)
    assert not same(algebra, apply(algebra, "silu", x), apply(algebra, "sigmoid", x), k)


@given(SEEDS, st.sampled_from([0, 1, 2]))
def test_roots_are_multiplicative_and_square_to_plus_or_minus_the_value(seed: int, k: int) -> None:
    algebra, (x, y, _) = draws(seed)
    root = apply(algebra, "sqrt", x)
    both = apply(algebra, "sqrt", apply(algebra, "mul", x, y))
    assert same(algebra, both, apply(algebra, "mul", root, apply(algebra, "sqrt", y)), k)
    assert same(algebra, apply(algebra, "rsqrt", x), apply(algebra, "div", apply(algebra, "div", x, x), root), k)
    squared, plain = (component.residues for component in algebra.read([apply(algebra, "square", root), x], k))
    assert bool(((squared == plain) | (squared + plain == PRIMES[k])).all())
    assert root.unfaithful == {"sqrt"}


@given(SEEDS, st.sampled_from(["relu", "gelu", "tanh", "log"]))
def test_a_keyed_random_function_agrees_on_equal_arguments_and_on_no_others(seed: int, op: str) -> None:
    algebra, (x, y, _) = draws(seed)
    left, right = (apply(algebra, "add", *pair) for pair in ((x, y), (y, x)))
    assert same(algebra, apply(algebra, op, left), apply(algebra, op, right))
    assert not same(algebra, apply(algebra, op, x), apply(algebra, op, y))
    assert not same(algebra, apply(algebra, op, x), x)
    assert apply(algebra, op, x).unfaithful == {op}


@given(SEEDS)
def test_the_parameters_of_a_random_function_belong_to_its_key(seed: int) -> None:
    algebra, (x, *_) = draws(seed)

    def clamp(low: str, high: str) -> FieldValue:
        return apply(algebra, "clamp", x, low=Fraction(low), high=Fraction(high))

    assert same(algebra, clamp("0", "1/2"), clamp("0", "0.5"))
    assert not same(algebra, clamp("0", "1/2"), clamp("0", "1/3"))
    third, fifth = (apply(algebra, "pow", x, exponent=Fraction(1, n)) for n in (3, 5))
    assert not same(algebra, third, fifth)


@given(SEEDS, st.sampled_from([0, 1, 2]))
def test_maxima_of_tiles_have_the_maximum_of_the_whole_as_their_maximum(seed: int, k: int) -> None:
    algebra, (x, *_) = draws(seed, (6, 8))
    tiles = algebra.view(x, (6, 2, 4), lambda array: array.reshape(6, 2, 4))
    tiled = algebra.reduce("max", algebra.reduce("max", tiles, (-1,)), (-2,))
    whole = algebra.reduce("max", x, (-1,))
    assert same(algebra, algebra.view(tiled, (6, 1), lambda array: array.reshape(6, 1)), whole, k)
    [largest], [everything] = algebra.read([whole], k), algebra.read([x], k)
    assert bool((largest.residues == everything.residues).any(axis=1).all()), "a maximum is one of the values"


@given(SEEDS, st.sampled_from([0, 1, 2]))
def test_the_maximum_of_half_the_values_is_that_of_all_about_half_the_time(seed: int, k: int) -> None:
    algebra, (x, *_) = draws(seed, (1000, 8))
    half = algebra.view(x, (1000, 4), lambda array: array[:, :4])
    part, whole = algebra.read([algebra.reduce("max", half, (-1,)), algebra.reduce("max", x, (-1,))], k)
    assert 350 < int((part.residues == whole.residues).sum()) < 650


GROWING: dict[str, dict[str, Fraction]] = {
    "relu": {},
    "clamp": {"low": Fraction(-1), "high": Fraction(6)},
    "tanh": {},
    "log": {},
}


@given(SEEDS, st.sampled_from([0, 1, 2]), st.sampled_from(sorted(GROWING)))
def test_functions_that_grow_commute_with_maxima(seed: int, k: int, op: str) -> None:
    algebra, (x, y, _) = draws(seed, (40, 8))

    def function(value: FieldValue) -> FieldValue:
        return apply(algebra, op, value, **GROWING[op])

    for dims in ((-1,), (-2,), (-1, -2)):
        maximum = algebra.reduce("max", x, dims)
        assert same(algebra, function(maximum), algebra.reduce("max", function(x), dims), k)
    rows = (-1,)
    assert not same(algebra, function(algebra.reduce("max", x, rows)), algebra.reduce("max", x, rows), k)
    assert not same(algebra, function(algebra.reduce("sum", x, rows)), algebra.reduce("sum", function(x), rows), k)
    assert same(algebra, function(function(x)), function(x), k) == (op in ("relu", "clamp"))
    others = [apply(algebra, other, x, **GROWING[other]) for other in GROWING if other != op]
    assert not any(same(algebra, function(x), other, k) for other in (x, function(y), *others))
    for other in GROWING:
        if other != op:
            inner, outer = apply(algebra, other, function(x), **GROWING[other]), function(others[0])
            assert not same(algebra, inner, function(x), k) and not same(algebra, inner, outer, k)


@given(SEEDS)
def test_clamps_to_other_bounds_are_other_functions(seed: int) -> None:
    algebra, (x, *_) = draws(seed, (40, 8))
    inner, outer = (apply(algebra, "clamp", x, low=Fraction(0), high=Fraction(high)) for high in (1, 2))
    assert not same(algebra, inner, outer)
    assert not same(algebra, apply(algebra, "clamp", outer, low=Fraction(0), high=Fraction(1)), outer)


@given(SEEDS, st.sampled_from([0, 1, 2]))
def test_what_is_false_of_relu_is_false_in_the_field(seed: int, k: int) -> None:
    algebra, (x, y, _) = draws(seed, (40, 8))

    def relu(value: FieldValue) -> FieldValue:
        return apply(algebra, "relu", value)

    def scaled(factor: int, value: FieldValue) -> FieldValue:
        return apply(algebra, "scale", value, factor=Fraction(factor))

    zero, both = apply(algebra, "sub", x, x), apply(algebra, "add", x, y)
    for other in (x, zero, scaled(-1, x), relu(scaled(-1, x)), relu(both), scaled(2, relu(x))):
        assert not same(algebra, relu(x), other, k)
    assert not same(algebra, relu(both), apply(algebra, "add", relu(x), relu(y)), k)
    assert not same(algebra, relu(scaled(-3, x)), scaled(-3, relu(x)), k)
    maximum = algebra.reduce("max", x, (-1,))
    half = algebra.view(x, (40, 4), lambda array: array[:, :4])
    for other in (maximum, relu(algebra.reduce("max", half, (-1,))), algebra.reduce("sum", relu(x), (-1,))):
        assert not same(algebra, relu(maximum), other, k)


@pytest.mark.parametrize("count", [1, 4, 64, 4096])
def test_a_relu_behind_a_maximum_of_many_is_not_taken_for_nothing(count: int) -> None:
    algebra = FieldAlgebra.of(3)
    maximum = algebra.reduce("max", algebra.input(0, (16, count)), (-1,))
    for value in (maximum, apply(algebra, "scale", maximum, factor=Fraction(-1))):  # numbers: nearly always > 0, and < 0
        assert not same(algebra, apply(algebra, "relu", value), value)
        assert not same(algebra, apply(algebra, "relu", value), apply(algebra, "sub", value, value))


def exact_product(x: np.ndarray, y: np.ndarray, prime: int) -> np.ndarray:
    """By Python's whole numbers."""
    return np.array(
        [[sum(int(a) * int(b) for a, b in zip(row, column, strict=True)) % prime for column in y.T] for row in x], dtype=float
    )


@LEVELS
def test_the_longest_unsplit_product_of_the_largest_residues_is_exact(k: int) -> None:
    prime, longest = PRIMES[k], longest_product(PRIMES[k])
    assert longest * (prime - 1) ** 2 < 2**53 <= (longest + 1) * (prime - 1) ** 2 + 2 * prime
    for count in (longest - 1, longest, longest + 1, 2 * longest + 3):
        x, y = np.full((2, count), prime - 1.0), np.full((count, 2), prime - 1.0)
        assert bool((modulus(prime).matmul(x, y) == count % prime).all())  # (−1)·(−1) summed


def test_a_product_of_p_is_split_behind_8374_terms() -> None:
    assert longest_product(PRIMES[0]) == 8374


@LEVELS
def test_long_products_of_random_residues_equal_those_of_python_integers(k: int) -> None:
    prime = PRIMES[k]
    for count in (8374, 8375, 20_000):
        generator = np.random.default_rng(count)
        # Most of the residues close to the largest, where sums are largest.
        x, y = (prime - 1.0 - np.floor(generator.random(shape) ** 8 * prime) for shape in ((2, count), (count, 3)))
        np.testing.assert_array_equal(modulus(prime).matmul(x, y), exact_product(x, y, prime))


@given(st.integers(-(2**48) + 1, 2**48 - 1), st.sampled_from([prime - i for prime in PRIMES for i in (0, 1)]))
def test_reduction_modulo_a_prime_is_exact_for_products(number: int, prime: int) -> None:
    nearest = number - number % prime  # multiples of the prime and their neighbours are where rounding could hurt
    for value in (number, nearest, nearest - 1, nearest + 1):
        assert residues(np.array([float(value)]), prime)[0] == value % prime


@given(st.integers(0, 2**53 - 2 * PRIMES[0] - 2), st.sampled_from(PRIMES))
def test_reduction_modulo_a_prime_is_exact_for_sums(number: int, prime: int) -> None:
    nearest = number - number % prime
    for value in (number, nearest, max(0, nearest - 1), nearest + 1):
        assert residues_of_sums(np.array([float(value)]), prime)[0] == value % prime


@pytest.mark.parametrize("shape", [(), (1,), (70_000,), (3, 50_000), (40, 7, 900), (2, 1, 66_000)])
def test_working_in_pieces_changes_nothing(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).random(shape)
    y = x[..., :1] if shape else x
    np.testing.assert_array_equal(in_chunks(lambda a, b: a * b + 1, x, y), x * y + 1)


@given(SEEDS)
def test_division_by_zero_is_undefined_and_spreads_to_its_readers_alone(seed: int) -> None:
    algebra = FieldAlgebra.of(seed)
    numbers = np.arange(12.0).reshape(3, 4)  # a single zero, at [0, 0]
    x = algebra.given([Component(numbers), Component(numbers), Component(numbers)])
    y = algebra.input(0, (4, 2))
    quotient = apply(algebra, "div", x, x)
    wanted = numbers == 0
    for op in ("exp", "sqrt", "relu", "square", "sigmoid"):
        [component] = algebra.read([apply(algebra, op, quotient)])
        np.testing.assert_array_equal(mask(component), wanted)
    [row] = algebra.read([algebra.reduce("sum", quotient, (-1,))])
    np.testing.assert_array_equal(mask(row), wanted.any(axis=1, keepdims=True))
    [product] = algebra.read([algebra.matmul(quotient, y)])
    np.testing.assert_array_equal(mask(product), np.repeat(wanted.any(axis=1, keepdims=True), 2, axis=1))
    [inverse] = algebra.read([apply(algebra, "rsqrt", x)])
    np.testing.assert_array_equal(mask(inverse), wanted)
    [untouched] = algebra.read([apply(algebra, "mul", x, x)])
    assert untouched.undefined is None


def test_a_sum_of_differences_that_cancels_is_divided_by_nowhere() -> None:
    algebra, (x, *_) = draws(0)
    zero = apply(algebra, "sub", x, x)
    [component] = algebra.read([apply(algebra, "div", x, zero)])
    assert mask(component).all()


def softmax(shifted: bool, wrong: bool = False) -> Graph:
    program = KernelGraph()
    x, c = program.new_input((3, 5)), program.new_input((3, 1))
    scores = program.add(x, c) if shifted else x
    exponentials: Tensor = program.exp(scores)
    total = program.reduction(program.exp(x) if wrong else exponentials, 1)
    program.mark_output(program.div(exponentials, total))
    return program.graph()


@given(SEEDS)
def test_softmax_does_not_depend_on_a_shift_of_its_rows(seed: int) -> None:
    algebra = FieldAlgebra.of(seed)
    inputs = [algebra.input(0, (3, 5)), algebra.input(1, (3, 1))]
    plain, shifted, wrong = (
        evaluate(graph, inputs, algebra)[0] for graph in (softmax(False), softmax(True), softmax(True, wrong=True))
    )
    assert same(algebra, plain, shifted)
    assert not same(algebra, plain, wrong)


@given(SEEDS)
def test_two_exponentials_on_a_path_are_exact_and_a_third_is_marked(seed: int) -> None:
    algebra, (x, y, _) = draws(seed)
    once = apply(algebra, "exp", apply(algebra, "add", x, y))
    twice = apply(algebra, "exp", once)
    # exp(exp(x + y)) = exp(exp(x) · exp(y)) needs the law one level down.
    again = apply(algebra, "exp", apply(algebra, "mul", apply(algebra, "exp", x), apply(algebra, "exp", y)))
    assert same(algebra, twice, again) and not twice.unfaithful
    third, other = apply(algebra, "exp", twice), apply(algebra, "exp", again)
    assert third.unfaithful == {"exp beyond the prime chain"}
    assert same(algebra, third, other), "equal arguments agree, also beyond the chain"


@given(SEEDS, st.integers(0, 5))
def test_the_same_seed_draws_the_same_and_another_draw_draws_anew(seed: int, number: int) -> None:
    def sample(draw: int) -> np.ndarray:
        algebra = FieldAlgebra.of(seed, draw)
        x = algebra.input(0, (20,))
        first, second = algebra.read([apply(algebra, "exp", x), apply(algebra, "relu", x)])
        return np.stack([algebra.read([x])[0].residues, first.residues, second.residues])

    np.testing.assert_array_equal(sample(number), sample(number))
    assert not (sample(number) == sample(number + 1)).all(axis=1).any()


def test_inputs_are_uniform_and_independent_as_are_their_components() -> None:
    algebra = FieldAlgebra.of(7)
    values = [algebra.input(place, (20_000,)) for place in range(2)]
    samples = [algebra.read([value], k)[0].residues / PRIMES[k] for value in values for k in range(3)]
    for sample in samples:
        assert 0 <= sample.min() and sample.max() < 1 and abs(sample.mean() - 0.5) < 0.01
    correlation = np.corrcoef(samples) - np.eye(6)
    assert np.abs(correlation).max() < 0.03


def test_components_that_nothing_reads_are_not_computed() -> None:
    algebra, (x, y, _) = draws(0)
    asked: list[tuple[str, int]] = []

    def watched(name: str, value: FieldValue) -> FieldValue:
        def computation(k: int) -> Any:
            asked.append((name, k))
            return value.computation(k)

        return FieldValue(value.shape, value.levels, value.unfaithful, computation)

    exponential = apply(algebra, "exp", watched("x", x))
    algebra.read([apply(algebra, "mul", exponential, watched("y", y))])
    assert sorted(asked) == [("x", 1), ("y", 0)]


def test_a_graph_of_ten_thousand_ops_in_a_row_is_no_problem() -> None:
    algebra, (x, *_) = draws(0)
    for _ in range(10_000):
        x = apply(algebra, "shift", x, offset=Fraction(1))
    assert algebra.read([x])[0].residues.shape == (4, 5)


@given(SEEDS)
@LEVELS
def test_the_maximum_of_indicators_is_one_where_one_of_them_is(k: int, seed: int) -> None:
    """So a row of a mask that is false everywhere differs from the other rows, as in numbers."""
    algebra, [x, *_] = draws(seed, (8, 3))
    ones = apply(algebra, "pow", x, exponent=Fraction(0))
    bits = apply(algebra, "less", x, apply(algebra, "scale", x, factor=Fraction(2)))
    some = algebra.reduce("max", bits, (1,))
    [read, largest] = algebra.read([bits, some], k)
    assert (largest.residues == read.residues.max(axis=1, keepdims=True)).all()
    assert same(algebra, apply(algebra, "maximum", bits, ones), ones, k)
