"""Rules derived from the records of ops: one line of each family for each op, and laws of both domains told once."""

import re

import pytest

from mirage_eg.egraph.expression import constructor
from mirage_eg.egraph.rule_files import DOMAINS, THEORIES, packaged_files, theory_name
from mirage_eg.ir.op.elementwise import PACKAGED

FAMILIES = {
    "00_language": r"\(constructor {0} \(",
    "05_axes": r"\(rule \(\(= e \({0} [^)]*\)\).*\(set \(axes e\)",
    "35_slices": r"\(rewrite \(Slice i h s t \({0} ",
    "40_subexpression": r"\(rule \(\(below e\) \(= e \({0} ",
}


@pytest.mark.parametrize("domain", DOMAINS)
def test_each_op_has_one_line_in_each_theory_of_records(domain: str) -> None:
    texts = {theory_name(file.path): file.text for file in packaged_files(domain) if file.path.startswith("ir/op/")}
    assert set(THEORIES[domain]) <= set(FAMILIES) and len(PACKAGED) > 30
    for theory in THEORIES[domain]:
        for name in PACKAGED:
            found = re.findall(FAMILIES[theory].format(constructor(name)), texts[theory])
            assert len(found) == 1, (theory, name)


def test_no_law_is_told_in_a_file_of_each_domain() -> None:
    lines = {
        domain: {
            " ".join(line.split())
            for file in packaged_files(domain)
            for line in file.text.splitlines()
            if file.path.startswith(f"rules/{domain}/")
        }
        for domain in DOMAINS
    }
    twice = {line for line in lines["indexed"] & lines["abstract"] if line.startswith(("(rewrite", "(birewrite", "(rule "))}
    assert {line for line in twice if "square of a" not in line} == set()  # off by default in one of the domains
