"""A public class name of the packages means one class."""

import ast
from collections import defaultdict

from property_tests.support.layers import modules


def test_public_class_names_are_unique_across_the_packages() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module, path in modules().items():
        for item in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(item, ast.ClassDef) and not item.name.startswith("_"):
                places[item.name].append(module)
    assert len(places) > 200
    assert {name: where for name, where in places.items() if len(where) > 1} == {}
