"""A model named on the command line: what is found, and what is said where it is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from fxbucket.model_spec import Example, ModelError, called, captured_program, load_example
from fxbucket.passes.errors import OptionError

SOURCE = """
from dataclasses import dataclass
import torch

@dataclass
class Sizes:
    width: int = 3

def model(x, scale=1):
    return torch.relu(x) * scale

class Made:
    @staticmethod
    def make():
        return model, (torch.ones(4, Sizes().width),), {"scale": 2}

def pair():
    print("making")
    return model, [torch.ones(4, 3)]

def alone(): return torch.nn.Linear(3, 4)
def bare_tensor(): return model, torch.ones(4, 3)
def only_kwargs(): return model, {"x": torch.ones(4, 3)}
def bad_kwargs(): return model, (), [1]
def four(): return model, (), {}, 1
def number(): return 3
def fails(): raise ValueError("no\\nweights")
def needs(path): return model, ()
module = torch.nn.ReLU()
value = 7
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, under a name that no other test uses."""
    name = f"spec_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("import torch\n1 / 0\n")
    (tmp_path / "needs_other.py").write_text("import module_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return name


def test_a_module_in_the_current_folder(place: str):
    example = load_example(f"{place}:pair")
    assert isinstance(example.args, tuple)
    assert example.kwargs == {}
    assert torch.equal(example.model(*example.args), torch.ones(4, 3))


def test_a_file_and_a_dotted_factory(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir("/")
    example = load_example(f"{tmp_path / place}.py:Made.make")
    assert torch.equal(example.model(*example.args, **example.kwargs), torch.full((4, 3), 2.0))


def test_prints_of_the_factory_stay_out_of_standard_output(place: str, capsys: pytest.CaptureFixture[str]):
    load_example(f"{place}:pair")
    assert capsys.readouterr() == ("", "making\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("alone", r"gives a model alone \(Linear\); return \(model, args\).* The model takes \(input\)\."),
        ("bare_tensor", r"args of type 'Tensor'; write \(model, \(x,\)\)"),
        ("only_kwargs", r"args of type 'dict'; write \(model, \(\), kwargs\)"),
        ("bad_kwargs", r"kwargs of type 'list'; give a dict"),
        ("four", r"a value of type 'tuple' of 4; return \(model, args\)"),
        ("number", r"a value of type 'int'; return \(model, args\)"),
        ("module", r"module is of type 'ReLU'; name a function without parameters"),
        ("value", r"value is of type 'int'; name a function"),
        ("pairr", r"has no 'pairr'; did you mean 'pair'\?"),
        ("Made.mak", r"has no 'Made.mak'; possible: 'make'"),
    ],
)
def test_what_is_no_factory_is_named(place: str, name: str, said: str):
    with pytest.raises(OptionError, match=said):
        load_example(f"{place}:{name}")


@pytest.mark.parametrize("text", ["spec", "spec:", ":make", ""])
def test_the_form_is_shown(text: str):
    with pytest.raises(OptionError, match=r"write module:factory or path/to/file.py:factory"):
        load_example(text)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not_there:make", r"there is no module 'not_there'; start in the folder that holds it"),
        ("torch.not_there:make", r"there is no module 'torch.not_there'"),
        ("not/there.py:make", r"there is no file 'not/there.py'; give a path from "),
    ],
)
def test_what_is_not_there_is_named(text: str, said: str):
    with pytest.raises(OptionError, match=said):
        load_example(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{place}:fails", r"fails\(\) raised ValueError: no weights \(.*\.py:\d+\)"),
        ("{place}:needs", r"needs\(\) raised TypeError: .*'path'"),
        ("broken:make", r"module 'broken' cannot be imported: ZeroDivisionError: division by zero \(.*broken.py:2\)"),
        ("broken.py:make", r"file 'broken.py' cannot be imported: ZeroDivisionError"),
        ("needs_other:make", r"module 'needs_other' cannot be imported: ModuleNotFoundError: .*module_that_is_not_there"),
    ],
)
def test_what_fails_is_told_on_one_line(place: str, text: str, said: str):
    with pytest.raises(ModelError, match=said) as caught:
        load_example(text.format(place=place))
    assert "\n" not in str(caught.value)


def test_a_model_that_fails_without_fxbucket_is_told_apart():
    def model(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(5, 5)

    with pytest.raises(ModelError, match=r"the model fails without fxbucket too: its call raised RuntimeError: mat1"):
        called(Example(model, (torch.ones(4, 3),)), compiler="eager")


def test_a_compiler_that_fails_is_told():
    def fails_at_the_call(module: torch.fx.GraphModule, _: object) -> object:
        def call(*args: object) -> object:
            raise ValueError("out of ink")

        return call

    with pytest.raises(ModelError, match="the compiled model's call raised ValueError: out of ink"):
        called(Example(lambda x: x + 1, (torch.ones(4, 3),)), compiler=fails_at_the_call)


def test_each_graph_of_a_model_can_be_had(capsys: pytest.CaptureFixture[str]):
    def model(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        print("between")
        return x.sin()

    example = Example(model, (torch.ones(4, 3),))
    assert "sin" in str(captured_program(example, 1))
    assert "sin" not in str(captured_program(example, 0))
    assert capsys.readouterr().out == ""
    with pytest.raises(OptionError, match="graph 2 is not there: the model has 2, numbered from 0"):
        captured_program(example, 2)


def test_a_model_without_tensors_has_nothing_to_show():
    with pytest.raises(RuntimeError, match="the model holds no tensor operation"):
        captured_program(Example(lambda: 3))
