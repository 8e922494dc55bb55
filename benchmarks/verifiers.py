# SPDX-License-Identifier: Apache-2.0
r"""python benchmarks/verifiers.py [--check] [--data FOLDER]: the math verifier on real and hostile outputs, its speed.

* Agreement with the labels of real model outputs that have a box. The target is for those whose last box holds an
  answer. Outputs that close with an empty `\boxed{}`, the echo of a prompt, are counted apart: their labels are about
  the empty box, the verifier reads the answer before it.
* Agreement on (extracted answer, gold, label): the boxes, and the last line of the outputs that have none.
* TRL's `accuracy_reward` and Math-Verify with its defaults on the same rows: share, and rows that differ from ours.
* Agreement with the right and wrong answers that tests/rewards/cases/math.jsonl lists as models write them.
* Hostile answers, each next to a right one: graded wrong within the limit, without harm to its neighbour, and no
  process is left behind.
* Time for 1,024 answers on two worker processes that are already up: as in a training step (128 golds of MATH, 8
  answers each, half of them right, the others golds of other problems), and 1,024 pairs that are all different. The
  best of three rounds counts, because other processes on the machine only ever slow one down; processor seconds of
  the workers are given next to it.

The data are those of the tests, in ../shared/data; the benchmark ends with code 2 where they are not. --check ends
with code 1 if a target is missed.
"""

import faulthandler
import json
import logging
import os
import random
import re
import sys
import time
from pathlib import Path
from typing import Any

import math_verify
from common import argument_parser, finish
from trl.rewards import accuracy_reward

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from duet_trl.gate.markers import extract_boxed
from duet_trl.report.tables import text_table
from duet_trl.rewards import MathVerifier
from duet_trl.rewards.math_worker import WALL_SECONDS_PER_CPU_SECOND
from tests.rewards.case_files import cases
from tests.rewards.hostile_answers import HOSTILE_ANSWERS, HOSTILE_TEXTS

FILES = ("model_outputs_math.jsonl", "math_train_clean.jsonl")
MINIMUM_OUTPUT_AGREEMENT = 0.995
MINIMUM_PAIR_AGREEMENT = 0.98
MAXIMUM_SECONDS = 3.0
NUM_ANSWERS = 1_024
WORKERS = 2
ROUNDS = 3
HOSTILE_TIMEOUT = 1.0
"""Processor seconds per answer in the hostile part, less than the default to keep it short."""
WALL_LIMIT = WALL_SECONDS_PER_CPU_SECOND * HOSTILE_TIMEOUT
LONGEST_RUN = 1_200
"""Seconds after which the benchmark is given up as hanging."""
FINAL_LINE = re.compile(r"(?:^|\n)(?:A: |[^\n]*#### ?|[^\n]*[Tt]he answer is:? )([^\n]+)")
"""The last lines of the GSM8K outputs: "A: 72", "#### 72", "The answer is: 72"."""

ALL_BOXED, BOXED = "boxed outputs", "  last box holds an answer"
PAIRS = "(answer, gold, label) pairs"


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    with (folder / name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def last_box_holds_an_answer(text: str) -> bool:
    return extract_boxed(text[max(text.rfind(r"\boxed{"), 0) :]) is not None


def trl_verdicts(texts: list[str], golds: list[str]) -> list[float | None]:
    """TRL's verifier; the gold between dollar signs, without which it reads less of it."""
    return accuracy_reward(
        [[{"role": "assistant", "content": text}] for text in texts], [f"${gold}$" for gold in golds]
    )


def plain_verdicts(texts: list[str], golds: list[str]) -> list[float | None]:
    """Math-Verify with its defaults; the gold as its documentation writes it."""
    pairs = zip(texts, golds, strict=True)
    return [float(math_verify.verify(math_verify.parse(f"${gold}$"), math_verify.parse(text))) for text, gold in pairs]


OTHERS = {"TRL accuracy_reward": trl_verdicts, "math-verify": plain_verdicts}


def agreement(
    verdicts: list[float | None], rows: list[dict[str, Any]], answers: list[str], texts: list[str] | None = None
) -> dict[str, Any]:
    """Share of verdicts that equal the label, and the rows where they do not; other verifiers on the same rows.

    Those read whole texts, or the answers in a box where there are none.
    """
    texts = [rf"\boxed{{{answer}}}" for answer in answers] if texts is None else texts
    golds = [row["gold"] for row in rows]
    others = {name: against_labels(verdict(texts, golds), rows, answers) for name, verdict in OTHERS.items()}
    return {"rows": len(rows)} | against_labels(verdicts, rows, answers) | {"others": others}


def against_labels(verdicts: list[float | None], rows: list[dict[str, Any]], answers: list[str]) -> dict[str, Any]:
    against = [
        {"id": row["id"], "answer": answer, "gold": row["gold"], "label": row["label"], "verdict": verdict}
        for row, answer, verdict in zip(rows, answers, verdicts, strict=True)
        if verdict != float(row["label"])
    ]
    return {"agreement": 1 - len(against) / len(rows), "disagreements": against}


def measure_outputs(outputs: list[dict[str, Any]], verifier: MathVerifier) -> dict[str, dict[str, Any]]:
    """Agreement on whole outputs and on the answers taken out of them."""
    labelled = [row for row in outputs if row["label"] is not None]
    boxed = [row for row in labelled if extract_boxed(row["text"]) is not None]
    plain = [row for row in boxed if last_box_holds_an_answer(row["text"])]
    echo = [row for row in boxed if not last_box_holds_an_answer(row["text"])]
    parts = {
        name: agreement(
            verifier([row["text"] for row in rows], [row["gold"] for row in rows]),
            rows,
            [extract_boxed(row["text"], "last") or "" for row in rows],
            [row["text"] for row in rows],
        )
        for name, rows in ((ALL_BOXED, boxed), (BOXED, plain), ("  last box is empty", echo))
        if rows
    }
    lines = [(row, FINAL_LINE.findall(row["text"])) for row in labelled if row not in boxed]
    pairs = [(row, extract_boxed(row["text"], "last") or "") for row in plain]
    pairs += [(row, found[-1].strip()) for row, found in lines if found]
    rows, answers = [row for row, _ in pairs], [answer for _, answer in pairs]
    verdicts = verifier.grade(answers, [row["gold"] for row in rows])
    return parts | {PAIRS: agreement(verdicts, rows, answers)}


def measure_table(verifier: MathVerifier) -> dict[str, dict[str, Any]]:
    """Agreement with the answers that the tests list, which were chosen for what verifiers get wrong."""
    rows = [
        {"id": f"a{place}", "answer": case["answer"], "gold": case["gold"], "label": case["right"]}
        for place, case in enumerate(cases("math")["as models write"])
    ]
    found = {}
    for name, part in (
        ("right", [row for row in rows if row["label"]]),
        ("wrong", [row for row in rows if not row["label"]]),
    ):
        answers = [row["answer"] for row in part]
        verdicts = verifier.grade(answers, [row["gold"] for row in part])
        found[f"{name} answers that the tests list"] = agreement(verdicts, part, answers)
    return found


def measure_hostile() -> dict[str, Any]:
    """Grade every hostile answer together with a right one; the slowest call and what came out wrong."""
    verifier = MathVerifier(timeout=HOSTILE_TIMEOUT, workers=WORKERS)
    verifier.grade(["1"], ["1"])
    texts = {name: rf"\boxed{{{answer}}}" for name, answer in HOSTILE_ANSWERS.items()} | HOSTILE_TEXTS
    seconds, failed = {}, []
    for number, (name, text) in enumerate(texts.items()):
        begin = time.monotonic()
        # another right answer each time: a remembered verdict would prove nothing
        verdicts = verifier([text, rf"\boxed{{{1000 + number}}}"], ["7", f"{1000 + number}.0"])
        seconds[name] = time.monotonic() - begin
        if verdicts != [0.0, 1.0] or seconds[name] > WALL_LIMIT + 1:
            failed.append(name)
    begin = time.monotonic()
    verifier.grade([f"{HOSTILE_ANSWERS['tower of powers']}+{n}" for n in range(8)], ["7"] * 8)
    seconds["8 towers in one batch"] = time.monotonic() - begin
    verifier.close()
    left = len(processes_below())
    return {"answers": len(texts), "failed": failed, "seconds": seconds, "limit": WALL_LIMIT, "processes_left": left}


def step_pairs(golds: list[str], rng: random.Random) -> list[tuple[str, str]]:
    """Answers and golds of one training step: 128 prompts, 8 answers each, half of them right."""
    return [
        (gold if rollout % 2 else rng.choice(golds), gold)
        for gold in rng.sample(golds, NUM_ANSWERS // 8)
        for rollout in range(8)
    ]


def different_pairs(golds: list[str], rng: random.Random) -> list[tuple[str, str]]:
    """Pairs, no two of them equal: each gold with itself and with the next one."""
    some = rng.sample(sorted(set(golds)), NUM_ANSWERS // 2 + 1)
    return [pair for gold, other in zip(some, some[1:], strict=False) for pair in ((gold, gold), (other, gold))]


def processes_below() -> dict[int, float]:
    """Processor seconds so far of each process below this one; empty where there is no /proc."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()  # from the state on, after pid and name
        except OSError:  # it has ended meanwhile
            continue
        pid = int(path.parent.name)
        parents[pid], ticks[pid] = int(fields[1]), sum(map(int, fields[11:15]))

    def below(pid: int) -> bool:
        return pid in parents and (parents[pid] == os.getpid() or below(parents[pid]))

    return {pid: ticks[pid] / os.sysconf("SC_CLK_TCK") for pid in ticks if below(pid)}


def measure_speed(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Seconds for the pairs on a verifier that is up and has not seen them."""
    rounds = []
    for _ in range(ROUNDS):
        verifier = MathVerifier(workers=WORKERS)
        verifier.grade([str(n) for n in range(64)], ["1/2"] * 64)  # starts every worker
        begin, used = time.monotonic(), sum(processes_below().values())
        verifier.grade([answer for answer, _ in pairs], [gold for _, gold in pairs])
        wall = time.monotonic() - begin
        rounds.append({"wall": wall, "processor": sum(processes_below().values()) - used})
        verifier.close()
    return {
        "answers": len(pairs),
        "different": len(set(pairs)),
        "seconds": min(r["wall"] for r in rounds),
        "rounds": rounds,
    }


def report_agreement(parts: dict[str, dict[str, Any]]) -> None:
    table = [
        [name, f"{p['rows'] - len(p['disagreements']):,} of {p['rows']:,}", f"{p['agreement']:.2%}"]
        + [f"{p['others'][other]['agreement']:.2%}" for other in OTHERS]
        for name, p in parts.items()
    ]
    print(text_table(["math verifier against labels", "agrees", "share", *OTHERS], table))
    for name, part in parts.items():
        for row in part["disagreements"] if name != ALL_BOXED else []:
            print(
                f"  {name.strip()}: {row['id']}: answer {row['answer'][:60]!r}, gold {row['gold'][:40]!r}, label "
                f"{row['label']}, verdict {row['verdict']}"
            )


def report_hostile(hostile: dict[str, Any]) -> None:
    slowest = sorted(hostile["seconds"].items(), key=lambda item: -item[1])[:5]
    print(text_table(["hostile answer, slowest", "seconds"], [[name, f"{s:.2f}"] for name, s in slowest]))
    contained = hostile["answers"] - len(hostile["failed"])
    print(
        f"hostile answers graded wrong within {hostile['limit']:.0f} s, neighbours unharmed: {contained} of "
        f"{hostile['answers']}{': failed ' + ', '.join(hostile['failed']) if hostile['failed'] else ''}"
    )


def report_speed(speed: dict[str, dict[str, Any]]) -> None:
    rows = []
    for name, s in speed.items():
        used = min(r["processor"] for r in s["rounds"])
        rows.append(
            [name, s["different"], f"{s['seconds']:.2f}", f"{used:.2f}", f"{s['answers'] / s['seconds']:,.0f}"]
        )
    columns = [f"{NUM_ANSWERS:,} answers, {WORKERS} workers", "different", "seconds", "processor s", "answers/s"]
    print(text_table(columns, rows))


def main() -> int:
    parser = argument_parser(__doc__.splitlines()[0])
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    parser.add_argument("--data", type=Path, default=default, help="folder with the labelled outputs and MATH")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # of the other verifiers, about their time limits
    missing = [name for name in FILES if not (arguments.data / name).is_file()]
    if missing:
        print(
            f"{arguments.data} has no {', '.join(missing)}. Give the folder that has them with --data.",
            file=sys.stderr,
        )
        return 2
    faulthandler.dump_traceback_later(LONGEST_RUN, exit=True)

    verifier = MathVerifier(workers=WORKERS)
    parts = measure_outputs(read(arguments.data, FILES[0]), verifier) | measure_table(verifier)
    verifier.close()
    report_agreement(parts)
    golds = [row["answer"] for row in read(arguments.data, FILES[1]) if row["answer"]]
    rng = random.Random(arguments.seed)
    speed = {
        "a training step": measure_speed(step_pairs(golds, rng)),
        "all pairs different": measure_speed(different_pairs(golds, rng)),
    }
    report_speed(speed)
    hostile = measure_hostile()
    report_hostile(hostile)

    outputs, pairs = parts[BOXED]["agreement"], parts[PAIRS]["agreement"]
    seconds = speed["a training step"]["seconds"]
    met = {
        f"boxed outputs {outputs:.2%} >= {MINIMUM_OUTPUT_AGREEMENT:.1%}": outputs >= MINIMUM_OUTPUT_AGREEMENT,
        f"pairs {pairs:.2%} >= {MINIMUM_PAIR_AGREEMENT:.0%}": pairs >= MINIMUM_PAIR_AGREEMENT,
        f"{NUM_ANSWERS:,} answers in {seconds:.2f} s <= {MAXIMUM_SECONDS:.0f} s": seconds <= MAXIMUM_SECONDS,
        "hostile answers graded, none left": not hostile["failed"] and hostile["processes_left"] == 0,
    }
    payload = {"outputs": parts, "speed": speed, "hostile": hostile}
    return finish("verifiers", payload, met, arguments, "math-verify", "latex2sympy2_extended", "sympy")


if __name__ == "__main__":
    sys.exit(main())
