"""Whether laws are true: claims, counterexamples, lints, growth."""
