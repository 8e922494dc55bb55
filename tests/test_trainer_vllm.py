# SPDX-License-Identifier: Apache-2.0
"""DUETGRPOTrainer on a real vLLM engine in the training process."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import forked, fresh

ROOT = Path(__file__).parents[1]

# TRL builds its engine for the life of the process, so each run gets a process of its own.
SCRIPT = """
import json, os, sys
from pathlib import Path
import torch
from tests.runs import count_fours, duet_trainer, logged, prompts

model, output_dir, overrides = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
if overrides.pop("lora", False):
    from peft import LoraConfig

    overrides["peft_config"] = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
if overrides.pop("repetition", False):
    from vllm.sampling_params import RepetitionDetectionParams

    repetition = RepetitionDetectionParams(max_pattern_size=1, min_count=4)
    overrides["generation_kwargs"] = {"repetition_detection": repetition}
scored_before = overrides.pop("scored_before", False)
rollouts = []

def rewards(completions, completion_ids, **kwargs):
    rollouts.extend(completion_ids)
    return count_fours(completions)

trainer = duet_trainer(
    model, output_dir, use_vllm=True, vllm_mode="colocate", rewards=rewards, **{"max_steps": 5, **overrides}
)
if scored_before:
    from duet_trl.seams.train_rows import TrlsLogps

    trainer.old_logps = TrlsLogps()
forwards = []
trainer.model.register_forward_hook(lambda *_: forwards.append(torch.is_grad_enabled()))
trainer.train()
passes = {"training": forwards.count(True), "before": forwards.count(False)}
samples = trainer.sample(["Say 1 ", "Say 2 "], 3, temperature=0.0, max_tokens=10)
names = ("loss", "duet/abort_rate", "duet/trim_rate", "duet/keep_rate", "duet/generated_tokens",
         "duet/engine_end_rate", "sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max",
         "sampling/importance_sampling_ratio/min", "sampling/importance_sampling_ratio/mean",
         "sampling/importance_sampling_ratio/max", "grad_norm", "duet/pruned_rollouts", "duet/reused_tokens")
report = {name: logged(trainer, name) for name in names}
report["samples"], report["passes"] = samples, passes
report["cores"] = [torch.get_num_threads(), os.environ.get("VLLM_CPU_OMP_THREADS_BIND")]
the = trainer.processing_class.convert_tokens_to_ids("\\u0120the")
free = [ids for row in trainer.sample(["Say 1 ", "Say 2 "], 8, temperature=1.0) for ids in row]
report["with_the"], report["end_at_the"] = (
    [sum(test(ids) for ids in kind) for kind in (rollouts, free)]
    for test in (lambda ids: the in ids, lambda ids: the in ids and ids.index(the) == len(ids) - 1)
)
twice = trainer.vllm_generation.llm.generate([{"prompt_token_ids": [7] * 70}] * 2, use_tqdm=False)
report["computed"] = [70 - output.num_cached_tokens for output in twice]
(output_dir / "report.json").write_text(json.dumps(report))
"""


def run(model: Path, output_dir: Path, start: Callable = forked, **overrides) -> dict:
    output_dir.mkdir(exist_ok=True)
    arguments = ["-c", SCRIPT, str(model), str(output_dir), json.dumps(overrides)]
    # Without what a user would not have set: the trainer does.
    unset = {"OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_ENABLE_V1_MULTIPROCESSING"}
    environment = {name: value for name, value in os.environ.items() if name not in unset} | {"PYTHONPATH": str(ROOT)}
    done = start(arguments, cwd=output_dir, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((output_dir / "report.json").read_text())


@pytest.mark.vllm
def test_colocated_training_gates_and_samples_from_the_policy_it_trains(tiny_path, tmp_path):
    report = run(tiny_path, tmp_path, fresh)
    # Tied embeddings included, every step samples from the weights of the step before: a stale copy would differ.
    assert max(report["sampling/sampling_logp_difference/max"]) < 1e-3
    assert min(report["sampling/importance_sampling_ratio/min"]) > 0.99
    assert max(report["sampling/importance_sampling_ratio/max"]) < 1.01
    assert report["cores"] == [1, "nobind"]  # threads that wait for each other would take several times as long
    for name in ("duet/abort_rate", "duet/trim_rate", "duet/keep_rate"):
        assert max(report[name]) > 0, name
    assert [len(row) for row in report["samples"]] == [3, 3]
    assert all(row[0] == row[1] == row[2] for row in report["samples"])  # greedy
    assert max(len(ids) for row in report["samples"] for ids in row) <= 10
    assert report["computed"] == [70, 6]  # a short prompt is shared; vLLM's blocks on a CPU have 128 tokens


@pytest.mark.vllm
@pytest.mark.slow
def test_a_single_update_weighs_tokens_as_trl_does_without_its_forward_pass(tiny_path, tmp_path):
    # In bfloat16 the policy is not quite what vLLM samples from. Every weight is cut to 0.9, which the gradient shows.
    options = {"bf16": True, "vllm_importance_sampling_mode": "token_truncate", "max_steps": 2}
    options |= {"vllm_importance_sampling_clip_max": 0.9}
    before = run(tiny_path, tmp_path / "before", **options, scored_before=True)
    late = run(tiny_path, tmp_path / "late", **options)
    assert before["passes"]["before"] > 0 == late["passes"]["before"]
    assert before["passes"]["training"] == late["passes"]["training"]
    assert late["sampling/importance_sampling_ratio/max"][0] == pytest.approx(0.9)
    assert late["sampling/sampling_logp_difference/max"][0] > 2e-3
    for name in ("loss", "grad_norm", "duet/generated_tokens", *(n for n in late if n.startswith("sampling/"))):
        # The second update starts from weights that rounding has moved apart.
        assert late[name][0] == pytest.approx(before[name][0], rel=5e-2), name


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    [
        {"marker": "4...2", "entropy_threshold": 0.0, "repetition": True},
        {"top_p": 0.95, "vllm_importance_sampling_correction": False, "beta": 0.04},
        {"lora": True, "learning_rate": 1e-2, "extra_eos_tokens": ["\u0120the"]},
        {"extra_eos_tokens": ["\u0120the"], "method": "grpo"},
        {"method": "arrol", "method_kwargs": {"head_warmup_steps": 1, "detect_at": 12}},
        {"method": "spec_rl"},
    ],
    ids=["marker-repetition", "papers-nucleus", "lora-extra-eos", "grpo-extra-eos", "continued", "reused"],
)
def test_every_kind_of_run_trains_on_the_engine(tiny_path, tmp_path, overrides):
    report = run(tiny_path, tmp_path, **overrides)
    assert len(report["loss"]) == 5
    # No importance correction, no measured difference.
    assert max(report["sampling/sampling_logp_difference/max"], default=0.0) < 1e-3
    assert min(report["with_the"]) > 5  # of rollouts and of samples outside of training
    assert (report["end_at_the"] == report["with_the"]) == ("extra_eos_tokens" in overrides)
    gated = max(report["duet/abort_rate"]) + max(report["duet/trim_rate"]) > 0
    assert gated == ("method" not in overrides)
    # Prefixes of rollouts that were cut short or that are from earlier steps carry log-probs, compared above.
    assert (sum(report["duet/pruned_rollouts"]) > 0) == (overrides.get("method") == "arrol")
    assert (sum(report["duet/reused_tokens"]) > 0) == (overrides.get("method") == "spec_rl")
    assert (max(report["duet/engine_end_rate"]) > 0) == ("repetition" in overrides)
