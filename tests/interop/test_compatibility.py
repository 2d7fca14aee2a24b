"""The page about compatibility is what the tests' marks say."""

import compatibility


def test_the_page_is_what_the_marks_say():
    assert compatibility.PAGE.read_text() == compatibility.make_page(), (
        "run python tests/interop/compatibility.py"
    )


def test_what_is_missing_or_differs_has_a_reason():
    unsaid = [
        row.name
        for rows in compatibility.rows_of_page().values()
        for row in rows
        if row.status in ("missing", "differs") and not row.note
    ]
    assert unsaid == []


def test_all_commands_and_options_are_proved():
    marked = compatibility.read_marks()
    wanted = [
        f"cli: {command} {option}".rstrip()
        for command, options in compatibility.commands().items()
        for option in ["", *options]
    ]
    assert [name for name in wanted if name not in marked] == []
