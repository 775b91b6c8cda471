"""What is wrong with a rule file, in one line: egglog's messages as `path:line: mistake (hint)`."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from egglog import bindings

from mirage_eg.egraph.laws import Signature

OWN_RULESET = "equivalence"  # what a law without :ruleset joins
RULESETS = (OWN_RULESET, "subexpression")  # those that are run

_PLACE = re.compile(r"^In (?P<line>\d+):\d+-(?:\d+:)?\d+ of (?P<path>[^:\n]*): ", re.MULTILINE)


def located(error: bindings.EggSmolError, path: str) -> str:
    """egglog says `In 3:10-14 of FILE: SOURCE` and then the mistake; we say `FILE:3: mistake: SOURCE`."""
    places = list(_PLACE.finditer(str(error)))
    if not places:
        return f"{path}:1: {' '.join(str(error).split())}"
    place = next((it for it in reversed(places) if it["path"] == path), places[-1])  # a clash is told with both places
    source, _, mistake = str(error)[place.end() :].partition("\n")
    shown = f": {source.strip()}" if source.strip() and source.strip() not in mistake else ""
    return f"{path}:{place['line']}: {_OWN_NAME.sub('the left side', ' '.join(mistake.split()))}{shown}"


_OWN_NAME = re.compile(r"Variable @rewrite_var\w*")  # egglog's own for what a rewrite matches


_TOKEN = re.compile(r';[^\n]*|"(?:\\.|[^"\\])*"|[()\n]')
_HEAD = re.compile(r"\s*(?P<word>[^\s()]*)")


def unclosed(text: str) -> int | None:
    """The line of the first parenthesis that is never closed."""
    line, opened = 1, list[int]()
    for token in _TOKEN.findall(text):
        line += token.count("\n")
        if token == "(":
            opened.append(line)
        elif token == ")" and opened:
            opened.pop()
    return opened[0] if opened else None


def heads(text: str) -> list[tuple[int, str]]:
    """For each form that stands in no other its line and its first word: not all of egglog's commands know their place."""
    found: list[tuple[int, str]] = []
    line, depth = 1, 0
    for match in _TOKEN.finditer(text):
        if match[0] == "(" and depth == 0:
            head = _HEAD.match(text, match.end())
            found.append((line, head["word"] if head else ""))
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        line += match[0].count("\n")
    return found


def no_law(command: Any, word: str) -> str:
    """What to say of a command that a rule file may not hold; `word` is how the file calls it."""
    wanted = "a rule file may hold sorts, constructors, relations, functions, rulesets and laws only"
    if isinstance(command, bindings.ActionCommand) and isinstance(command.action, bindings.Expr_):
        near = get_close_matches(word, _COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else "is a command misspelt?"
        return f"got ({word or '…'} …), which is no command ({hint}); {wanted}"
    if isinstance(command, bindings.Include):
        return f"got the command include; {wanted}; name the other file with --rules too"
    return f"got the command {word}; {wanted}"


_COMMANDS = ("rewrite", "birewrite", "rule", "sort", "constructor", "datatype", "relation", "function", "ruleset")
_UNBOUND = re.compile(r"Unbound function (?P<name>\S+)")
_ADVICE = (
    ("Unbound symbol", "a variable of the right side must stand on the left"),
    ("ungrounded", "a left side must apply a constructor, so that there is something to match"),
    ("No such ruleset", f"leave :ruleset out, or name one that is run: {' or '.join(RULESETS)}"),
    ("already bound", "the name is taken; choose another"),
    ("Shadowing", "that is a constructor; choose another name for the variable, or apply it"),
    ("Expect expression", "see the declaration: rules/DOMAIN/00_language.egg"),
)


def advice(mistake: str, signatures: Mapping[str, Signature]) -> str:
    """A hint for a mistake that egglog found."""
    if match := _UNBOUND.search(mistake):
        near = get_close_matches(match["name"], signatures, n=1)
        return f" (did you mean {near[0]}?)" if near else " (declare it with (constructor NAME (E) E), or see 00_language.egg)"
    if "Arity mismatch" in mistake:
        name = next((name for name in _NAMES.findall(mistake) if name in signatures), None)
        return f" ({name} takes {' '.join(signatures[name].inputs)})" if name else ""
    return next((f" ({hint})" for words, hint in _ADVICE if words in mistake), "")


_NAMES = re.compile(r"(?<=\()[^\s()]+")
