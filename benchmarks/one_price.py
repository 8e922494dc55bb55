# SPDX-License-Identifier: Apache-2.0
"""python benchmarks/one_price.py: the figure of docs/algorithm.md#one-price.

Left: what the next rollout of a prompt earns per token, in prices. Middle: what a cut at K earns less its tokens, in
two mixtures of `late_answers.py` with 10% late answers, right nine times of ten or never: as the gate knows it after
150 steps of aborting, and as it is. Right: where the gate cuts, step by step.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common import argument_parser, write_result  # noqa: E402
from benchmarks.late_answers import CAP, EXACT, GRACE, Mixture, closed_loop, price_at  # noqa: E402
from duet_trl.allocate.openness import openness  # noqa: E402
from duet_trl.gate.priced import PricedThresholds  # noqa: E402
from duet_trl.report.environment import hardware, versions  # noqa: E402
from duet_trl.report.tables import text_table  # noqa: E402

SHOWN = ROOT / "docs" / "images" / "one_price.png"
# Of Okabe and Ito's palette.
BLUE, ORANGE, GREEN, PINK, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#8A8A8A"
STEPS, LENGTH = 150, 500.0
PAYING = Mixture(share=0.1, late_right=0.9, silent=0.03, course="steady")
WORTHLESS = replace(PAYING, late_right=0.0)
PROMPTS_SHOWN = (
    ("4 of 8 right", (4.5, 4.5), GREEN, "-"),
    ("never seen", (0.5, 0.5), PINK, "--"),
    ("8 of 8 right", (8.5, 0.5), GREY, "-."),
)
"""Name, posterior of the success rate, and look."""
MIXTURES = (("late answers pay", PAYING, BLUE, "-"), ("they do not", WORTHLESS, ORANGE, "--"))


def truth(mixture: Mixture, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """K, F(K) and E min(T, K) from a large sample that nothing cuts."""
    drawn = mixture.draw(1.0, EXACT, np.random.default_rng(seed))
    cuts = np.arange(0, CAP + 1, 8)
    end = np.minimum(drawn.completed_at, drawn.natural)
    earned = (drawn.completed_at[drawn.right][:, None] <= cuts).sum(0) / EXACT
    return cuts, earned, np.array([np.minimum(end, cut).mean() for cut in cuts])


def main() -> None:
    """Draw the figure and write its numbers."""
    arguments = argument_parser(__doc__.splitlines()[0]).parse_args()
    price, ends = price_at(LENGTH), {}
    figure = Figure(figsize=(6.8, 2.4), layout="constrained")
    more, wait, course = figure.subplots(1, 3)
    rollouts = np.arange(1, 17)
    for name, posterior, color, line in PROMPTS_SHOWN:
        worth = float(openness(*np.array(posterior)))
        gain = worth * (np.sqrt(rollouts) - np.sqrt(rollouts - 1)) / LENGTH
        more.plot(rollouts, gain / price, color=color, linestyle=line, label=name)
    more.axhline(1.0, color=RED, linewidth=1.0)
    more.set(title="one more rollout", xlabel="n", ylabel="earns per token, in prices", ylim=(0, 4))
    for name, mixture, color, line in MIXTURES:
        cuts, earned, tokens = truth(mixture, arguments.seed)
        thresholds = PricedThresholds(CAP, GRACE)
        steps = closed_loop(thresholds, mixture, STEPS, arguments.seed, LENGTH)
        limits = [min(gate.spec().abort_at, CAP) for _, gate, _, _ in steps]
        exact = earned - price * tokens
        _, known, spent = thresholds.times.curves()
        bounds = np.minimum(np.arange(len(known)) * thresholds.times.width, CAP)
        wait.plot(cuts, exact, color=GREY, linewidth=2.5, alpha=0.4)
        wait.plot(bounds, known - price * spent, color=color, linestyle=line, label=name)
        wait.plot(cuts[exact.argmax()], exact.max(), "o", color=RED)
        course.plot(limits, color=color, linestyle=line)
        ends[name] = {"exact cut": int(cuts[exact.argmax()]), "K2 + G": limits[-1]}
    wait.set(title="going on", xlabel="cut at K, tokens", ylabel="F(K) - price x E min(T, K)")
    course.set(title="where the gate cuts", xlabel="step", ylabel="K2 + G, tokens", ylim=(0, 1.05 * CAP))
    figure.legend(loc="outside lower center", frameon=False, ncols=5, fontsize=7)
    payload = {
        "price": price,
        "steps": STEPS,
        "mixtures": ends,
        "seed": arguments.seed,
        "hardware": hardware(),
        "versions": versions("duet-trl", "numpy", "matplotlib"),
    }
    rows = [[name, found["exact cut"], found["K2 + G"]] for name, found in ends.items()]
    print(text_table(["late answers", "exact cut", f"K2 + G after {STEPS} steps"], rows))
    figure.savefig(SHOWN, dpi=300)
    print(f"written to {write_result('one_price', payload)} and {SHOWN}")


if __name__ == "__main__":
    main()
