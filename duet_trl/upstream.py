# SPDX-License-Identifier: Apache-2.0
"""Checks of TRL's own fields against ours."""

from trl import GRPOConfig


def check_upstream(config: GRPOConfig) -> None:
    """Raise ValueError for fields of TRL that are incompatible with ours; it names the values and what to set."""
    repeated = {"n", "seed"} & (config.generation_kwargs or {}).keys()
    if config.use_vllm and repeated:
        raise ValueError(
            f"generation_kwargs sets {sorted(repeated)}, but every rollout is its own request: 'n' would "
            "multiply them, and with one 'seed' all rollouts of a prompt would be the same. Remove them."
        )
    if config.use_transformers_continuous_batching:
        raise ValueError(
            "use_transformers_continuous_batching=True cannot stop single rollouts. Use use_vllm=True, or plain "
            "generate."
        )
    sequence_level = config.vllm_importance_sampling_mode.startswith("sequence")
    corrected = config.use_vllm and config.vllm_importance_sampling_correction and sequence_level
    if corrected and (config.top_p < 1 or config.top_k > 0 or (config.min_p or 0) > 0):
        raise ValueError(
            f"top_p={config.top_p}, top_k={config.top_k}, min_p={config.min_p} with vllm_importance_sampling_mode="
            f"{config.vllm_importance_sampling_mode!r}: the sampler's log-probs are renormalised inside the nucleus, "
            "and the ratio would compare two distributions. Set vllm_importance_sampling_correction=False (the "
            "paper's setting), or sample with top_p=1."
        )
    if config.overlap:
        _check_overlap(config)


def _check_overlap(config: GRPOConfig) -> None:
    """A server must generate, and a correction must account for weights that are one step old."""
    if not (config.use_vllm and config.vllm_mode == "server"):
        raise ValueError(
            "overlap=True lets a server generate while the policy trains, and there is none with "
            f"use_vllm={config.use_vllm}, vllm_mode={config.vllm_mode!r}. Set use_vllm=True and vllm_mode='server', "
            "or overlap=False."
        )
    if not config.vllm_importance_sampling_correction:
        raise ValueError(
            "overlap=True trains on rollouts of the weights before the last updates, and nothing corrects for the "
            "difference. Set vllm_importance_sampling_correction=True, or overlap=False."
        )
