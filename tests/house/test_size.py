"""Functions and files stay small enough to be read at once."""

import ast

from tests.house import tree

FUNCTION_LINE_COUNT_MAX = 70
FILE_LINE_COUNT_MAX = 500


def test_functions_fit_on_a_screen() -> None:
    too_long = []
    for path in tree.sources():
        for node in ast.walk(ast.parse(tree.text(path))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINE_COUNT_MAX:
                    too_long.append(f"{path}:{node.lineno} {node.name}: {lines} lines")
    assert not too_long, (
        f"functions over {FUNCTION_LINE_COUNT_MAX} lines; move a step with a name of its own "
        "into a function:\n" + "\n".join(too_long)
    )


def test_files_are_one_subject() -> None:
    too_long = []
    for path in tree.sources():
        lines = tree.text(path).count("\n")
        if lines > FILE_LINE_COUNT_MAX:
            too_long.append(f"{path}: {lines} lines")
    assert not too_long, (
        f"files over {FILE_LINE_COUNT_MAX} lines; split each by subject:\n" + "\n".join(too_long)
    )
