"""Diagnostics of rule files in one line each: egglog's messages as `path:line: error (hint)`."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from mirage_eg.egraph.egglog_bindings import bindings
from mirage_eg.egraph.expression import op_of
from mirage_eg.egraph.laws import Signature

OWN_RULESET = "equivalence"  # of a law without :ruleset
RULESETS = (OWN_RULESET, "subexpression")  # the rulesets that are run
MEANING = "meaning"  # the ruleset, which is not run, of rules that say what the relations of a file mean

_RATIONALS = re.compile(r"In [^\n]*\n[^\n]*to have type BigRat, but[^\n]*")
_PLACE = re.compile(r"^In (?P<line>\d+):\d+-(?:\d+:)?\d+ of (?P<path>[^:\n]*): ", re.MULTILINE)


def located(error: bindings.EggSmolError, path: str) -> str:
    """egglog's `In 3:10-14 of FILE: SOURCE` and the error in the next line, as `FILE:3: error: SOURCE`.

    Of the signatures of +, > and the like, which are tried in turn, the error is that of rationals, the numbers of laws.
    """
    words = match[0] if (match := _RATIONALS.search(str(error))) else str(error)
    places = list(_PLACE.finditer(words))
    if not places:
        return f"{path}:1: {' '.join(words.split())}"
    # the message of a clash has both places
    place = next((place for place in reversed(places) if place["path"] == path), places[-1])
    source, _, message = words[place.end() :].partition("\n")
    quoted = f": {source.strip()}" if source.strip() and source.strip() not in message else ""
    return f"{path}:{place['line']}: {_OWN_NAME.sub('the left side', ' '.join(message.split()))}{quoted}"


_OWN_NAME = re.compile(r"(?:Variable )?@rewrite_var\w*")  # egglog's own name for the left side of a rewrite


def refused_command(command: Any, word: str) -> str:
    """The message for a command that is not allowed in a rule file; `word` is its first word in the file."""
    wanted = "a rule file may hold sorts, constructors, relations, functions, rulesets and laws only"
    if isinstance(command, bindings.ActionCommand) and isinstance(command.action, bindings.Expr_):
        near = get_close_matches(word, _COMMANDS, n=1)
        question = f"did you mean {near[0]}?" if near else "is a command misspelt?"
        return f"got ({word or '…'} …), which is no command ({question}); {wanted}"
    if isinstance(command, bindings.Include):
        return f"got the command include; {wanted}; name the other file with --rules too"
    return f"got the command {word}; {wanted}"


_COMMANDS = ("rewrite", "birewrite", "rule", "sort", "constructor", "datatype", "relation", "function", "ruleset")
_UNBOUND = re.compile(r"Unbound function (?P<name>\S+)")
_HINTS = (
    ("Unbound symbol", "a variable of the right side must occur on the left side"),
    (
        "Value lookup of non-constructor",
        "a function has its value as a condition: name it there, as in :when ((= s (shape x)))",
    ),
    ("Failed to infer a type", "a left side must apply a constructor, else it matches everything"),
    ("ungrounded", "a left side must apply a constructor, else it matches everything"),
    ("No such ruleset", f"leave :ruleset out, or name one that is run: {' or '.join(RULESETS)}"),
    ("already bound", "the name is taken; choose another"),
    ("Shadowing", "that is a constructor; choose another name for the variable, or apply it"),
    ("All alternative definitions", "functions such as + and > take numbers; of expressions there are Add, and (above_zero x)"),
    ("to have type E, but get type", "a number as an expression is (Const 2), or Scale and Shift with it"),
    ("Expect expression", "see the declaration: rules/DOMAIN/00_language.egg"),
)


def hint(message: str, signatures: Mapping[str, Signature]) -> str:
    """A hint for an error of egglog."""
    if match := _UNBOUND.search(message):
        near = get_close_matches(match["name"], signatures, n=1)
        of_tensors = any(it.output == "Tensor" for it in signatures.values())
        if of_tensors and (not near or op_of(match["name"]) is not None):  # an op of elements is misspelt no other one
            return " (rules/tensor/00_language.egg has the constructors of whole tensors)"
        listed = "docs/reference/rule_language.md has all constructors; one of your own is (constructor NAME (E) E)"
        return f" (did you mean {near[0]}?)" if near else f" ({listed})"
    if "Arity mismatch" in message:
        name = next((name for name in _NAMES.findall(message) if name in signatures), None)
        return f" ({name} takes {' '.join(signatures[name].inputs)})" if name else ""
    return next((f" ({text})" for words, text in _HINTS if words in message), "")


_NAMES = re.compile(r"(?<=\()[^\s()]+")
