"""Every layer once more, number by number: one image [C, H, W] in, what the layer must return for it out.

Written from the equations of the papers in NumPy, with the weights of the layer under test and nothing else of it.
"""

from __future__ import annotations

import math

import numpy as np
import torch

import oracle
from gspool.functional.results import Pooled


def numbers(tensor):
    return tensor.detach().numpy()


def rows(image):
    """The tokens [N, C] of a map."""
    return image.reshape(len(image), -1).T


def linear(module, vectors):
    mapped = vectors @ numbers(module.weight).T
    return mapped if module.bias is None else mapped + numbers(module.bias)


def relu(values):
    return np.maximum(values, 0.0)


def sigmoid(values):
    return 1.0 / (1.0 + np.exp(-values))


def gelu(values):
    return np.array([0.5 * value * (1 + math.erf(value / math.sqrt(2))) for value in values])


def softmax(scores):
    exponentials = np.exp(np.array(scores))
    return exponentials / exponentials.sum()


def weighted(weights, vectors):
    return sum(weight * vector for weight, vector in zip(weights, vectors, strict=True))


def layer_norm(vector, norm):
    centred = vector - vector.mean()
    return centred / np.sqrt((centred**2).mean() + norm.eps) * numbers(norm.weight) + numbers(norm.bias)


def frozen_batch_norm(values, norm):
    """Batch norm with its running statistics; the first axis of ``values`` is the channel."""
    shape = (-1,) + (1,) * (values.ndim - 1)
    mean, variance = numbers(norm.running_mean).reshape(shape), numbers(norm.running_var).reshape(shape)
    unit = (values - mean) / np.sqrt(variance + norm.eps)
    return unit * numbers(norm.weight).reshape(shape) + numbers(norm.bias).reshape(shape) if norm.affine else unit


def attend(query, keys, values, heads=1):
    """Each head compares its slice of one query with the keys: its slice of the values, and the average weights."""
    found, weights = [], []
    for q, k, v in zip(*(np.split(each, heads, axis=-1) for each in (query, keys, values)), strict=True):
        weights.append(softmax([q @ key / math.sqrt(len(q)) for key in k]))
        found.append(weighted(weights[-1], v))
    return np.concatenate(found), sum(weights) / heads


def gap(image, layer):
    tokens = rows(image)
    return Pooled(sum(tokens) / len(tokens), np.full(len(tokens), 1 / len(tokens)))


def gmp(image, layer):
    return Pooled(np.array([max(plane.flatten()) for plane in image]))


def gap_gmp(image, layer):
    return Pooled(gap(image, layer).pooled + gmp(image, layer).pooled)


def avgmax(image, layer):
    return Pooled(gap_gmp(image, layer).pooled / 2)


def catavgmax(image, layer):
    return Pooled(np.concatenate([gap(image, layer).pooled, gmp(image, layer).pooled]))


def power_mean(tokens, p, minimum=1e-6):
    """Radenovic et al., Eq. 3."""
    return (sum(np.maximum(token, minimum) ** p for token in tokens) / len(tokens)) ** (1 / p)


def gemean(image, layer):
    return Pooled(power_mean(rows(image), numbers(layer.p)))


def gemax(image, layer):
    """Murray et al.: coefficients (K + ridge I)^-1 1 on the kernel of one image's tokens."""
    tokens = rows(image)
    kernel = np.array([[a @ b for b in tokens] for a in tokens])
    coefficients = np.linalg.inv(kernel + layer.ridge * np.eye(len(tokens))) @ np.ones(len(tokens))
    return Pooled(weighted(coefficients, tokens))


def lse(image, layer):
    r = layer.timm.r.item()
    return Pooled(np.log(np.exp(r * rows(image)).mean(0)) / r)


def weldon(image, layer):
    ordered = [sorted(plane.flatten()) for plane in image]
    return Pooled(np.array([sum(values[-layer.k :]) + sum(values[: layer.k_min]) for values in ordered]))


def crow(image, layer):
    """Sec. 3 of Kalantidis et al., with the mean sigmoid for Q."""
    tokens = relu(rows(image))
    mass = tokens.sum(1)
    spatial = np.sqrt(mass / math.sqrt(sum(mass**2)))
    activity = sum(sigmoid(token) for token in tokens) / len(tokens)
    return Pooled(np.log(activity.sum() / activity) * weighted(spatial, tokens) / len(tokens), spatial / spatial.sum())


def cbam(image, layer):
    squeeze, excite = numbers(layer.squeeze.weight), numbers(layer.excite.weight)
    kernel = numbers(layer.locate.weight)[0]

    def mlp(summary):
        return excite @ relu(squeeze @ summary)

    gated = image * sigmoid(mlp(rows(image).mean(0)) + mlp(rows(image).max(0)))[:, None, None]
    summaries = [gated.mean(0), gated.max(0)]
    (_, height, width), reach = image.shape, kernel.shape[1] // 2
    total = np.zeros(len(image))
    for row in range(height):
        for column in range(width):
            response = 0.0
            for plane, weights in zip(summaries, kernel, strict=True):
                for down in range(-reach, reach + 1):
                    for right in range(-reach, reach + 1):
                        if 0 <= row + down < height and 0 <= column + right < width:
                            response += weights[down + reach, right + reach] * plane[row + down, column + right]
            total += sigmoid(response) * gated[:, row, column]
    return Pooled(total / (height * width))


def delf(image, layer):
    tokens = rows(image)
    scores = np.log1p(np.exp([linear(layer.score, relu(linear(layer.features, token)))[0] for token in tokens]))
    total = scores.sum() if layer.normalize else len(tokens)
    return Pooled(weighted(scores, tokens) / total, scores / scores.sum())


def cells(plane, rows_out, columns_out):
    """Average a plane [H, W] over the cells of a raster, the last and first of which may overlap."""
    height, width = plane.shape
    out = np.zeros((rows_out, columns_out))
    for row in range(rows_out):
        for column in range(columns_out):
            top, bottom = row * height // rows_out, -(-(row + 1) * height // rows_out)
            left, right = column * width // columns_out, -(-(column + 1) * width // columns_out)
            out[row, column] = plane[top:bottom, left:right].mean()
    return out


def gsop(image, layer):
    def reduced(reduction):
        weights, bias = numbers(reduction[1].weight)[:, :, 0, 0], numbers(reduction[1].bias)
        mixed = np.einsum("ac,chw->ahw", weights, relu(image)) + bias[:, None, None]
        return relu(frozen_batch_norm(mixed, reduction[2]))

    def gate(samples, gate, rectify):
        """Samples [S, V]: their covariance, read row by row."""
        matrix = frozen_batch_norm(np.atleast_2d(np.cov(samples, rowvar=False, ddof=0)), gate.norm)
        filters, biases = numbers(gate.row_wise.weight)[:, 0], numbers(gate.row_wise.bias)
        seen = np.array([matrix[index // 4] @ filters[index] + biases[index] for index in range(len(filters))])
        return sigmoid(linear(gate.mix, relu(seen) if rectify else seen))

    _, height, width = image.shape
    by_channel = gate(rows(reduced(layer.reduce_channels)), layer.channel_gate, rectify=False)
    raster = np.stack([cells(plane, layer.grid, layer.grid) for plane in reduced(layer.reduce_places)])
    by_place = gate(raster.reshape(len(raster), -1), layer.spatial_gate, rectify=True)
    by_place = cells(by_place.reshape(layer.grid, layer.grid), height, width)
    return Pooled(rows(np.maximum(image * by_channel[:, None, None], relu(image) * by_place)).mean(0))


def otp(image, layer):
    """Sinkhorn's iteration: scale rows and columns of exp(-epsilon c) in turn, columns (tokens) last."""

    def clipped(vector):
        return vector / max(1.0, np.linalg.norm(vector))

    tokens, prototypes = linear(layer.embed, rows(image)), numbers(layer.prototypes)
    cost = np.array([[np.linalg.norm(clipped(w) - clipped(token)) for token in tokens] for w in prototypes])
    plan = np.exp(-layer.epsilon * cost)
    plan /= plan.sum(0) * len(tokens)
    for _ in range(layer.iterations):
        plan /= plan.sum(1)[:, None] * len(prototypes)
        plan /= plan.sum(0) * len(tokens)
    blocks = [weighted(row, tokens) for row in plan]
    return Pooled(math.sqrt(len(prototypes)) * np.concatenate(blocks), attributes=plan.sum(1))


def vlad(image, layer):
    tokens, prototypes = linear(layer.embed, rows(image)), numbers(layer.prototypes)
    assignments = [softmax(linear(layer.assign, token)) for token in tokens]
    residuals = [
        weighted([assignment[i] for assignment in assignments], tokens - prototype)
        for i, prototype in enumerate(prototypes)
    ]
    unit = [residual / np.linalg.norm(residual) for residual in residuals]
    return Pooled(np.concatenate(unit), attributes=sum(assignments) / len(tokens))


def solar(image, layer):
    tokens = rows(image)
    queries, keys = (
        relu(frozen_batch_norm(linear(mapping, tokens).T, norm)).T
        for mapping, norm in ((layer.query, layer.query_norm), (layer.key, layer.key_norm))
    )
    found = np.stack([attend(query, keys, linear(layer.value, tokens))[0] for query in queries])
    return Pooled(power_mean(tokens + linear(layer.output, found), layer.mean.p.item()))


def tsmk(image, layer):
    """Place by place: mean of |f_j| (A s_j + b), s the average of the places around j."""
    (_, height, width), reach = image.shape, layer.kernel_size // 2
    lengths, terms = [], []
    for row in range(height):
        for column in range(width):
            around = image[:, max(0, row - reach) : row + reach + 1, max(0, column - reach) : column + reach + 1]
            smoothed = rows(around).mean(0)
            lengths.append(np.linalg.norm(image[:, row, column]))
            terms.append(smoothed if layer.embed is None else linear(layer.embed, smoothed))
    return Pooled(weighted(lengths, terms) / len(lengths), np.array(lengths) / sum(lengths))


def tfm(image, layer):
    sequence = rows(image)
    if layer.position == "sinusoidal":
        sequence = sequence + positions(*image.shape[1:], len(image))
    sequence = [numbers(layer.class_token)[0, 0], *sequence]
    for block in layer.encoder:
        attention, dim = block.self_attn, len(image)
        normed = np.stack([layer_norm(vector, block.norm1) for vector in sequence])
        stacked = normed @ numbers(attention.in_proj_weight).T + numbers(attention.in_proj_bias)
        queries, keys, values = np.split(stacked, [dim, 2 * dim], axis=1)
        for index, query in enumerate(queries):
            found = attend(query, keys, values, attention.num_heads)[0]
            vector = sequence[index] + linear(attention.out_proj, found)
            hidden = gelu(linear(block.linear1, layer_norm(vector, block.norm2)))
            sequence[index] = vector + linear(block.linear2, hidden)
    return Pooled(layer_norm(sequence[0], layer.norm))


def positions(height, width, dim):
    """Sines and cosines of the row, then of the column, at dim / 4 frequencies from 1 down to 1 / 10,000."""
    frequencies = [10_000.0 ** (-k / (dim // 4 - 1)) for k in range(dim // 4)]
    codes = []
    for row in range(height):
        for column in range(width):
            angles = [[coordinate * frequency for frequency in frequencies] for coordinate in (row, column)]
            codes.append(np.concatenate([wave(one) for one in angles for wave in (np.sin, np.cos)]))
    return np.array(codes)


def gsp(image, layer):
    """The bisection of oracle.py, for every group by itself."""
    tokens = rows(image)
    keys = tokens if layer.key is None else linear(layer.key, tokens)
    mu, epsilon = (torch.as_tensor(value, dtype=torch.float64).item() for value in (layer.mu, layer.epsilon))
    pooled, weights, attributes = [], [], []
    groups = np.split(numbers(layer.prototypes), layer.groups), np.split(tokens, layer.groups, axis=1)
    for prototypes, part in zip(*groups, strict=True):
        solved = oracle.pooled(torch.from_numpy(keys.copy()), torch.from_numpy(prototypes), mu, epsilon)
        front = numbers(solved[1])
        weights.append((1 / len(tokens) - mu * front) / (1 - mu) if layer.role == "background" else front)
        pooled.append(weighted(weights[-1], part))
        attributes.append(numbers(solved[2]) / layer.groups)
    return Pooled(np.concatenate(pooled), sum(weights) / layer.groups, np.concatenate(attributes))


def gmp_gsp(image, layer):
    maximum = gmp(image, layer).pooled
    if layer.embed is not None:
        image, maximum = linear(layer.embed, rows(image)).T, linear(layer.embed, maximum)
    selected = gsp(image, layer.gsp)
    return selected._replace(pooled=selected.pooled + maximum)


def gemean_gsp(image, layer):
    selected = gsp(image if layer.embed is None else linear(layer.embed, rows(image)).T, layer.gsp)
    mean = power_mean(len(selected.weights) * selected.weights[:, None] * rows(image), layer.p.item())
    return selected._replace(pooled=mean if layer.embed is None else linear(layer.embed, mean))


def latent_attention(image, layer):
    """timm's AttentionPoolLatent, which `attention` and `map` share."""
    module = layer.timm
    keys, values = np.split(linear(module.kv, rows(image)), 2, axis=1)
    query = linear(module.q, numbers(module.latent)[0, 0])
    hidden = linear(module.proj, attend(query, keys, values, module.num_heads)[0])
    normed = hidden if isinstance(module.norm, torch.nn.Identity) else layer_norm(hidden, module.norm)
    return Pooled(hidden + linear(module.mlp.fc2, gelu(linear(module.mlp.fc1, normed))))


def simpool(image, layer):
    tokens = rows(image)
    values = np.stack([layer_norm(token, layer.timm.norm) for token in tokens])
    return Pooled(attend(linear(layer.timm.q, tokens.mean(0)), linear(layer.timm.k, values), values)[0])


def clip(image, layer):
    module, tokens = layer.timm, rows(image)
    sequence = np.stack([tokens.mean(0), *tokens]) + numbers(module.pos_embed)
    queries, keys, values = np.split(linear(module.qkv, sequence), 3, axis=1)
    return Pooled(linear(module.proj, attend(queries[0], keys, values, module.num_heads)[0]))


def ep(image, layer):
    tokens = rows(image)
    values = np.split(linear(layer.embed, tokens), len(layer.queries), axis=1)
    attention = [
        softmax([query @ token / math.sqrt(layer.dim) for token in tokens]) for query in numbers(layer.queries)
    ]
    parts = [weighted(share, value) for share, value in zip(attention, values, strict=True)]
    return Pooled(np.concatenate(parts), sum(attention) / len(attention))


def abmilp(image, layer):
    tokens = rows(image)
    hidden = np.tanh(linear(layer.features, tokens))
    if layer.gate is not None:
        hidden = hidden * sigmoid(linear(layer.gate, tokens))
    weights = softmax(linear(layer.score, hidden)[:, 0])
    return Pooled(weighted(weights, tokens), weights)


def aim(image, layer):
    tokens = frozen_batch_norm(rows(image).T, layer.norm).T
    keys, values = linear(layer.key, tokens), linear(layer.value, tokens)
    vectors, weights = [], []
    for query in numbers(layer.queries):
        vector, attention = attend(query, keys, values, layer.num_heads)
        if layer.block is not None:
            hidden = query + linear(layer.block.project, vector)
            first, _, second = layer.block.mlp
            vector = hidden + linear(second, gelu(linear(first, layer_norm(hidden, layer.block.norm))))
        vectors.append(vector)
        weights.append(attention)
    return Pooled(sum(vectors) / len(vectors), sum(weights) / len(weights))


def reference(name):
    """Find the formula of a layer: the function of its name, with _ for +."""
    return latent_attention if name in ("attention", "map") else globals()[name.replace("+", "_")]
