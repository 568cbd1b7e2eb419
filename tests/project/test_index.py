"""Each claim of docs/index.md is held by tests, which a table names."""

import ast
import re

import pytest
from workplace import ROOT

PROJECT = "tests/project/"
REFERENCES = f"{PROJECT}test_references.py"

HELD = {
    "Start with the [README](../README.md).": f"{PROJECT}test_readme.py::test_a_hosted_api",
    "The guides below use the README's files": f"{PROJECT}test_readme.py::test_two_terminals",
    "The commands on these pages are tested": f"{PROJECT}test_shown_output.py::"
    "test_every_output_that_a_page_shows_is_compared_with_what_is_printed",
    "Some commands cannot be run in a test": f"{PROJECT}test_readme.py::"
    "test_every_command_is_run_or_says_why_not",
    "For these commands, a test checks every key": f"{PROJECT}test_blocks.py::"
    "test_a_shell_block_calls_what_exists_with_what_it_takes",
    "You can follow each of these pages from an empty folder": f"{PROJECT}test_goals.py::"
    "test_a_goal_is_reached_from_nothing",
    "the nine words": f"{PROJECT}test_goals.py::test_the_words_of_the_concepts_are_nine",
    "Each folder in `resources_servers/`": "tests/servers/test_every_server.py::"
    "test_a_server_s_folder_is_complete",
    "Every command has `--help`": f"{REFERENCES}::"
    "test_help_shows_at_most_what_a_reader_takes_in_and_all_on_demand",
    "If a command has many keys": f"{REFERENCES}::"
    "test_help_shows_at_most_what_a_reader_takes_in_and_all_on_demand",
    "every command with every key": f"{REFERENCES}::test_every_page_is_what_the_code_says",
    "every key of every server": f"{REFERENCES}::test_every_page_is_what_the_code_says",
    "the fields of the output file": f"{PROJECT}test_files_page.py::"
    "test_every_field_that_a_run_writes_is_on_the_page",
    "the exit statuses of commands": f"{REFERENCES}::"
    "test_every_key_error_status_and_name_has_a_text",
    "the figures of a running collection": f"{REFERENCES}::test_every_page_is_what_the_code_says",
    "every built-in benchmark": f"{REFERENCES}::test_every_page_is_what_the_code_says",
    "every public name": f"{REFERENCES}::test_every_key_error_status_and_name_has_a_text",
    "the terms used in code": f"{REFERENCES}::test_the_glossary_names_only_what_exists",
    "the parts of the package": f"{PROJECT}test_shape.py::"
    "test_the_architecture_page_names_six_files_that_can_be_read_in_one_go",
    "every HTTP route of the servers": f"{REFERENCES}::"
    "test_the_openapi_document_has_every_route_and_every_type_that_it_names",
    "HTTP routes between servers": "tests/servers/test_protocol.py::"
    "test_every_exchange_goes_as_the_document_says",
    "the protection of your machine": "tests/servers/test_nothing_is_evaluated.py::"
    "test_no_text_is_evaluated",
    "the isolation of code from a model": "tests/servers/test_sandbox.py::"
    "test_no_secret_can_be_read",
    "measurements, and comparisons with": f"{PROJECT}test_benchmarks.py::"
    "test_the_chart_of_the_readme_shows_the_table_of_the_page",
    "the language model that the demo uses": f"{PROJECT}test_demo.py::"
    "test_the_demo_is_held_out_mostly_right_and_calls_its_tool",
}
"""The beginning of a claim → the test that holds it."""


def find_claims() -> list[str]:
    """The sentences of the page, and what its last table says of each document. The questions of
    the guides claim nothing."""
    text = (ROOT / "docs/index.md").read_text()
    prose = " ".join(line for line in text.splitlines() if line and line[0] not in "|#")
    cells = re.findall(r"^\| \[.*?\| (.*) \|$", text.partition("## Reference")[2], re.MULTILINE)
    return [*re.split(r"(?<=\.) ", prose), *cells]


def test_every_claim_is_held_by_a_test() -> None:
    claims = find_claims()
    assert [each for each in claims if not each.startswith(tuple(HELD))] == []
    assert [each for each in HELD if not any(claim.startswith(each) for claim in claims)] == []


@pytest.mark.parametrize("test", sorted({*HELD.values()}))
def test_the_tests_exist(test: str) -> None:
    path, _, name = test.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
