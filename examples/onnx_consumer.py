"""Compare images by an exported model, without torch or gspool: python onnx_consumer.py model.onnx a.jpg b.jpg ..."""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
spec = json.loads(session.get_modelmeta().custom_metadata_map["gspool"])["input"]


def prepared(path: str) -> np.ndarray:
    """Rotate upright, resize the shorter side, crop the centre, put the channels first, as the file describes."""
    picture = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    (height, width), side = spec["crop"], spec["resize"]
    size = [side if edge == min(picture.size) else int(side * edge / min(picture.size)) for edge in picture.size]
    picture = picture.resize(size, Image.Resampling[spec["interpolation"].upper()])
    left, top = round((size[0] - width) / 2), round((size[1] - height) / 2)
    return np.asarray(picture.crop((left, top, left + width, top + height))).transpose(2, 0, 1)


images = np.stack([prepared(path) for path in sys.argv[2:]])
vectors = session.run(["embedding"], {spec["name"]: images if spec["type"] == "uint8" else images / np.float32(255)})[0]
print(np.array2string(vectors @ vectors.T, precision=6, suppress_small=True))
