"""Fine-tune a small Llama with transformers' Trainer on packed sequences of varying total length, with two pinned sizes.

Training is eager's, step by step. The compiled model is the one line that fxbucket needs. The collator packs several
sequences into one row and pads it up to the next size of a ladder: `labels` of -100 count for nothing, and positions that
begin anew keep sequences apart. Needs `pip install transformers accelerate`.

Prints:

    packs of 16 to 64 tokens, padded to: [40, 64]
    the same losses as eager: True
    captured anew after the first step: False
    compiled after the first step: False
    {'tokens=40': 15, 'tokens=64': 9}
    saved as LlamaForCausalLM
"""

import sys
import tempfile
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import fxbucket

LADDER = (40, 64)
VOCABULARY = 64
SETTINGS = {"per_device_train_batch_size": 4, "max_steps": 24, "learning_rate": 1e-2, "report_to": [], "use_cpu": True}


def sequences(count: int) -> list[dict[str, list[int]]]:
    """Return sequences of 4 to 16 tokens that count upwards from a random token."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 17, (count,), generator=generator).tolist()
    starts = torch.randint(0, VOCABULARY, (count,), generator=generator).tolist()
    return [
        {"input_ids": [(start + place) % VOCABULARY for place in range(length)]}
        for start, length in zip(starts, lengths, strict=True)
    ]


def pack(examples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    """Return one row that holds all examples, as long as the next size of the ladder."""
    ids, labels, positions = [], [], []
    for example in examples:
        tokens = example["input_ids"]
        ids += tokens
        labels += [-100, *tokens[1:]]  # the last token of one sequence does not predict the first of the next
        positions += range(len(tokens))
    padding = next(size for size in LADDER if size >= len(ids)) - len(ids)
    ids += [0] * padding
    labels += [-100] * padding
    positions += range(padding)  # one more sequence, which no other one sees
    named = {"input_ids": ids, "labels": labels, "position_ids": positions}
    return {name: torch.tensor([values]) for name, values in named.items()}


class Watch(transformers.TrainerCallback):
    """Remembers how much was captured and compiled after the first step."""

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.after_first: tuple[int, int] | None = None

    def now(self) -> tuple[int, int]:
        """Return how many graphs were captured, and how many buckets were compiled."""
        graphs = self.compiled.explain().graphs
        return len(graphs), sum(bucket.state == "compiled" for graph in graphs for bucket in graph.buckets)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Take note once."""
        self.after_first = self.after_first or self.now()


def fine_tune(model: Any, folder: str, callbacks: list[Any]) -> list[float]:
    """Train a model, save it, and return the loss of each step."""
    arguments = TrainingArguments(
        output_dir=folder, logging_steps=1, save_strategy="no", disable_tqdm=True, seed=0, **SETTINGS
    )
    trainer = Trainer(model, arguments, data_collator=pack, train_dataset=sequences(96), callbacks=callbacks)
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    trainer.save_model(folder)
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def new_model() -> LlamaForCausalLM:
    """Return a small Llama, the same each time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LADDER[-1],
    )  # fmt: skip
    return LlamaForCausalLM(config)


def main(compiler: str) -> None:
    print(f"packs of 16 to 64 tokens, padded to: {list(LADDER)}")
    model = new_model()
    axes = {"tokens": ["input_ids.shape[1]", "labels.shape[1]", "position_ids.shape[1]"]}
    with tempfile.TemporaryDirectory() as folder:
        eager_losses = fine_tune(new_model(), folder, [])
        compiled = fxbucket.compile(model, axes=axes, sizes={"tokens": LADDER}, on_miss="error", compiler=compiler)
        watch = Watch(compiled)
        losses = fine_tune(compiled, folder, [watch])
        saved = transformers.AutoModelForCausalLM.from_pretrained(folder)

    same = all(abs(one - other) < 1e-3 for one, other in zip(losses, eager_losses, strict=True))
    print(f"the same losses as eager: {same}")
    assert watch.after_first is not None
    captured, buckets = (now != then for now, then in zip(watch.now(), watch.after_first, strict=True))
    print(f"captured anew after the first step: {captured}")
    print(f"compiled after the first step: {buckets}")
    print(compiled.explain().calls())
    print(f"saved as {type(saved).__name__}")
    assert same
    assert losses[-1] < losses[0]
    assert not captured
    assert not buckets


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    main(sys.argv[1] if len(sys.argv) > 1 else "aot_eager")
