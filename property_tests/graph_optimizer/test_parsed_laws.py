"""Laws are read as commands: line breaks, names in comments and texts change nothing."""

import mirage_eg as mi
from mirage_eg.egraph.rulebook import read_rules
from mirage_eg.egraph.shared_saturation import share_renamed
from mirage_eg.graph_optimizer.program_terms import ProgramTerms
from mirage_eg.graph_optimizer.saturation import directed_laws
from mirage_eg.ir.node import node

ON_TWO_LINES = """(ruleset simplify)
(rewrite (Relu x)
         x :ruleset simplify :name "first")
  (rule ((= e (Exp x)))
        ((union e x)) :ruleset simplify :name "second")
(birewrite (Exp x) (Log x) :ruleset simplify :name "both ways")
(rewrite (Exp x) x :ruleset other :name "of another ruleset")
; (rewrite (Abs x) x :ruleset simplify)
"""


def test_a_law_on_two_lines_takes_part_in_rewriting() -> None:
    assert len(directed_laws(ON_TWO_LINES)) == 2


def test_the_laws_are_those_of_the_same_file_on_single_lines() -> None:
    joined = ON_TWO_LINES.replace("\n         x", " x").replace("\n        ((", " ((")
    assert [*map(str, directed_laws(ON_TWO_LINES))] == [*map(str, directed_laws(joined))]


def test_only_a_law_that_names_a_part_keeps_saturations_apart() -> None:
    def build(target: object) -> object:
        raise AssertionError(target)

    plain = read_rules('; parts such as "k.g" are named in comments only\n(rewrite (Exp (Log x)) x)')
    naming = read_rules('(rewrite (Sum "k.g" (Exp x)) (Exp (Sum "k.g" x)))')
    assert share_renamed(build, plain) is not build  # type: ignore[arg-type, comparison-overlap]
    assert share_renamed(build, naming) is build  # type: ignore[arg-type, comparison-overlap]


def test_a_text_attribute_with_a_dollar_is_no_operand() -> None:
    graph = mi.new_kernel_graph()
    x = graph.new_input((4, 4), name="x")
    graph.mark_output(graph.relu(x))
    terms = ProgramTerms(graph.graph(), frozenset())
    assert terms.text(node("relu", 0, comment="$t0_"), 1) == '(Unary "relu comment=$t0_" v0_)'
