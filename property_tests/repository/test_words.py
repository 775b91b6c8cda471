"""Old words of the house are gone: identifiers, docstrings, comments and messages use the field's terms."""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    file for room in ("ir", "backends", "mirage_eg") for file in (ROOT / room).rglob("*.py") if not file.is_symlink()
)
WORDS = {  # old: the house's word
    "advice": "hint",
    "asking": "a question",
    "at hand": "current, available",
    "barren": "infeasible",
    "beside": "in the background",
    "cleanup": "simplify",
    "cutter": "partitioner",
    "deaths": "prune reasons",
    "does fit": "fits",
    "draws": "random inputs, trials",
    "exports": "exported maxima",
    "fate": "prune reason",
    "folds": "batched matmul",
    "go on": "raise_if_stopped, continue",
    "goes on": "continues",
    "guessed": "estimated",
    "hazard": "miscompilation",
    "hazards": "miscompilations",
    "hear": "listener, on_candidate",
    "heard": "traced",
    "hears": "receives, is called with",
    "idle loop": "a loop without loads",
    "in front of": "before",
    "in front": "before",
    "in vain": "redundant, without use",
    "is beside": "in_background",
    "judge": "combine evidence",
    "judges": "combines evidence",
    "kept apart": "needs_copy",
    "known numbers": "NumericMemo",
    "leaner": "reduce_stages",
    "lies": "is, is stored",
    "look closer": "check_slow",
    "lying": "layout",
    "may fit": "fits_lower_bound",
    "meanings": "semantics",
    "mistakes": "diagnostics, errors",
    "nearest miss": "closest candidate",
    "one after the other": "sequentially",
    "peer": "baseline",
    "polish": "optimize, µGraph optimizer passes",
    "polished": "OptimizedMuGraph",
    "polishes": "optimizes",
    "probe": "subgraph check",
    "realize": "lower",
    "realized": "lowered",
    "realizes": "lowers",
    "really fits": "fits",
    "room": "capacity, package",
    "search heard": "traced, on_candidate",
    "settled": "evaluated",
    "shown records": "notebook display",
    "spoken": "message, text",
    "sure": "confident, proved",
    "teach": "register_formatters",
    "telling": "worth_verifying",
    "told": "message, settings",
    "turned": "swapped, transposed",
    "unlike first": "diverse_by_kind",
    "unlike": "diverse_by_kind",
    "way": "plan, path",
    "ways": "plans, paths",
    "whatever": "all, each",
    "whence": "source, from which",
    "why nothing": "no_kernel_note",
    "with proof": "combine evidence",
}
OLD = re.compile(rf"\b(?:{'|'.join(sorted(WORDS, key=len, reverse=True))})\b")


def text_of(source: str) -> str:
    """A file's names, comments and strings; snake_case and CamelCase names as separate words, lower case."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    kinds = {tokenize.NAME, tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}  # 3.12 on
    words = (token.string if token.type in kinds else "|" for token in tokens)
    return apart(" | ".join(words))


def apart(text: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|_", " ", text)
    return re.sub(r"\s+(?:# )?", " ", words).lower()


def old_words(source: str) -> list[str]:
    """The old words in a file; only one with such words is read token by token, which takes long."""
    return OLD.findall(text_of(source)) if OLD.search(apart(source)) else []


def test_no_old_word_is_left() -> None:
    assert len(FILES) > 150
    found = {str(file.relative_to(ROOT)): old_words(file.read_text(encoding="utf-8")) for file in FILES}
    assert {file: [f"{word}: say {WORDS[word]}" for word in words] for file, words in found.items() if words} == {}


@pytest.mark.parametrize("word", WORDS)
def test_an_old_word_is_found_in_a_name_a_comment_and_a_message(word: str) -> None:
    snake, camel = word.replace(" ", "_"), word.title().replace(" ", "")
    for source in (
        f"def {snake}(): ...",
        f"def f(an_{snake}_b): ...",
        f"x._{snake} = 0",
        f"class New{camel}Record: ...",
        f"x = 0  # {word}, say",
        f'"""A docstring: {word}."""',
        f'raise Error(f"{{x}} {word.capitalize()}")',
    ):
        assert word in old_words(source), source
    assert not old_words(f"x{snake}y = 0  # x{snake}y")
