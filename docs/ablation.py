"""The page of the ablation: what each indexed law is worth to the workloads, from measurements/ablation.jsonl."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mirage_eg.egraph.laws import Law, applications, patterns
from mirage_eg.egraph.rulebook import load_rules
from mirage_eg.lab.bench.rule_ablation import equations

LINES = Path(__file__).parent / "measurements" / "ablation.jsonl"

FACT = "a fact that the laws of logarithms ask for"
KEPT: Mapping[str, str] = {  # laws that match and change nothing; the figures are those of `test_laws_kept_for_other_programs`
    "div distributes over sub": "differences of quotients: without it Σ(x/n − y/n) loses 43 of 89 structures",
    "means commute": "means over two axes: without it √mean(mean(x²)) loses 11 of 19 structures",
    "scale of a quotient": "scaled quotients: without it Σ(3x/y)² loses 52 of 104 structures",
    "exponentials are above zero": f"{FACT}: without it Σ log(σ(x) · Σ exp(y) / Σ exp(x)) loses 8 of 84 structures",
    "sum above zero": f"{FACT}, of sums: without it the same program loses 8 of 84 structures",
    "div above zero": f"{FACT}, of quotients: log((x/y)/z) = log(x/y) − log z holds where x/y is above zero",
}


def page() -> str:
    """The text of the page below its head."""
    rows = [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]
    laws = {law.name: law for law in load_rules(rows[0]["domain"]).laws}
    tried = [name for name in rows[0]["tried"] if name in laws]
    found = {name: [(row, law) for row in rows for law in row["laws"] if law["law"] == name] for name in tried}
    changing = [name for name in tried if any(law["lost"] or law["gained"] for _, law in found[name])]
    idle = [name for name in tried if found[name] and name not in changing]
    silent = [name for name in tried if not found[name]]
    known = {constructor for row in rows for constructor in row["constructors"]}
    return f"""# Ablation

The tables are from `python benchmarks/ablation.py docs/measurements`: each law of the {rows[0]["domain"]} domain is left out
of the search of each [workload](../how_to/workloads_and_devices.md) at {rows[0]["max_block_ops"]} block ops, the others stay.
Larger workloads are searched in segments. Laws on axes and subexpressions are not tried: they belong to the
declarations of ops. [Measure laws](../how_to/measuring_laws.md) shows the command for programs and laws of your own.

Of {len(tried)} laws, {len(changing)} change the structures of a workload, {len(idle)} match and change nothing,
{len(silent)} match in no workload.{_later(tried)}

## Laws that change structures

Structures lost of all, structures gained, and the best predicted time in µs if it changes.

| law | structures lost |
| --- | --- |
{chr(10).join(f"| {name} | {_changes(found[name])} |" for name in changing)}

## Laws that match and change nothing

| law | matches in | why it is kept |
| --- | --- | --- |
{chr(10).join(f"| {name} | {_programs(row for row, _ in found[name])} | {KEPT.get(name, _UNKNOWN)} |" for name in idle)}

## Laws that match in no workload

They are for other programs: with ops that no workload has, or (–) with the same ops in another order.

| first op that no workload has | laws |
| --- | --- |
{_silent([(name, laws[name]) for name in silent], known)}
"""


_UNKNOWN = "**no reason is recorded: add one to docs/ablation.py, or delete the law**"


def _later(tried: Sequence[str]) -> str:
    """A sentence on the laws that the measurement did not have."""
    later = [law.name for law in equations(load_rules("indexed")) if law.name not in tried]
    return f" {len(later)} laws were added after the measurement and are not in the tables." if later else ""


def _short(program: str) -> str:
    """A segment without its ops."""
    return program.partition(":")[0]


def _changes(entries: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    return "<br>".join(_change(row, law) for row, law in entries if law["lost"] or law["gained"])


def _change(row: Mapping[str, Any], law: Mapping[str, Any]) -> str:
    cut = "" if row["baseline"]["complete"] else "+"
    lost = f"{_short(row['program'])} {law['lost']:,} of {row['baseline']['structures']:,}{cut}"
    gained = f", {law['gained']:,} gained" if law["gained"] else ""
    before, after = row["best_us"], law["best_us"]
    slower = "" if before == after else f", {_us(before)} → {_us(after)} µs"
    return lost + gained + slower


def _us(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _programs(rows: Any) -> str:
    names = list(dict.fromkeys(_short(row["program"]).partition(",")[0] for row in rows))
    return ", ".join(names)


def _silent(laws: Sequence[tuple[str, Law]], known: set[str]) -> str:
    """A row for each op that no workload has, with the laws whose first it is."""
    rows: dict[str, list[str]] = {}
    for name, law in laws:
        ops = (it.name for pattern in patterns(law) for it in applications(pattern) if it.name[0].isupper())
        rows.setdefault(next((it for it in ops if it not in known), "–"), []).append(name)
    return "\n".join(f"| {op} | {'<br>'.join(names)} |" for op, names in rows.items())
