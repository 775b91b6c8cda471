"""Whether a µGraph computes its program: finite fields, float checks, proofs, verdicts. Trusted."""
