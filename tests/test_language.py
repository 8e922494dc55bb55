# SPDX-License-Identifier: Apache-2.0
"""Prose reads as a native engineer wrote it: pages, docstrings, comments, help texts and messages."""

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GLOBS = (
    "README.md CHANGELOG.md CONTRIBUTING.md benchmarks/**/*.md tests/FAULTS.md docs/**/*.md recipes/**/*.md "
    "notebooks/**/*.md notebooks/*.ipynb recipes/**/*.yaml duet_trl/**/*.py recipes/**/*.py benchmarks/**/*.py"
)
FILES = sorted({path for pattern in GLOBS.split() for path in ROOT.glob(pattern)})

# pattern of whole words, in either case => reason: remedy => an example => a sentence that only looks like one
TABLE = r"""
(?<!there )(?:is|are|was|were) no (?!(?:longer|more|better|worse|less|different|other)\b)
    => negated noun: is not a => A prefix is no answer. => There is no GPU, and it is no longer used.
(?:in|to|under|on) no (?:log|loss|length|baseline|folder|token|other|cost|row|file|group)
    => negated noun: not in any => Special tokens are in no log. => A log of no use, not in any file.
(?<!is |ly )(?<!far )(?<!left |step |teps |ttle |ints |were )behind (?!an? (?:firewall|proxy))(?=\w)
    => place for order: after, beyond => The trim stops behind the answer. => One step behind it. Left behind a proxy.
(?:stands?|stood) (?:in(?! for\b)|at|on|there|before|after|behind|below|above|next|under)|lies there
    => things do not stand: is in, follows => The answer stands after it. => It stands in for a GPU, and stands for it.
\w+s of (?:which|whom)
    => inversion: a main clause => Programs of which ten hang. => 16 GB, of which 15 are free, one of which is new.
(?:(?:an?|no|any|each) [\w-]+|engines|methods|suites|problems|processes|runs) of (?:its|their|your|one's) own
    => wordy: your own ... => A method of your own. => The number of its own rows.
sa(?:ys?|id) (?:nothing|little|what|which|how|when|where|whether|who|why)
    => things do not speak: shows, lists => The table says what was measured. => The tests skip and say so.
(?<![\w,)] )what (?:\w+ ){1,8}?(?:is|are|was|stands?) (?:not )?(?:an?|in|of|one|left|drawn|read|nan|dropped)
    => clause as subject: a noun => What was not logged is NaN. => What improves is the policy.
(?<!you )(?<!you may )(?<!users )(?<!who )wants?|(?:if|is|are|not) wanted
    => things do not want: needs, requests => The server wants a header. => All you may want to change, if you want.
(?<!one )(?:go|goes|going|went|gone) on => wordy: continues, resumes => It goes on at step 3. => In one go on a core.
(?<!is )all that (?:is|was|it|they|he)
    => wordy: everything that => All that it logged. => This is all that it needs, with all that match.
so (?:many|much) (?:tokens|seconds|rollouts|steps|rows|time)(?! that)
    => number unnamed: the given number of => For so many seconds at most. => So many rows that memory ends.
some (?:tens|minutes|seconds|hours) => vague: a few => It takes some minutes. => Some rows take ten minutes.
(?:probability|chance|risk) to (?!the\b|an?\b) => infinitive: of ...ing => The chance to visit it. => Chances grow.
coins?[^.;:]{0,20} thr(?:own|ew)|thr(?:ow|ows|ew) (?:\w+ ){0,2}coins?
    => idiom: flip a coin => The coin was thrown before. => The coin was flipped; tokens are thrown away.
(?:is|are) there (?:so|because|to|for) => wordy: exists => It is there so that tests run. => It is there.
hardly|likewise|now and again => hedge: rarely, also => It hardly ever ends. => It is a hard limit.
anew => rare word: again => The step is generated anew. => It is generated in a new process.
beside => rare word: next to, with, besides => A file beside it. => Besides the model, a card is written.
ends? (?:itself|themselves) => reflexive: ends => It ends itself with an EOS. => It ends by itself.
(?:left|leaves?|leaving) away => idiom: dropped => The rest is left away. => The rest is left out.
(?:has|have|had) no say|wanted but missed => idiom: ignored, missed => They have no say in it. => They are ignored.
comes? (?:round )?again => wordy: repeats, returns => A prompt comes again. => It comes from the Hub.
steer(?:s|ed|ing)?|rooms|surprisals? => private word: follows, package, -log pi => The rooms. => Leave room.
(?:much|little) is open => private word: uncertain => Prompts about which much is open. => The file is open.
(?<!of )course(?: of (?:the|a) run|, ver|, con| and con)\w* => false friend: history => Course, versions. => Of course.
"""
HABITS = [re.split(r"\s+=> ", habit) for habit in re.split(r"\n(?! )", TABLE.strip())]


def paragraphs(text: str, first: int = 1) -> list[tuple[int, str]]:
    """Line and text of each paragraph, item, heading or row of a table, on one line and with X for code."""
    text = re.sub(r"^ *```.*?^ *```", lambda block: "\n" * (block[0].count("\n") + 1), text, flags=re.M | re.S)
    blocks: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), first):
        if line.strip() and blocks and blocks[-1][1] and not re.match(r"\s*(?:[*|#-]|\d+\.) ", line):
            number, line = blocks[-1][0], f"{blocks.pop()[1]} {line}"
        blocks.append((number, " ".join(line.split())))
    return [(number, re.sub(r"(`+)[^`]+\1", "X", block)) for number, block in blocks]


def python_prose(text: str) -> Iterator[tuple[int, str]]:
    """Comments, adjacent lines as one, and strings of more than one word, with X for what an f-string fills in."""
    comments = [""] * (text.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string.strip("# ") + "." * (not token.line.lstrip().startswith("#"))
    yield from paragraphs("\n".join(comments), 0)
    nodes = list(ast.walk(ast.parse(text)))
    filled = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        parts = node.values if isinstance(node, ast.JoinedStr) else [node] * (id(node) not in filled)
        texts = [part.value if isinstance(part, ast.Constant) else "X" for part in parts]
        if all(isinstance(one, str) for one in texts) and " " in "".join(texts):
            yield from paragraphs("".join(texts), node.lineno)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text()
    if path.suffix == ".md":
        yield from paragraphs(text)
    elif path.suffix == ".yaml":
        yield from paragraphs("\n".join(re.sub(r"^(?:.*\s)?#+ ?|^[^#]*$", "", line) for line in text.split("\n")))
    elif path.suffix == ".py":
        yield from python_prose(text)
    else:
        for cell in json.loads(text)["cells"]:
            yield from (paragraphs if cell["cell_type"] == "markdown" else python_prose)("".join(cell["source"]))


def found(text: str, pattern: str) -> list[re.Match[str]]:
    return list(re.finditer(rf"\b(?:{pattern})\b", text, flags=re.I))


@pytest.mark.parametrize("pattern, remedy, wrong, right", HABITS, ids=[habit[2] for habit in HABITS])
def test_a_habit_is_seen_and_its_look_alike_is_not(pattern: str, remedy: str, wrong: str, right: str) -> None:
    assert found(wrong, pattern), remedy
    assert found(right, pattern) == []


def test_comments_docstrings_and_messages_are_read_and_code_is_not() -> None:
    code = '"""A prefix is\nno answer of `anew`."""\nanew = "beside"  # In\n# one\n# go.\ne(f"It {anew} anew.")'
    read = [text for _, text in python_prose(code) if text]
    assert read == ["In. one go.", "A prefix is no answer of X.", "It X anew."]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_sentence_reads_as_translated(path: Path) -> None:
    hits = [
        f"{line}: {text[max(0, match.start() - 50) : match.end() + 40]!r}, {remedy}"
        for line, text in prose(path)
        for pattern, remedy, _, _ in HABITS
        for match in found(text, pattern)
    ]
    assert not hits, "\n".join(hits)
