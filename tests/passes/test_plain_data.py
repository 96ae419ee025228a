"""A program as plain data."""

from __future__ import annotations

import json

import torch

import fxbucket
from fxbucket.passes import Admit, Bucket, Concretize, Pipeline, Split, at_op
from fxbucket.passes.plain_data import program_data


def captured() -> fxbucket.passes.Program:
    def model(x: torch.Tensor) -> torch.Tensor:
        assert x.shape[0] % 2 == 0
        return torch.sigmoid(x.relu()).reshape(-1)

    return fxbucket.capture(model, torch.randn(6, 4), axes={"rows": "x.shape[0]"})


def test_before_split_the_graph_is_listed():
    data = program_data(captured())
    assert data == json.loads(json.dumps(data))
    assert data["bucket"] is None
    assert [guard["condition"] for guard in data["guards"]] == ["(rows % 2) == 0"]
    assert data["num_nodes"] == 3
    relu = next(node for node in data["nodes"] if node["name"] == "relu")
    assert relu == {
        "name": "relu",
        "op": "call_method",
        "target": "relu",
        "code": "relu = l_x_.relu()",
        "value": "f32[rows, 4]",
        "reads": ["l_x_"],
    }


def test_pieces_decisions_and_sizes():
    buckets = (Bucket.of({"rows": 8}), Bucket.of({"rows": 7}))
    split = Pipeline((Split(at_op("aten::sigmoid")), Admit(buckets)))(captured())
    data = program_data(split, nodes=False)
    assert data == json.loads(json.dumps(data))
    assert [(piece["kind"], piece["num_nodes"]) for piece in data["pieces"]] == [
        ("compiled", 1), ("boundary", 1), ("compiled", 1),
    ]  # fmt: skip
    assert data["pieces"][1]["rule"] == "at_op('aten::sigmoid')"
    assert "nodes" not in data["pieces"][1]
    assert [decision["admitted"] for decision in data["decisions"]] == [True, False]
    assert data["axes"][0]["size"] is None
    concrete = program_data(Concretize({"rows": 8})(split))
    assert (concrete["bucket"], concrete["axes"][0]["size"]) == ("rows=8", 8)
    assert concrete["pieces"][2]["nodes"][-2]["value"] == "f32[32]"
