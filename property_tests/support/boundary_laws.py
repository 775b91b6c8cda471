# ruff: noqa: E501
"""Pairs of laws, a false one and its true twin, that differ at a boundary: a far threshold, a single point, a narrow gap."""

TWINS = {
    "indexed": """
        # counts and extents past nine
        (rewrite (Clamp 0 50 (Sum i (Less x y))) (Sum i (Less x y)))                      | (rewrite (Relu (Sum i (Less x y))) (Sum i (Less x y)))
        (rewrite (Clamp 0 12 (Sum i (LessEqual x y))) (Sum i (LessEqual x y)))            | (rewrite (Clamp -3 12 (Mean i (LessEqual x y))) (Mean i (LessEqual x y)))
        (rewrite (Minimum (Sum i (Equal x y)) (Const 100)) (Sum i (Equal x y)))           | (rewrite (Minimum (Mean i (Equal x y)) (Const 100)) (Mean i (Equal x y)))
        (rewrite (Clamp 0 30 (Sum i (Less x (Max i x)))) (Sum i (Less x (Max i x))))      | (rewrite (Clamp 0 30 (Mean i (Less x (Max i x)))) (Mean i (Less x (Max i x))))
        (rewrite (Less (Sum i (Sigmoid x)) (Const 77)) (Const 1))                         | (rewrite (Less (Mean i (Sigmoid x)) (Const 77)) (Const 1))
        (rewrite (Relu (Shift -40 (Sum i (Less x y)))) (Scale 0 (Sum i (Less x y))))      | (rewrite (Relu (Shift -40 (Mean i (Less x y)))) (Scale 0 (Mean i (Less x y))))
        (rewrite (Clamp -200 200 (Sum i (Tanh x))) (Sum i (Tanh x)))                      | (rewrite (Clamp -200 200 (Mean i (Tanh x))) (Mean i (Tanh x)))
        (rewrite (Clamp 0 1000 (Sum i (Sum j (Less x y)))) (Sum i (Sum j (Less x y))))    | (rewrite (Clamp 0 1000 (Mean i (Mean j (Less x y)))) (Mean i (Mean j (Less x y))))
        (rewrite (Equal (Sum i (Equal x x)) (Const 37)) (Const 0))                        | (rewrite (Equal (Mean i (Equal x x)) (Const 37)) (Const 0))
        (rewrite (Clamp -9 9 (Log (Sum i (Exp (Sub x x))))) (Log (Sum i (Exp (Sub x x))))) | (rewrite (Clamp -9 9 (Log (Mean i (Exp (Sub x x))))) (Log (Mean i (Exp (Sub x x)))))
        (rewrite (Maximum (Sum i (Less x y)) (Const 1/60)) (Sum i (Less x y)))            | (rewrite (Maximum (Sum i (Less x y)) (Const -1/60)) (Sum i (Less x y)))
        (rewrite (Less (Const 1/60) (Mean i (Equal x (Max i x)))) (Const 1))              | (rewrite (Less (Const 0) (Mean i (Equal x (Max i x)))) (Const 1))
        (rewrite (Sqrt (Square (Shift -65 (Sum i (Less x y))))) (Shift 65 (Scale -1 (Sum i (Less x y)))))  | (rewrite (Sqrt (Square (Shift -65 (Mean i (Less x y))))) (Shift 65 (Scale -1 (Mean i (Less x y)))))
        # thresholds of inner terms
        (rewrite (Clamp -40 40 (Log (Abs x))) (Log (Abs x)))                              | (rewrite (Clamp -800 800 (Log (Abs x))) (Log (Abs x)))
        (rewrite (Clamp -10 5 (Log (Log x))) (Log (Log x)))                               | (rewrite (Clamp -10 7 (Relu (Log (Log x)))) (Relu (Log (Log x))))
        (rewrite (Clamp 0 1000000000000 (Exp x)) (Exp x))                                 | (rewrite (Relu (Exp x)) (Exp x))
        (rewrite (Relu (Shift 30 (Log (Square x)))) (Shift 30 (Log (Square x))))          | (rewrite (Relu (Shift 1500 (Log (Square x)))) (Shift 1500 (Log (Square x))))
        (rewrite (Maximum (Scale -3 (Log (Abs x))) (Const -99)) (Scale -3 (Log (Abs x)))) | (rewrite (Maximum (Scale -3 (Log (Abs x))) (Const -2400)) (Scale -3 (Log (Abs x))))
        (rewrite (Minimum (Softplus x) (Const 60)) (Softplus x))                          | (rewrite (Maximum (Softplus x) (Const -60)) (Softplus x))
        (rewrite (Clamp 0 100000 (Sqrt x)) (Sqrt x))                                      | (rewrite (Relu (Sqrt x)) (Sqrt x))
        (rewrite (Abs (Shift 25 (Log x))) (Shift 25 (Log x)))                             | (rewrite (Abs (Shift 25 (Tanh x))) (Shift 25 (Tanh x)))
        (rewrite (Sqrt (Square (Shift -33 (Log x)))) (Shift 33 (Scale -1 (Log x))))       | (rewrite (Sqrt (Square (Shift -33 (Erf x)))) (Shift 33 (Scale -1 (Erf x))))
        (rewrite (Clamp -20 20 (Log (Exp (Scale 1/9 x)))) (Scale 1/9 x))                  | (rewrite (Log (Exp (Scale 1/9 x))) (Scale 1/9 x))
        (rewrite (Relu (Sub (Exp x) (Const 1/100000000000))) (Sub (Exp x) (Const 1/100000000000)))  | (rewrite (Relu (Add (Exp x) (Const 1/100000000000))) (Add (Exp x) (Const 1/100000000000)))
        (rewrite (Clamp -6 6 (Log (Sigmoid x))) (Log (Sigmoid x)))                        | (rewrite (Minimum (Const 0) (Log (Sigmoid x))) (Log (Sigmoid x)))
        (rewrite (Less (Rsqrt x) (Const 5000000000)) (Equal x x))                         | (rewrite (Less (Scale -1 (Rsqrt x)) (Const 0)) (Div (Sqrt x) (Sqrt x)))
        # nested clamps, extremes and shifts
        (rewrite (Clamp -30 30 (Clamp -25 45 x)) (Clamp -25 45 x))                        | (rewrite (Clamp -30 50 (Clamp -25 45 x)) (Clamp -25 45 x))
        (rewrite (Clamp 17 19 (Clamp 13 18 x)) (Clamp 17 19 x))                           | (rewrite (Clamp 17 19 (Clamp 13 23 x)) (Clamp 17 19 x))
        (rewrite (Relu (Shift -21 (Clamp 20 22 x))) (Clamp 0 1 (Shift -20 x)))            | (rewrite (Relu (Shift -21 (Clamp 20 22 x))) (Clamp 0 1 (Shift -21 x)))
        (rewrite (Maximum (Minimum x (Const 71)) (Const 70)) (Clamp 69 71 x))             | (rewrite (Maximum (Minimum x (Const 71)) (Const 70)) (Clamp 70 71 x))
        (rewrite (Minimum (Relu (Shift 55 x)) (Const 60)) (Clamp -1 60 (Shift 55 x)))     | (rewrite (Minimum (Relu (Shift 55 x)) (Const 60)) (Clamp 0 60 (Shift 55 x)))
        (rewrite (Relu (Relu (Shift -1/90 x))) (Relu (Shift -1/91 x)))                    | (rewrite (Relu (Relu (Shift -1/90 x))) (Relu (Shift -1/90 x)))
        (rewrite (Sub (Relu (Shift 14 x)) (Relu (Shift 13 x))) (Clamp 0 1 (Shift 13 x)))  | (rewrite (Sub (Relu (Shift 14 x)) (Relu (Shift 13 x))) (Clamp 0 1 (Shift 14 x)))
        (rewrite (Add (Relu (Sub x y)) (Relu (Sub y x))) (Maximum (Abs (Sub x y)) (Const 1/1000000000)))  | (rewrite (Add (Relu (Sub x y)) (Relu (Sub y x))) (Abs (Sub x y)))
        (rewrite (Maximum (Abs x) (Abs (Shift -150 x))) (Maximum (Abs (Shift -150 x)) (Const 76)))  | (rewrite (Maximum (Abs x) (Abs (Shift -150 x))) (Shift 75 (Abs (Shift -75 x))))
        (rewrite (Clamp -1 1 (Scale 37 (Tanh x))) (Scale 37 (Clamp -1/38 1/38 (Tanh x)))) | (rewrite (Clamp -1 1 (Scale 37 (Tanh x))) (Scale 37 (Clamp -1/37 1/37 (Tanh x))))
        # comparisons at a computed point
        (rewrite (Equal (Scale 7 x) (Const 22)) (Const 0))                                | (rewrite (Equal (Scale 7 x) (Const 22)) (Equal x (Const 22/7)))
        (rewrite (Less (Scale 13 x) (Const 29)) (LessEqual (Scale 13 x) (Const 29)))      | (rewrite (Less (Scale 13 x) (Const 29)) (Less x (Const 29/13)))
        (rewrite (Equal (Scale 3 x) (Shift 50 (Scale 17 y))) (Const 0))                   | (rewrite (Equal (Scale 3 x) (Shift 50 (Scale 17 y))) (Equal (Scale 17 y) (Shift -50 (Scale 3 x))))
        (rewrite (Equal (Shift 5 (Scale 11 x)) (Scale -8 x)) (Const 0))                   | (rewrite (Equal (Shift 5 (Scale 11 x)) (Scale -8 x)) (Equal (Scale 19 x) (Const -5)))
        (rewrite (Equal (Pow 3 x) (Const 2197)) (Const 0))                                | (rewrite (Equal (Pow 3 x) (Const 2197)) (Equal x (Const 13)))
        (rewrite (Less (Square (Shift -47 x)) (Const 0)) (Equal x (Const 47)))            | (rewrite (Less (Square (Shift -47 x)) (Const 0)) (Less x x))
        (rewrite (LessEqual (Square (Shift -47/3 x)) (Const 0)) (Const 0))                | (rewrite (LessEqual (Square (Shift -47/3 x)) (Const 0)) (Equal (Scale 3 x) (Const 47)))
        (rewrite (Equal (Exp (Shift -31 x)) (Const 1)) (Const 0))                         | (rewrite (Equal (Exp (Shift -31 x)) (Const 1)) (Equal x (Const 31)))
        (rewrite (Equal (Mul (Shift -19 x) (Shift 23 x)) (Const 0)) (Equal x (Const 19))) | (rewrite (Equal (Mul (Shift -19 x) (Shift 23 x)) (Const 0)) (Maximum (Equal x (Const 19)) (Equal x (Const -23))))
        (rewrite (Where (Equal (Scale 9 x) (Const 31)) y z) z)                            | (rewrite (Where (Equal (Scale 9 x) (Const 31)) y z) (Where (Equal x (Const 31/9)) y z))
        (rewrite (Equal (Abs (Shift -18 x)) (Const 1/7)) (Equal x (Const 127/7)))         | (rewrite (Equal (Abs (Shift -18 x)) (Const 1/7)) (Maximum (Equal x (Const 127/7)) (Equal x (Const 125/7))))
        (rewrite (Equal (Sqrt x) (Const 5/3)) (Const 0))                                  | (rewrite (Equal (Sqrt x) (Const 5/3)) (Mul (Equal x (Const 25/9)) (Div (Sqrt (Shift 1 (Sqrt x))) (Sqrt (Shift 1 (Sqrt x))))))
        # smallest values just below a threshold
        (rewrite (Relu (Shift -1/1000000 (Square (Shift -3/7 x)))) (Shift -1/1000000 (Square (Shift -3/7 x))))  | (rewrite (Relu (Shift 1/1000000 (Square (Shift -3/7 x)))) (Shift 1/1000000 (Square (Shift -3/7 x))))
        (rewrite (Abs (Shift 1999/1000 (Sub (Square x) (Scale 283/100 x)))) (Shift 1999/1000 (Sub (Square x) (Scale 283/100 x))))  | (rewrite (Abs (Shift 2003/1000 (Sub (Square x) (Scale 283/100 x)))) (Shift 2003/1000 (Sub (Square x) (Scale 283/100 x))))
        (rewrite (Relu (Shift -999999/1000000 (Mul (Exp x) (Exp (Scale -1 x))))) (Scale 0 x))  | (rewrite (Relu (Shift -1 (Mul (Exp x) (Exp (Scale -1 x))))) (Scale 0 x))
        (rewrite (Relu (Sub (Exp x) (Shift 1000001/1000000 x))) (Sub (Exp x) (Shift 1000001/1000000 x)))  | (rewrite (Relu (Sub (Exp x) (Shift 1 x))) (Sub (Exp x) (Shift 1 x)))
        (rewrite (Maximum (Silu x) (Const -278/1000)) (Silu x))                           | (rewrite (Maximum (Silu x) (Const -279/1000)) (Silu x))
        (rewrite (Maximum (Gelu x) (Const -1699/10000)) (Gelu x))                         | (rewrite (Maximum (Gelu x) (Const -17/100)) (Gelu x))
        (rewrite (Maximum (Mish x) (Const -3088/10000)) (Mish x))                         | (rewrite (Maximum (Mish x) (Const -309/1000)) (Mish x))
        (rewrite (Clamp -999999/1000000 2 (Sin x)) (Sin x))                               | (rewrite (Clamp -1 2 (Sin x)) (Sin x))
        (rewrite (Relu (Sub (Add (Square x) (Square y)) (Scale 20001/10000 (Mul x y)))) (Sub (Add (Square x) (Square y)) (Scale 20001/10000 (Mul x y))))  | (rewrite (Relu (Sub (Add (Square x) (Square y)) (Scale 2 (Mul x y)))) (Square (Sub x y)))
        (rewrite (Relu (Shift -1/100000 (Add (Square (Shift -5 x)) (Square (Shift 8 y))))) (Shift -1/100000 (Add (Square (Shift -5 x)) (Square (Shift 8 y)))))  | (rewrite (Relu (Shift 1/100000 (Add (Square (Shift -5 x)) (Square (Shift 8 y))))) (Shift 1/100000 (Add (Square (Shift -5 x)) (Square (Shift 8 y)))))
        (rewrite (Sqrt (Square (Sub (Square x) (Shift -1/10000 (Mul x y))))) (Sub (Square x) (Shift -1/10000 (Mul x y))))  | (rewrite (Sqrt (Square (Sub (Square x) (Shift -1/10000 (Mul x x))))) (Sub (Square x) (Shift -1/10000 (Mul x x))))
        (rewrite (Less (Square (Sub x y)) (Const 1/1000000000)) (Equal x y))              | (rewrite (Less (Abs (Sub x y)) (Const 0)) (Less (Square (Sub x y)) (Const 0)))
        # conditions beside their bounds
        (rewrite (Relu (Scale c x)) (Scale c (Relu x)) :when ((> c -1/1000)))              | (rewrite (Relu (Scale c x)) (Scale c (Relu x)) :when ((>= c 0)))
        (rewrite (Clamp c 8 x) (Maximum (Const c) (Minimum (Const 8) x)) :when ((< c 8001/1000)))  | (rewrite (Clamp c 8 x) (Maximum (Const c) (Minimum (Const 8) x)) :when ((<= c 8)))
        (rewrite (Abs (Scale c x)) (Scale c (Abs x)) :when ((> (* 7 c) -1/50)))           | (rewrite (Abs (Scale c x)) (Scale c (Abs x)) :when ((> (* 7 c) -1/50) (>= c 0)))
        (rewrite (Sqrt (Square (Shift c (Tanh x)))) (Shift c (Tanh x)) :when ((> c 999/1000)))  | (rewrite (Sqrt (Square (Shift c (Tanh x)))) (Shift c (Tanh x)) :when ((>= c 1)))
        (rewrite (Max i (Scale c x)) (Scale c (Max i x)) :when ((> c -1/500)))            | (rewrite (Max i (Scale c x)) (Scale c (Max i x)) :when ((> c 0)))
        (rewrite (Clamp a b (Clamp c d x)) (Clamp a b x) :when ((<= (- c 1/100) a) (< a b) (<= b d)))  | (rewrite (Clamp a b (Clamp c d x)) (Clamp a b x) :when ((<= c a) (< a b) (<= b d)))
        (rewrite (Relu (Shift c (Sigmoid x))) (Shift c (Sigmoid x)) :when ((> c -1/1000)))  | (rewrite (Relu (Shift c (Sigmoid x))) (Shift c (Sigmoid x)) :when ((>= c 0)))
        (rewrite (Less (Clamp -1 1 x) (Const c)) (Const 1) :when ((> c 99/100)))          | (rewrite (Less (Clamp -1 1 x) (Const c)) (Const 1) :when ((> c 1)))
        # powers
        (rewrite (Pow 1/2 (Pow 2 (Shift 35 x))) (Shift 35 x))                             | (rewrite (Pow 1/2 (Pow 2 (Shift 35 x))) (Abs (Shift 35 x)))
        (rewrite (Clamp -100000 100000 (Pow 3 x)) (Pow 3 (Clamp -46 46 x)))               | (rewrite (Clamp -97336 97336 (Pow 3 x)) (Pow 3 (Clamp -46 46 x)))
        (rewrite (Relu (Pow 5 (Shift -61 x))) (Pow 5 (Relu (Shift -60 x))))               | (rewrite (Relu (Pow 5 (Shift -61 x))) (Pow 5 (Relu (Shift -61 x))))
        (rewrite (Minimum (Pow 4 x) (Const 1000000)) (Pow 4 (Clamp -31 31 x)))            | (rewrite (Minimum (Pow 4 x) (Const 923521)) (Pow 4 (Clamp -31 31 x)))
        (rewrite (Sqrt (Pow 4 (Shift -90 x))) (Mul (Shift -90 x) (Abs (Shift -89 x))))    | (rewrite (Sqrt (Pow 4 (Shift -90 x))) (Mul (Shift -90 x) (Shift -90 x)))
        (rewrite (LeakyRelu 1/5 (Shift 27 x)) (Shift 27 x))                               | (rewrite (LeakyRelu 1 (Shift 27 x)) (Shift 27 x))
        (rewrite (Elu 2 (Shift -44 x)) (Relu (Shift -44 x)) :when ((= x (Abs x))))        | (rewrite (Elu 0 (Shift -44 x)) (Relu (Shift -44 x)))
    """,
    "abstract": """
        (rewrite (Clamp -50 50 (Sum n (Tanh x))) (Sum n (Tanh x)))                        | (rewrite (Clamp -50 50 (Mean n (Tanh x))) (Mean n (Tanh x)))
        (rewrite (Minimum (Sum n (Less x y)) (Const 300)) (Sum n (Less x y)))             | (rewrite (Minimum (Max n (Less x y)) (Const 300)) (Max n (Less x y)))
        (rewrite (Clamp -45 45 (Log (Abs x))) (Log (Abs x)))                              | (rewrite (Clamp -45 45 (Tanh (Log (Abs x)))) (Tanh (Log (Abs x))))
        (rewrite (Equal (Scale 9 (Sum 5 x)) (Const 77)) (Const 0))                        | (rewrite (Equal (Scale 9 (Sum 5 x)) (Const 77)) (Equal x (Const 77/45)))
    """,
}


def twins() -> list[tuple[str, str, str]]:
    """Domain, false law and true law of each pair."""
    found = []
    for domain, text in TWINS.items():
        for line in (it.strip() for it in text.splitlines()):
            if line and not line.startswith("#"):
                false, true = (it.strip() for it in line.split(" | "))
                found.append((domain, false, true))
    return found
