# SPDX-License-Identifier: Apache-2.0
"""What Linux tells of a processor."""

import pytest

from duet_trl.report.environment import multiplies_bf16


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16 fma", True),
        ("flags\t\t: fpu amx_bf16 amx_tile", True),
        ("flags\t\t: fpu avx512f avx512_vnni", False),
        ("Features\t: fp asimd bf16", True),
        ("Features\t: fp asimd", False),
        ("model name\t: without features", True),
    ],
)
def test_bf16_is_multiplied_by_processors_that_say_so_or_say_nothing(tmp_path, told: str, expected: bool) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    assert multiplies_bf16(False, cpuinfo)  # there is none
    cpuinfo.write_text(f"processor\t: 0\n{told}\nbugs\t\t: bf16\n\nprocessor\t: 1\n{told}\n")
    assert multiplies_bf16(False, cpuinfo) is expected
