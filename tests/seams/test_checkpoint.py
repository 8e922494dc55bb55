# SPDX-License-Identifier: Apache-2.0
"""What a state may hold: all of it comes back as it was, or an error names the place and the value."""

import numpy as np
import pytest

from duet_trl.seams.checkpoint import check_json, read_state, round_trip, write_state

STATE = {
    "words": ["a", None, True, {"deep": [1, 2.5]}],
    "numbers": np.arange(3.0),
    "nested": {"flags": np.array([True, False]), "none": None, "mean": np.float64(0.1)},
}


def test_a_state_comes_back_as_it_was(tmp_path):
    write_state(tmp_path, {"method": STATE}, {"seed": 1})
    for found in (round_trip("state", STATE), read_state(tmp_path, {"seed": 1})["method"]):
        assert found["words"] == STATE["words"] and found["nested"]["mean"] == 0.1
        np.testing.assert_array_equal(found["numbers"], STATE["numbers"])
        np.testing.assert_array_equal(found["nested"]["flags"], STATE["nested"]["flags"])
        assert found["numbers"] is not STATE["numbers"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"seen": {1}}, r"state\['seen'\] is \{1\} of type set, which a checkpoint cannot hold. .*sorted\(x\)"),
        ({"a": {"mean": np.float32(0.5)}}, r"state\['a'\]\['mean'\] is .*0.5.* of type float32"),
        ({"a": [1, (2, 3)]}, r"state\['a'\]\[1\] is \(2, 3\) of type tuple"),
        ({"a": [np.ones(2)]}, r"state\['a'\]\[0\] is .* of type ndarray.* arrays of numbers in nested dicts"),
        ({"a": np.array(["x"])}, r"state\['a'\] is .* of type ndarray"),
        ({3: 1.0}, r"state has the key 3, which JSON turns into text. Use str\(key\)"),
        ({"a": object}, r"state\['a'\] is <class 'object'>"),
    ],
)
def test_what_would_not_come_back_is_named(tmp_path, value, message):
    with pytest.raises(TypeError, match=message):
        check_json("state", value)
    with pytest.raises(TypeError, match="the " + message):
        write_state(tmp_path / "new", value, {})
    assert not (tmp_path / "new").exists()
