"""The rules of the house, each one a test that names the file, the line and the rule."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import settings

import demitasse
from demitasse import hookspecs
from demitasse.composition import compose_plugins

ROOT = Path(__file__).parents[1]
CORE = ROOT / "core" / "src" / "demitasse"
VOCABULARY = CORE / "operations"
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
PLUGIN_NAMES = [folder.name for folder in PLUGINS]
EXAMPLE = ROOT / "examples" / "third_party_plugin"
SOURCES = sorted(
    path
    for pattern in ("core/src", "plugins/*/src", "examples/third_party_plugin/src")
    for folder in ROOT.glob(pattern)
    for path in folder.rglob("*.py")
)
HOOKS = {name: item for name, item in vars(hookspecs).items() if hasattr(item, "demitasse_spec")}

# Words that name a device, a library of one machine, a file format, a network or a data set.
PARTICULAR = re.compile(
    r"""(?<![a-z0-9]) (?:
    gpu | cuda | cudnn | nvidia | cupy | rocm | tpu | sw26010 | taihulight | avx | amx
    | numba | llvmlite | onednn | mkldnn | mkl | openblas | mpi4py | mpich | openmpi | torch
    | caffe | prototxt | caffemodel | solverstate | protobuf | msgpack | hdf5 | h5py | lmdb | leveldb
    | idx | jpeg | png | mnist | cifar | imagenet | lenet | alexnet | vgg | resnet | googlenet
    ) (?![a-z0-9])""",
    re.IGNORECASE | re.VERBOSE,
)
BANNED_NAMES = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}


def located(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def lines_of(folder: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in folder.rglob("*.py"))


def tracked() -> list[Path]:
    """The project's files: those in git or, outside of it, those that git would not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no git repository here: {done.stderr.strip()}")
    return [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


@functools.cache
def parsed(path: Path) -> tuple[list[tuple[str, str | None, int]], list[tuple[str, int]]]:
    """What a file imports, and where it runs what it is given. Each is parsed once for all rules."""
    imported: list[tuple[str, str | None, int]] = []
    run: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported += ((alias.name, None, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported += ((node.module or "", alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
                run.append((f"{node.func.id}()", node.lineno))
            if any(
                keyword.arg == "allow_pickle" and ast.unparse(keyword.value) != "False"
                for keyword in node.keywords
            ):
                run.append(("allow_pickle", node.lineno))
    return imported, run


def imports(path: Path) -> Iterator[tuple[str, str | None, int]]:
    """(module, name, line) of each import in a file; name is None for ``import module``."""
    yield from parsed(path)[0]


def test_every_package_of_the_core_s_wheel_tells_type_checkers_that_it_is_typed() -> None:
    project = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    folders = [ROOT / "core" / package for package in packages]
    assert sorted(folders) == sorted(
        path.parent for path in (ROOT / "core" / "src").glob("*/__init__.py")
    )
    assert [folder.name for folder in folders if not (folder / "py.typed").is_file()] == []
    assert (ROOT / "core" / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


def test_an_mpi_of_ones_own_is_no_dependency() -> None:
    """MPICH's wheel puts its mpiexec and library before a cluster's: whoever has none asks for it."""
    extras = tomllib.loads((ROOT / "core" / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    names = {f"demitasse-{name}" for name in PLUGIN_NAMES} - {"demitasse-null"}
    assert {item.partition("[")[0] for item in extras["cluster"]} == names
    assert extras["standard"] == ["demitasse[cluster]", "demitasse-allreduce[mpich]"]
    for folder in PLUGINS:
        needed = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]
        assert not [item for item in needed if item.startswith(("mpich", "openmpi"))], folder


DISTRIBUTIONS = {"cv2": "opencv-python-headless", "google": "protobuf", "sklearn": "scikit-learn"}
"""Those that have another name than the module that is imported."""

UNDECLARED = {
    "caffe": {"PIL", "caffe", "cv2", "scipy"},  # what old scripts call, which say what to install
    "gpu": {"cupy", "cupy_backends", "nvidia"},  # its extras bring them, by the driver's version
}


@pytest.mark.parametrize("folder", PLUGINS, ids=PLUGIN_NAMES)
def test_a_plugin_declares_what_it_imports(folder: Path) -> None:
    """Else it fails where only it and what it declares are installed."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {}).values()
    declared = {
        re.split(r"[\s<>=!~;\[]", item)[0]
        for items in (project["dependencies"], *extras)
        for item in items
    }
    found = {
        f"{located(path, line)}: {root}"
        for path in SOURCES
        if path.is_relative_to(folder)
        for module, _, line in imports(path)
        for root in [module.split(".")[0]]
        if root not in sys.stdlib_module_names
        and not root.startswith("demitasse")
        and DISTRIBUTIONS.get(root, root) not in declared
        and root not in UNDECLARED.get(folder.name, ())
    }
    assert not found, "\n".join(sorted(found))


def test_the_kernel_fits_in_one_sitting() -> None:
    assert lines_of(CORE) - lines_of(VOCABULARY) < 2000


def test_all_loggers_are_below_demitasse() -> None:
    """An application that sets up the logger ``demitasse`` has set up all of them."""
    asked = re.compile(r"getLogger\((.*?)\)|\blogging\.(?:debug|info|warning|error|exception)\(")
    wrong = [
        located(path, text[: found.start()].count("\n") + 1)
        for path in SOURCES
        for text in [path.read_text()]
        for found in asked.finditer(text)
        if not re.fullmatch(r"\"demitasse\.\w+\"", found[1] or "")
    ]
    assert wrong == []


def test_locks_of_modules_are_free_in_a_forked_process() -> None:
    """Another thread may hold one while a process is forked, and nobody gives it back there."""
    locks = {"Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Event", "Barrier"}
    made = (
        (path, statement.value)
        for path in SOURCES
        for statement in ast.parse(path.read_text()).body
        if isinstance(statement, ast.Assign | ast.AnnAssign) and isinstance(statement.value, ast.Call)
    )
    wrong = [
        f"{located(path, call.lineno)}: use demitasse.process_lock"
        for path, call in made
        if ast.unparse(call.func).removeprefix("threading.") in locks
    ]
    assert not wrong, "\n".join(wrong)


def test_the_vocabulary_stays_small() -> None:
    assert lines_of(VOCABULARY) < 1200


def test_the_core_names_no_device_format_or_network() -> None:
    found = [
        f"{located(path, number)}: {match.group()}"
        for path in sorted(CORE.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in PARTICULAR.finditer(line)
        # The vocabulary may cite where a shape rule comes from.
        if not (path.is_relative_to(VOCABULARY) and match.group() == "Caffe")
    ]
    assert not found, "\n".join(found)


def test_the_vocabulary_needs_nothing_of_the_kernel_but_its_errors() -> None:
    found = [
        f"{located(path, line)}: {module}"
        for path in VOCABULARY.rglob("*.py")
        for module, _, line in imports(path)
        if module.split(".")[0] == "demitasse"
        and not module.startswith(("demitasse.operations", "demitasse.errors"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_every_hook_is_documented(hook: str) -> None:
    sentence = (HOOKS[hook].__doc__ or "").strip()
    assert sentence.endswith("."), f"hook {hook} has no docstring that is a sentence"
    assert f"`{hook}`" in (ROOT / "ARCHITECTURE.md").read_text()


@pytest.mark.parametrize("hook", sorted(HOOKS))
def test_every_hook_can_be_served_by_a_strangers_plugin(hook: str, toy: ModuleType) -> None:
    some = HOOKS[hook].__annotations__["return"]
    answer: object = {} if "Mapping" in some else () if "Iterable" in some else None

    def served() -> object:
        return answer

    manifest = {"name": "stranger", "api": ">=0", "roles": {hook: {"priority": 1}}}
    stranger = SimpleNamespace(manifest=manifest, **{hook: hookspecs.hookimpl(served)})
    composition = compose_plugins(toy.machine(), [stranger])
    assert [(name, call()) for name, call in composition.serving(hook)] == [("stranger", answer)]


@pytest.mark.parametrize("folder", PLUGINS, ids=PLUGIN_NAMES)
def test_every_plugin_is_a_distribution_of_the_same_shape(folder: Path) -> None:
    name, package = folder.name, f"demitasse_{folder.name}"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == f"demitasse-{name}"
    assert project["entry-points"]["demitasse.plugins"] == {name: f"{package}.plugin"}
    assert "demitasse" in {re.split(r"[\s<>=!~\[]", item)[0] for item in project["dependencies"]}
    assert project["description"] and project["license"] == "Apache-2.0"
    assert (folder / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()  # is packed from there
    assert len((folder / "README.md").read_text().splitlines()) >= 5
    assert [path.name for path in (folder / "src").iterdir() if path.is_dir()] == [package]
    assert (folder / "src" / package / "py.typed").is_file()
    assert list((folder / "tests").glob("test_*.py"))


@pytest.mark.parametrize("folder", [*PLUGINS, EXAMPLE], ids=[*PLUGIN_NAMES, "third-party"])
def test_a_manifest_declares_the_hooks_that_the_plugin_implements(folder: Path) -> None:
    (path,) = folder.glob("src/*/plugin.py")
    manifest = tomllib.loads(path.with_suffix(".toml").read_text())
    implemented = {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(mark).startswith("hookimpl") for mark in node.decorator_list)
    }
    assert f"demitasse_{manifest['name']}" == path.parent.name
    assert implemented and set(manifest["roles"]) == implemented <= set(HOOKS)
    assert manifest["summary"]
    assert manifest["api"]


@pytest.mark.parametrize("folder", [*PLUGINS, EXAMPLE], ids=[*PLUGIN_NAMES, "third-party"])
def test_a_readme_tells_every_option_of_its_plugin(folder: Path) -> None:
    (path,) = folder.glob("src/*/plugin.toml")
    readme = (folder / "README.md").read_text()
    told = re.findall(r"`(\w+)|^(\w+) = ", readme, re.MULTILINE)
    options = tomllib.loads(path.read_text()).get("options", [])
    assert set(options) <= {word for words in told for word in words}


def test_the_architecture_names_every_plugin_and_program() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    manifests = [tomllib.loads(path.read_text()) for path in ROOT.glob("plugins/*/src/*/plugin.toml")]
    offered = (each["roles"].get("programs", {}).get("programs", []) for each in manifests)
    programs = {name for names in offered for name in names}
    assert "trainer" in programs
    assert [name for name in sorted(programs) if f"`{name}`" not in text] == []
    assert [name for name in PLUGIN_NAMES if f"| {name} |" not in text] == []


def test_a_plugin_imports_only_the_public_names_of_the_core_and_no_other_plugin() -> None:
    public = {*dir(demitasse), "operations"}
    found = []
    for path in SOURCES:
        if path.is_relative_to(CORE):
            continue
        package = path.relative_to(ROOT).parts[path.relative_to(ROOT).parts.index("src") + 1]
        for module, name, line in imports(path):
            root = module.split(".")[0]
            if root == "demitasse":
                allowed = (module == "demitasse" and (name is None or name in public)) or (
                    module == "demitasse.operations"
                )
            else:
                allowed = not root.startswith("demitasse_") or root == package
            if not allowed:
                found.append(f"{located(path, line)}: {module} {name or ''}")
    assert not found, "\n".join(found)


def test_every_plugin_is_held_to_the_import_contracts_and_the_types() -> None:
    packages = {f"demitasse_{name}" for name in PLUGIN_NAMES}
    contracts = ConfigParser()
    contracts.read(ROOT / ".importlinter")
    roots = set(contracts["importlinter"]["root_packages"].split())
    beside = {
        f"demitasse_{n}"
        for n in (
            "contracts",
            "descriptions",
            "files",
            "host",
            "models",
            "random",
            "schedules",
            "streams",
        )
    }
    assert roots == packages | beside | {"demitasse"}
    upper, *lower = contracts["importlinter:contract:plugins"]["layers"].strip().splitlines()
    assert set(upper.split(" | ")) == packages
    below = "demitasse_host | demitasse_models | demitasse_random | demitasse_streams"
    above = "demitasse_contracts | demitasse_descriptions | demitasse_files | demitasse_schedules"
    assert [layer.strip() for layer in lower] == [above, "demitasse", below]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert {f"plugins/{name}/src" for name in PLUGIN_NAMES} <= set(settings["mypy_path"])


def test_modules_are_named_for_what_they_hold() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in tracked()
        if path.suffix == ".py" and BANNED_NAMES & {path.stem, *path.relative_to(ROOT).parts[:-1]}
    ]
    assert not found, "\n".join(found)


def test_test_folders_are_no_packages() -> None:
    assert not [path for path in tracked() if path.parts[-2:] == ("tests", "__init__.py")]


def test_nobody_imports_the_folders_of_the_workspace() -> None:
    found = [
        f"{located(path, line)}: {module}"
        for path in tracked()
        if path.suffix == ".py"
        for module, _, line in imports(path)
        if module.split(".")[0] in ("core", "plugins", "tests")
    ]
    assert not found, "\n".join(found)


def test_tests_import_no_test() -> None:
    """What several share is a module of its own, named for what it holds."""
    found = [
        f"{located(path, line)}: {module}"
        for path in tracked()
        if path.suffix == ".py"
        for module, _, line in imports(path)
        if module.startswith("test_")
    ]
    assert not found, "\n".join(found)


def test_untrusted_data_is_never_run() -> None:
    found = []
    for path in SOURCES:
        for module, _, line in imports(path):
            if module.split(".")[0] in ("pickle", "cPickle", "dill", "marshal", "shelve"):
                found.append(f"{located(path, line)}: import {module}")
        found += (f"{located(path, line)}: {what}" for what, line in parsed(path)[1])
    assert not found, "\n".join(found)


def test_files_name_no_place_of_the_machine_they_were_made_on() -> None:
    places = re.compile(
        r"(?<![\w.])/(?:w)ork(?:/|\b)|/(?:home|Users)/\w+/|\bpypi\.org|pythonhosted\.org"
        r"|-index-url|index_url\s*=|artifactory",
        re.IGNORECASE,
    )
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if (match := places.search(line)) and path != Path(__file__):
                found.append(f"{located(path, number)}: {match.group()}")
    assert not found, "\n".join(found)


def test_no_property_is_timed() -> None:
    assert settings().deadline is None
