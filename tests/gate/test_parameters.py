# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duet_trl.gate.parameters import gate_parameters, parse_gate_parameters
from duet_trl.gate.replay import GateSpec
from duet_trl.gate.streaming import GateRequest
from duet_trl.gate.thoughts import Delimiters

THINK = Delimiters("<think>", "</think>")
SPEC = GateSpec(32, 64, 16, poll_interval=8, entropy_threshold=0.25, window=256)
REQUEST = GateRequest(SPEC, True, "math", 500, frozenset({1, 2}))


def sent(**changes) -> dict:
    """What a request carries, with values of its JSON changed; those of the gate by their own names."""
    gate = json.loads(gate_parameters(REQUEST)["duet_gate"])
    for name, value in changes.items():
        (gate["spec"] if name in gate["spec"] else gate)[name] = value
    return {"duet_gate": json.dumps(gate)}


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
def test_a_gate_is_read_back_as_it_was(spec, keep, thoughts, prefix_length):
    request = GateRequest(spec, keep, "<é>...", 7, frozenset({3, 4}), "f", "/w", *thoughts, prefix_length)
    (text,) = gate_parameters(request).values()
    assert type(text) is str  # the one type that extra_args and HTTP carry alike
    assert parse_gate_parameters({"other": 1, "duet_gate": text}, stop_token_ids=[7]) == request


@pytest.mark.parametrize("extra_args", [None, {}, {"other": 1}])
def test_request_without_the_parameter_is_ungated(extra_args):
    assert parse_gate_parameters(extra_args) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k1": 3}, "cannot be read: .*k1.*gate_parameters"),
        ({"poll_threshold": "32"}, "poll_threshold must be an integer"),
        ({"poll_threshold": True}, "poll_threshold must be an integer"),
        ({"poll_threshold": 0}, "poll_threshold must be an integer >= 1"),
        ({"abort_threshold": 8.0}, "abort_threshold"),
        ({"abort_threshold": 31}, "K2=31 and K1=32"),
        ({"window": 0}, "window"),
        ({"grace_window": -1}, "grace_window"),
        ({"poll_interval": 8.0}, "poll_interval"),
        ({"trim": 1}, "trim and abort must be True or False"),
        ({"entropy_threshold": float("nan")}, "entropy_threshold must be a finite number"),
        ({"entropy_threshold": -0.5}, "entropy_threshold"),
        ({"entropy_threshold": "3"}, "cannot be read"),
        ({"prefix_length": -1}, "prefix_length of a gate must be an integer in"),
        ({"prefix_length": [7]}, "prefix_length of a gate must be an integer in"),
        ({"keep": 1}, "keep of a gate must be true or false, got 1"),
        ({"fingerprint": 7}, "fingerprint of a gate must be a string"),
        ({"marker": None}, "marker of a gate must be a string"),
        ({"in_thought": True}, "its gate names no delimiters"),
        ({"delimiters": {"opening": "<think>", "closing": "a<think>"}}, "neither containing the other"),
        ({"delimiters": ["<think>", "</think>"]}, "cannot be read"),
        ({"eos_ids": 1}, "cannot be read"),
        ({"eos_ids": []}, "1 to 32 eos_ids, got 0"),
        ({"eos_ids": ["1"]}, "must be token ids"),
        ({"eos_ids": list(range(33))}, "1 to 32 eos_ids, got 33"),
        ({"sentinel": 2}, "also in eos_ids"),
        ({"sentinel": 501}, "501 must be in stop_token_ids"),
        ({"version": 4}, "version 5, the request was made for 4. Install the same duet_trl"),
        ({"version": None}, "made for an older one"),
    ],
)
def test_bad_values_are_named_with_the_remedy(changes, message):
    with pytest.raises(ValueError, match=message):
        parse_gate_parameters(sent(**changes), stop_token_ids=[500])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"duet_version": 4, "duet_marker": "math"}, "the request was made for an older one. Install the same"),
        ({**gate_parameters(REQUEST), "duet_version": 4}, "Install the same"),
        ({"duet_gate": "{"}, "cannot be read"),
        ({"duet_gate": [1]}, "cannot be read"),
        ({"duet_gate": "[" * 10**5}, "cannot be read"),
        ({"duet_gate": '{"version": 5}'}, "cannot be read: KeyError 'spec'"),
    ],
)
def test_a_request_of_another_version_and_what_is_no_gate_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        parse_gate_parameters(given)


def test_equal_gates_are_one_key_however_their_numbers_are_written():
    whole = parse_gate_parameters(sent(entropy_threshold=1))
    assert whole == replace(REQUEST, spec=replace(SPEC, entropy_threshold=1.0))
