# SPDX-License-Identifier: Apache-2.0
"""Weights on disk: complete, whole, and under a name that never comes twice."""

import os

import pytest
import torch
from safetensors.torch import load_file

from duet_trl.seams import weight_folder as weights
from duet_trl.seams.weight_folder import WeightFolder


def some_weights(num: int = 7) -> dict[str, torch.Tensor]:
    """Parameters of 40 to 100 bytes, with what a file format may refuse: views, transposes and shared memory."""
    base = torch.arange(60, dtype=torch.float32)
    plain = {f"layer.{i}": torch.full((10 + i,), float(i)) for i in range(num - 3)}
    return {**plain, "view": base[5:20], "transposed": base[:20].reshape(4, 5).T, "half": base[:20].bfloat16()}


def read(version) -> dict[str, torch.Tensor]:
    shards = [load_file(path) for path in sorted(version.glob("*.safetensors"))]
    names = [name for shard in shards for name in shard]
    assert len(names) == len(set(names))
    return {name: tensor for shard in shards for name, tensor in shard.items()}


@pytest.mark.parametrize("shard_bytes", [1, 100, 2**30])
def test_every_weight_is_read_back_once_and_exactly(tmp_path, monkeypatch, shard_bytes):
    monkeypatch.setattr(weights, "_SHARD_BYTES", shard_bytes)
    expected = some_weights()
    version = WeightFolder(tmp_path).write(expected.items())
    found = read(version)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    # 1: a shard for each of the seven. 100: cut as soon as 100 bytes are there, 40 + 44 + 48 | 52 + 60 | 80 + 40.
    assert len(list(version.iterdir())) == {1: 7, 100: 3, 2**30: 1}[shard_bytes]


def test_weights_are_those_of_the_moment_they_were_passed_by(tmp_path):
    parameter = torch.nn.Parameter(torch.zeros(3))

    def gathered():
        yield "first", parameter
        with torch.no_grad():
            parameter.add_(1)  # as sharded training reuses the buffer of a parameter that it has gathered
        yield "second", parameter

    found = read(WeightFolder(tmp_path).write(gathered()))
    assert found["first"].tolist() == [0, 0, 0] and found["second"].tolist() == [1, 1, 1]


def test_a_version_is_seen_when_it_is_complete_and_not_before(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "_SHARD_BYTES", 1)
    seen = []

    def watched():
        for item in some_weights().items():
            seen.append([path for path in tmp_path.iterdir() if not path.name.startswith(".")])
            yield item

    version = WeightFolder(tmp_path).write(watched())
    assert seen == [[]] * 7
    assert list(tmp_path.iterdir()) == [version]


def test_no_two_versions_share_a_name_whichever_run_writes_them(tmp_path):
    runs = [WeightFolder(tmp_path) for _ in range(20)]
    versions = [run.write(some_weights().items()) for run in runs for _ in range(2)]
    assert len(set(versions)) == 40


def test_the_path_is_absolute_as_the_servers_guard_wants_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    version = WeightFolder(tmp_path.relative_to(tmp_path) / "new" / "folder").write(some_weights().items())
    assert version.is_absolute() and version.parent == tmp_path / "new" / "folder"


def test_only_versions_of_the_own_run_are_deleted(tmp_path):
    mine, other = WeightFolder(tmp_path), WeightFolder(tmp_path)
    first, second, third = (folder.write(some_weights().items()) for folder in (mine, other, mine))
    mine.keep_only(third)
    assert {*tmp_path.iterdir()} == {second, third}
    mine.keep_only(None)
    assert {*tmp_path.iterdir()} == {second}
    assert not first.exists()


def test_what_an_aborted_write_leaves_is_deleted_and_in_nobodys_way(tmp_path):
    folder = WeightFolder(tmp_path)

    def failing():
        yield "first", torch.zeros(3)
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        folder.write(failing())
    assert all(name.startswith(".") for name in os.listdir(tmp_path))
    version = folder.write(some_weights().items())
    folder.keep_only(version)
    assert list(tmp_path.iterdir()) == [version]
