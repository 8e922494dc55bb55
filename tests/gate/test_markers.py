# SPDX-License-Identifier: Apache-2.0
"""Built-in markers against independent parsers, and the promise that a marker means an answer that can be read."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duet_trl.gate.grammars import is_placeholder
from duet_trl.gate.markers import MARKERS, completion_ends, extract_answer, extract_boxed, first_marker_end, get_marker

DATA = Path(__file__).parents[2].parent / "shared" / "data"
BLANKS = " \t\n\r\x0b\x0c"


def real_outputs(*names):
    paths = [DATA / name for name in names]
    if not all(path.exists() for path in paths):
        pytest.skip(f"needs {', '.join(map(str, paths))}")
    return [json.loads(line)["text"] for path in paths for line in path.read_text().splitlines()]


def joined(*pieces):
    """Texts made of pieces that a marker's grammar tells apart."""
    return st.lists(st.sampled_from(pieces), max_size=24).map("".join)


BOX_TEXTS = joined(
    *("\\boxed{", "\\boxed", "boxed{", "\\", "{", "}", "}", "\\{", "\\}", "\\\\"),
    *(" ", "\n", "\n\n", ":\n", ":", "x", "é", "="),
    *("\\boxed{ANSWER", "your ", "Answer", "\\text{", "\\boxed{\\phantom{", "...", "?", "…"),
)
FENCE_TEXTS = joined("```", "``", "`", "\n", "\n```", "\n```\n", "```python\n", " ", "x", "\t", "\r\n", "é")
QA_TEXTS = joined(
    *("<answer>", "</answer>", "<ans", "wer>", "</", "<", "Therefore the answer is ", "Therefore, the answer is:"),
    *("Therefore", " the answer is", " ", ".", "!", "? ", ". ", "\n", "3.14", "x", "é"),
)
PAIR, LINE = "<<...>>", "Answer: ..."
PAIR_TEXTS = joined("<<", ">>", "<", ">", " ", "x", "é", "\n", "<<>", "<< x >>")
LINE_TEXTS = joined("Answer: ", "Answer", ": ", "\n", " ", "x", "é", "Answer: x\n")
NAMES = [*MARKERS, PAIR, LINE]
TEXTS = {PAIR: PAIR_TEXTS, LINE: LINE_TEXTS, "math": BOX_TEXTS, "math_paragraph": BOX_TEXTS}
TEXTS |= {"code": FENCE_TEXTS, "qa": QA_TEXTS}


def ends(name, text):
    """Completions of a built-in marker in characters."""
    data = text.encode()
    return [len(data[:end].decode()) for end in completion_ends(get_marker(name), data)]


WORDS = r"(?:your|the|final|yourfinal)?answer"
COPIED = re.compile(
    rf"{WORDS}|\\text\{{{WORDS}\}}|\.\.\.|\u2026|\\[lc]?dots|\?|\\phantom\{{[^{{}}\\]*\}}", re.I | re.A
)


def is_answer(content):
    """Independent reading of what a box holds: neither nothing nor words copied from a prompt."""
    squeezed = re.sub(f"[{BLANKS}]", "", content)
    return bool(squeezed) and not COPIED.fullmatch(squeezed)


def box_ends(text, is_content=is_answer):
    """Independent brace matcher: drop escaped characters from sight, then count braces with a running sum."""
    found, search = [], 0
    while (opening := text.find("\\boxed{", search)) >= 0:
        begin = opening + len("\\boxed{")
        visible = re.sub(r"\\.", "__", text[begin:], flags=re.DOTALL)
        level, close = 1, None
        for offset, char in enumerate(visible):
            level += (char == "{") - (char == "}")
            if level == 0:
                close = begin + offset
                break
        if close is None:
            return found
        if is_content(text[begin:close]):
            found.append(close + 1)
        search = close + 1
    return found


def paragraph_ends(text):
    return [end + 2 for end in box_ends(text) if text[end : end + 2] in ("\n\n", ":\n")]


def fence_ends(text):
    """Independent fence parser: all places where a fence may stand, taken in turns."""
    found, opened = [], None
    for fence in re.finditer(r"(?:\A ?|(?<=\n))```", text):
        if fence[0].startswith(" ") and opened is not None:
            continue
        if opened is None:
            info = text[fence.end() :].split("\n")[0]
            if "`" not in info and "\n" in text[fence.end() :]:
                opened = fence.end() + len(info) + 1
        else:
            if text[opened : fence.start()].strip(BLANKS):
                found.append(fence.end())
            opened = None
    return found


def qa_ends(text):
    """Independent short-answer parser: cut the text into words of the grammar and walk over them."""
    words = re.finditer(
        r"(?P<open><answer>)|(?P<close></answer>)|(?P<say>Therefore,? the answer is[: \t])"
        r"|(?P<stop>\n)|(?P<end>[.!?](?=[ \t\n\r\x0b\x0c]))|(?P<lead>[ \t\r\x0b\x0c:.!?])|(?P<char>.)",
        text,
    )
    found, mode, content, ended = [], "search", False, False
    for word in words:
        kind = word.lastgroup
        if kind == "open":
            mode, content = "tag", False
        elif mode == "tag":
            if kind == "close":
                found += [word.end()] * content
                mode = "search"
            content = content or word[0].strip(BLANKS) != ""
        elif mode == "search":
            if kind == "say":
                mode, content, ended = "sentence", False, False
        elif ended or kind == "stop":
            found += [word.end()] * (ended or content)
            mode, ended = "search", False
        else:
            ended = kind == "end" and content
            content = content or kind not in ("end", "lead")
    return found


def pair_ends(text, opening, closing):
    """Independent reading of a custom marker: the nearest opening and closing with neither between them."""
    found, begin = [], None
    for word in re.finditer(f"{re.escape(opening)}|{re.escape(closing)}", text):
        if word[0] == opening:
            begin = word.end()
        elif begin is not None:
            found += [word.end()] * bool(text[begin : word.start()].strip(BLANKS))
            begin = None
    return found


REFERENCES = {"math": box_ends, "math_paragraph": paragraph_ends, "code": fence_ends, "qa": qa_ends}


@pytest.mark.parametrize("name", MARKERS)
@given(data=st.data())
@settings(max_examples=800)
def test_marker_completes_where_an_independent_parser_ends_an_answer(name, data):
    text = data.draw(TEXTS[name])
    assert ends(name, text) == REFERENCES[name](text)


@pytest.mark.parametrize("name", MARKERS)
def test_markers_agree_with_independent_parsers_on_real_outputs(name):
    texts = real_outputs("model_outputs_math.jsonl", "model_outputs_code.jsonl")
    assert [ends(name, text) for text in texts] == [REFERENCES[name](text) for text in texts]
    for text in texts:
        check_marker_means_answer(name, text)


def test_real_outputs_hold_the_answers_that_were_counted_in_them():
    maths = real_outputs("model_outputs_math.jsonl")
    codes = real_outputs("model_outputs_code.jsonl")
    # 660 of the 1,306 solutions have a closed, non-empty box by a plain brace count; 82 replies have a fenced block
    assert sum(first_marker_end(MARKERS["math"], text) is not None for text in maths) == 660
    assert sum(first_marker_end(MARKERS["code"], text) is not None for text in codes) == 82


def check_marker_means_answer(name, text):
    """Over all prefixes: nothing is promised before the marker, a fixed readable answer behind it."""
    seen = ends(name, text)
    answers = [extract_answer(name, text[:length]) for length in ([seen[0], *seen, len(text)] if seen else [])]
    assert all(answer is not None and answer.strip(BLANKS) for answer in answers)
    assert len(set(answers)) <= 1
    assert all(extract_answer(name, text[:length], "last") for length in seen)


@given(PAIR_TEXTS, LINE_TEXTS)
@example("<<x<<<>>", "")
@settings(max_examples=600)
def test_custom_marker_completes_at_the_nearest_closing_of_its_last_opening(pairs, lines):
    assert ends(PAIR, pairs) == pair_ends(pairs, "<<", ">>")
    assert ends(LINE, lines) == pair_ends(lines, "Answer: ", "\n")


@pytest.mark.parametrize(
    ("name", "text", "seen_in", "answer"),
    [
        ("ANSWER: ...", "so ANSWER: 10\nx", "so ANSWER: 10\n", "10"),
        ("ANSWER: ...", "ANSWER: 10", None, "10"),  # the text ends it, a rollout might go on
        ("ANSWER: ...", "ANSWER: \nANSWER: 5\n", "ANSWER: \nANSWER: 5\n", "5"),
        ("<final>...</final>", "in <final> tags: <final> 5 </final> x", "in <final> tags: <final> 5 </final>", "5"),
        ("<final>...</final>", "<final>5", None, None),
        ("**...**", "so **5** and **6", "so **5**", "5"),  # opening and closing may be the same
        ("Answer:\n...\n", "Answer:\n5\n6", "Answer:\n5\n", "5"),
    ],
)
def test_custom_marker_sees_and_reads_what_stands_between(name, text, seen_in, answer):
    end = first_marker_end(get_marker(name), text)
    assert (None if end is None else text[:end]) == seen_in
    assert extract_answer(name, text) == answer


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=300)
def test_marker_in_a_prefix_means_an_answer_that_no_continuation_changes(name, data):
    check_marker_means_answer(name, data.draw(TEXTS[name]))


@pytest.mark.parametrize("name", MARKERS)
@given(data=st.binary(max_size=40))
@settings(max_examples=200)
def test_markers_on_broken_utf8_agree_with_the_decoded_text(name, data):
    glue = {"math": b"\\boxed{%s}", "math_paragraph": b"\\boxed{%s}\n\n", "code": b"```\n%s\n```"}
    glue |= {"qa": b"<answer>%s</answer>"}
    data = glue[name] % data
    text = data.decode(errors="replace")
    assert len(list(completion_ends(MARKERS[name], data))) == len(ends(name, text))


@pytest.mark.parametrize(
    ("name", "text", "answer"),
    [
        ("math", r"so \boxed{42}.", "42"),
        ("math", r"\boxed{\frac{1}{\sqrt{\frac{3}{2}}}}", r"\frac{1}{\sqrt{\frac{3}{2}}}"),
        ("math", r"\boxed{\left\{ 1, 2 \right.}", r"\left\{ 1, 2 \right."),
        ("math", r"\boxed{\{1\}\\}", r"\{1\}\\"),
        ("math", r"\boxed{} then \boxed{ } then \boxed{7}", "7"),
        ("math", r"\boxed{a \boxed{b} c}", r"a \boxed{b} c"),
        ("math", "\\boxed{\n5\n}", "5"),
        *[("math", box, None) for box in (r"\boxed{}", r"\boxed{ }", r"\boxed {x}", r"\fbox{x}", r"\boxed[x]")],
        *[("math", box, None) for box in (r"\boxed{x", r"\boxed{x\}", r"\boxed{{x}", "boxed{x}")],
        ("code", "```python\nx = 1\n```", "x = 1"),
        ("code", "Here:\n```\n  a\n\n  b\n```\ndone", "  a\n\n  b"),
        ("code", " ```python\nx\n```", "x"),
        ("code", "```\n\n```\n```\ny\n```", "y"),
        ("code", "Use ```x``` inline.\n```\nz\n```", "z"),
        ("code", "```x```\n```\nz\n```", "z"),
        ("code", "```\nprint('``')\n    ```\n```", "print('``')\n    ```"),
        *[("code", fence, None) for fence in ("```", "```python", "```python\nx = 1\n", "```python\nx = 1\n``")],
        *[("code", text, None) for text in ("a ```x``` b", "```x```", "  ```\nx\n  ```", "```\n \n```")],
        ("code", "a\n ```\nx\n```", None),
        ("qa", "<answer>5</answer>", "5"),
        ("qa", "<answer>\n5\n</answer>", "5"),
        ("qa", "put it in <answer> tags: <answer>a < b</answer>", "a < b"),
        ("qa", "<answer></answer> <answer>6</answer>", "6"),
        ("qa", "Therefore the answer is 3.14.\n", "3.14"),
        ("qa", "Therefore, the answer is: 1024. Next", "1024"),
        ("qa", "Therefore, the answer is (B)\n", "(B)"),
        ("qa", "Therefore the answer is .5 and a bit! ", ".5 and a bit"),
        ("qa", "Therefore the answer is <answer>8</answer>. ", "8"),
    ],
)
def test_marker_sees_and_extractor_reads_a_closed_answer_and_no_other(name, text, answer):
    assert (first_marker_end(MARKERS[name], text) is None) == (answer is None)
    assert extract_answer(name, text) == answer


@pytest.mark.parametrize(
    "content",
    [
        *("ANSWER", "answer", "Your Answer", "your final answer", "the answer", "\n\n ANSWER\n", "...", "…", "?"),
        *(r"\text{answer}", r"\text{ final answer }", r" \text{Your answer} ", r"\phantom{2}", r"\phantom{}"),
        *(r"\ldots", r"\dots", r"\cdots"),
    ],
)
def test_a_placeholder_copied_from_a_prompt_is_no_answer(content):
    box = f"\\boxed{{{content}}}"
    for text in (f"Put it in {box}. ", f"{box} or {box}"):
        for name in ("math", "math_paragraph"):
            assert first_marker_end(MARKERS[name], text + "\n\n") is None
            assert extract_answer(name, text, "first") is extract_answer(name, text, "last") is None
    answered = f"It goes into {box}, so \\boxed{{7}} and not {box}."
    assert answered[: first_marker_end(MARKERS["math"], answered)].endswith("{7}")
    assert extract_boxed(answered, "first") == extract_boxed(answered, "last") == "7"


@pytest.mark.parametrize(
    "content",
    [
        *("A", r"\text{A}", "a", "an", "y", r"\text{yes}", "1, 2, ...", r"1 + 2 + \dots", "answers"),
        *("the answer is 4", r"\text{answer} = 4", r"\phantom{2}3", r"\phantom{\frac12}", "..", "??"),
        *(r"\text{the}", r"\dot{x}", r"\{?\}"),
    ],
)
def test_what_only_begins_like_a_placeholder_is_an_answer(content):
    text = f"\\boxed{{{content}}}"
    assert first_marker_end(MARKERS["math"], text) == len(text)
    assert extract_boxed(text) == content


def test_no_gold_answer_and_no_right_output_is_taken_for_a_placeholder():
    names = ("math500_test.jsonl", "math_train_clean.jsonl", "gsm8k_test.jsonl", "aime2024_test.jsonl")
    if not all((DATA / name).exists() for name in names):
        pytest.skip(f"needs {', '.join(names)}")
    golds = [str(json.loads(line)["answer"]) for name in names for line in (DATA / name).read_text().splitlines()]
    assert len(golds) > 8_000
    assert not any(is_placeholder(gold) or (gold and not is_answer(gold)) for gold in golds)
    rows = [json.loads(line) for line in (DATA / "model_outputs_math.jsonl").read_text().splitlines()]
    boxed = [re.findall(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", row["text"]) for row in rows if row["label"]]
    copied = [boxes for boxes in boxed if any(map(is_placeholder, boxes))]
    # right outputs that leave \boxed{\phantom{2}} open on their way; their answer is another box
    assert len(copied) == 4
    assert all(not is_placeholder(boxes[-1]) for boxes in copied)


def nested(depth):
    return "\\boxed{" + "{" * (depth - 1) + "x" + "}" * depth


def test_boxes_nest_to_the_documented_depth_and_deeper_ones_never_close():
    assert first_marker_end(MARKERS["math"], nested(8)) == len(nested(8))
    assert first_marker_end(MARKERS["math"], nested(9) + " \\boxed{1}") is None
    assert extract_boxed(nested(9)) is not None  # the verifier reads any depth: marker => answer, not the converse


def test_first_marker_end_counts_characters_not_bytes():
    assert first_marker_end(MARKERS["math"], "é\\boxed{ü}é") == len("é\\boxed{ü}")


def test_every_marker_fits_seven_bits_and_is_read_only():
    for marker in MARKERS.values():
        assert marker.table.shape[1] == 256 and len(marker.table) <= 127
        assert ((marker.table & 127) < len(marker.table)).all()
        with pytest.raises(ValueError, match="read-only"):
            marker.table[0, 0] = 1


def test_unknown_names_are_errors_that_list_the_choices():
    with pytest.raises(ValueError, match=r"unknown marker 'maths'\. Choose one of math, math_paragraph, code, qa"):
        get_marker("maths")
    for name in ("regex:4+2...", "...", "...x", ""):
        with pytest.raises(ValueError, match=f"unknown marker '{re.escape(name)}'.*three dots"):
            extract_answer(name, "x")
    with pytest.raises(ValueError, match=r"unknown marker 'maths'"):
        extract_answer("maths", "x")
    with pytest.raises(ValueError, match="which must be"):
        extract_answer("math", "x", "second")


def test_a_closing_that_its_opening_would_break_up_is_refused_by_marker_and_extractor():
    for name in ("$...$.", "a...bab.", "#...##-"):
        for read in (get_marker, lambda name: extract_answer(name, "$4$. #4##-")):
            with pytest.raises(ValueError, match=f"marker {re.escape(repr(name))} can never complete"):
                read(name)
    for name in ("$...$", "$....$"):  # an opening at the end of the closing, which completes there
        assert extract_answer(name, "so $4.$") in ("4", "4.") and first_marker_end(get_marker(name), "so $4.$") == 7


def test_last_box_is_read_behind_one_that_never_closes():
    text = r"\boxed{1} and \boxed{ or {\boxed{2}} or \boxed{3 \boxed{4}} {"
    assert extract_boxed(text, "first") == "1"
    assert extract_boxed(text, "last") == r"3 \boxed{4}"
    assert extract_boxed(r"\boxed{ \boxed{3 \boxed{4}}") == r"3 \boxed{4}"


def test_thousands_of_unclosed_openings_are_read_in_linear_time():
    # quadratic work would be 10^10 steps here: this test would not end within its time limit
    assert extract_boxed("\\boxed{" * 100_000) is None
    assert extract_answer("qa", "<answer>" * 100_000) is None
    assert extract_answer("qa", "Therefore the answer is x" + "!" * 100_000) == "x"
    assert extract_answer("code", "```\n" * 100_001) is None


def test_an_answer_sentence_may_end_with_the_finished_text():
    assert extract_answer("qa", "Therefore the answer is 3.14") == "3.14"
    assert extract_answer("qa", "Therefore the answer is 42.") == "42"
    assert extract_answer("qa", "Therefore the answer is ") is None
