# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.gate.parameters import gate_parameters, parse_gate_parameters
from duet_trl.gate.replay import GateSpec
from duet_trl.gate.thoughts import Delimiters

THINK = Delimiters("<think>", "</think>")
SPEC = GateSpec(32, 64, 16, poll_interval=8, entropy_threshold=0.25, window=256)


def parameters(**changes) -> dict:
    return {**gate_parameters(SPEC, "math", keep=True, sentinel=500, eos_ids=[1, 2]), **changes}


@given(
    st.builds(
        GateSpec,
        poll_threshold=st.integers(1, 50),
        abort_threshold=st.integers(50, 10**6),
        grace_window=st.integers(0, 500),
        poll_interval=st.integers(1, 64),
        trim=st.booleans(),
        abort=st.booleans(),
        entropy_threshold=st.floats(0, 10),
        window=st.none() | st.integers(1, 4096),
    ),
    st.booleans(),
    st.sampled_from([(None, False), (THINK, False), (THINK, True)]),
    st.integers(0, 4096),
)
def test_parameters_are_read_back_as_they_were(spec, keep, thoughts, prefix_length):
    names = dict(zip(("delimiters", "in_thought"), thoughts, strict=True))
    sent = gate_parameters(
        spec, "qa", keep, 7, [3, 4], fingerprint="f", weights="/w", prefix_length=prefix_length, **names
    )
    request = parse_gate_parameters(sent, stop_token_ids=[7])
    assert request.spec == spec
    assert request.keep == (keep and spec.abort)
    assert (request.marker, request.sentinel, request.eos_ids) == ("qa", 7, {3, 4})
    assert (request.fingerprint, request.weights) == ("f", "/w")
    assert (request.delimiters, request.in_thought, request.prefix_length) == (*thoughts, prefix_length)


def test_parameters_are_flat_as_http_needs_them():
    allowed = (str, int, float)
    for value in parameters().values():
        assert type(value) in allowed or (type(value) is list and all(type(item) in allowed for item in value))


@pytest.mark.parametrize("extra_args", [None, {}, {"other": 1}])
def test_request_without_gate_parameters_is_ungated(extra_args):
    assert parse_gate_parameters(extra_args) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"duet_k1": 3}, r"unknown \['duet_k1'\]"),
        ({"duet_poll_threshold": "32"}, "duet_poll_threshold must be an integer"),
        ({"duet_poll_threshold": True}, "duet_poll_threshold must be an integer"),
        ({"duet_poll_threshold": 0}, r"in \[1, "),
        ({"duet_poll_threshold": 2**31}, "duet_poll_threshold"),
        ({"duet_abort_threshold": 31}, "K2=31 and K1=32"),
        ({"duet_grace_window": -1}, "duet_grace_window"),
        ({"duet_prefix": -1}, "duet_prefix must be an integer in"),
        ({"duet_prefix": [7]}, "duet_prefix must be an integer in"),
        ({"duet_poll_interval": 8.0}, "duet_poll_interval"),
        ({"duet_at_gate": True}, "'keep', 'abort', 'off'"),
        ({"duet_trim": 1}, "'on', 'off'"),
        ({"duet_trim": ["on"]}, "'on', 'off'"),
        ({"duet_entropy_threshold": float("nan")}, "duet_entropy_threshold"),
        ({"duet_entropy_threshold": False}, "duet_entropy_threshold"),
        ({"duet_entropy_threshold": -0.5}, "duet_entropy_threshold"),
        ({"duet_margin_threshold": 0.0}, r"unknown \['duet_margin_threshold'\]"),
        ({"duet_version": 2}, "version 4, the request was made for 2. Install the same duet_trl"),
        ({"duet_version": True}, "made for True"),
        ({"duet_fingerprint": 7}, "duet_fingerprint must be a string"),
        ({"duet_weights": ["a"]}, "duet_weights must be a string"),
        ({"duet_marker": 3}, "duet_marker"),
        ({"duet_marker": ""}, "duet_marker"),
        ({"duet_begins": "in thought"}, "duet_thoughts names no delimiters"),
        ({"duet_begins": True}, "'in answer', 'in thought'"),
        ({"duet_thoughts": ["<think>"]}, "a list of two texts, or"),
        ({"duet_thoughts": ["<think>", 3]}, "a list of two texts, or"),
        ({"duet_thoughts": ["<think>", "a<think>"]}, "neither contains the other"),
        ({"duet_thoughts": None}, "a list of two texts, or"),
        ({"duet_eos": 1}, "duet_eos"),
        ({"duet_eos": []}, "duet_eos"),
        ({"duet_eos": ["1"]}, "duet_eos"),
        ({"duet_eos": list(range(33))}, "32 token ids at most, got 33"),
        ({"duet_sentinel": 2}, "also in duet_eos"),
        ({"duet_sentinel": 501}, "501 must be in stop_token_ids"),
    ],
)
def test_bad_parameters_are_named_with_the_remedy(changes, message):
    with pytest.raises(ValueError, match=message):
        parse_gate_parameters(parameters(**changes), stop_token_ids=[500])


@pytest.mark.parametrize("name", sorted(parameters()))
def test_parameters_come_all_or_none(name):
    incomplete = parameters()
    del incomplete[name]
    with pytest.raises(ValueError, match=rf"missing \['{name}'\]"):
        parse_gate_parameters(incomplete, stop_token_ids=[500])


def test_whole_number_is_accepted_for_a_threshold_because_json_drops_the_point():
    assert parse_gate_parameters(parameters(duet_entropy_threshold=0)).spec.entropy_threshold == 0.0
