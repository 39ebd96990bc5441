"""The example of a stranger's package, built as a wheel, works from outside the repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[1] / "examples" / "third_party_plugin"


def test_a_wheel_of_the_example_trains_a_net_with_its_layer_type(tmp_path):
    source = shutil.copytree(EXAMPLE, tmp_path / "package", ignore=shutil.ignore_patterns("dist", "out"))
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(source)]
    subprocess.run(build, check=True, capture_output=True, timeout=120)
    (wheel,) = (source / "dist").glob("demitasse_softcap-*.whl")
    site, elsewhere = tmp_path / "site", tmp_path / "elsewhere"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target"]
    subprocess.run([*install, str(site), str(wheel)], check=True, capture_output=True, timeout=120)
    elsewhere.mkdir()
    for name in ("digits_softcap_solver.prototxt", "digits_softcap.prototxt"):
        shutil.copy(EXAMPLE / name, elsewhere)
    run = subprocess.run(
        [sys.executable, "-m", "demitasse_cli", "train", "digits_softcap_solver.prototxt"],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "softcap" in run.stdout
    assert (elsewhere / "out" / "digits_softcap_iter_300.demitasse").is_file()
    accuracy = float(run.stdout.rsplit("accuracy", 1)[1].split()[0])
    assert accuracy > 0.9
    held = subprocess.run(
        [sys.executable, "-m", "demitasse_cli", "check", "softcap"],
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert held.returncode == 0, held.stdout + held.stderr
    assert "0 broken, 3 untried" in held.stdout  # the kit's own net in each precision has no such layer
    for word in ("softcap ", "softcap_backward "):
        (line,) = [line for line in held.stdout.splitlines() if f"kernels        {word}" in line]
        assert line.startswith("kept") and "(f64, f32, bf16)" in line


def test_without_the_package_its_layer_type_is_named_as_missing(tmp_path):
    arguments = ["explain", str(EXAMPLE / "digits_softcap.prototxt")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run = subprocess.run(
        [sys.executable, "-m", "demitasse_cli", *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 2
    assert "digits_softcap.prototxt:23: layer 'cap'" in run.stderr
    assert "unknown layer type 'SoftCap'" in run.stderr
