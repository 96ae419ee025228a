"""Models of transformers, small and randomly initialised: ten training steps with varying lengths against eager."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import fxbucket
from tests.equality import assert_same_tree
from tests.training.twins import gradients, served

transformers = pytest.importorskip("transformers")

LENGTHS = (16, 24, 13, 16, 24, 24, 9, 16, 20, 24)
"""Two are pinned, 16 and 24; the others are misses."""
VOCABULARY = 64

SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


@dataclass(frozen=True)
class Architecture:
    """A model of transformers.

    Attributes:
        name: the model's class.
        config: its configuration's class.
        settings: what the configuration is given.
        attributes: what further inputs are given, beside ids and labels.
        is_whole: whether it is captured as one graph: some log a warning in the middle, the first time.
    """

    name: str
    config: str
    settings: dict[str, Any]
    attributes: tuple[str, ...] = ()
    is_whole: bool = True

    def model(self) -> torch.nn.Module:
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.settings)
        model: torch.nn.Module = getattr(transformers, self.name)(config).double().train()
        return model


ARCHITECTURES = [
    Architecture("LlamaForCausalLM", "LlamaConfig", {**SIZES, "num_key_value_heads": 1, "use_cache": False}),
    Architecture(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "use_cache": False,
         "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.0},
        is_whole=False,
    ),
    Architecture("BertForMaskedLM", "BertConfig", {**SIZES, "attention_probs_dropout_prob": 0.0}, ("attention_mask",)),
    Architecture(
        "MixtralForCausalLM",
        "MixtralConfig",
        {**SIZES, "num_key_value_heads": 1, "num_local_experts": 4, "num_experts_per_tok": 2, "use_cache": False,
         "output_router_logits": True, "experts_implementation": "batched_mm"},
        is_whole=False,
    ),
]  # fmt: skip


def batch(architecture: Architecture, length: int, step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * length + step)
    ids = torch.randint(0, VOCABULARY, (2, length), generator=generator)
    labels = ids.where(torch.rand(ids.shape, generator=generator) < 0.8, -100)
    found = {"input_ids": ids, "labels": labels}
    if "attention_mask" in architecture.attributes:
        found["attention_mask"] = torch.arange(length).expand(2, -1) < torch.tensor([[length], [length - 4]])
    return found


def train(
    architecture: Architecture, compiler: str, lengths: tuple[int, ...] = LENGTHS, rounding: float = 1e-10, **options: Any
) -> Any:
    """Take a step of each length both ways; compare losses, gradients and parameters after each.

    Args:
        architecture: the model.
        compiler: what compiles it.
        lengths: tokens of each step.
        rounding: how far losses may be apart; gradients 100 times as far, and parameters 10,000 times.
        **options: more for ``fxbucket.compile``.
    """
    model = architecture.model()
    eager = copy.deepcopy(model)
    names = ["input_ids", "labels", *architecture.attributes]
    axes = {"tokens": [f"{name}.shape[1]" for name in names]}
    compiled = fxbucket.compile(model, axes=axes, sizes={"tokens": [16, 24]}, compiler=compiler, **options)
    optimizers = [torch.optim.AdamW(side.parameters(), lr=1e-3) for side in (compiled, eager)]
    graphs = 0
    for step, length in enumerate(lengths):
        losses = []
        for side, optimizer in zip((compiled, eager), optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad()
            loss = side(**batch(architecture, length, step)).loss
            loss.backward()
            losses.append(loss.detach())
            optimizer.step()
        what = f"step {step} with {length} tokens"
        torch.testing.assert_close(
            *losses, rtol=rounding, atol=rounding, msg=lambda text, what=what: f"{what}: loss: {text}"
        )
        left, right = gradients(model), gradients(eager)
        assert_same_tree(left, right, f"{what}: gradient", 100 * rounding, strides=False)
        # Each step of AdamW divides by the size of a gradient, however small, so that rounding grows.
        left, right = (dict(side.named_parameters()) for side in (model, eager))
        assert_same_tree(left, right, f"{what}: parameter", 10_000 * rounding)
        if step < 3:
            graphs = len(compiled.programs)
    assert len(compiled.programs) == graphs, "no size is captured anew"
    return compiled


@pytest.mark.parametrize(
    "architecture",
    [pytest.param(each, marks=[] if each is ARCHITECTURES[0] else pytest.mark.slow) for each in ARCHITECTURES],
    ids=[each.name for each in ARCHITECTURES],
)
def test_ten_steps_are_eager_s(architecture: Architecture):
    compiled = train(architecture, "aot_eager")
    found = served(compiled)
    if architecture.is_whole:
        assert len(compiled.programs) == 1
        assert found == {"tokens=16": 3, "tokens=24": 4, "dynamic": 3}
    assert found.keys() == {"tokens=16", "tokens=24", "dynamic"}


@pytest.mark.slow
def test_steps_through_inductor_are_eager_s():
    # The norms compute in float32, whatever the model does.
    cut = ["torch.nn.functional.scaled_dot_product_attention"]
    compiled = train(ARCHITECTURES[0], "inductor", (16, 24, 24, 16), 1e-6, splitting_ops=cut)
    assert served(compiled) == {"tokens=16": 2, "tokens=24": 2}
