"""``demitasse check``: what it says about plugins that keep their promises, and one that breaks them."""

from __future__ import annotations

import json
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import demitasse_softcap.plugin as softcap
import mish
import numpy as np
import pytest
from click.testing import CliRunner, Result

import demitasse
from demitasse import Candidate, Finding, Request, hookimpl
from demitasse_conformance.command import check, setting
from demitasse_conformance.inquiry import BROKEN, KEPT, UNTRIED, Inquiry, Outcome, composed_with
from demitasse_conformance.roles import outcomes


def run(*words: Any) -> Result:
    return CliRunner().invoke(check, [*map(str, words)], catch_exceptions=False, standalone_mode=False)


def found(plugin: Any, **about: Any) -> list[Outcome]:
    name = plugin.manifest["name"]
    return list(outcomes(Inquiry(name, (plugin, *mish.BASE), **about)))


def of(outcomes: list[Outcome], role: str) -> list[tuple[str, str]]:
    return [(each.subject, each.status) for each in outcomes if each.role == role]


def test_the_entry_point_gives_the_command() -> None:
    (entry,) = entry_points(group="demitasse.plugins", name="conformance")
    assert entry.load().commands() == {"check": check}


def test_promises_that_are_kept_are_told_and_written(tmp_path: Path) -> None:
    told = run("snapshots", "--json", tmp_path / "out.json")
    assert told.return_value == 0
    assert (
        "kept     model_writer   .demitasse                       what it wrote can be read: "
        in told.output
    )
    assert told.output.endswith("1 kept, 0 broken, 1 untried\n")
    written = json.loads((tmp_path / "out.json").read_text())
    assert (written["plugin"], written["broken"], len(written["outcomes"])) == ("snapshots", 0, 2)
    alone = run("snapshots", "--json", "-")
    assert json.loads(alone.output) == written


def test_a_promise_that_is_broken_is_the_exit_status() -> None:
    told = run("null", "--precision", "f32", "--plugins", "caffe,datasets,training,reference")
    assert told.return_value == 1
    lines = told.output.splitlines()
    (line,) = [line for line in lines if line.startswith("BROKEN   kernels        relu ")]
    assert "nothing (f32): 1 thread: in y 630 of 630 numbers differ from the reference's" in line
    assert any("a net trained in f32" in line and line.startswith("BROKEN") for line in lines)


def test_every_operation_of_the_reference_is_tried_in_each_precision() -> None:
    told = run("reference", "--precision", "f32", "--precision", "bf16")
    assert told.return_value == 0
    (summary,) = [line for line in told.output.splitlines() if "kernels        in all " in line]
    served, asked, _ = (int(word) for word in summary.split() if word.isdigit())
    assert served == asked > 110
    assert told.output.count("(f32, bf16)") == served


def test_a_plugin_that_is_not_there_is_told_with_the_nearest() -> None:
    with pytest.raises(demitasse.CompositionError, match=r"'snapshot'; did you mean 'snapshots'\?"):
        run("snapshot")


@pytest.mark.parametrize(
    ("text", "pair"),
    [("cap=30", ("cap", 30)), ("model = asp", ("model", "asp")), ("a='b'", ("a", "b"))],
)
def test_settings_are_toml_or_texts(text: str, pair: tuple[str, Any]) -> None:
    assert setting(text) == pair


@pytest.mark.parametrize(
    ("text", "told"), [("[" * 5000, "nested too deep"), ("9" * 5000, "not a number")]
)
def test_settings_that_are_too_long_are_refused(text: str, told: str) -> None:
    with pytest.raises(click.BadParameter, match=rf"\(5,000 characters\) is {told}"):
        setting(f"cap={text}")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--source", "x"], "--source does not apply to 'snapshots', which has no role data_source"),
        (["--promise", "learning"], "--promise does not apply to 'snapshots'"),
        (["--precision", "f64"], "--precision does not apply to 'snapshots', which has no role kernels"),
    ],
)
def test_an_option_that_means_nothing_to_a_plugin_is_told(words: list[str], told: str) -> None:
    done = CliRunner().invoke(check, ["snapshots", *words])
    assert (done.exit_code, told in done.output) == (2, True)


def test_a_net_that_is_not_there_is_told_before_anything_is_tried(tmp_path: Path) -> None:
    (tmp_path / "net.prototxt").touch()
    with pytest.raises(demitasse.ModelError, match=r"no such file: .*nett.prototxt; did you mean"):
        run("cpu", "--net", tmp_path / "nett.prototxt")


@pytest.mark.parametrize("text", ["cap", "=3"])
def test_a_setting_without_a_key_or_a_value_is_none(text: str) -> None:
    done = CliRunner().invoke(check, ["snapshots", "--option", text])
    assert done.exit_code == 2
    assert f"{text!r} is not KEY=VALUE" in done.output


def test_a_synchronisation_is_held_to_what_is_promised_of_it() -> None:
    told = run("parameter_server", "--promise", "learning", "--sync", "model=asp")
    assert told.return_value == 0
    assert "kept     gradient_sync  3 threads                        learning: " in told.output


def test_an_option_of_a_synchronisation_that_is_none_is_told_as_whoevers_mistake() -> None:
    with pytest.raises(demitasse.DescriptionError, match="unknown option 'modle'; did you mean 'model'"):
        run("parameter_server", "--sync", "modle=asp")


def test_plugins_that_a_description_lists_are_composed(tmp_path: Path) -> None:
    described = Path(__file__).parents[3] / "hwdesc" / "two-accelerators.toml"
    told = run("cgdp", "--hw", described)
    assert told.return_value == 0
    assert f"kept     gradient_sync  {described}" in told.output, told.output


def test_samples_are_read_by_whose_they_are(tmp_path: Path) -> None:
    from gzip import compress

    labels = np.arange(40, dtype=np.uint8) % 10
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(
        b"\0\0\x08\x01" + (40).to_bytes(4, "big") + bytes(labels)
    )
    images = np.zeros((40, 3, 3), np.uint8) + labels[:, None, None]
    head = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in images.shape)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(compress(head + images.tobytes()))
    told = run("datasets", "--source", tmp_path / "train-images-idx3-ubyte.gz")
    assert told.return_value == 0, told.output
    assert "40 samples of data, label, in one order, however they are divided" in told.output


def test_a_plugin_of_layers_words_and_kernels() -> None:
    got = found(mish.Mish())
    assert {each.subject for each in got if each.status != KEPT} == {
        f"a net trained in {precision}" for precision in ("f64", "f32", "bf16")
    }
    assert of(got, "layer_types") == [("Mish", KEPT)]
    assert of(got, "operations") == [("mish", KEPT)]
    kernels = {each.subject: each.detail for each in got if each.role == "kernels"}
    assert kernels["mish"] == "NumPy (f64, f32, bf16); compared with its own in f64"
    assert kernels["a net trained in f32"] == "it computes no part of it"


def test_the_example_of_a_strangers_package(tmp_path: Path) -> None:
    class Stranger:
        manifest = {
            "name": "softcap",
            "api": ">=0.1,<0.2",
            "roles": {"operations": {}, "layer_types": {"types": ["SoftCap"]}, "kernels": {}},
        }
        operations = staticmethod(softcap.operations)
        layer_types = staticmethod(softcap.layer_types)
        kernels = staticmethod(softcap.kernels)

    without = found(Stranger())
    assert BROKEN not in {each.status for each in without}
    net = tmp_path / "net.prototxt"
    net.write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 3 dim: 4 } } }\n'
        'layer { name: "s" type: "SoftCap" bottom: "x" top: "y" soft_cap_param { cap: 2 } }\n'
    )
    with_net = found(Stranger(), nets=(net,))
    assert of(with_net, "layer_types") == [("net.prototxt", KEPT), ("SoftCap", KEPT)]
    kernels = dict(of(with_net, "kernels"))
    assert (kernels["softcap"], kernels["softcap_backward"]) == (KEPT, KEPT)


def test_a_word_that_no_net_has_is_told_of() -> None:
    class Lonely(mish.Mish):
        manifest = {**mish.Mish.manifest, "roles": {**mish.ROLES, "layer_types": {}}}

        @demitasse.hookimpl
        def layer_types(self) -> Any:
            return ()

    untried = [each for each in found(Lonely()) if each.status == UNTRIED and each.role == "kernels"]
    told = "no net here uses it; give one that does (--net FILE)"
    assert untried[:2] == [Outcome("kernels", w, UNTRIED, told) for w in ("mish", "mish_backward")]


def test_a_kernel_that_is_wrong_is_one_line() -> None:
    class Odd(mish.Mish):
        @demitasse.hookimpl
        def kernels(self, request: Request) -> list[Candidate]:
            if request.operation.name != "relu":
                return []
            return [Candidate("odd", lambda inputs, outputs, workspace: lambda: None)]

    got = found(Odd(), precisions=("f64", "f32"))
    (wrong,) = [each for each in got if each.subject == "relu"]
    assert wrong.status == BROKEN
    assert wrong.detail.startswith("odd (f64, f32): 1 thread: in y 630 of 630 numbers differ")


class Various:
    """Roles whose hooks return what they should or, if ``wrong``, something else."""

    def __init__(self, wrong: bool) -> None:
        self.wrong = wrong
        self.manifest = {
            "name": "various",
            "api": ">=0.1,<0.2",
            "roles": {
                "diagnose": {},
                "programs": {"programs": ["shown"]},
                "reproductions": {"papers": ["table"]},
                "probe": {},
                "observe": {},
                "processes": {},
            },
        }

    @demitasse.hookimpl
    def diagnose(self) -> list[Any]:
        return ["all is well"] if self.wrong else [Finding("ok", "all", "is well")]

    @demitasse.hookimpl
    def programs(self) -> dict[str, Any]:
        return {"other" if self.wrong else "shown": lambda runtime: None}

    @demitasse.hookimpl
    def reproductions(self, paper: str) -> Any:
        about = {"table": "1", "row": "a", "column": "b", "unit": "s", "paper": None}
        return {"cells": [{**about, "predicted": np.inf if self.wrong else np.float32(3)}], "notes": []}

    @demitasse.hookimpl
    def probe(self, levels: Any) -> Any:
        return levels

    @demitasse.hookimpl
    def observe(self) -> Any:
        def listen(event: Any) -> None:
            if self.wrong:
                raise RuntimeError("deaf")

        return listen

    @demitasse.hookimpl
    def processes(self, machine: Any) -> None:
        """Alone."""


def test_the_other_roles() -> None:
    right = {each.role: each.status for each in found(Various(wrong=False))}
    assert right == dict.fromkeys(Various(False).manifest["roles"], KEPT)  # type: ignore[call-overload]
    wrong = {each.role: (each.status, each.detail) for each in found(Various(wrong=True))}
    assert wrong["diagnose"][0] == BROKEN
    assert "'all is well' is not a Finding" in wrong["diagnose"][1]
    assert wrong["programs"] == (BROKEN, "the plugin's hook does not name it")
    assert wrong["reproductions"][1].startswith("predicted is neither a finite number nor None")
    assert wrong["observe"][0] == BROKEN
    assert "deaf" in wrong["observe"][1]


class Raising:
    """Different parts of its hooks' code raise, one after the other."""

    manifest: dict[str, Any] = {
        "name": "raising",
        "api": ">=0.1,<0.2",
        "roles": {"allocator": {"spaces": ["a", "b"]}, "diagnose": {}, "probe": {}},
    }

    @demitasse.hookimpl
    def allocator(self, space: str) -> Any:
        class Odd:
            allocations = bytes = 0

            def allocate(self, nbytes: int) -> Any:
                raise MemoryError("full") if space == "a" else RuntimeError("the driver is gone")

        Odd.space = space  # type: ignore[attr-defined]
        return Odd()

    @demitasse.hookimpl
    def diagnose(self) -> list[Any]:
        raise IndexError("there")

    @demitasse.hookimpl
    def probe(self, levels: Any) -> Any:
        return levels


def test_what_one_thing_raises_hides_nothing_behind_it() -> None:
    got = [(each.role, each.subject, each.status, each.detail) for each in found(Raising())]
    assert got[:2] == [
        ("allocator", "a", UNTRIED, "full"),
        ("allocator", "b", BROKEN, "it raised RuntimeError: the driver is gone"),
    ]
    diagnose, probe = got[2:]
    assert diagnose[:3] == ("diagnose", "raising", BROKEN)
    assert "IndexError" in diagnose[3]
    assert probe[:3] == ("probe", "this machine", KEPT)


def test_a_plugin_that_cannot_be_composed_is_one_line() -> None:
    class Differing(mish.Mish):
        manifest = {**mish.Mish.manifest, "roles": {**mish.ROLES, "layer_types": {"types": ["Misch"]}}}

    (outcome,) = found(Differing())
    assert (outcome.role, outcome.status) == ("manifest", BROKEN)
    assert "only listed: Misch, only defined: Mish" in outcome.detail


def test_whom_a_plugin_is_composed_with() -> None:
    assert composed_with("cpu") == ("cpu", *mish.BASE)
    assert composed_with("reference", ["caffe"]) == ("reference", "caffe")


def test_a_layer_type_that_another_installed_plugin_has_is_told() -> None:
    """The other plugin is not among those that the kit composes with it, but users have both."""
    kind = SimpleNamespace(name="PriorBox", parameters={}, build=lambda *given: [])
    roles = {"layer_types": {"types": ["PriorBox"]}}
    manifest = {"name": "stranger", "api": ">=0", "roles": roles}
    plugin = SimpleNamespace(manifest=manifest, layer_types=hookimpl(lambda: [kind]))
    clashes = [each for each in found(plugin) if each.role == "manifest"]
    assert [(each.subject, each.status) for each in clashes] == [("beside all plugins", BROKEN)]
    assert "'detection'" in clashes[0].detail and "layer type 'PriorBox'" in clashes[0].detail
    assert not of(found(mish.Mish()), "manifest")
