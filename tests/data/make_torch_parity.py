#!/usr/bin/env python3
"""Makes torch_parity.json: what PyTorch's loss is at each of the first SGD-momentum steps of `mlp` and `cnn`.

    python3 tests/data/make_torch_parity.py            # needs numpy and torch (CPU), takes seconds

tests/nn/torch_parity_test.cpp trains the same models on the same batches and compares the losses; it needs
no Python. Neither weights nor images are stored: both sides draw them from the same counter-based generator
(core/base/philox.h, repeated below in numpy), and the file holds the CRC-32 of their bytes, which the test
checks first. So both sides start from the same weights, bit for bit.

  weights  tensor k of the state_dict, element i: (2 u - 1) / sqrt(fan_in), u = Philox(seed, initialise, k)
           .uniform(i); a bias has the fan_in of its layer. Everything up to the product is exact in f32.
  classes  sample n: class = Philox(seed, synthetic, 0).below(n, 10). Its label is the class, but every fourth
           sample is labelled below(n, 10) of Philox(seed, synthetic, 1), so that the loss stays away from 0.
  images   sample n, pixel p: a pattern of 7x7 cells, one per class, under noise: bit 0 of word (cell) of
           Philox(seed, synthetic, 2, class) ? 64 : 0, plus the top 7 bits of word p of
           Philox(seed, synthetic, 3, n). The network reads (image / 255 - 0.5) * 4.

Batch t is samples [t * batch, (t + 1) * batch). The losses are means over the batch before the update. They
are computed in float64 too: the difference says how much of the tolerance rounding alone uses up.
"""
import argparse
import json
import math
import pathlib
import zlib

import numpy as np
import torch
from torch import nn

SEED = 20260
STEPS = 20
BATCH = 32
LEARNING_RATE = 0.05
MOMENTUM = 0.9
INITIALISE, SYNTHETIC = 1, 5  # annulus::RandomPurpose

LOW = np.uint64(0xFFFFFFFF)


def philox4x32_10(counter, key0, key1):
    """counter: four uint64 arrays holding 32-bit words. Returns the four output words the same way."""
    c0, c1, c2, c3 = counter
    for _ in range(10):
        product0 = np.uint64(0xD2511F53) * c0
        product1 = np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = ((product1 >> np.uint64(32)) ^ c1 ^ np.uint64(key0), product1 & LOW,
                          (product0 >> np.uint64(32)) ^ c3 ^ np.uint64(key1), product0 & LOW)
        key0 = (key0 + 0x9E3779B9) & 0xFFFFFFFF
        key1 = (key1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def words(count, purpose, a=0, b=0):
    """Words 0 .. count-1 of annulus::Philox(SEED, purpose, a, b), as uint64."""
    scalar = lambda value: np.array([value], dtype=np.uint64)
    key = philox4x32_10((scalar(purpose), scalar(a >> 32), scalar(b >> 32), scalar(0)), SEED & 0xFFFFFFFF, SEED >> 32)
    block = np.arange((count + 3) // 4, dtype=np.uint64)
    constant = lambda value: np.full_like(block, value & 0xFFFFFFFF)
    out = philox4x32_10((block & LOW, block >> np.uint64(32), constant(a), constant(b)), int(key[0][0]), int(key[1][0]))
    return np.stack(out, axis=1).reshape(-1)[:count]


def samples(count):
    below_10 = lambda a: ((words(count, SYNTHETIC, a) * np.uint64(10)) >> np.uint64(32)).astype(np.int32)
    classes = below_10(0)
    labels = np.where(np.arange(count) % 4 == 3, below_10(1), classes)
    cell = (np.arange(28)[:, None] // 4) * 7 + np.arange(28)[None, :] // 4
    patterns = np.stack([(words(49, SYNTHETIC, 2, c) & np.uint64(1)) * np.uint64(64) for c in range(10)])
    images = np.empty((count, 28, 28), dtype=np.uint8)
    for n in range(count):
        noise = (words(784, SYNTHETIC, 3, n) >> np.uint64(25)).reshape(28, 28)
        images[n] = patterns[classes[n]][cell] + noise
    return images, labels


def make_model(name):
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
                             nn.Linear(256, 10))
    return nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                         nn.Flatten(), nn.Linear(3136, 128), nn.ReLU(), nn.Linear(128, 10))


def set_weights(model):
    """Fills the model; returns the CRC-32 of all tensors, one after the other in state_dict order."""
    crc = 0
    fan_in = 0
    with torch.no_grad():
        for k, (name, tensor) in enumerate(model.state_dict().items()):
            if name.endswith("weight"):
                fan_in = tensor[0].numel()
            uniform = (words(tensor.numel(), INITIALISE, k) >> np.uint64(8)).astype(np.float32) / np.float32(1 << 24)
            values = (np.float32(2) * uniform - np.float32(1)) * np.float32(1 / math.sqrt(fan_in))
            crc = zlib.crc32(values.tobytes(), crc)
            tensor.copy_(torch.from_numpy(values.reshape(tensor.shape)))
    return crc


def train(name, images, labels, dtype):
    model = make_model(name)
    weights_crc32 = set_weights(model)
    model.to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    inputs = (torch.from_numpy(images).to(dtype) / 255 - 0.5) * 4
    losses = []
    for step in range(STEPS):
        batch = slice(step * BATCH, (step + 1) * BATCH)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[batch].unsqueeze(1)), torch.from_numpy(labels[batch]).long())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return weights_crc32, losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path(__file__).with_name("torch_parity.json"))
    output = parser.parse_args().output
    torch.set_num_threads(1)
    images, labels = samples(STEPS * BATCH)
    result = {
        "made_by": f"tests/data/make_torch_parity.py, PyTorch {torch.__version__.split('+')[0]} on CPU",
        "seed": SEED, "steps": STEPS, "batch": BATCH, "learning_rate": LEARNING_RATE, "momentum": MOMENTUM,
        "images_crc32": zlib.crc32(images.tobytes()), "labels_crc32": zlib.crc32(labels.tobytes()),
        "models": {},
    }
    for name in ("mlp", "cnn"):
        weights_crc32, losses = train(name, images, labels, torch.float32)
        _, losses_f64 = train(name, images, labels, torch.float64)
        result["models"][name] = {"weights_crc32": weights_crc32, "losses": losses, "losses_f64": losses_f64}
        error = max(abs(a - b) / b for a, b in zip(losses, losses_f64))
        print(f"{name}: loss {losses[0]:.6f} -> {losses[-1]:.6f}, float32 differs from float64 by at most {error:.1e}")
    output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {output}")


if __name__ == "__main__":
    main()
