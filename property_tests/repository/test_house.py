"""What the house keeps of its size."""

from property_tests.support.scripts import script


def test_passes_ask_the_records_of_ops_and_few_files_spell_their_names() -> None:
    found = script("benchmarks/house.py").spelling_files()
    assert 15 < len(found) <= 30, "ask the op's record (CONTRIBUTING.md, Add a pass): " + ", ".join(path.name for path in found)
