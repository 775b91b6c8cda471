"""Laws for the tests: wrong ones, true ones that the field does not know, files that are broken."""

WRONG = {
    "a sum of products is no product of sums": ("indexed", "(rewrite (Sum i (Mul x y)) (Mul (Sum i x) (Sum i y)))"),
    "a sum of quotients is no quotient of sums": ("indexed", "(rewrite (Sum i (Div x y)) (Div (Sum i x) (Sum i y)))"),
    "exp is not additive": ("indexed", "(rewrite (Exp (Add x y)) (Add (Exp x) (Exp y)))"),
    "sqrt is not additive": ("indexed", "(rewrite (Sqrt (Add x y)) (Add (Sqrt x) (Sqrt y)))"),
    "division does not associate": ("indexed", "(rewrite (Div x (Div y z)) (Div (Div x y) z))"),
    "an unguarded factor leaves a sum": ("indexed", "(rewrite (Sum i (Mul x y)) (Mul (Sum i x) y))"),
    "a mean is no sum": ("indexed", "(rewrite (Mean i x) (Sum i x))"),
    "a root of a square loses the sign": ("indexed", "(rewrite (Sqrt (Square x)) x)"),
    "a sum varies with no less than its operands": ("indexed", "(rule ((= e (Add x y)) (= a (axes x))) ((set (axes e) a)))"),
    "what is no part is not below": ("indexed", "(rule ((below e) (= e (Add x y))) ((below (Exp x))))"),
    "a guard the wrong way round": (
        "indexed",
        "(rewrite (Sum i (Mul x y)) (Mul (Sum i x) y) :when ((= a (axes y)) (set-contains a i)))",
    ),
    "sizes of sums multiply": ("abstract", "(rewrite (Sum i (Sum j x)) (Sum (+ i j) x))"),
    "an abstract sum of products": ("abstract", "(rewrite (Sum i (Mul x y)) (Mul (Sum i x) (Sum i y)))"),
    "an abstract sum of quotients": ("abstract", "(rewrite (Sum i (Div x y)) (Div (Sum i x) (Sum i y)))"),
}

TWO = "(bigrat (bigint 2) (bigint 1))"
TRUE_BUT_NOT_IN_THE_FIELD = {
    "the square of a root": "(rewrite (Square (Sqrt x)) x)",
    "relu scales": f"(rewrite (Relu (Scale {TWO} x)) (Scale {TWO} (Relu x)))",
    "relu scales by any positive constant": (
        "(rewrite (Relu (Scale c x)) (Scale c (Relu x)) :when ((> c (bigrat (bigint 0) (bigint 1)))))"
    ),
    "tanh is odd": (
        "(rewrite (Tanh (Scale (bigrat (bigint -1) (bigint 1)) x)) (Scale (bigrat (bigint -1) (bigint 1)) (Tanh x)))"
    ),
    "exp undoes log": "(rewrite (Exp (Log x)) x)",
}

CANCELLATION = {
    "(x·y)/y = x": "(rewrite (Div (Mul x y) y) x)",
    "(x+y)−y = x": "(rewrite (Sub (Add x y) y) x)",
    "as a rule": "(rule ((= e (Div (Mul x y) y))) ((union e x)))",
}

GROWS_FOREVER = "(rewrite (Mul x y) (Mul (Mul x y) (Exp (Sub x x))))"
