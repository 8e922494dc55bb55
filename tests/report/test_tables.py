# SPDX-License-Identifier: Apache-2.0
"""Tables line up and keep their cells."""

import pytest

from duet_trl.report.tables import markdown_table, text_table

HEADERS = ["method", "tokens", "accuracy"]
ROWS = [["GRPO", 481000, 0.5534], ["DUET", 1200, None]]


def test_text_table_is_aligned_with_numbers_to_the_right():
    assert text_table(HEADERS, ROWS) == (
        "method   tokens  accuracy\n------  -------  --------\nGRPO    481,000    0.5534\nDUET      1,200         -"
    )


def test_markdown_table_has_a_rule_and_escapes_the_bar():
    assert markdown_table(["a|b", "n"], [["x|y", 3]]) == "| a\\|b | n |\n| --- | ---: |\n| x\\|y | 3 |"


def test_a_table_without_rows_is_its_header():
    assert text_table(["a", "bc"], []) == "a  bc\n-  --"


@pytest.mark.parametrize("table", [text_table, markdown_table])
def test_a_row_of_the_wrong_width_is_refused(table):
    with pytest.raises(ValueError, match="zip"):
        table(HEADERS, [["GRPO", 1]])
