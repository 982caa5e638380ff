"""The words of a model card."""

PAGE = """---
{head}
---
{generated}

# {title}

An image embedding: an RGB picture in, a unit vector of {dim} numbers out. Pictures of the same kind lie close together.

## Use

```python
from PIL import Image
from gspool import Embedder

model = Embedder.from_pretrained("{address}"{own})
image = model.pixels.transform()(Image.open("picture.jpg"))
vector = model(image[None])  # [1, {dim}], length 1: compare vectors by their dot product
```
{onnx}
## Intended use

Finding pictures like a given one: search, grouping, near-duplicates, ordering by likeness. {data}

## Limits

{limits}

## Figures

{figures}

## Settings

| setting | value |
|---|---|
{settings}

## Preprocessing

{preprocessing}

## Licence

{licence}

Written with gspool {version}.
"""

USE_ONNX = """
Without PyTorch, `model.onnx` in this folder runs in ONNX Runtime; its metadata `gspool` describes input and outputs.
"""

LIMITS = """- It knows likeness as its training data defined it. On pictures of another kind, measure before
  you rely on it: `gspool evaluate FOLDER --data.name folder --data.root PICTURES`.
- Near is not identical, and a dot product is not a probability. Choose a threshold on data of your own.
- It was not made for telling people apart, nor for decisions about them.
- What was frequent, rare or missing in the training pictures, and in those of the backbone, shows in its vectors.
- Figures hold for the preprocessing below, {crop} pixels from the middle; other sizes and crops give other vectors."""
